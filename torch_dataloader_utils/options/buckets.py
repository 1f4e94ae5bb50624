"""`batch_tokens=`: batches with a budget of tokens, of rows of similar length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from torch_dataloader_utils.values import Checked, Value, a, maybe, one_of, option, setting, whole, word

_MOST_TOKENS = 2**31  # of a batch


class Buckets(Value):
    """Cuts batches by a budget of tokens, from rows of similar length; `batch_size` is then the most rows of a batch.

    Raises:
        OptionError: a field cannot have this value.
    """

    tokens: int = setting(
        check=whole(1, _MOST_TOKENS), doc="the maximum number of tokens in a batch: rows * longest row", kw_only=False
    )
    by: str | None = setting(
        default=None,
        check=maybe(word),
        doc="the column that gives the length of rows: lists, strings or whole numbers; None: the only column of lists",
    )
    long: Literal["error", "single", "drop"] = setting(
        default="error",
        check=one_of("error", "single", "drop"),
        doc="rows with more tokens: raise, deliver each in a separate batch, or leave out",
    )


BucketsLike: TypeAlias = int | Buckets | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BucketOptions(Checked):
    """Batches of rows of similar length, with a budget of tokens."""

    batch_tokens: Buckets | None = option(
        None,
        maybe(a(Buckets)),
        given="BucketsLike | None",
        doc="the maximum of rows * longest row in a batch, or Buckets(...); batch_size limits the rows",
    )

    # The fewest rows and batches of a window: among fewer, rows of similar length are rare.
    rows: ClassVar[int] = 4096
    batches: ClassVar[int] = 64

    def text(self, batch_size: int, multiple: int) -> str:
        """How batches are cut, as a short text that distinguishes it; "" if they all have `batch_size` rows.

        Args:
            batch_size: the most rows of a batch.
            multiple: of which the length of a batch is one.
        """
        bucket = self.batch_tokens
        if bucket is None:
            return ""
        column = "the only lists" if bucket.by is None else bucket.by
        padded = "" if multiple == 1 else f", padded to multiples of {multiple}"
        long = "" if bucket.long == "error" else f", longer rows: {bucket.long}"
        return f"up to {bucket.tokens} tokens and {batch_size} rows by length of {column}{padded}{long}"

    @property
    def window_bytes(self) -> int:
        """The fewest decoded bytes of a window: its batches, of tokens of 4 bytes."""
        return 0 if self.batch_tokens is None else 4 * self.batches * self.batch_tokens.tokens
