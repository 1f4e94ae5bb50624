"""Input and output of transforms in numpy or torch: arrays or tensors by column name, lists where neither fits.

torch is imported only if a transform needs it, so that worker processes otherwise start without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import Origin, plain, unencoded, valid_rows
from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.convert.elements import Element
from torch_dataloader_utils.convert.plan import column_plans
from torch_dataloader_utils.errors import NullValueError, UnsupportedTypeError
from torch_dataloader_utils.options import ConvertOptions
from torch_dataloader_utils.schemas.columns import python_values

Returned: TypeAlias = "pa.Array | list[Any]"
"""A column that a transform returned; a list if its type cannot be inferred from its values."""

_COPIED = Origin(owned=False, shared=frozenset(), where="transform")


# --------------------------------------------------------------------------------------------------------------- numpy


def numpy_given(batch: pa.RecordBatch) -> dict[str, Array]:
    """The columns as numpy arrays [n], [n, k] or [n, *shape], writable and not shared.

    Nulls are NaN, NaT or None, and masked in arrays of ints and bools, so that no dtype depends on them.
    """
    return {name: _numpy(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _numpy(name: str, array: pa.Array) -> Array:
    converted = _converted(name, array)
    if converted is None:
        return _objects(python_values(array, name, ()))
    element, column, valid = converted
    if isinstance(column, Dense) and element is not None:
        return _masked(_timed(column.array, element.type), valid)
    if isinstance(column, Ragged):
        rows = [column.values[start:end] for start, end in pairwise(column.offsets.tolist())]
        return _objects(_with_none(rows, valid))
    return _objects(column.to_list())  # type: ignore[union-attr]


def _objects(values: Iterable[Any]) -> Array:
    """An array [n] of these objects, even if they are arrays of equal length."""
    items = list(values)
    return np.fromiter(items, np.dtype(object), len(items))


def _timed(values: Array, kind: pa.DataType) -> Array:
    """Dates and times as numpy's types; a time of day becomes the time since midnight."""
    if pt.is_date32(kind):
        return values.astype("datetime64[D]")
    if pt.is_timestamp(kind) or pt.is_date64(kind):
        return values.view(f"datetime64[{getattr(kind, 'unit', 'ms')}]")
    return values.view(f"timedelta64[{kind.unit}]") if pt.is_time(kind) or pt.is_duration(kind) else values


def _masked(values: Array, valid: Array | None) -> Array:
    """The values with nulls as NaT or masked; floats hold NaN already."""
    if valid is None or values.dtype.kind == "f":
        return values
    if values.dtype.kind in "mM":
        values[~valid] = np.array("NaT", values.dtype)
        return values
    mask = np.broadcast_to(~valid.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return np.ma.MaskedArray(values, mask.copy())


def numpy_returned(result: Any) -> Iterator[tuple[str, Returned]]:
    """The columns of a dict of arrays (or lists).

    Raises:
        UnsupportedTypeError: it is not a dict, or a value cannot be a column.
    """
    for name, value in _items(result, "numpy arrays"):
        yield name, _returned(name, value)


def _items(result: Any, of: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(result, Mapping):
        raise UnsupportedTypeError(f"transform returned {type(result).__name__}: expected a dict of {of} by column.")
    return result.items()


def _returned(name: str, value: Any) -> Returned:
    """The array in Arrow's form: fixed-size lists for [n, k], fixed-shape tensors for [n, *shape]."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, np.ndarray) or not value.ndim:
        raise UnsupportedTypeError(
            f"transform returned {value!r:.80} as column {name!r}: expected an array or a list with a value per row."
        )
    if value.dtype == object:
        items: list[Any] = value.tolist()
        return items
    mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
    try:
        return _rows(np.ma.getdata(value), mask)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedTypeError(
            f"transform returned column {name!r} as an array of {value.dtype}: Arrow has no such type ({error})."
        ) from error


def _rows(values: Array, mask: Array | None) -> pa.Array:
    nulls = _with_nans(values, mask)
    if values.ndim == 1:
        return pa.array(values, mask=nulls)
    shape = values.shape[1:]
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), mask=None if nulls is None else nulls.reshape(-1))
    bitmap = None
    if nulls is not None and nulls.size:
        bitmap = _bitmap(np.logical_and.reduce(nulls.reshape(len(nulls), -1), axis=1))
    kind = pa.list_(flat.type, prod(shape))
    rows = pa.Array.from_buffers(kind, len(values), [bitmap], children=[flat])
    if len(shape) == 1:
        return rows
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), rows)


def _with_nans(values: Array, mask: Array | None) -> Array | None:
    """The mask including NaN, which represents a null in the transform's input."""
    if values.dtype.kind != "f":
        return mask
    nans = np.isnan(values)
    if not nans.any():
        return mask
    return nans if mask is None else nans | mask


def _bitmap(nulls: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


# --------------------------------------------------------------------------------------------------------------- torch


def torch_given(batch: pa.RecordBatch) -> dict[str, Any]:
    """The columns as tensors [n], [n, k] or [n, *shape], else as lists; none is shared.

    Raises:
        NullValueError: a null in a column of ints or bools, which no tensor can hold.
    """
    make = import_module("torch").from_numpy
    return {name: _torch(name, column, make) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def _torch(name: str, array: pa.Array, make: Callable[[Array], Any]) -> Any:
    converted = _converted(name, array)
    if converted is None:
        return python_values(array, name, ())
    _, column, valid = converted
    if isinstance(column, Dense):
        if valid is not None and column.array.dtype.kind != "f":
            raise NullValueError(_null_message(name, f"a tensor of {column.array.dtype}"))
        return make(column.array)
    if isinstance(column, Ragged):
        return _with_none(make(column.values).split(np.diff(column.offsets).tolist()), valid)
    return column.to_list()


def torch_returned(result: Any) -> Iterator[tuple[str, Returned]]:
    """The columns of a dict of tensors (or arrays, or lists).

    Raises:
        UnsupportedTypeError: it is not a dict, or a value cannot be a column.
    """
    tensor = import_module("torch").Tensor
    for name, value in _items(result, "tensors"):
        value = _untorched(name, value, tensor)
        if isinstance(value, (list, tuple)):
            value = [_untorched(name, item, tensor) for item in value]
        yield name, _returned(name, value)


def _untorched(name: str, value: Any, tensor: type) -> Any:
    """A tensor as an array, or as a number if it has no dimensions; anything else unchanged."""
    if not isinstance(value, tensor):
        return value
    try:
        array = value.detach().cpu().numpy()  # type: ignore[attr-defined]
    except TypeError as error:  # bfloat16, sparse, nested
        raise UnsupportedTypeError(
            f"transform returned column {name!r} as a tensor that numpy has no array for ({error}): return a dense "
            "one of another dtype."
        ) from error
    return array if array.ndim else array.item()


# ---------------------------------------------------------------------------------------------------------------- both


def _converted(name: str, array: pa.Array) -> tuple[Element | None, Column, Array | None] | None:
    """How numbers are read, the column as in a batch, and which rows are not null; None for Python objects.

    Raises:
        NullValueError: a null in a list of ints or bools.
    """
    bare, steps = unencoded(array.type)
    if pt.is_nested(bare) and not _of_numbers(bare):
        return None
    leaf = column_plans(pa.schema([(name, array.type)]), ConvertOptions())[0].leaf
    column, valid = leaf.convert([array], _COPIED)
    element = getattr(leaf, "element", None)
    if element is not None and pt.is_nested(bare) and valid is not None:
        rows = valid_rows([plain(array, steps)])
        if rows is None or (rows != valid).any():
            raise NullValueError(_null_message(name, f"an array of {element.dtype}"))
    return element, column, valid


def _of_numbers(kind: pa.DataType) -> bool:
    """Whether values are lists of plain numbers, or fixed-size lists of anything that is a number in batches."""
    if pt.is_struct(kind) or pt.is_map(kind) or pt.is_union(kind):
        return False
    value = kind.value_type
    plain_number = pt.is_integer(value) or pt.is_floating(value) or pt.is_boolean(value)
    return bool(plain_number or (pt.is_fixed_size_list(kind) and (pt.is_temporal(value) or pt.is_decimal(value))))


def _with_none(rows: Iterable[Any], valid: Array | None) -> list[Any]:
    """The rows, with None for null ones."""
    if valid is None:
        return list(rows)
    return [row if kept else None for row, kept in zip(rows, valid.tolist(), strict=True)]


def _null_message(name: str, what: str) -> str:
    return (
        f"column {name!r} has a null before transform, and {what} has none. Leave out such rows by "
        f"nulls={{{name!r}: 'drop'}}, or the column by columns=, or use Transform(format='arrow'), 'pandas' or "
        "'polars'."
    )
