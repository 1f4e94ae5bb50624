"""The values that travel between the layers: files, segments, row selections, splits, pieces, tasks.

    file ─► segment ─► split ─► rank's pieces ─► shard (of an I/O worker) ─► task ─► block ─► batch

Frozen and picklable, without torch or pyarrow. *Plan row numbers* of a file count its live rows if the live count of
every segment is known, otherwise physical rows; only the reader converts between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.redaction import safe_repr
from torch_dataloader_utils.rows import Rows as Rows

FileKey: TypeAlias = tuple[int, str]  # (part, path)


class Unit(Enum):
    """What a row of a plan is, once it is read."""

    ROW = "row"
    TOKEN = "token"
    WINDOW = "window"
    SEQUENCE = "sequence"
    BATCH = "batch"

    @property
    def plural(self) -> str:
        """Several of them, in a word."""
        return "batches" if self is Unit.BATCH else f"{self.value}s"

    @property
    def planned(self) -> str:
        """What plans count, in a word: sequences and batches are counted as they are made, of rows."""
        return self.value if self.is_planned else Unit.ROW.value

    @property
    def is_planned(self) -> bool:
        """Whether what plans count is what batches have."""
        return self in (Unit.ROW, Unit.TOKEN, Unit.WINDOW)


@safe_repr
@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """A data file as a split strategy sees it.

    Attributes:
        path: as the storage names it.
        file_size: bytes as stored.
        record_count: rows, or None if not known before reading.
        part: which dataset of a combination it belongs to.
        version: what its store reports about its content (an etag, a modification time); "" if it reports nothing. A
            file with another size or version is not read.
    """

    path: str
    file_size: int
    record_count: int | None = None
    part: int = field(default=0, kw_only=True)
    version: str = field(default="", kw_only=True, compare=False)

    @property
    def key(self) -> FileKey:
        """Distinguishes it from all other files of a plan: two parts may read one path."""
        return self.part, self.path


@safe_repr
@dataclass(frozen=True, slots=True)
class IcebergDataFileInfo(DataFileInfo):
    """A data file of an Iceberg or Delta table, with its partition values and how many deletes apply to it."""

    partition: Mapping[str, Any] = field(default_factory=dict, hash=False)
    snapshot_id: int | None = None
    deletes: int = 0
    spec_id: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """The smallest piece of a file that its format can read alone: a row group, stripe, record batch or byte range.

    Attributes:
        number: its number in the file, as the format counts.
        first_row: physical number of its first row (0 if counts are unknown).
        rows: physical rows, or None if not known before reading.
        size_bytes: estimated decoded bytes over all columns.
        live_rows: rows left after deletes and counted filters, if known.
    """

    number: int
    first_row: int
    rows: int | None
    size_bytes: int
    live_rows: int | None = None


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The segments of one file that an epoch reads (without those that filters prune), in file order.

    Attributes:
        segments: the segments.
        counted: whether every segment's live rows are known; plan rows of the file are then live rows.
        sequential: whether reading a segment requires reading all segments before it; the file is then one split.
        task_rows: the maximum number of rows per task, if reading more at a time saves nothing; None for the default.
        metadata: what the format keeps from the footer, so that it is read once; opaque here.
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
        """Physical rows, or None if not known before reading."""
        return sum(segment.rows or 0 for segment in self.segments) if self.known else None

    def plan_starts(self) -> tuple[int, ...]:
        """Plan row number of each segment's first row, followed by the end of the last segment."""
        if self.counted:
            return tuple(np.cumsum([0, *(segment.live_rows or 0 for segment in self.segments)]).tolist())
        last = self.segments[-1] if self.segments else Segment(0, 0, 0, 0)
        return (*(segment.first_row for segment in self.segments), last.first_row + (last.rows or 0))


class RowDraws(Protocol):
    """How often the live rows of a file are drawn in an epoch, whose plans count the rows that are drawn; picklable."""

    def count(self, place: int) -> int:
        """The number of live rows of a segment, by its index in the file's layout."""

    def rows(self, place: int) -> npt.NDArray[np.int64]:
        """The live rows of a segment, each as often as it is drawn, ascending, int64 [draws]."""

    def shares(self, place: int) -> npt.NDArray[np.float32]:
        """How often each live row of a segment is drawn on average over epochs, float32 [rows]."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a source: what strategies see of it, its layout, and the values of its partition columns."""

    info: DataFileInfo
    layout: FileLayout
    partition: tuple[tuple[str, Any], ...] = ()
    name_hash: int = 0  # of its name; set if copies of its rows are drawn, or their places are read
    draws: RowDraws | None = field(default=None, repr=False, compare=False)  # of an epoch; None: each row once


@dataclass(frozen=True, slots=True)
class Split:
    """A contiguous run of segments of one file: the unit that is shuffled and sharded.

    Attributes:
        file: the file.
        row_range: plan rows of the file (a pair is taken as `[start, stop)`); None means the whole of `segments`.
        segments: half-open range of indices in the file's layout; None means the segments that contain `row_range`.
        size_bytes: estimated decoded bytes over all columns.
        index: index in the sorted list of all splits: its identity.
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
        """Plan rows, or None if not known before reading."""
        return None if self.row_range is None else len(self.row_range)


@dataclass(frozen=True, slots=True)
class Shard:
    """The ordered splits of one I/O worker.

    Attributes:
        id: the worker's number.
        splits: in the order of delivery.
        row_count: plan rows, or None if not known before reading.
        size_bytes: estimated decoded bytes over all columns.
    """

    id: int
    splits: tuple[Split, ...]
    row_count: int | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are delivered together, permuted by a key: a row-shuffle window.

    Also the rest of a begun block if row counts are unknown, then without a key. A window is a source like a split: a
    piece of it refers to places in the permuted order. So policies, levelling, padding and resume cut windows as they
    cut splits, without code for row shuffle.

    Attributes:
        pieces: the rows it holds, in the order before they are permuted.
        key: of the order of its live rows (`seeding.window_order(n, key)`); None keeps the order.
        row_count: rows delivered, or None if not known before reading.
        size_bytes: estimated decoded bytes.
        task: consecutive windows of a shard with the same number are cut from the same runs of segments, which are
            decoded once.
        index: index in the list of a plan's sources, for a window that an earlier phase of the epoch began; else -1.
    """

    pieces: tuple[Piece, ...]
    key: int | None
    row_count: int | None
    size_bytes: int = 0
    task: int = 0
    index: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """A split or window restricted to some of its rows, at its place in the epoch's order; `pad` marks repeats.

    The unit of planning: policies, transfer and workers cut and move pieces and never look inside a source.

    Attributes:
        source: the split or window.
        rows: the selected plan rows of a split's file, or places in a window's order; None if not known before reading
            (such a piece is never cut).
        order: index of the source in this epoch's order; -1 for a begun window.
        pad: whether these rows are repeats, delivered with False in the `valid` mask.
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
    """The pieces, with each piece of a window replaced by the pieces in that window (all of them)."""
    for piece in pieces:
        if isinstance(piece.source, Window):
            yield from split_pieces(piece.source.pieces)
        else:
            yield piece


def split_numbers(pieces: Iterable[Piece]) -> set[int]:
    """The numbers of the splits that hold rows of these pieces, or belong to their windows."""
    numbers: set[int] = set()
    for piece in pieces:
        if isinstance(piece.source, Window):
            numbers |= split_numbers(piece.source.pieces)
        else:
            numbers.add(piece.source.index)
    return numbers


def split_of(piece: Piece) -> Split:
    """The split of a piece; the piece must not belong to a window."""
    if isinstance(piece.source, Window):
        raise TypeError("expected a piece of a split, not of a window")
    return piece.source


@dataclass(frozen=True, slots=True)
class WorkerCursor:
    """A shard's progress: all tasks before `task`, and `rows` rows of that one.

    Attributes:
        task: index of the task in the shard's list.
        rows: rows of its block that were delivered.
        live: the number of rows in its block, if some were delivered.
        lap: how often the shard has started again (`steps_per_epoch`).
    """

    task: int = 0
    rows: int = 0
    live: int = 0
    lap: int = 0


END = WorkerCursor(2**31)  # after all tasks of a worker, however many there are


@dataclass(frozen=True, slots=True)
class RankCursor:
    """A rank's progress if row counts are unknown.

    Attributes:
        turn: the worker whose batch is next.
        shards: the cursor of each worker.
    """

    turn: int
    shards: tuple[WorkerCursor, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What one decode job reads: pieces of whole segments, decoded together into one block.

    Attributes:
        pieces: in the order of delivery; all of splits, each within the segments of one file; or all of windows, cut
            from the same runs of segments.
        rows: plan rows, or None if not known before reading.
        size_bytes: estimated decoded bytes over all columns of the segments it reads.
        pad: whether its rows are repeats.
    """

    pieces: tuple[Piece, ...]
    rows: int | None
    size_bytes: int
    pad: bool = False
    epoch: int = 0  # by which copies of rows are drawn
