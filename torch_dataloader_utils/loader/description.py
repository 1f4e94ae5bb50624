"""The result of `describe()`: what a dataset holds and delivers, as plain values that print as text or HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, TypeAlias

from torch_dataloader_utils.planning.advice import Advice
from torch_dataloader_utils.planning.windows import ShuffleWindow
from torch_dataloader_utils.printing import (
    Row,
    damage_in_words,
    html_table,
    in_bytes,
    listed,
    plural,
    shortened,
    text_table,
)
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_counts, skipped_names

_RANKS_SHOWN, _KEYS_SHOWN = 16, 40
_DEFAULT = "default: "  # before a source of ranks that is none
# Texts, each shown if there is something to say.
_SAID = ("snapshot", "follow", "replay", "subset", "weights", "transform", "mix", "cache", "sequences")


@dataclass(frozen=True, slots=True)
class BatchKey:
    """One key of a batch.

    Attributes:
        key: the key.
        dtype: the dtype of the tensor or array, or of a list's values; the Arrow type if the output is Arrow.
        shape: its shape, with B for the rows of a batch and * for a size that differs from batch to batch.
    """

    key: str
    dtype: str
    shape: str


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank gets in the epoch; a value is None if known only after reading.

    Attributes:
        rank: the global rank.
        rows: the number of its rows, without padding.
        steps: the number of its batches.
        padding: the number of rows that it repeats to fill batches or to equalise ranks.
    """

    rank: int
    rows: int | None
    steps: int | None
    padding: int | None


@dataclass(frozen=True, slots=True)
class Description:
    """What a dataset holds and delivers. Print it, show it in a notebook, or take its values.

    Attributes:
        dataset: the kind of dataset.
        files: the number of files read, without those that filters ruled out.
        snapshot: which snapshot or version of a table is read; "" if the data is no table, or has none.
        follow: which rows each pass reads of a table that it follows; "" if it does not.
        replay: which older rows are read beside the appended ones; "" if none are.
        skipped: damaged files that are left out.
        subset: which rows `subset`, `fraction` and `limit` choose, of each dataset of a combination; "" for all.
        weights: how many rows are drawn by their weights; "" if none are.
        mix: how much an epoch takes of each dataset, and how their rows or splits are mixed; "" for a single one.
        transform: what becomes of rows for which it fails, and whether it draws, of each dataset; "" for errors alone.
        cache: how much of later epochs a cache of this size holds; "" without one.
        buckets: how rows are cut into batches by length; "" if they are not.
        packing: which columns are packed, and how; "" if none are.
        sequences: of which runs of rows there are windows, which are counted as rows then; "" if there are none.
        uncounted: why no scan can count what an epoch delivers; "" if `count_rows` does.
        stored_bytes: the size of these files, as stored.
        decoded_bytes: the estimated size of all their columns, once decoded.
        decoder: what decodes the columns of Parquet files, by the first of them; "" for other formats.
        segments: the number of row groups, stripes or other smallest units of reading.
        segment_name: what the format calls such a unit.
        splits: the number of runs of segments; ranks and workers share them, and shuffling permutes them.
        rows: the number of rows; None if known only after reading.
        rows_unfiltered: the number of rows before filters and `transform`; None if the format does not record it.
        batch_rows: rows, or sequences, per batch of one rank (B).
        sequence_length: if above 1, rows are counted in tokens, so many of which are a sequence.
        batch_type: the type of a batch, in words.
        keys: the keys of a batch.
        object_columns: those of them that hold lists of Python objects, because their columns fit no tensor.
        epoch: the epoch that is described.
        rank: this process's rank.
        num_ranks: the number of ranks.
        ranks_from: where the ranks were found; if the loader was given none, they may change until its first use.
        sharding: the policy that shards rows over ranks.
        even: how ranks get equal steps.
        ranks: what each rank gets.
        not_delivered: the number of rows that no rank delivers in this epoch; None if known only after reading.
        worker_splits: for each worker of this rank, the number of splits from which it delivers rows.
        shuffle: what shuffling does, in a sentence.
        shuffle_window: a typical window in which rows are permuted; None if rows are not shuffled.
        batch_variance: an approximate upper bound of the variance of a batch's mean, relative to that of a random
            sample; None if rows are not shuffled.
        warnings: problems and their remedies.
    """

    dataset: str
    files: int
    snapshot: str
    follow: str
    replay: str
    skipped: tuple[SkippedFile, ...]
    subset: str
    transform: str
    weights: str
    mix: str
    cache: str
    packing: str
    sequences: str
    uncounted: str
    buckets: str
    stored_bytes: int
    decoded_bytes: int
    decoder: str
    segments: int
    segment_name: str
    splits: int
    rows: int | None
    rows_unfiltered: int | None
    batch_rows: int
    sequence_length: int
    batch_type: str
    keys: tuple[BatchKey, ...]
    object_columns: tuple[str, ...]
    epoch: int
    rank: int
    num_ranks: int
    ranks_from: str
    sharding: str
    even: str
    ranks: tuple[RankShare, ...]
    not_delivered: int | None
    worker_splits: tuple[int, ...]
    shuffle: str
    shuffle_window: ShuffleWindow | None
    batch_variance: float | None
    warnings: tuple[Advice, ...]

    @property
    def idle_ranks(self) -> tuple[int, ...]:
        """The ranks that are known to have no rows."""
        return tuple(share.rank for share in self.ranks if share.rows == 0)

    def to_dict(self) -> dict[str, Any]:
        """The whole description, including `idle_ranks`, as plain values that JSON can hold."""
        values = asdict(self, dict_factory=_plain)
        return {**values, "idle_ranks": list(self.idle_ranks)}

    def __repr__(self) -> str:
        return text_of(self.sections)

    def _repr_html_(self) -> str:
        return html_of(self.sections)

    @property
    def sections(self) -> list[Section]:
        """The description as sections, in the order in which they are shown."""
        ranks = plural(self.num_ranks, "rank")
        sections: list[Section] = [
            Facts(self.dataset, self._overview),
            FactTable(
                f"A batch: {self.batch_type}, B = {self.batch_in_words}",
                ("key", "dtype", "shape"),
                self._key_rows,
            ),
            FactTable(
                f"Epoch {self.epoch} on {ranks}: sharding={self.sharding!r}, even={self.even!r}",
                ("rank", self.units, "steps", "padding"),
                self._rank_rows,
            ),
            Facts("", self._notes),
            Sentences("Warnings", [_capitalised(str(advice)) for advice in self.warnings]),
        ]
        return [section for section in sections if section]

    @property
    def batch_in_words(self) -> str:
        """How large a batch is."""
        if self.sequence_length > 1:
            return f"{plural(self.batch_rows, 'sequence')} of {self.sequence_length:,} tokens"
        return self.buckets or plural(self.batch_rows, "sequence" if self.packing else self.units.removesuffix("s"))

    @property
    def units(self) -> str:
        """What is counted as rows."""
        if self.sequences:
            return "windows"
        return "rows" if self.sequence_length == 1 else "tokens"

    @property
    def _overview(self) -> list[tuple[str, str]]:
        stored = f"{in_bytes(self.stored_bytes)} stored, " if self.stored_bytes else ""
        return [
            ("files", f"{self.files:,} ({stored}about {in_bytes(self.decoded_bytes)} decoded)"),
            *((name, text) for name in _SAID if (text := getattr(self, name))),
            *([("left out", self._skipped_in_words)] if self.skipped else []),
            *([("packed", self.packing)] if self.packing else []),
            ("documents" if self.packing and self.units == "rows" else self.units, self._rows_in_words),
            (f"{self.segment_name}s", f"{self.segments:,}"),
            *([("decoder", self.decoder)] if self.decoder else []),
            ("splits", f"{self.splits:,}: runs of {self.segment_name}s, shared among ranks and workers"),
            ("shuffle", self.shuffle),
        ]

    @property
    def _skipped_in_words(self) -> str:
        return f"{damage_in_words(*skipped_counts(self.skipped))}: {skipped_names(self.skipped)}"

    @property
    def _rows_in_words(self) -> str:
        others = {
            "; sequences are counted as they are packed": self.packing,
            "; batches are counted as they are cut": self.buckets,
        }
        cut = "".join(text for text, given in others.items() if given and self.sequence_length == 1)
        if self.rows is not None:
            return f"{self.rows:,}{cut}"
        if cut:
            number = "an unknown number" if self.rows_unfiltered is None else f"{self.rows_unfiltered:,}"
            return f"{number} before filters and transform{cut}"
        before = "" if self.rows_unfiltered is None else f" ({self.rows_unfiltered:,} before filters and transform)"
        return f"known only after reading{before}; {self.uncounted or 'count_rows=True counts them'}"

    @property
    def _key_rows(self) -> list[Row]:
        rows: list[Row] = [(key.key, key.dtype, key.shape) for key in self.keys[:_KEYS_SHOWN]]
        left = len(self.keys) - len(rows)
        return [*rows, ("...", f"{left:,} more", "")] if left else rows

    @property
    def _rank_rows(self) -> list[Row]:
        shown = [*range(min(len(self.ranks), _RANKS_SHOWN))]
        rows = [self._rank_row(share) for share in self.ranks if share.rank in shown or share.rank == self.rank]
        left = [share for share in self.ranks if share.rank not in shown and share.rank != self.rank]
        if left:
            columns = zip(*((share.rows, share.steps, share.padding) for share in left), strict=True)
            rows.append((f"{len(left):,} more", *map(_span, columns)))
        return rows

    def _rank_row(self, share: RankShare) -> Row:
        this = " (this one)" if share.rank == self.rank and self.num_ranks > 1 else ""
        return f"{share.rank}{this}", share.rows, share.steps, share.padding

    @property
    def _notes(self) -> list[tuple[str, str]]:
        by_default = self.ranks_from.startswith(_DEFAULT)
        notes = [("ranks", self.ranks_from.removeprefix(_DEFAULT) if by_default else f"from {self.ranks_from}")]
        if idle := self.idle_ranks:
            has, word = ("has", "rank") if len(idle) == 1 else ("have", "ranks")
            notes.append(("idle", f"{plural(len(idle), 'rank')} {has} no rows: {word} {listed(idle)}"))
        if self.not_delivered:
            left = plural(self.not_delivered, self.units.removesuffix("s"))
            notes.append(("left out", f"{left} that no rank delivers in this epoch"))
        if len(self.worker_splits) > 1:
            splits = listed(self.worker_splits, _RANKS_SHOWN, "{:,}".format)
            notes.append(("workers", f"this rank's, with {splits} splits in this epoch"))
        return notes


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _plain(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}


def _span(numbers: tuple[int | None, ...]) -> str:
    """The range of these numbers, as text."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "unknown"
    least, most = min(known), max(known)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


# Renders sections of facts as text for a terminal and as HTML for a notebook.

_WIDTH = 96  # characters per line
_CELL_WIDTH = 44
_WARNING = "border-left:3px solid #d9822b;padding:.1em 0 .1em .7em;margin:.4em 0"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, each with a text."""

    title: str
    items: Sequence[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.items)

    def lines(self) -> list[str]:
        """The facts as lines of text."""
        width = max(len(name) for name, _ in self.items)
        return [line for name, text in self.items for line in _hanging(name.ljust(width + 2), text)]

    def html(self) -> str:
        """The facts as an HTML table."""
        return html_table(("", ""), self.items)


@dataclass(frozen=True, slots=True)
class FactTable:
    """A table with a header."""

    title: str
    header: Sequence[str]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def lines(self) -> list[str]:
        """The table as lines of text."""
        rows = [[shortened(cell, _CELL_WIDTH) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        return [f"  {line}" for line in text_table(self.header, rows)]

    def html(self) -> str:
        """The table as HTML."""
        return html_table(self.header, self.rows)


@dataclass(frozen=True, slots=True)
class Sentences:
    """A list of sentences."""

    title: str
    items: Sequence[str]

    def __len__(self) -> int:
        return len(self.items)

    def lines(self) -> list[str]:
        """The sentences as lines of text, each with a bullet."""
        return [line for text in self.items for line in _hanging("- ", text)]

    def html(self) -> str:
        """The sentences as HTML, each a paragraph with a mark at its side."""
        return "".join(f'<div style="{_WARNING}">{escape(text)}</div>' for text in self.items)


Section: TypeAlias = "Facts | FactTable | Sentences"


def text_of(sections: Sequence[Section]) -> str:
    """The sections as text, one below another."""
    parts = ["\n".join([*([section.title] if section.title else []), *section.lines()]) for section in sections]
    return printable("\n\n".join(parts))


def html_of(sections: Sequence[Section]) -> str:
    """The sections as HTML, with colours that are readable on a dark background, too."""
    parts = [
        (f'<div style="font-weight:600;margin-top:.7em">{escape(section.title)}</div>' if section.title else "")
        + section.html()
        for section in sections
    ]
    return printable(f"<div>{''.join(parts)}</div>")


def _hanging(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {start}", subsequent_indent=" " * (len(start) + 2))
