"""Cuts converted columns into batches: views of a block, created in groups, or rows of several blocks joined.

Views are created in groups of several hundred tensors, on the consumer's thread. Splitting a whole block at once would
create so many objects that full garbage collections start; creating views on the decode threads would compete for the
GIL; and a tensor of its own for each column and batch (42 columns of 1,024 rows) costs several times the decoding.
`unsafe_split` returns the right kind of view: it may be modified in place under autograd, and each batch has its
own version counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import Part
from torch_dataloader_utils.convert.columns import Column, Dense, Memory, Objects, Ragged, Text, concat
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.convert.stacks import stacked_keys
from torch_dataloader_utils.kernels import chunks, interleave, interleave_ranges
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.reading.buffers import BufferPool
from torch_dataloader_utils.rows import I64

# Puts the rows of several blocks in the order of mixed batches: each batch has some rows of every block.


def mixed_columns(
    columns: Mapping[str, Sequence[Column]], quotas: I64, dense: Mapping[str, Array], memory: Memory
) -> dict[str, Column]:
    """The rows of each key in the order of their batches.

    Args:
        columns: by key, its rows of each block.
        quotas: the number of rows of each block in each batch, [batches, blocks].
        dense: where `Dense` columns are written, uint8, of their size, by key.
        memory: makes the arrays of the values of other columns.
    """
    mixed: dict[str, Column] = {}
    arrays, outs = [], []
    for key, parts in columns.items():
        of_parts = [np.ascontiguousarray(part.array) for part in parts if isinstance(part, Dense)]
        if len(of_parts) < len(parts):
            mixed[key] = _mixed(parts, quotas, memory)
            continue
        out = dense[key].view(of_parts[0].dtype).reshape(-1, *of_parts[0].shape[1:])
        arrays.append(of_parts)
        outs.append(out)
        mixed[key] = Dense(out)
    interleave(arrays, quotas, outs)
    return mixed


def _mixed(parts: Sequence[Any], quotas: I64, memory: Memory) -> Column:
    """The rows of a column that is not `Dense`."""
    if all(isinstance(part, Ragged) for part in parts):
        return _ragged(parts, quotas, memory)
    if all(isinstance(part, Text) for part in parts):
        return _text(parts, quotas, memory)
    return concat([parts[part].slice(first, last) for part, first, last in chunks(quotas)])


def _ragged(parts: Sequence[Ragged], quotas: I64, memory: Memory) -> Ragged:
    like = parts[0].values
    item = like.itemsize * math.prod(like.shape[1:])
    ranges = [(part.values.reshape(-1).view(np.uint8), part.offsets) for part in parts]
    data, offsets = interleave_ranges(ranges, quotas, item, memory)
    return Ragged(data.view(like.dtype).reshape(int(offsets[-1]), *like.shape[1:]), offsets, parts[0].layout)


def _text(parts: Sequence[Text], quotas: I64, memory: Memory) -> Text:
    values, offsets = interleave_ranges([(part.values, part.offsets) for part in parts], quotas, 1, memory)
    valid, masks = None, Text.masks(parts)
    if masks is not None:
        valid = np.empty(len(offsets) - 1, np.bool_)
        interleave([masks], quotas, [valid])
    return Text(values, offsets, valid, parts[0].binary)


_GROUP = 600  # views to create at a time ...
_LEAST_BATCHES = 8  # ... but at least this many batches, however many columns there are
LARGE_BATCH = 1 << 13  # rows from which on offsets are made for each batch when it is due: the first comes sooner
_RECYCLED_BYTES = 1 << 20  # joined batches of at least this size use recycled memory
_STRINGS = 1024  # that are made at a time for small batches

Array = npt.NDArray[Any]


# The target keys of batches, each with the keys of the columns of lists that it joins.
Jagged = Mapping[str, Sequence[str]]

# Cuts a column, or those that are joined, by key: (it, first, count, size) -> `count` values, one per batch.
# There is one function for all columns of a kind: making one for each would take as long as their views, and leave the
# garbage collector more objects than these.
Cut: TypeAlias = Callable[[Any, int, int, int], Iterable[Any]]


class ColumnForm:
    """Batches as dicts of output key -> array, tensor or list."""

    def __init__(
        self,
        keys: Sequence[str],
        cut_of: Callable[[Column], Cut],
        jagged: Jagged,
        jagged_cut: Cut,
    ) -> None:
        self._keys = tuple(keys)  # of blocks
        self._entries = tuple(stacked_keys(keys, jagged))  # of batches
        self._cut_of = cut_of
        self._jagged = jagged
        self._jagged_cut = jagged_cut
        self.pool = BufferPool()  # for joined batches, with at most one lease per column
        self._group = max(_LEAST_BATCHES, _GROUP // max(1, len(self._keys)))

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[dict[str, Any]]:
        """`count` batches of `size` rows as views of the block."""
        return self._split(block.columns or {}, first, count, size)

    def join(self, parts: list[Part]) -> dict[str, Any]:
        """One batch from the rows of several blocks, in fresh or recycled memory."""
        columns = self._joined(self._columns_of(parts))
        return next(self._split(columns, 0, 1, sum(last - first for _, first, last in parts)))

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Batches with rows of every part, put in order column by column, in recycled memory."""
        columns = self._columns_of(parts)
        memory = self._memory({key: _dense_bytes(columns[key]) for key in self._keys})
        mixed = mixed_columns(columns, np.ascontiguousarray(quotas), memory, self.pool.lease)
        return self._split(mixed, 0, len(quotas), int(quotas[0].sum()))

    def _columns_of(self, parts: list[Part]) -> dict[str, list[Column]]:
        """The rows of every part, by key."""
        return {
            key: [(block.columns or {})[key].slice(first, last) for block, first, last in parts] for key in self._keys
        }

    def _split(self, columns: dict[str, Column], first: int, count: int, size: int) -> Iterator[dict[str, Any]]:
        sources = [self._source(key, columns) for key in self._entries]
        cuts = [
            self._jagged_cut if entry in self._jagged else self._cut_of(source)
            for entry, source in zip(self._entries, sources, strict=True)
        ]
        while count:
            group = min(count, self._group)
            values = self._values(cuts, sources, first, group, size)
            first, count = first + group * size, count - group
            for batch in zip(*values, strict=True):
                yield dict(zip(self._entries, batch, strict=True))

    def _source(self, entry: str, columns: Mapping[str, Column]) -> Any:
        """The column of an entry of batches, or those that it joins, by their keys."""
        return {key: columns[key] for key in self._jagged[entry]} if entry in self._jagged else columns[entry]

    def _values(
        self, cuts: Sequence[Cut], sources: Sequence[Any], first: int, count: int, size: int
    ) -> list[Iterable[Any]]:
        """For each entry, `count` values, one per batch."""
        return [cut(source, first, count, size) for cut, source in zip(cuts, sources, strict=True)]

    def _joined(self, columns: dict[str, list[Column]]) -> dict[str, Column]:
        """The rows of each key's columns as one column; in recycled memory if they are large."""
        sizes = {key: _dense_bytes(parts) for key, parts in columns.items()}
        if sum(sizes.values()) < _RECYCLED_BYTES:
            return {key: concat(parts) for key, parts in columns.items()}
        memory = self._memory(sizes)
        return {key: _copied(parts, memory[key]) if sizes[key] else concat(parts) for key, parts in columns.items()}

    def _memory(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The memory of each key, uint8."""
        return dict(zip(sizes, self.pool.leases(list(sizes.values())), strict=True))


def _dense_bytes(columns: Sequence[Column]) -> int:
    """The number of bytes of the rows of these columns; 0 if they are not `Dense`."""
    return sum(column.nbytes for column in columns if isinstance(column, Dense))


def _copied(columns: Sequence[Column], memory: Array) -> Dense:
    """The rows of these `Dense` columns, copied to `memory` (uint8, with the same number of bytes)."""
    arrays = [column.array for column in columns if isinstance(column, Dense)]
    out = memory.view(arrays[0].dtype).reshape(-1, *arrays[0].shape[1:])
    np.concatenate(arrays, out=out)
    return Dense(out)


def spans(first: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """The half-open row ranges of `count` consecutive batches."""
    return ((start, start + size) for start in range(first, first + count * size, size))


def rebased(ragged: Ragged, first: int, count: int, size: int) -> tuple[Array, Array]:
    """The offsets of `count` batches, each from 0, int64 [count, size + 1]; and the bounds of their values [count + 1].

    Neighbouring batches share an entry of the block's offsets, so each batch needs its own copy.
    """
    offsets = ragged.offsets[first : first + count * size + 1]
    item = offsets.itemsize
    windows = np.lib.stride_tricks.as_strided(offsets, (count, size + 1), (size * item, item), writeable=False)
    bounds = offsets[::size] - ragged.offsets[0]
    return windows - offsets[: count * size : size, None], bounds


def padded(values: Array, offsets: Array, padding: Padding) -> tuple[Array, Array]:
    """The lists as an array [n, L], L the longest length, rounded up; and their lengths, int64 [n]."""
    lengths = np.diff(offsets)
    width = -(-int(lengths.max(initial=0)) // padding.multiple) * padding.multiple
    inside = np.arange(width) < lengths[:, None]
    out = np.full((*inside.shape, *values.shape[1:]), padding.value, dtype=values.dtype)
    out[inside] = values
    return out, lengths


def ragged_batches(ragged: Ragged, first: int, count: int, size: int) -> Iterator[tuple[Array, Array]]:
    """`count` batches, each as (values, offsets from 0)."""
    if size >= LARGE_BATCH:
        for part in (ragged.slice(*span) for span in spans(first, count, size)):
            yield part.values, part.offsets - part.offsets[0]
        return
    offsets, bounds = rebased(ragged, first, count, size)
    for rebased_offsets, start, stop in zip(offsets, bounds[:-1], bounds[1:], strict=True):
        yield ragged.values[start:stop], rebased_offsets


def jagged_batches(columns: Mapping[str, Ragged], first: int, count: int, size: int) -> Iterator[tuple[Array, Array]]:
    """`count` batches: the values of all K columns, one column after another; and all lengths, int32 [K * size]."""
    rows = slice(first, first + count * size + 1)
    lengths = np.stack([np.diff(column.offsets[rows]).reshape(count, size) for column in columns.values()], axis=1)
    bounds = [_bounds(column, first, count, size).tolist() for column in columns.values()]
    values = [column.values for column in columns.values()]
    for number, batch in enumerate(lengths.astype(np.int32).reshape(count, -1)):
        parts = zip(values, bounds, strict=True)
        yield np.concatenate([array[ends[number] : ends[number + 1]] for array, ends in parts]), batch


def numpy_jagged(columns: Mapping[str, Ragged], first: int, count: int, size: int) -> Iterable[dict[str, Any]]:
    """Columns of lists, joined in dicts of arrays."""
    for values, lengths in jagged_batches(columns, first, count, size):
        yield {"keys": list(columns), "values": values, "lengths": lengths}


def numpy_cut(column: Column) -> Cut:
    """The function that cuts columns of this kind into arrays."""
    if isinstance(column, Dense):
        return _arrays
    if not isinstance(column, Ragged):
        return lists
    return {"longest": longest, "ends": ends, "flat": flat}.get(str(column.layout), _ragged_dicts)


def _arrays(column: Dense, first: int, count: int, size: int) -> list[Array]:
    return [column.array[a:b] for a, b in spans(first, count, size)]


def ends(column: Ragged, first: int, count: int, size: int) -> Iterator[Array]:
    """Of lengths of runs: where each run of a batch ends, after a 0: int32 [runs + 1]."""
    for start, stop in pairwise(_bounds(column, first, count, size).tolist()):
        out = np.zeros(stop - start + 1, np.int32)
        np.cumsum(column.values[start:stop], out=out[1:])
        yield out


def flat(column: Ragged, first: int, count: int, size: int) -> Iterator[Array]:
    """The values of a batch's rows, one after another: [values]."""
    for start, stop in pairwise(_bounds(column, first, count, size).tolist()):
        yield column.values[start:stop]


def longest(column: Ragged, first: int, count: int, size: int) -> list[int]:
    """Of lengths of runs, with no empty row: the largest of each batch, a number."""
    bounds = _bounds(column, first, count, size)
    largest: list[int] = np.maximum.reduceat(column.values[: bounds[-1]], bounds[:-1]).tolist() if count else []
    return largest


def _bounds(column: Ragged, first: int, count: int, size: int) -> Array:
    """Where the values of `count` batches begin and end: int64 [count + 1]."""
    bounds: Array = column.offsets[first : first + count * size + 1 : size] - column.offsets[0]
    return bounds


def _ragged_dicts(column: Ragged, first: int, count: int, size: int) -> Iterator[dict[str, Array]]:
    for values, offsets in ragged_batches(column, first, count, size):
        if isinstance(column.layout, Padding):
            yield dict(zip(("values", "lengths"), padded(values, offsets, column.layout), strict=True))
        else:
            yield {"values": values, "offsets": offsets}


def lists(column: Text | Objects, first: int, count: int, size: int) -> Iterator[list[Any]]:
    """Of strings and objects: Python lists, made when they are needed, because they are larger than the column.

    A value that Python does not have is an error of its own batch, so only strings are made for several at a time.
    """
    most = max(1, _STRINGS // max(1, size)) if isinstance(column, Text) else 1
    for done in range(0, count, most):
        batches = min(most, count - done)
        values = column.to_list(first + done * size, first + (done + batches) * size)
        yield from (values[a:b] for a, b in spans(0, batches, size))
