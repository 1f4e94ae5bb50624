"""Tasks over row-shuffle windows: what is decoded for them, and the order in which their rows are delivered.

The rows of all pieces of splits below a window are *drawn* together, and delivered by a single gather.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.convert.buffers import fixed
from torch_dataloader_utils.convert.columns import Array, Column, Dense, Memory, Ragged, Text, concat
from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.convert.elements import stored_values
from torch_dataloader_utils.convert.leaves import TextLeaf
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.events import NO_WORK, recorder, recording
from torch_dataloader_utils.kernels import BucketOrder, compiled, put, take
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Piece, Rows, Task, Window, split_pieces
from torch_dataloader_utils.reading.blocks import Block, noting
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun
from torch_dataloader_utils.reading.straight import StraightReader
from torch_dataloader_utils.seeding import window_order

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.task_reader import TaskReader

Places: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint32]
Span: TypeAlias = tuple[int, int]  # (first row, row count) in a block
ReadPieces: TypeAlias = Callable[[Sequence[Piece], bool, int], tuple[Block, list[Span]]]


def of_windows(task: Task) -> bool:
    """Whether the task is over windows."""
    return any(isinstance(piece.source, Window) for piece in task.pieces[:1])


def shuffled(task: Task, read: ReadPieces, memory: Memory | None = None) -> Block:
    """The rows of a task over windows, in order of delivery.

    Args:
        task: over windows.
        read: maps pieces of splits, whether they are repeats, and the epoch to their rows as one block and each piece's
            range of rows in it.
        memory: makes the arrays of dense columns; None: numpy does.
    """
    block, spans = read(list(split_pieces(task.pieces)), task.pad, task.epoch)
    recorder().enter("shuffle")
    return block.take(places_of(task.pieces, iter(spans)), memory)


def is_rest(piece: Piece) -> bool:
    """Whether the piece is what an earlier phase left of a window whose rows become something else.

    Only then do the rows of a piece of a window count what is made of them: sequences, or batches.
    """
    return isinstance(piece.source, Window) and piece.rows is not None


def whole_of(rest: Piece) -> tuple[Sequence[Piece], npt.NDArray[np.int64]]:
    """The pieces of which all that a window's rows become is made again, and which of it are the rest."""
    window, rows = rest.source, rest.rows
    assert isinstance(window, Window)
    assert rows is not None
    return window.pieces if is_rest(window.pieces[0]) else [replace(rest, rows=None)], rows.numbers()


def places_of(pieces: Sequence[Piece], spans: Iterator[Span]) -> Places:
    """The positions of these pieces' rows in a block, integers [rows], in order of delivery.

    Args:
        pieces: of splits or windows.
        spans: range of rows of each piece of a split, in the order of `split_pieces`; consumed as needed.
    """
    places = [_places(piece, spans) for piece in pieces]
    return places[0] if len(places) == 1 else np.concatenate([np.empty(0, np.uint32), *places])


def _places(piece: Piece, spans: Iterator[Span]) -> Places:
    source, rows = piece.source, piece.rows
    if not isinstance(source, Window):
        first, count = next(spans)
        return np.arange(first, first + count, dtype=np.uint32)
    drawn = _drawn(source, spans)
    if rows is None:
        return drawn
    return drawn[rows.start : rows.stop] if rows.contiguous else drawn[rows.numbers()]


def _drawn(window: Window, spans: Iterator[Span]) -> Places:
    """The positions of all rows of a window."""
    if any(isinstance(piece.source, Window) for piece in window.pieces):
        drawn = places_of(window.pieces, spans)
        return drawn[_order(len(drawn), window.key)]
    drawn_from = list(islice(spans, len(window.pieces)))
    order = _order(sum(rows for _, rows in drawn_from), window.key)
    first = drawn_from[0][0]
    if drawn_from == spans_of([rows for _, rows in drawn_from], first):  # the usual case needs no lookup
        return np.add(order, np.uint32(first), out=order) if first else order
    return np.concatenate([np.arange(first, first + rows, dtype=np.uint32) for first, rows in drawn_from])[order]


def _order(rows: int, key: int | None) -> npt.NDArray[np.uint32]:
    return np.arange(rows, dtype=np.uint32) if key is None else window_order(rows, key)


def spans_of(counts: Sequence[int], first: int = 0) -> list[Span]:
    """Consecutive ranges of these lengths, starting at row `first`."""
    return list(zip(accumulate(counts, initial=first), counts, strict=False))


# Puts the rows of windows in the order of delivery: one column after another, while it is in the processor's cache.

_KEPT = 1 << 20  # rows whose places are kept as numpy takes them, for all columns: as int64 they fill 8 MB
_NEAR = 3 << 19  # rows of a window up to which its columns are gathered at once: two steps take as long
_SCATTERED = 256  # bytes of a row from which on it is written to its place at once, without the copy that a take needs


@dataclass(frozen=True, slots=True)
class _Draw:
    """Rows of one run: `rows`, numbered from the run's first row; they follow `at` others that its unit draws."""

    run: int
    rows: Rows
    at: int

    def of(self, array: Array) -> Array:
        """The rows of the run's array; a view if they are contiguous."""
        rows = self.rows
        if rows.contiguous or rows.block == 1:
            return array[rows.row(0) : rows.stop : rows.step] if len(rows) else array[:0]
        return array[rows.numbers()]

    def of_column(self, column: Column) -> Column:
        """The rows of the run's column."""
        if self.rows.contiguous:
            return column.slice(self.rows.start, self.rows.stop)
        return column.take(self.rows.numbers())


class _Unit:
    """One piece of a task: the rows it draws from the runs, and its rows' positions among them, in delivery order.

    Attributes:
        draws: the rows that it draws.
        drawn: how many these are.
        rows: how many it delivers.
        first: number of the task's rows that are delivered before.
        base: number of the rows that the units before it draw.
    """

    def __init__(self, piece: Piece, draws: Sequence[_Draw], first: int, base: int) -> None:
        self._piece = piece
        self._lock = threading.Lock()
        self.draws = draws
        self.drawn = sum(len(draw.rows) for draw in draws)
        if piece.rows is None:
            raise ValueError("a window without a row count cannot be gathered column by column")
        self.rows = len(piece)
        self.first, self.base = first, base

    @property
    def places(self) -> Places:
        """The positions of its rows, drawn when the first column needs them, while other threads decode."""
        with self._lock:
            return self._places

    @property
    def buckets(self) -> BucketOrder | None:
        """The order of a whole window that is large, likewise; None: `places` has it."""
        with self._lock:
            return self._buckets

    @cached_property
    def _buckets(self) -> BucketOrder | None:
        window = self._piece.source
        if not isinstance(window, Window) or window.key is None or self._piece.rows != Rows(0, self.drawn):
            return None
        if any(isinstance(piece.source, Window) for piece in window.pieces):
            return None
        return BucketOrder.drawn(self.drawn, window.key, [len(draw.rows) for draw in self.draws])

    @cached_property
    def _places(self) -> Places:
        if self._buckets is not None:
            return self._buckets.places()
        places = places_of([self._piece], iter(spans_of([len(draw.rows) for draw in self.draws])))
        return places if compiled() or len(places) > _KEPT else places.astype(np.intp)

    @cached_property
    def targets(self) -> npt.NDArray[np.int64]:
        """The position in the order of delivery of each row that it draws, int64 [drawn]; -1 if it is not delivered."""
        targets = np.full(self.drawn, -1, np.int64)
        targets[self.places] = np.arange(self.rows)
        return targets


class Gather:
    """The order of a task's rows; several threads may apply it to different columns.

    Args:
        pieces: of the task; their row counts must be known.
        owners: index of the run of each piece of a split.
        starts: plan row number of each run's first row.
        pool: memory that columns are gathered into.
    """

    def __init__(self, pieces: Sequence[Piece], owners: Sequence[int], starts: Sequence[int], pool: BufferPool) -> None:
        self.pool = pool
        self.units: list[_Unit] = []
        self.by_run: list[list[tuple[_Unit, _Draw]]] = [[] for _ in starts]
        self.rows = self.drawn = 0
        remaining = iter(owners)
        for piece in pieces:
            unit = _Unit(piece, tuple(_draws([piece], remaining, starts)), self.rows, self.drawn)
            self.units.append(unit)
            for draw in unit.draws:
                self.by_run[draw.run].append((unit, draw))
            self.rows += unit.rows
            self.drawn += unit.drawn

    @cached_property
    def run_order(self) -> Sequence[int]:
        """The runs in the order in which rows are drawn from them."""
        return [draw.run for unit in self.units for draw in unit.draws]

    @cached_property
    def places_once(self) -> npt.NDArray[np.uint32] | None:
        """The places of the task's rows among those drawn, if each run is drawn once, in one stretch; uint32 [rows]."""
        once = all(len(drawn) == 1 and drawn[0][1].rows.contiguous for drawn in self.by_run)
        if not once or self.drawn > _NEAR:
            return None
        places = [unit.places.astype(np.uint32) + np.uint32(unit.base) for unit in self.units]
        return np.concatenate(places)

    def column(self, runs: Sequence[Column]) -> Column:
        """The task's rows of a column of values of any length, in order of delivery, from those of the runs."""
        drawn: list[Any] = [draw.of_column(runs[draw.run]) for unit in self.units for draw in unit.draws]
        kind = type(drawn[0])
        if issubclass(kind, Ragged | Text):
            return kind.taken(drawn, self._places, self.pool.lease)
        return concat(drawn).take(self._places)

    def words(self, words: Any, runs: Sequence[Array]) -> Column:
        """As `column`, of rows that are words.

        Args:
            words: a `Text` or `Ragged` of all words.
            runs: of each run, the words of its rows, by number: uint32 [rows].
        """
        drawn = [draw.of(runs[draw.run]) for unit in self.units for draw in unit.draws]
        joined, numbers = (self.pool.lease(4 * rows).view(np.uint32) for rows in (self.drawn, self.rows))
        np.concatenate(drawn, out=joined)
        take(joined, self._places, numbers, self.pool.lease)
        taken: Column = type(words).taken([words], numbers, self.pool.lease)
        return taken

    @cached_property
    def _places(self) -> Places:
        """The positions of all rows among those that the units draw."""
        if len(self.units) == 1:
            return self.units[0].places
        return np.concatenate([unit.places.astype(np.int64) + unit.base for unit in self.units])


class DenseGather:
    """A column of fixed width in a gather: its runs are added one by one, each released before the next is decoded.

    Wide rows are written to their places at once, rows of large windows into buckets of the output. Other rows are kept
    in scratch memory until all runs were added.

    Args:
        gather: the order.
        scratch: memory of this thread, for the rows drawn.
        numbers: likewise, for their places or one bucket.
        like: an array of the column's dtype and shape per row.
    """

    def __init__(self, gather: Gather, scratch: Scratch, numbers: Scratch, like: Array) -> None:
        self._gather = gather
        self._numbers = numbers
        shape = like.shape[1:]
        nbytes = gather.rows * like.itemsize * math.prod(shape)
        self._out: Array = gather.pool.lease(nbytes).view(like.dtype).reshape(gather.rows, *shape)
        self._scattered = like.itemsize * math.prod(shape) >= _SCATTERED
        kept = not self._scattered and any(self._buckets(unit) is None for unit in gather.units)
        self._drawn = scratch.array(gather.drawn, like) if kept else like[:0]

    def add(self, run: int, array: Array) -> None:
        """Add the rows of a run; the array may be read-only, and is not kept."""
        for unit, draw in self._gather.by_run[run]:
            last = draw.at + len(draw.rows)
            if self._scattered:
                put(draw.of(array), unit.targets[draw.at : last], self._of(unit))
            elif (buckets := self._buckets(unit)) is not None:
                buckets.put(draw.at, draw.of(array), self._of(unit))
            else:
                self._drawn[unit.base + draw.at : unit.base + last] = draw.of(array)

    def column(self) -> Dense:
        """The task's rows in order of delivery, once all runs were added."""
        for unit in [] if self._scattered else self._gather.units:
            if (buckets := self._buckets(unit)) is not None:
                buckets.permute(self._of(unit), self._numbers.bytes)
            else:
                drawn = self._drawn[unit.base : unit.base + unit.drawn]
                take(drawn, unit.places, self._of(unit), self._numbers.bytes)
        return Dense(self._out)

    @staticmethod
    def _buckets(unit: _Unit) -> BucketOrder | None:
        return unit.buckets if unit.drawn > _NEAR else None

    def _of(self, unit: _Unit) -> Array:
        """The unit's rows in the output."""
        return self._out[unit.first : unit.first + unit.rows]


def _draws(pieces: Sequence[Piece], owners: Iterator[int], starts: Sequence[int]) -> Iterator[_Draw]:
    parts = list(split_pieces(pieces))
    at = accumulate(map(len, parts), initial=0)
    for part, run, first in zip(parts, owners, at, strict=False):
        rows, start = part.rows, starts[run]
        if rows is None:
            raise ValueError("a piece without a row count cannot be gathered before it is read")
        yield _Draw(run, Rows(rows.start - start, rows.stop - start, rows.step, rows.block, rows.phase - start), first)


# A read of shuffle windows that several readers share: the columns of one window are read by all threads. So the first
# batch waits for one window read by all of them, and no more than two windows are in memory besides what batches hold.

_KEPT_BYTES = 1 << 26  # scratch memory that a thread keeps


class WindowRead:
    """The read of one task over windows, call by call of the decoder.

    Args:
        gather: the order of the task's rows.
        runs: what is decoded for the task.
        calls: the columns of each decoder call.
        converter: makes the output of all columns.
        marks: the mask of real rows by its key, if there is one.
    """

    def __init__(
        self,
        gather: Gather,
        runs: Sequence[SegmentRun],
        calls: Iterable[list[pa.Field]],
        converter: Converter,
        marks: dict[str, Column],
    ) -> None:
        self.gather = gather
        self.runs = runs
        self._converter = converter
        self._calls = deque(calls)
        self._missing = len(self._calls)
        self._marks = marks
        self._columns: dict[str, Column] = {}
        self._work = NO_WORK
        self._lock = threading.RLock()  # the garbage collector may abandon the read in a thread that holds it

    @property
    def open(self) -> bool:
        """Whether there are columns that no reader has taken."""
        return bool(self._calls)

    def next_call(self) -> list[pa.Field] | None:
        """The columns to decode next; None if all are taken."""
        try:
            return self._calls.popleft()
        except IndexError:
            return None

    def read(self, reader: TaskReader) -> Block | None:
        """Read columns until none is left; the block for the reader that finishes last, None for the others."""
        while (items := self.next_call()) is not None:
            with recording() as noted:
                columns = reader.windows.columns(self, items)
                work = noted.work()
            with self._lock:
                self._columns |= columns
                self._work += work
                if self._missing == 1:
                    block = self._block()
                    self._missing = 0
                    return block
                self._missing -= 1
        return None

    def _block(self) -> Block:
        """The block of all columns."""
        with recording() as noted:
            noted.enter("convert")
            columns = self._converter.stacked(self._columns, self.gather.pool.lease)
            self._columns = {}
            work = self._work + noted.work()
        return replace(Block.of_columns(self.gather.rows, columns | self._marks), work=work)

    def abandon(self) -> bool:
        """Leave the remaining columns unread after an error; returns whether it is the first."""
        with self._lock:
            first = self._missing > 0
            self._missing = -1
            self._calls.clear()
            return first


class WindowReader:
    """Reads columns of windows; one per thread or process, because it keeps files open and has scratch memory.

    Args:
        converter: converts all columns.
        runs: decodes runs of segments.
        part: the converter of some columns, by their names.
        straight: reads columns of numbers.
    """

    def __init__(
        self,
        converter: Converter,
        runs: RunReader,
        part: Callable[[tuple[str, ...]], Converter],
        straight: StraightReader,
    ) -> None:
        self._runs = runs
        self._part = part
        self._straight = straight
        self._dense, self._stored = converter.dense, converter.stored
        self._texts = {name for name, leaf in converter.ragged.items() if isinstance(leaf, TextLeaf)}
        self._scratch: defaultdict[int, Scratch] = defaultdict(Scratch)
        self._numbers = Scratch()

    def columns(self, shared: WindowRead, items: Sequence[pa.Field]) -> dict[str, Column]:
        """The output of some columns, in order of delivery: decoded for all runs, then gathered."""
        self._runs.keep_open(shared.runs)
        self._runs.announce(shared.runs)
        places, straight = shared.gather.places_once, {}
        if places is not None:
            runs = [shared.runs[run] for run in shared.gather.run_order]
            straight = self._straight.columns(runs, items, shared.gather.drawn, places)
        columns: dict[str, Column] = {self._dense[name]: column for name, column in straight.items()}
        rest = [item for item in items if item.name not in straight]
        for part in self._runs.window_calls(shared.runs, rest):
            columns |= self._read(shared, part)
        return columns

    def _of_words(self, shared: WindowRead, item: pa.Field) -> dict[str, Column]:
        """The output of a column of few words, by its key: their numbers are gathered. Empty if it is another."""
        if item.name not in self._texts:
            return {}
        with noting(lambda: self._runs.where(shared.runs), DataLoaderUtilsError):
            runs = self._runs.codes(shared.runs, item)
        if not runs:
            return {}
        whole = [run for run in runs if run is not None and not run.null_count]
        chunks = [chunk for run in whole for chunk in run.chunks]
        columns = self._words(item, chunks, shared.runs[0]) if len(whole) == len(runs) else {}
        if not columns:
            self._texts.discard(item.name)  # decoded for nothing, as other windows would be
            return {}
        recorder().enter("shuffle")
        numbers = np.empty(sum(map(len, chunks)), np.uint32)
        at = first = 0
        for chunk in chunks:
            own = fixed(chunk.indices.buffers()[1], numbers.dtype, chunk.offset, len(chunk))
            np.add(own, np.uint32(first), out=numbers[at : at + len(chunk)])
            at, first = at + len(chunk), first + len(chunk.dictionary)
        by_run = np.split(numbers, list(accumulate(map(len, whole)))[:-1])
        return {key: shared.gather.words(column, by_run) for key, column in columns.items()}

    def _words(self, item: pa.Field, chunks: Sequence[pa.Array], first: SegmentRun) -> dict[str, Column]:
        """The output of all words of these dictionaries, by its key. Empty if one of them cannot be converted."""
        words = pa.chunked_array([chunk.dictionary for chunk in chunks])
        try:
            return self._converted(item, words.cast(item.type), first)
        except DataLoaderUtilsError:  # it may be of a word that no row has
            return {}

    def _read(self, shared: WindowRead, items: Sequence[pa.Field]) -> dict[str, Column]:
        """The output of the columns of one call of a file's reader."""
        if all(item.name in self._dense for item in items):
            return self._gathered(shared, items)
        columns: dict[str, Column] = {}
        rest: list[pa.Field] = []
        for item in items:
            words = self._of_words(shared, item)
            columns |= words
            if not words:
                rest.append(item)
        read = [self._arrays(run, rest, copied=False) for run in shared.runs] if rest else []
        for item, *arrays in zip(rest, *read, strict=True):
            by_run = [self._converted(item, *each) for each in zip(arrays, shared.runs, strict=True)]
            recorder().enter("shuffle")
            columns |= {key: self._in_order(shared, [each[key] for each in by_run]) for key in by_run[0]}
        return columns

    def _gathered(self, shared: WindowRead, items: Sequence[pa.Field]) -> dict[str, Column]:
        """The output of columns of fixed width: each run is released before the next is decoded."""
        gathers: dict[str, DenseGather] = {}
        for number, run in enumerate(shared.runs):
            arrays = self._arrays(run, items, copied=True)
            for item in items:
                values = self._values(item, arrays.pop(0), run)
                recorder().enter("shuffle")
                if number == 0:
                    # Columns of one call are in use at the same time.
                    gathers[item.name] = DenseGather(shared.gather, self._scratch[len(gathers)], self._numbers, values)
                gathers[item.name].add(number, values)
        columns: dict[str, Column] = {self._dense[name]: gather.column() for name, gather in gathers.items()}
        if sum(scratch.nbytes for scratch in self._scratch.values()) > _KEPT_BYTES:
            self._scratch.clear()
        return columns

    def _in_order(self, shared: WindowRead, runs: Sequence[Column]) -> Column:
        if not isinstance(runs[0], Dense):
            return shared.gather.column(runs)
        gather = DenseGather(shared.gather, self._scratch[0], self._numbers, runs[0].array)
        for number, run in enumerate(runs):
            assert isinstance(run, Dense)
            gather.add(number, run.array)
        return gather.column()

    def _arrays(self, run: SegmentRun, items: Sequence[pa.Field], copied: bool) -> list[pa.ChunkedArray]:
        with noting(lambda: self._runs.where([run]), DataLoaderUtilsError):
            return self._runs.arrays(run, items, copied)

    def _values(self, item: pa.Field, array: pa.ChunkedArray, run: SegmentRun) -> Array:
        """The output of a column of fixed width in one run: its buffer itself, if that holds it."""
        dtype = self._stored.get(item.name)
        values = None if dtype is None else stored_values(array, dtype)
        if values is not None:
            return values
        column = self._converted(item, array, run)[self._dense[item.name]]
        assert isinstance(column, Dense)
        return column.array

    def _converted(self, item: pa.Field, array: pa.ChunkedArray, run: SegmentRun) -> dict[str, Column]:
        """The output of a column in one run: its key, and that of a mask, if it has one."""
        recorder().enter("convert")
        table, where = pa.Table.from_arrays([array], schema=pa.schema([item])), self._runs.where([run])
        with noting(where, DataLoaderUtilsError):
            return self._part((item.name,)).convert(table, True, where)


def marks_of(key: str | None, rows: int, real: bool) -> dict[str, Column]:
    """The mask of so many rows that are all real or all repeats, by its key; empty without a key."""
    return {} if key is None else {key: Dense(np.full(rows, real))}
