"""The options that pack documents into sequences of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from torch_dataloader_utils.errors import Example, OptionError, leave_out, use
from torch_dataloader_utils.values import Checked, maybe, names, one_of, option, whole

_MOST_TOKENS = 2**27  # of a sequence


@dataclass(frozen=True, kw_only=True)
class PackOptions(Checked):
    """Documents packed into sequences of one length."""

    pack: Sequence[str] | None = option(
        None, maybe(names), doc="the columns of token lists to pack into [B, L] tensors; batches hold no others"
    )
    pack_length: int | None = option(None, maybe(whole(1, _MOST_TOKENS)), doc="tokens of a sequence (L)")
    pack_method: str = option(
        "best_fit",
        one_of("best_fit", "wrap"),
        doc='"best_fit": whole documents, in the fullest sequence with room; "wrap": cut one stream of them',
    )
    pack_long: str = option(
        "split",
        one_of("split", "truncate", "drop", "error"),
        doc="documents longer than L: cut them into several, keep the beginning, leave out, or raise",
    )

    # The fewest documents and sequences of a window: packed by themselves, fewer would leave sequences unfilled.
    documents: ClassVar[int] = 4096
    sequences: ClassVar[int] = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pack is None:
            for item in fields(self):
                if getattr(self, item.name) != item.default:
                    raise OptionError(
                        f"{item.name} was given without pack, the columns to pack.",
                        remedies=[use(pack=Example("['input_ids']", ["ids"])), leave_out(item.name)],
                    )
            return
        if self.pack_length is None:
            raise OptionError(
                f"pack={self.pack} needs pack_length, the number of tokens of a sequence.",
                remedies=[use(pack_length=2048)],
            )
        if self.wraps and self.pack_long != "split":
            raise OptionError(
                f"pack_long={self.pack_long!r} with pack_method='wrap', which cuts documents wherever a sequence ends.",
                remedies=[leave_out("pack_long"), leave_out("pack_method")],
            )

    @property
    def wraps(self) -> bool:
        """Whether documents follow one another and are cut where a sequence ends, so that tokens are counted."""
        return self.pack is not None and self.pack_method == "wrap"

    @property
    def token_length(self) -> int:
        """How many rows of a plan a sequence has: L if they are tokens, else 1."""
        return self.pack_length or 1 if self.wraps else 1

    @property
    def text(self) -> str:
        """What is packed, and how, as a short text that distinguishes it; "" if nothing is."""
        if self.pack is None:
            return ""
        long = "" if self.pack_long == "split" else f", longer documents: {self.pack_long}"
        return f"{', '.join(self.pack)} into {self.pack_length} tokens by {self.pack_method}{long}"

    @property
    def window_bytes(self) -> int:
        """The fewest decoded bytes of a window, with a quarter of its sequences: larger reads of lists are slower."""
        return self.sequences * (self.pack_length or 0)
