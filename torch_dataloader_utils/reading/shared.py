"""A read of shuffle windows that several readers share: the columns of one window are read by all threads."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Array, Column, Dense
from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.convert.elements import stored_values
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.events import NO_WORK, recorder, recording
from torch_dataloader_utils.reading.blocks import Block, noting
from torch_dataloader_utils.reading.buffers import Scratch
from torch_dataloader_utils.reading.gather import DenseGather, Gather
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.task_reader import TaskReader

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
    """

    def __init__(self, converter: Converter, runs: RunReader, part: Callable[[tuple[str, ...]], Converter]) -> None:
        self._runs = runs
        self._part = part
        self._dense, self._stored = converter.dense(), converter.stored()
        self._scratch: defaultdict[int, Scratch] = defaultdict(Scratch)
        self._numbers = Scratch()

    def columns(self, shared: WindowRead, items: Sequence[pa.Field]) -> dict[str, Column]:
        """The output of some columns, in order of delivery: decoded for all runs, then gathered."""
        self._runs.keep_open(shared.runs)
        self._runs.announce(shared.runs)
        if all(item.name in self._dense for item in items):
            return self._gathered(shared, items)
        read = [self._arrays(run, items, copied=False) for run in shared.runs]
        columns: dict[str, Column] = {}
        for item, *arrays in zip(items, *read, strict=True):
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
