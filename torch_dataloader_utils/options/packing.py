"""`pack=`: documents packed into sequences of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.options.sources import FILE, POSITION
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, Value, a, flag, maybe, names, one_of, option, setting, whole, word

_MOST_TOKENS = 2**27  # of a sequence

# What packing adds to batches: where documents begin and end in their sequences.
POSITIONS, DOCUMENTS, ENDS, LONGEST = KEYS = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen")
# The keys under which models of transformers take the same; they take no others.
_HF = {
    POSITIONS: (POSITIONS,),
    DOCUMENTS: (),
    ENDS: ("cu_seq_lens_q", "cu_seq_lens_k"),
    LONGEST: ("max_length_q", "max_length_k"),
}
# What names documents in batches: columns that name rows -> the keys of those of all documents, one after another.
OF_DOCUMENTS = {FILE: "document_file", POSITION: "document_pos"}
NAMED = {name: f"\0{name}" for name in OF_DOCUMENTS}  # the same of tokens, within a block; no column has such a name
LABELS = "labels"
IGNORED = -100  # a label that the losses of torch and transformers leave out
SIDES = ("chosen_", "rejected_")  # how the keys of the sides of a pair begin


def _padding(name: str, value: Any) -> Any:
    """A number, or a dict of them; whether they fit their columns is known later."""
    numbers = list(value.values()) if isinstance(value, Mapping) else [value]
    words = list(value) if isinstance(value, Mapping) else []
    if not all(isinstance(item, (int, float)) for item in numbers) or not all(isinstance(word, str) for word in words):
        raise OptionError(f"{name}={shown(value)}: expected a number, or a dict of column -> number.")
    return value


class Pack(Value):
    """Packs documents of tokens into sequences of one length; `batch_size` then counts sequences.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    length: int = setting(check=whole(1, _MOST_TOKENS), doc="the tokens of a sequence (L)", kw_only=False)
    columns: Sequence[str] | None = setting(
        default=None,
        check=maybe(names),
        doc="the lists to pack, one value per token; others are left out of batches; None: all columns of a batch",
    )
    method: Literal["best_fit", "wrap"] = setting(
        default="best_fit",
        check=one_of("best_fit", "wrap"),
        doc='"best_fit": whole documents, in the fullest sequence with room; "wrap": cut one stream of them',
    )
    long: Literal["split", "truncate", "drop", "error"] = setting(
        default="split",
        check=one_of("split", "truncate", "drop", "error"),
        doc="documents longer than L: cut into several, keep the beginning, leave out, or raise",
    )
    pad: float | Mapping[str, float] = setting(
        default=0,
        check=_padding,
        doc='the fill value of sequences: a number, or a dict by column; default 0, and -100 for "labels"',
    )
    labels: str | None = setting(
        default=None, check=maybe(word), doc='the column of tokens to copy as "labels", if no column has that name'
    )
    keys: Literal["hf"] | None = setting(
        default=None,
        check=maybe(one_of("hf")),
        doc='"hf": only the keys that models of transformers take',
    )
    together: bool = setting(
        default=False, check=flag, doc="packs pairs: the columns chosen_* and rejected_*, side by side"
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        whys = {
            "long": "it cuts documents wherever a sequence ends",
            "pad": "no sequence is padded",
            "together": "it would cut the sides of a pair at different places",
        }
        for name, why in whys.items() if self.method == "wrap" else ():
            if name in self.given():
                raise OptionError(
                    f"Pack: {name}={shown(getattr(self, name))} with method='wrap': {why}.",
                    remedies=[
                        use(pack=self.replace(method="best_fit")),
                        use(pack=self.replace(long="split", pad=0, together=False)),
                    ],
                )

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the keys of each side begin: of pairs, or of documents, which have one."""
        return SIDES if self.together else ("",)

    @property
    def added(self) -> Mapping[str, tuple[str, ...]]:
        """What packing adds -> the keys under which a side has it in batches."""
        return {key: (key,) for key in KEYS} if self.keys is None else _HF

    @property
    def pads(self) -> Mapping[str, float]:
        """What fills up the sequences of some columns."""
        return self.pad if isinstance(self.pad, Mapping) else {}

    def pad_of(self, key: str) -> float:
        """What fills up the sequences of a column; labels have it also at the first token of each document."""
        if key in self.pads:
            return self.pads[key]
        if key in [prefix + LABELS for prefix in self.prefixes]:
            return IGNORED
        return 0 if isinstance(self.pad, Mapping) else self.pad


PackLike: TypeAlias = int | Pack | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PackOptions(Checked):
    """Documents packed into sequences of one length."""

    pack: Pack | None = option(
        None,
        maybe(a(Pack)),
        given="PackLike | None",
        doc="packs documents into sequences of this many tokens, or Pack(...); batches are [B, L] tensors",
    )

    # Whether tokens are cut into sequences without a count of them, as they are read; set where datasets are opened.
    uncounted: bool = option(False, keyword=False)

    # The fewest documents and sequences of a window: packed by themselves, fewer would leave sequences unfilled.
    documents: ClassVar[int] = 4096
    sequences: ClassVar[int] = 512

    @property
    def wraps(self) -> bool:
        """Whether documents follow one another and are cut where a sequence ends, so that tokens are counted."""
        return self.pack is not None and self.pack.method == "wrap"

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of batches, if others are left out of them."""
        return None if self.pack is None or self.pack.columns is None else tuple(self.pack.columns)

    @property
    def text(self) -> str:
        """What is packed, and how, as a short text that distinguishes it; "" if nothing is."""
        pack = self.pack
        if pack is None:
            return ""
        long = "" if pack.long == "split" else f", longer documents: {pack.long}"
        pairs = ", pairs together" if pack.together else ""
        return f"{', '.join(self.columns or ['all columns'])} into {pack.length} tokens by {pack.method}{long}{pairs}"
