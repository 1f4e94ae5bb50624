"""`shuffle=`: the order of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, Value, maybe, num_bytes, one_of, option, setting, whole

WINDOW_BYTES = 128 * 2**20
SCOPES = ("rows", "all", "splits", "nearby", "partition")


class Shuffle(Value):
    """Another order of rows in each epoch.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    scope: Literal["rows", "all", "splits", "nearby", "partition"] = setting(
        default="rows",
        check=one_of(*SCOPES),
        doc='what is shuffled: splits, and rows in windows; rows of "all" splits at once; "splits" only; rows'
        ' "nearby" in windows, of splits in file order; or splits and rows of each "partition", one after another',
        kw_only=False,
    )
    window_bytes: int | str = setting(
        default="128MiB", check=num_bytes, doc="the decoded size of the windows that rows are shuffled in, per rank"
    )
    window_rows: int | None = setting(default=None, check=maybe(whole(1)), doc="rows per window, instead of bytes")
    open_splits: int | None = setting(
        default=None,
        check=maybe(whole(1)),
        doc="how many splits a window draws from; None: those that fit window_bytes, or 4",
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        by_bytes = self.window_bytes != WINDOW_BYTES
        if by_bytes and self.window_rows is not None:
            raise OptionError(
                f"Shuffle: window_bytes={self.window_bytes} with window_rows={self.window_rows}: each is the size of "
                "a window.",
                remedies=[
                    use(shuffle=self.replace(window_rows=None)),
                    use(shuffle=self.replace(window_bytes=WINDOW_BYTES)),
                ],
            )
        if self.scope == "splits" and (by_bytes or self.window_rows or self.open_splits):
            raise OptionError(
                f"{self!r}: scope='splits' keeps the rows of a split in order, so it has no windows.",
                remedies=[
                    use("shuffles rows in windows", shuffle=self.replace(scope="rows")),
                    use(shuffle="splits"),
                ],
            )
        if self.scope == "all" and self.open_splits:
            raise OptionError(
                f"Shuffle: open_splits={self.open_splits} with scope='all', which opens every split.",
                remedies=[
                    use("opens fewer", shuffle=self.replace(scope="rows")),
                    use(shuffle=self.replace(open_splits=None)),
                ],
            )


ShuffleLike: TypeAlias = bool | Literal["rows", "all", "splits", "nearby", "partition"] | Shuffle | Mapping[str, Any]


def _shuffle(name: str, given: Any) -> Shuffle | Literal[False]:
    if isinstance(given, bool):
        return Shuffle() if given else False
    if isinstance(given, (Shuffle, Mapping)) or (isinstance(given, str) and given in SCOPES):
        return Shuffle.of(given)
    words = ", ".join(map(repr, SCOPES))
    raise OptionError(f"{name}={shown(given)}: expected False, True, {words} or Shuffle(...).")


def shuffle_of(held: Shuffle | Literal[False]) -> Any:
    """A `shuffle` as it can be given: in a word if that says all."""
    if not held or held.given().keys() - {"scope"}:
        return held
    return True if held.scope == "rows" else held.scope


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions(Checked):
    """In which order."""

    shuffle: Shuffle | Literal[False] = option(
        False,
        _shuffle,
        given="ShuffleLike",
        doc='True: rows in windows; "splits"; "all": all rows; "partition": by partition; or Shuffle(...)',
    )
    shuffle_seed: int = option(42, whole(), doc="the seed of all orders; the same on every rank")
    shuffle_buffer_size: int | None = option(
        None, maybe(whole(1)), doc="rows per window; without shuffle, rows mix with their neighbours only"
    )

    @property
    def settled(self) -> ShuffleOptions:
        """The same with the rows of a window in `shuffle` alone."""
        if self.shuffle_buffer_size is None:
            return self
        scope = self.shuffle.scope if self.shuffle else "nearby"
        shuffle = Shuffle(scope, window_rows=self.shuffle_buffer_size)
        return replace(self, shuffle=shuffle, shuffle_buffer_size=None)

    @property
    def says_more(self) -> bool:
        """Whether `shuffle` says more than its scope."""
        return bool(self.shuffle and self.shuffle.given().keys() - {"scope"})

    @property
    def permutes(self) -> str:
        """What has another order in each epoch, beyond neighbouring rows: a scope; "" for nothing."""
        return self.shuffle.scope if self.shuffle and self.shuffle.scope != "nearby" else ""

    @property
    def by_partition(self) -> bool:
        """Whether partitions are read one after another."""
        return self.permutes == "partition"

    @property
    def split_bytes(self) -> int:
        """The default of the option `split_bytes`: smaller under a shuffle, so that a file is cut into many splits."""
        return (8 if self.permutes else 128) * 2**20

    @property
    def window_rows(self) -> int | None:
        """Rows of a window; None if windows are sized by bytes, or if rows are not shuffled."""
        return self.shuffle.window_rows if self.shuffle else None

    @property
    def window_bytes(self) -> int | None:
        """Decoded bytes of a rank's shuffle windows; None if they are sized by rows, or if rows are not shuffled."""
        by_bytes = self.shuffle and self.shuffle.scope != "splits" and self.shuffle.window_rows is None
        return int(self.shuffle.window_bytes) if self.shuffle and by_bytes else None

    @property
    def open_splits(self) -> int | str | None:
        """The number of splits that a window draws from, or "all"; None for the default."""
        if not self.shuffle:
            return None
        return "all" if self.shuffle.scope == "all" else self.shuffle.open_splits
