"""The values that travel between the layers: files, segments, row selections, splits, pieces, tasks.

    file ─► segment ─► split ─► rank's pieces ─► shard (of an I/O worker) ─► task ─► block ─► batch

Frozen and picklable, without torch or pyarrow. *Plan row numbers* of a file count its live rows where the live count
of every segment is known, physical rows otherwise; only the reader converts between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FileKey: TypeAlias = tuple[int, str]  # (part, path)


@dataclass(frozen=True, slots=True)
class Rows:
    """The row numbers x in `[start, stop)` with `(x - phase) % step < block`: contiguous, strided, or blocks with gaps.

    One value however many rows or blocks it selects; slicing it gives another one. Contiguous rows have step 1.
    """

    start: int
    stop: int
    step: int = 1
    block: int = 1
    phase: int = 0

    def _before(self, row: int) -> int:
        """How many selected places lie below `row`, counted from `phase` (negative below it)."""
        turn, inside = divmod(row - self.phase, self.step)
        return turn * self.block + min(inside, self.block)

    def __len__(self) -> int:
        if self.step == 1:
            return max(0, self.stop - self.start)
        return max(0, self._before(self.stop) - self._before(self.start))

    @property
    def contiguous(self) -> bool:
        """Whether no row between the first and the last is left out."""
        return self.step == 1

    def row(self, i: int) -> int:
        """The number of the i-th selected row (0 <= i < len)."""
        if self.step == 1:
            return self.start + i
        turn, inside = divmod(self._before(self.start) + i, self.block)
        return self.phase + turn * self.step + inside

    def slice(self, first: int, last: int) -> Rows:
        """The selected rows with places `[first, last)`; places beyond the ends are ignored."""
        first, last = max(first, 0), min(last, len(self))
        if first >= last:
            return Rows(self.start, self.start)
        return replace(self, start=self.row(first), stop=self.row(last - 1) + 1)

    def clip(self, start: int, stop: int) -> Rows:
        """The selected rows whose numbers lie in `[start, stop)`."""
        start, stop = max(self.start, start), min(self.stop, stop)
        return Rows(start, max(start, stop), self.step, self.block, self.phase)  # plans clip often: `replace` is slow

    def at(self, places: Rows) -> list[Rows]:
        """The rows at these places (all within the length): one value where a pattern of patterns is one again."""
        if not len(places):
            return []
        places = places.slice(0, len(places))
        if places.contiguous:
            return [self.slice(places.start, places.stop)]
        if self.contiguous:
            shifted = replace(places, start=places.start + self.start, stop=places.stop + self.start)
            return [replace(shifted, phase=places.phase + self.start)]
        if places.block == 1 and self.block == 1:
            first, last = self.row(places.start), self.row(places.stop - 1)
            return [Rows(first, last + 1, self.step * places.step, 1, first)]
        return [self.slice(first, last) for first, last in places.runs()]

    def runs(self) -> Iterator[tuple[int, int]]:
        """The runs of consecutive row numbers as half-open `(start, stop)`."""
        at = 0
        n = len(self)
        while at < n:
            first = self.row(at)
            if self.contiguous:
                yield first, self.stop
                return
            last = min(first + self.block - (first - self.phase) % self.step, self.stop)
            yield first, last
            at += last - first

    def numbers(self) -> npt.NDArray[np.int64]:
        """All selected row numbers, int64, shape [len]: for the rows of one task, never of an epoch."""
        if self.contiguous:
            return np.arange(self.start, self.stop, dtype=np.int64)
        places = np.arange(self._before(self.start), self._before(self.stop), dtype=np.int64)
        return self.phase + places // self.block * self.step + places % self.block


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """A data file as a split strategy sees it.

    Attributes:
        path: as the storage names it.
        file_size: bytes as stored.
        record_count: rows, or None where only reading tells.
        part: which dataset of a combination it belongs to.
        version: what its store says of its content (an etag, a time of change); "" where it says nothing. A file of
            another size or version than this is not read.
    """

    path: str
    file_size: int
    record_count: int | None = None
    part: int = field(default=0, kw_only=True)
    version: str = field(default="", kw_only=True, compare=False)

    @property
    def key(self) -> FileKey:
        """What tells it from all other files of a plan: two parts may read one path."""
        return self.part, self.path


@dataclass(frozen=True, slots=True)
class IcebergDataFileInfo(DataFileInfo):
    """A data file of an Iceberg snapshot: with its partition values and how many delete files apply to it."""

    partition: Mapping[str, Any] = field(default_factory=dict, hash=False)
    snapshot_id: int | None = None
    deletes: int = 0
    spec_id: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The smallest piece of a file that its format reads alone: a row group, stripe, record batch or byte range.

    Attributes:
        number: its number in the file, as the format counts.
        first_row: physical number of its first row (0 where counts are unknown).
        rows: physical rows, or None where only reading tells.
        size_bytes: estimated decoded bytes over all columns.
        live_rows: rows left after deletes and counted filters, where that is known.
    """

    number: int
    first_row: int
    rows: int | None
    size_bytes: int
    live_rows: int | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The segments of one file that an epoch reads (those that filters prune are gone), in file order.

    Attributes:
        segments: the segments.
        counted: whether every segment's live rows are known: plan rows of the file are then live rows.
        sequential: whether reading a segment means reading all before it: the file is then one split.
        task_rows: how many rows one task reads at most, where reading more at a time saves nothing; None for the usual.
        metadata: what the format keeps of the footer, so that it is read once; opaque here.
    """

    segments: tuple[Segment, ...]
    counted: bool = False
    sequential: bool = field(default=False, kw_only=True)
    task_rows: int | None = field(default=None, kw_only=True)
    metadata: Any = field(default=None, repr=False, compare=False)

    @property
    def known(self) -> bool:
        """Whether the physical rows of every segment are known."""
        return all(segment.rows is not None for segment in self.segments)

    @property
    def row_count(self) -> int | None:
        """Physical rows, or None where only reading tells."""
        return sum(segment.rows or 0 for segment in self.segments) if self.known else None

    def plan_starts(self) -> tuple[int, ...]:
        """Plan row number of each segment's first row; with a last entry, the end of the last segment."""
        if self.counted:
            ends = np.cumsum([0, *(segment.live_rows or 0 for segment in self.segments)])
            return tuple(int(end) for end in ends)
        starts = [segment.first_row for segment in self.segments]
        last = self.segments[-1] if self.segments else Segment(0, 0, 0, 0)
        return (*starts, last.first_row + (last.rows or 0))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a source: what strategies see of it, its layout, and the values of its partition columns."""

    info: DataFileInfo
    layout: FileLayout
    partition: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """A contiguous run of segments of one file: the unit that is shuffled and sharded.

    Attributes:
        file: the file.
        row_range: plan rows of the file (a pair is taken as `[start, stop)`); None means the whole of `segments`.
        segments: half-open range of places in the file's layout; None means those that `row_range` lies in.
        size_bytes: estimated decoded bytes over all columns.
        index: place in the sorted list of all splits: its identity.
    """

    file: DataFileInfo
    row_range: Rows | None = None
    segments: tuple[int, int] | None = None
    size_bytes: int = 0
    index: int = -1

    def __post_init__(self) -> None:
        if isinstance(self.row_range, (tuple, list)):
            start, stop = self.row_range
            object.__setattr__(self, "row_range", Rows(int(start), int(stop)))

    @property
    def row_count(self) -> int | None:
        """Plan rows, or None where only reading tells."""
        return None if self.row_range is None else len(self.row_range)


@dataclass(frozen=True, slots=True)
class Shard:
    """The ordered splits of one I/O worker.

    Attributes:
        id: the worker's number.
        splits: in the order of delivery.
        row_count: plan rows, or None where only reading tells.
        size_bytes: estimated decoded bytes over all columns.
    """

    id: int
    splits: tuple[Split, ...]
    row_count: int | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are delivered together, in an order drawn by a key: a row-shuffle window.

    Also what is left of a begun block where row counts are unknown: then without a key.

    Attributes:
        pieces: whose rows it holds, in the order before they are permuted.
        key: of the permutation of its live rows (`permutation(n, key)`); None keeps the order.
        row_count: rows delivered, or None where only reading tells.
        size_bytes: estimated decoded bytes.
        task: windows of a shard with the same number, one after another, are cut from the same runs of segments, which
            are decoded once.
        index: place in the list of a plan's sources, for a window that an earlier phase of the epoch began; else -1.
    """

    pieces: tuple[Piece, ...]
    key: int | None
    row_count: int | None
    size_bytes: int = 0
    task: int = 0
    index: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """A split or window narrowed to some of its rows, at its place in the epoch's order; `pad` marks repeats.

    The unit of planning: policies, transfer and workers cut and move pieces and never look inside a source.

    Attributes:
        source: the split or window.
        rows: the selected plan rows of a split's file, or places in a window's order; None where only reading tells
            (such a piece is never cut).
        order: place of the source in this epoch's order; -1 for a begun window.
        pad: whether these rows are repeats, delivered under a False `valid` mask.
    """

    source: Split | Window
    rows: Rows | None
    order: int = 0
    pad: bool = False

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def cut(self, first: int, last: int) -> Piece:
        """The rows with places `[first, last)` of this piece."""
        if self.rows is None:
            raise ValueError("a piece without a row count cannot be cut")
        return replace(self, rows=self.rows.slice(first, last))


def split_pieces(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces with each one of a window replaced by those that the window holds (all of them)."""
    for piece in pieces:
        if isinstance(piece.source, Window):
            yield from split_pieces(piece.source.pieces)
        else:
            yield piece


def split_of(piece: Piece) -> Split:
    """The split of a piece that is of no window."""
    if isinstance(piece.source, Window):
        raise TypeError("expected a piece of a split, not of a window")
    return piece.source


@dataclass(frozen=True, slots=True)
class WorkerCursor:
    """How far a shard has been delivered: its tasks before `task`, and `rows` rows of that one.

    Attributes:
        task: number of the task in the shard's list.
        rows: rows of its block that were delivered.
        live: rows that its block has, if some were delivered.
        lap: how often the shard has begun again (`steps_per_epoch`).
    """

    task: int = 0
    rows: int = 0
    live: int = 0
    lap: int = 0


@dataclass(frozen=True, slots=True)
class RankCursor:
    """How far a rank has come where row counts are unknown.

    Attributes:
        turn: the worker whose batch is next.
        shards: of each worker.
    """

    turn: int
    shards: tuple[WorkerCursor, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What one decode job reads: pieces of whole segments, decoded together into one block.

    Attributes:
        pieces: in the order of delivery; all of splits, each within the segments of one file; or all of windows, cut
            from the same runs of segments.
        rows: plan rows, or None where only reading tells.
        size_bytes: estimated decoded bytes over all columns of the segments it reads.
        pad: whether its rows are repeats.
    """

    pieces: tuple[Piece, ...]
    rows: int | None
    size_bytes: int
    pad: bool = False
