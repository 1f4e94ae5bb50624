"""What `describe()` returns: what a dataset holds and delivers, as plain values that show themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torch_dataloader_utils.loader.description_text import Facts, Section, Sentences, Table, html_of, text_of
from torch_dataloader_utils.planning.advice import Advice
from torch_dataloader_utils.planning.windows import ShuffleWindow
from torch_dataloader_utils.printing import Row, in_bytes, plural

_RANKS_SHOWN, _KEYS_SHOWN = 16, 40


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What a batch holds under one key.

    Attributes:
        key: the key.
        dtype: of the tensor's or array's numbers; of a list's values; Arrow's type where the output is Arrow's.
        shape: with B for the rows of a batch, and * for what differs from batch to batch.
    """

    key: str
    dtype: str
    shape: str


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank gets in the epoch; None where only reading shows it.

    Attributes:
        rank: the global rank.
        rows: its rows, padding not among them.
        steps: its batches.
        padding: rows that it repeats so that batches are full, or ranks even.
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
        files: how many files are read; filters may have ruled out others.
        stored_bytes: their bytes as stored.
        decoded_bytes: estimated bytes of all their columns once decoded.
        segments: how many row groups, stripes or other smallest pieces of files there are.
        segment_name: what the format calls such a piece.
        splits: how many runs of such pieces: what ranks and workers share, and a shuffle permutes.
        rows: rows of the dataset; None where only reading shows it.
        rows_unfiltered: rows before filters and `transform`; None where the format does not say.
        batch_rows: rows of a batch of one rank: B.
        batch_type: what a batch is.
        keys: what it holds.
        epoch: which epoch is described.
        rank: this process's rank.
        num_ranks: all ranks.
        ranks_from: what says so; where the loader was given no ranks, it may change until the loader's first use.
        sharding: which policy shares rows among ranks.
        even: how ranks get equal steps.
        ranks: what each rank gets.
        not_delivered: rows that no rank delivers in this epoch; None where only reading shows it.
        worker_splits: of how many splits each worker of this rank has rows.
        shuffle: what shuffle does, in a sentence.
        shuffle_window: a typical window in which rows are permuted; None where rows are not shuffled.
        batch_variance: of a batch's mean, at most about so many times that of a random sample; None likewise.
        warnings: problems, and their remedies.
    """

    dataset: str
    files: int
    stored_bytes: int
    decoded_bytes: int
    segments: int
    segment_name: str
    splits: int
    rows: int | None
    rows_unfiltered: int | None
    batch_rows: int
    batch_type: str
    keys: tuple[BatchKey, ...]
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
        """All of it as plain values that JSON can hold, `idle_ranks` included."""
        values = asdict(self, dict_factory=_plain)
        return {**values, "idle_ranks": list(self.idle_ranks)}

    def __repr__(self) -> str:
        return text_of(self._sections)

    def _repr_html_(self) -> str:
        return html_of(self._sections)

    @property
    def _sections(self) -> list[Section]:
        ranks = plural(self.num_ranks, "rank")
        sections: list[Section] = [
            Facts(self.dataset, self._overview),
            Table(
                f"A batch: {self.batch_type}, B = {plural(self.batch_rows, 'row')}",
                ("key", "dtype", "shape"),
                self._key_rows,
            ),
            Table(
                f"Epoch {self.epoch} on {ranks}: sharding={self.sharding!r}, even={self.even!r}",
                ("rank", "rows", "steps", "padding"),
                self._rank_rows,
            ),
            Facts("", self._notes),
            Sentences("Warnings", [_capitalised(str(advice)) for advice in self.warnings]),
        ]
        return [section for section in sections if section]

    @property
    def _overview(self) -> list[tuple[str, str]]:
        stored = f"{in_bytes(self.stored_bytes)} stored, " if self.stored_bytes else ""
        return [
            ("files", f"{self.files:,} ({stored}about {in_bytes(self.decoded_bytes)} decoded)"),
            ("rows", self._rows_in_words),
            (f"{self.segment_name}s", f"{self.segments:,}"),
            ("splits", f"{self.splits:,}: runs of {self.segment_name}s, shared among ranks and workers"),
            ("shuffle", self.shuffle),
        ]

    @property
    def _rows_in_words(self) -> str:
        if self.rows is not None:
            return f"{self.rows:,}"
        before = "" if self.rows_unfiltered is None else f" ({self.rows_unfiltered:,} before filters and transform)"
        return f"known only after reading{before}; count_rows=True counts them"

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
        notes = [("ranks", f"from {self.ranks_from}")]
        if self.idle_ranks:
            notes.append(("idle", f"{plural(len(self.idle_ranks), 'rank')} without rows: {_listed(self.idle_ranks)}"))
        if self.not_delivered:
            notes.append(("left out", f"{plural(self.not_delivered, 'row')} that no rank delivers in this epoch"))
        if len(self.worker_splits) > 1:
            notes.append(("workers", f"those of this rank read {_listed(self.worker_splits)} splits"))
        return notes


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _plain(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}


def _span(numbers: tuple[int | None, ...]) -> str:
    """From the least to the greatest."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "unknown"
    least, most = min(known), max(known)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"{number:,}" for number in numbers[:_RANKS_SHOWN]) + (", ..." * (len(numbers) > _RANKS_SHOWN))
