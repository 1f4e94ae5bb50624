"""Columns that are decoded straight to where they are delivered, without an array of Arrow between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column, Dense, Ragged, Text
from torch_dataloader_utils.convert.converter import Converter, StraightForm
from torch_dataloader_utils.convert.leaves import ListLeaf, TensorLeaf, TextLeaf
from torch_dataloader_utils.convert.utf8 import check_utf8
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.kernels.pages import Chunks, RaggedChunks, Straight, deliver, deliver_ragged, delivers
from torch_dataloader_utils.reading.blocks import noting
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun

Places = npt.NDArray[np.uint32]
_NULL = np.iinfo(np.int64).min  # stands at nulls of decimals of at most 15 digits
_AT_ONCE = 1 << 14  # numbers that are divided while they are in the processor's cache
_SPARE = 1.1  # of the room for bytes of any length, above those that rows had so far


class StraightReader:
    """Reads such columns; one per thread or process, because it has scratch memory.

    Args:
        converter: converts all columns.
        runs: opens the files.
        pool: memory of the columns.
    """

    def __init__(self, converter: Converter, runs: RunReader, pool: BufferPool) -> None:
        self._runs, self._pool = runs, pool
        self._numbers, self._ragged = converter.straight, converter.ragged
        self._keys = {plan.column: plan.key for plan in converter.plans}
        self._scratch = Scratch()
        self._row_bytes: dict[str, float] = {}  # of bytes of any length: the most that rows of a task had so far

    def columns(
        self, runs: Sequence[SegmentRun], wanted: Sequence[pa.Field], rows: int, places: Places | None = None
    ) -> dict[str, Column]:
        """Those of the columns that can be read so, by name: all rows of these runs.

        Args:
            runs: in order.
            wanted: the columns.
            rows: how many rows the runs have, as planned.
            places: uint32 [delivered], which of the rows is delivered first, second, ...; of numbers only. None: as
                they are.
        """
        forms: Mapping[str, object] = self._numbers if places is not None else {**self._ragged, **self._numbers}
        named = [item for item in wanted if item.name in forms]
        if not named or not delivers() or not self._runs.holds(runs):
            return {}
        recorder().enter("decode")
        with noting(lambda: self._runs.where(runs), DataLoaderUtilsError), self._runs.unchanged(runs):
            chunks = self._runs.chunks(runs, named)
            if not chunks or int(next(iter(chunks.values()))["rows"].sum()) != rows:  # of the same row groups
                return {}
            columns: dict[str, Column] = {}
            columns |= self._of_numbers({n: own for n, own in chunks.items() if n in self._numbers}, rows, places)
            ragged = {name: own for name, own in chunks.items() if name not in self._numbers}
            columns |= self._of_ragged(ragged, rows, self._runs.where(runs))
        lengths = [chunks[name]["length"] for name in columns]
        recorder().count("bytes_decoded", int(np.concatenate(lengths).sum()) if lengths else 0)
        return columns

    def key(self, name: str) -> str:
        """The key of a column that was read so."""
        return self._keys[name]

    def _of_numbers(self, chunks: Mapping[str, Chunks], rows: int, places: Places | None) -> dict[str, Column]:
        """The columns of one number for each row, by name."""
        if not chunks:
            return {}
        size, forms = rows if places is None else len(places), [self._numbers[name] for name in chunks]
        outs = self._pool.leases([size * form.dtype.itemsize for form in forms])
        found = {
            name: Straight(own, out.view(np.int64), None if form.blank is None else _NULL)
            if form.divisor
            else Straight(own, out.view(form.dtype), form.blank)
            for (name, own), out, form in zip(chunks.items(), outs, forms, strict=True)
        }
        widest = 0 if places is None else max(column.out.itemsize for column in found.values())
        whole = deliver(list(found.values()), self._scratch.bytes(rows * widest), places)
        read = {name: column.out for (name, column), each in zip(found.items(), whole, strict=True) if each}
        return {name: Dense(_divided(out, self._numbers[name])) for name, out in read.items()}

    def _of_ragged(self, chunks: Mapping[str, Chunks], rows: int, where: str) -> dict[str, Column]:
        """The columns of bytes or lists without nulls, by name."""
        columns: dict[str, Column] = {}
        room = {name: self._room(name, own, rows) for name, own in chunks.items()}
        while room:
            asked = self._memory({name: chunks[name] for name in room}, rows, room)
            again: dict[str, int] = {}
            for (name, column), found in zip(asked.items(), deliver_ragged(list(asked.values())), strict=True):
                if found is None:
                    continue
                if found > len(column.values):
                    again[name] = found
                else:
                    columns[name] = self._column(name, column, found, rows, where)
            room = again
        return columns

    def _room(self, name: str, chunks: Chunks, rows: int) -> int:
        """For how many bytes or entries there is to be room."""
        if not isinstance(self._ragged[name], TextLeaf):
            return int(chunks["entries"].sum())
        return max(int(chunks["room"].sum()), int(self._row_bytes.get(name, 0) * rows * _SPARE))

    def _memory(self, chunks: Mapping[str, Chunks], rows: int, room: Mapping[str, int]) -> dict[str, RaggedChunks]:
        """The columns, with memory for so many bytes or entries of each, and for offsets of so many rows."""
        leaves = [self._ragged[name] for name in chunks]
        dtypes = [np.dtype(np.uint8) if isinstance(leaf, TextLeaf) else leaf.element.dtype for leaf in leaves]
        values = self._pool.leases([room[name] * dtype.itemsize for name, dtype in zip(chunks, dtypes, strict=True)])
        ends = self._pool.leases([8 * (rows + 1) for leaf in leaves if not isinstance(leaf, TensorLeaf)])
        return {
            name: RaggedChunks(
                own, out.view(dtype), None if isinstance(leaf, TensorLeaf) else ends.pop().view(np.int64)
            )
            for (name, own), leaf, out, dtype in zip(chunks.items(), leaves, values, dtypes, strict=True)
        }

    def _column(self, name: str, column: RaggedChunks, found: int, rows: int, where: str) -> Column:
        leaf, values, offsets = self._ragged[name], column.values[:found], column.offsets
        if isinstance(leaf, TensorLeaf):
            return Dense(values.reshape(rows, *leaf.shape))
        assert offsets is not None
        if isinstance(leaf, ListLeaf):
            return Ragged(values, offsets, leaf.layout)
        self._row_bytes[name] = max(self._row_bytes.get(name, 0), found / max(1, rows))
        if leaf.as_bytes:
            return Ragged(values, offsets)
        if not leaf.binary:
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            check_utf8(name, pa.chunked_array([pa.Array.from_buffers(pa.large_string(), rows, buffers)]), where)
        return Text(values, offsets, None, leaf.binary)


def _divided(out: npt.NDArray[Any], form: StraightForm) -> npt.NDArray[Any]:
    """The output of what was read; of decimals, that is their unscaled numbers, int64, which are divided in place."""
    if not form.divisor:
        return out
    floats = out.view(np.float64)
    for first in range(0, len(out), _AT_ONCE):
        numbers = out[first : first + _AT_ONCE].astype(np.float64)
        np.divide(numbers, form.divisor, out=floats[first : first + _AT_ONCE])
        if form.blank is not None and (nulls := numbers == _NULL).any():
            floats[first : first + _AT_ONCE][nulls] = form.blank
    return floats
