"""The options that cut batches by a budget of tokens, from rows of similar length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_dataloader_utils.checks import Checked, maybe, one_of, option, whole, word
from torch_dataloader_utils.errors import OptionError, leave_out, use

_MOST_TOKENS = 2**31  # of a batch


@dataclass(frozen=True, kw_only=True)
class BucketOptions(Checked):
    """Batches of rows of similar length, with a budget of tokens."""

    batch_tokens: int | None = option(
        None,
        maybe(whole(1, _MOST_TOKENS)),
        doc="the most tokens of a batch, rows * longest row; batch_size is then the most rows",
    )
    length_column: str | None = option(
        None, maybe(word), doc="the lists, strings or whole numbers that say how long rows are; None: the only lists"
    )
    long_rows: str = option(
        "error",
        one_of("error", "single", "drop"),
        doc="rows longer than batch_tokens: raise, deliver each as a batch of its own, or leave out",
    )

    # The fewest rows and batches of a window: among fewer, rows of similar length are rare.
    rows: ClassVar[int] = 4096
    batches: ClassVar[int] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"length_column": self.length_column is not None, "long_rows": self.long_rows != "error"}
        for name in (name for name, found in given.items() if found and self.batch_tokens is None):
            raise OptionError(
                f"{name}={getattr(self, name)!r} was given without batch_tokens, the tokens of a batch.",
                remedies=[leave_out(*(name for name, found in given.items() if found)), use(batch_tokens=16384)],
            )

    def text(self, batch_size: int, multiple: int) -> str:
        """How batches are cut, as a short text that distinguishes it; "" if they all have `batch_size` rows.

        Args:
            batch_size: the most rows of a batch.
            multiple: of which the length of a batch is one.
        """
        if self.batch_tokens is None:
            return ""
        column = "the only lists" if self.length_column is None else self.length_column
        padded = "" if multiple == 1 else f", padded to multiples of {multiple}"
        long = "" if self.long_rows == "error" else f", longer rows: {self.long_rows}"
        return f"up to {self.batch_tokens} tokens and {batch_size} rows by length of {column}{padded}{long}"

    @property
    def window_bytes(self) -> int:
        """The fewest decoded bytes of a window: its batches, of tokens of 4 bytes."""
        return 4 * self.batches * (self.batch_tokens or 0)
