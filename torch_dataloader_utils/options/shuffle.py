"""The options that define the order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.values import Checked, maybe, num_bytes, option, values, whole

_shuffle = values("False, True, 'splits' or 'all'", lambda value: isinstance(value, bool) or value in ("splits", "all"))


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions(Checked):
    """In which order."""

    shuffle: bool | Literal["splits", "all"] = option(
        False,
        _shuffle,
        doc='True shuffles rows, "splits" the order of splits only, "all" rows of all splits at once',
    )
    shuffle_seed: int = option(42, whole(), doc="the seed of all orders; the same on every rank")
    shuffle_bytes: int | str = option(
        "128MiB", num_bytes, doc="the decoded size of the windows that rows are shuffled in, per rank"
    )
    shuffle_buffer_size: int | None = option(
        None, maybe(whole(1)), doc="rows per window, instead of shuffle_bytes; works without shuffle, too"
    )
    shuffle_open_splits: int | None = option(
        None, maybe(whole(1)), doc="how many splits a window draws from; None: those that fit shuffle_bytes, or 4"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle == "splits" and (self.shuffle_buffer_size or self.shuffle_open_splits):
            raise OptionError(
                "shuffle='splits' keeps the rows of a split in order, so it has no windows.",
                remedies=[
                    use("shuffles rows in windows", shuffle=True),
                    leave_out(
                        *(name for name in ("shuffle_buffer_size", "shuffle_open_splits") if getattr(self, name))
                    ),
                ],
            )
        if self.shuffle == "all" and self.shuffle_open_splits:
            raise OptionError(
                f"shuffle_open_splits={self.shuffle_open_splits} with shuffle='all', which opens every split.",
                remedies=[use("opens fewer", shuffle=True), leave_out("shuffle_open_splits")],
            )
        if self.shuffle_open_splits and not self.shuffle and not self.shuffle_buffer_size:
            raise OptionError(
                f"shuffle_open_splits={self.shuffle_open_splits} with shuffle=False: nothing is shuffled.",
                remedies=[use(shuffle=True), leave_out("shuffle_open_splits")],
            )

    @property
    def split_bytes(self) -> int:
        """The default of the option `split_bytes`: smaller under a shuffle, so that a file is cut into many splits."""
        return (8 if self.shuffle else 128) * 2**20

    @property
    def window_bytes(self) -> int | None:
        """Decoded bytes of a rank's shuffle windows; None if they are sized by rows, or if rows are not shuffled."""
        by_bytes = self.shuffle in (True, "all") and self.shuffle_buffer_size is None
        return int(self.shuffle_bytes) if by_bytes else None
