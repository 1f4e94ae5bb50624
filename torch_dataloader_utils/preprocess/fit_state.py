"""Where that is from which an update goes on: in memory, in files, or nowhere. Needs no pyarrow until it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess.counted import Counted


class StateParts(NamedTuple):
    """What was counted, as it is saved.

    Attributes:
        plain: what the JSON holds of each output.
        data: of the file beside it; None if it would hold nothing.
        absent: why there is nothing; "" if there is.
    """

    plain: Sequence[Mapping[str, Any] | None]
    data: bytes | None = None
    absent: str = ""


class FitState:
    """What was counted, of all outputs of a fit.

    Args:
        counted: of each output; None for one that counts nothing, or of which an update could learn nothing.
    """

    def __init__(self, counted: Sequence[Counted | None] = ()) -> None:
        self._counted = tuple(counted)

    def read(self, *, whole: bool = True) -> tuple[Counted | None, ...]:
        """What was counted.

        Args:
            whole: with all values and numbers, not only what they are; where that takes reading.

        Raises:
            OptionError: it was not kept.
            SavedPreprocessError: it was saved, but the file is missing or damaged.
        """
        return self._counted

    def parts(self) -> StateParts:
        """The same as it is saved."""
        from torch_dataloader_utils.preprocess.state_file import saved_counted

        if not all(each is None or each.is_whole for each in self._counted):
            return StateParts([], absent=ELSEWHERE)
        return StateParts(*saved_counted(self._counted))


LEFT_OUT, ELSEWHERE, EARLIER = "state=False", "another rank", "earlier version"
ABSENT = {
    LEFT_OUT: "it was saved with state=False",
    ELSEWHERE: "the rank that saved it had a part of it; the first rank of the fit saves all",
    EARLIER: "the version of torch-dataloader-utils that saved it kept none of it",
}


class NoFitState(FitState):
    """Nothing was kept.

    Args:
        absent: why: one of `ABSENT`.
    """

    def __init__(self, absent: str) -> None:
        super().__init__()
        self._why, self._absent = ABSENT[absent], absent

    def read(self, *, whole: bool = True) -> tuple[Counted | None, ...]:
        """See `FitState`."""
        raise OptionError(
            "fit(update=...): this Preprocess does not hold what was counted when it was fitted, as "
            f"{self._why}. Load one that does, or fit all rows anew, which may move ids."
        )

    def parts(self) -> StateParts:
        """See `FitState`."""
        return StateParts([], absent=self._absent)
