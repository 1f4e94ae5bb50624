"""One leaf of a schema (a column, or a field of a struct) to one converted column: a class per kind of output.

Each is decided once, from the schema; per block it checks only null counts and chunk counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import (
    Origin,
    fixed,
    is_binary,
    offsets_from_lengths,
    offsets_from_zero,
    plain_chunks,
    valid_rows,
)
from torch_dataloader_utils.convert.columns import Array, Column, Dense, Objects, Ragged, Text
from torch_dataloader_utils.convert.elements import Element, read_elements
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.kernels import join_offsets
from torch_dataloader_utils.late_imports import pc


class Leaf(Protocol):
    """How one leaf is converted."""

    @property
    def holds_null(self) -> bool:
        """Whether the output has a null of its own (NaN, None), so that nulls need no policy."""

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Column, Array | None]:
        """The rows of `chunks` as one column, and which are not null: bool [n], None for all."""

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Which rows are not null, as `convert` returns it: bool [n], None for all."""

    def report(self) -> dict[str, Any]:
        """Kind, dtype and shape of the output, as plain values."""


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """One number, date or decimal per row: `Dense` [n]."""

    element: Element

    @property
    def holds_null(self) -> bool:
        """Whether the dtype has NaN."""
        return self.element.holds_null

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Dense, Array | None]:
        """Values [n], and which are not null."""
        values, valid = read_elements(self.element, chunks, origin)
        return Dense(values), valid

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Which values are not null."""
        return valid_rows(plain_chunks(chunks, self.element.steps))

    def report(self) -> dict[str, Any]:
        """As `Leaf`."""
        return {"kind": "dense", "dtype": self.element.dtype_name, "shape": "[B]"}


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """One vector or tensor per row: `Dense` [n, *shape]. A null element makes its row null; in floats it is NaN.

    Attributes:
        element: how its numbers are converted.
        steps: convert the column's own type to a list of fixed size.
        stored: the stored shape of a row, row-major.
        axes: the stored dimension for each dimension of the output; () if they are the same.
        dims: names of the output's dimensions, if the type has any.
        fill: the row that replaces null rows, [*shape] of the output's dtype; None: its element's blank does.
    """

    element: Element
    steps: tuple[str, ...]
    stored: tuple[int, ...]
    axes: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    fill: Any = field(default=None, compare=False)

    @property
    def holds_null(self) -> bool:
        """Whether the dtype has NaN."""
        return self.element.holds_null

    @property
    def as_stored(self) -> bool:
        """Whether the values of a list without nulls are those of the output."""
        return not self.steps and not self.axes and self.element.as_stored

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row of the output."""
        return tuple(self.stored[axis] for axis in self.axes) or self.stored

    @property
    def width(self) -> int:
        """The count of numbers in a row."""
        return math.prod(self.stored)

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Dense, Array | None]:
        """Values [n, *shape], with null rows blank, and which rows are not null."""
        chunks = plain_chunks(chunks, self.steps)
        rows = valid_rows(chunks)
        outer = None if rows is None else np.repeat(rows, self.width)
        values, inner = read_elements(self.element, [self._elements(chunk) for chunk in chunks], origin, outer)
        tensors = values.reshape(sum(len(chunk) for chunk in chunks), *self.stored)
        if self.axes:
            tensors = np.ascontiguousarray(tensors.transpose(0, *(axis + 1 for axis in self.axes)))
        valid = self._settle(rows, inner)
        if self.fill is not None and rows is not None:
            tensors[~rows] = self.fill
            valid = None if valid is None else valid | ~rows
        return Dense(tensors), valid

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Where rows are not null."""
        chunks = plain_chunks(chunks, self.steps)
        inner = valid_rows(plain_chunks([self._elements(chunk) for chunk in chunks], self.element.steps))
        return self._settle(valid_rows(chunks), inner)

    def _elements(self, chunk: pa.Array) -> pa.Array:
        # flatten() would drop null rows and shift those after them; .values ignores the slice.
        return chunk.values.slice(chunk.offset * self.width, len(chunk) * self.width)

    def _settle(self, rows: Array | None, inner: Array | None) -> Array | None:
        if inner is None or self.element.holds_null or not self.width:
            return rows
        whole: Array = np.logical_and.reduce(inner.reshape(-1, self.width), axis=1)
        return whole if rows is None else rows & whole

    def report(self) -> dict[str, Any]:
        """As `Leaf`."""
        sizes = ", ".join(map(str, ("B", *self.shape)))
        named = {"dims": list(self.dims)} if self.dims else {}
        return {"kind": "dense", "dtype": self.element.dtype_name, "shape": f"[{sizes}]", **named}


@dataclass(frozen=True, slots=True)
class ListLeaf:
    """A list of numbers of any length per row: `Ragged`. Null elements: as in `TensorLeaf`.

    Attributes:
        element: how its numbers are converted.
        steps: convert the column's own type to a list.
        type: the list.
        layout: of batches.
        null_is_empty: whether a null list counts as an empty one.
        fill: the list that replaces null lists, of the output's dtype; None: they are empty.
        fills_values: whether the element's blank replaces null values in lists, too.
    """

    element: Element
    steps: tuple[str, ...]
    type: pa.DataType
    layout: str | Padding = "ragged"
    null_is_empty: bool = False
    fill: Any = field(default=None, compare=False)
    fills_values: bool = False

    holds_null = False  # an empty list is not null

    @property
    def as_stored(self) -> bool:
        """Whether the values of a list without nulls are those of the output."""
        return not self.steps and self.element.as_stored

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Ragged, Array | None]:
        """Values [sum] and offsets [n + 1], and which rows are not null."""
        chunks = plain_chunks(chunks, self.steps)
        values, inner = read_elements(self.element, [chunk.flatten() for chunk in chunks], origin)
        offsets = self._offsets(chunks)
        valid = self._settle(self._rows(chunks), inner, offsets)
        if self.fill is not None and (rows := valid_rows(chunks)) is not None:
            values, offsets = _with_lists(values, offsets, ~rows, self.fill)
            valid = None if valid is None else valid | ~rows
        return Ragged(values, offsets, self.layout), valid

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Where rows are not null."""
        chunks = plain_chunks(chunks, self.steps)
        inner = valid_rows(plain_chunks([chunk.flatten() for chunk in chunks], self.element.steps))
        return self._settle(self._rows(chunks), inner, self._offsets(chunks))

    def _rows(self, chunks: Sequence[pa.Array]) -> Array | None:
        return None if self.null_is_empty else valid_rows(chunks)

    def _offsets(self, chunks: Sequence[pa.Array]) -> Array:
        parts = [self._chunk_offsets(chunk) for chunk in chunks]
        return parts[0] if len(parts) == 1 else join_offsets(parts)

    def _chunk_offsets(self, chunk: pa.Array) -> Array:
        large = pt.is_large_list(self.type)
        if chunk.null_count or not (large or pt.is_list(self.type)):
            return offsets_from_lengths(chunk)
        return offsets_from_zero(chunk, large)

    def _settle(self, rows: Array | None, inner: Array | None, offsets: Array) -> Array | None:
        if inner is None or self.element.holds_null:
            return rows
        nulls = np.concatenate([[0], np.cumsum(~inner)])
        whole: Array = nulls[offsets[1:]] == nulls[offsets[:-1]]
        return whole if rows is None else rows & whole

    def report(self) -> dict[str, Any]:
        """As `Leaf`."""
        report = {"kind": "padded", "dtype": self.element.dtype_name, "shape": "[B, *]"}
        if isinstance(self.layout, str):
            return {**report, "kind": self.layout}
        return report if self.layout == Padding() else {**report, "padding": str(self.layout)}


def _with_lists(values: Array, offsets: Array, where: Array, fill: Array) -> tuple[Array, Array]:
    """Values and offsets of lists, with `fill` in place of the empty ones at `where`: bool [n]."""
    lengths = np.where(where, len(fill), np.diff(offsets))
    moved = np.concatenate([[0], np.cumsum(lengths)]).astype(offsets.dtype)
    filled = np.zeros(int(moved[-1]), np.bool_)
    filled[(moved[:-1][where][:, None] + np.arange(len(fill))).reshape(-1)] = True
    joined = np.empty(len(filled), values.dtype)
    joined[~filled] = values
    joined[filled] = np.tile(fill, int(where.sum()))
    return joined, moved


@dataclass(frozen=True, slots=True)
class TextLeaf:
    """One string or bytes value per row: `Text`, or `Ragged` bytes without Python objects (`strings="bytes"`)."""

    type: pa.DataType
    steps: tuple[str, ...]
    as_bytes: bool
    fill: str | bytes | None = None

    @property
    def binary(self) -> bool:
        """Whether rows are bytes, not str."""
        return is_binary(self.type)

    @property
    def as_stored(self) -> bool:
        """Whether the bytes of a column without nulls are those of the output."""
        return not self.steps

    @property
    def kind(self) -> type:
        """The type of its values in Python."""
        return bytes if self.binary else str

    @property
    def holds_null(self) -> bool:
        """Whether rows become Python objects, so that a null can be None."""
        return not self.as_bytes

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Text | Ragged, Array | None]:
        """Bytes [sum] and offsets [n + 1], and which rows are not null."""
        chunks = plain_chunks(chunks, self.steps)
        valid = valid_rows(chunks)
        if valid is not None and (self.as_bytes or self.fill is not None):
            # This also removes the bytes that a null may cover.
            blank = pa.scalar(self.fill or (b"" if self.binary else ""), self.type)
            chunks = [pc.fill_null(chunk, blank) for chunk in chunks]
        values, offsets = self._bytes(chunks, origin)
        if self.as_bytes:
            return Ragged(values, offsets), valid
        return Text(values, offsets, None if self.fill is not None else valid, self.binary), valid

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Where rows are not null."""
        return valid_rows(plain_chunks(chunks, self.steps))

    def _bytes(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Array, Array]:
        wide = pt.is_large_string(self.type) or pt.is_large_binary(self.type)
        offsets = [offsets_from_zero(chunk, wide) for chunk in chunks]
        values = [self._chunk_bytes(chunk, wide, int(ends[-1])) for chunk, ends in zip(chunks, offsets, strict=True)]
        if len(chunks) != 1:
            return np.concatenate([np.empty(0, np.uint8), *values]), join_offsets(offsets)
        # Text is never written to, so it needs no copy.
        keep = not self.as_bytes or (
            values[0].flags.writeable and len(values[0]) > 0 and origin.may_keep(chunks[0].buffers()[2])
        )
        return (values[0] if keep else values[0].copy()), offsets[0]

    def _chunk_bytes(self, chunk: pa.Array, wide: bool, size: int) -> Array:
        if not size:
            return np.empty(0, np.uint8)
        starts = fixed(chunk.buffers()[1], np.dtype(np.int64 if wide else np.int32), chunk.offset, 1)
        return fixed(chunk.buffers()[2], np.dtype(np.uint8), int(starts[0]), size)

    def report(self) -> dict[str, Any]:
        """As `Leaf`."""
        if self.as_bytes:
            return {"kind": "ragged", "dtype": "uint8", "shape": "[B, *]"}
        return {"kind": "list", "dtype": "bytes" if self.binary else "str", "shape": "[B]"}


@dataclass(frozen=True, slots=True)
class ObjectsLeaf:
    """One Python object per row, for types without a tensor form: `Objects`."""

    type: pa.DataType

    holds_null = True  # None

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Objects, Array | None]:
        """The rows unchanged, and which are not null."""
        return Objects(pa.chunked_array(chunks, type=self.type)), self.valid(chunks)

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Which rows are not null (computed by Arrow, because unions and the null type have no bitmap)."""
        parts = [chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks]
        valid: Array = np.concatenate([np.empty(0, np.bool_), *parts])
        return None if valid.all() else valid

    def report(self) -> dict[str, Any]:
        """As `Leaf`."""
        return {"kind": "list", "dtype": "object", "shape": "[B]"}
