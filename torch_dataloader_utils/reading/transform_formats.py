"""Wraps a transform in numpy, torch, pandas or polars as one of Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.reading import transform_arrays as arrays
from torch_dataloader_utils.reading import transform_frames as frames
from torch_dataloader_utils.reading.transform_arrays import Returned
from torch_dataloader_utils.schemas.merge import is_text


class _Format(NamedTuple):
    """Converts a record batch to the transform's input, and its result to columns."""

    given: Callable[[pa.RecordBatch], Any]
    returned: Callable[[Any], Iterable[tuple[str, Returned]]]


_FORMATS = {
    "numpy": _Format(arrays.numpy_given, arrays.numpy_returned),
    "torch": _Format(arrays.torch_given, arrays.torch_returned),
    "pandas": _Format(frames.pandas_given, frames.pandas_returned),
    "polars": _Format(frames.polars_given, frames.polars_returned),
}


@dataclass(frozen=True)
class FormattedTransform:
    """A transform of record batches that wraps one in another format; picklable if that one is.

    Columns get the expected types. On the first call, with 0 rows, none are expected yet, except that columns which the
    transform leaves alone keep their types.

    Attributes:
        transform: the user's function.
        format: a key of `_FORMATS`, or "rows".
        given: the schema of the batches.
        changed: the types that columns return with if the transform leaves them alone, where those are not their own.
        expected: the schema of the results; None until it is known.
    """

    transform: Callable[..., Any]
    format: str
    given: pa.Schema
    changed: Mapping[str, pa.DataType]
    expected: pa.Schema | None = None

    def __call__(self, batch: pa.RecordBatch, *rng: Any) -> pa.RecordBatch:
        """The transform's result for these rows, of which `rng` draws numbers, if they come with it.

        Raises:
            UnsupportedTypeError: it is not in the format, or Arrow has no type for a column.
            SchemaMismatchError: values do not fit the expected type, a column's type is unknown, there are no columns,
                or they have unequal lengths.
        """
        columns = [(_checked_name(name), self._array(name, values)) for name, values in self._returned(batch, *rng)]
        lengths = {name: len(array) for name, array in columns}
        if len(set(lengths.values())) != 1:
            raise SchemaMismatchError(f"transform returned columns of these lengths: {lengths}. Expected equal ones.")
        return pa.RecordBatch.from_arrays([array for _, array in columns], names=[name for name, _ in columns])

    def _returned(self, batch: pa.RecordBatch, *rng: Any) -> Iterable[tuple[str, Returned]]:
        """The columns that the transform returns for these rows."""
        form = _FORMATS[self.format]
        return form.returned(self.transform(form.given(batch), *rng))

    def _array(self, name: str, values: Returned) -> pa.Array:
        own, expected = _type_in(self.given, name), _type_in(self.expected, name)
        target = own if self.expected is None else expected
        if isinstance(values, list) or pt.is_null(values.type):
            return _of_objects(name, values if isinstance(values, list) else values.to_pylist(), target)
        if target is None or values.type.equals(target):
            return values
        unchanged = own == target and values.type == self.changed.get(name)
        if unchanged or (self.expected is not None and _alike(values.type, target)):
            return _cast(name, values, target)
        return values


def formatted(transform: Callable[..., Any], format: str, given: pa.Schema) -> Callable[..., Any]:
    """The transform as a function of record batches with the schema `given`.

    Raises:
        MissingExtraError: the format's library is not installed.
    """
    if format == "arrow":
        return transform
    form = _FORMATS[format]
    columns = form.returned(form.given(no_rows(given)))
    back = {name: values.type for name, values in columns if isinstance(values, pa.Array)}
    changed = {
        item.name: back[item.name]
        for item in given
        if item.name in back and not back[item.name].equals(item.type) and _is_layout(back[item.name], item.type)
    }
    return FormattedTransform(transform, format, given, changed)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of 0 rows, with columns of any type: `schema.empty_table` fails on extension types in structs."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise UnsupportedTypeError(f"transform returned a column called {name!r}: expected a string as its name.")
    return name


def _type_in(schema: pa.Schema | None, name: str) -> pa.DataType | None:
    place = -1 if schema is None else schema.get_field_index(name)
    return schema.field(place).type if schema is not None and place >= 0 else None


# --------------------------------------------------------------------------------------------------------------- types


def _is_layout(back: pa.DataType, own: pa.DataType) -> bool:
    """Whether both types hold the same values and `back` can be cast to `own`: not so for a float and a decimal."""
    if not _alike(back, own) and not (pt.is_temporal(back) and pt.is_temporal(own)):
        return False
    try:
        _cast("", pa.nulls(0, back), own)
    except (pa.ArrowNotImplementedError, SchemaMismatchError):
        return False
    return True


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether types differ only in layout: offsets of 32 or 64 bits, dictionaries, lists of fixed or any length."""
    if isinstance(one, pa.BaseExtensionType) and isinstance(other, pa.BaseExtensionType):
        return bool(one.equals(other))
    one, other = _bare(one), _bare(other)
    if one.equals(other) or pt.is_null(one):
        return True
    if any(family(one) and family(other) for family in (is_text, _is_bytes)):
        return True
    if pt.is_map(one) or pt.is_map(other) or pt.is_struct(one) or pt.is_struct(other):
        return one.id == other.id and _fields_alike(one, other)
    if pt.is_fixed_size_list(one) and pt.is_fixed_size_list(other) and one.list_size != other.list_size:
        return False
    lists = hasattr(one, "value_type") and hasattr(other, "value_type")
    return lists and _alike(one.value_type, other.value_type)


def _fields_alike(one: pa.DataType, other: pa.DataType) -> bool:
    pairs = [(one.field(place), other.field(place)) for place in range(min(one.num_fields, other.num_fields))]
    named = pt.is_map(one) or all(field.name == twin.name for field, twin in pairs)
    return one.num_fields == other.num_fields and named and all(_alike(a.type, b.type) for a, b in pairs)


def _bare(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _bare(kind.storage_type)
    return _bare(kind.value_type) if pt.is_dictionary(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in kinds)


# -------------------------------------------------------------------------------------------------------------- values


def _cast(name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        if pt.is_duration(values.type) and pt.is_time(kind):  # numpy has no time of day
            values = values.cast(pa.int64()).cast(pa.int32() if pt.is_time32(kind) else pa.int64())
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise _misfit(name, kind, error) from error


def _of_objects(name: str, values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """An array of this type, from Python objects, or from arrays that are rows of lists or tensors."""
    if kind is None:
        raise SchemaMismatchError(
            f"transform returned column {name!r} as Python objects or nulls, and its type cannot be inferred from 0 "
            "rows: return an array with a dtype, or pass Transform(schema=) with the columns that transform returns."
        )
    try:
        if isinstance(kind, pa.BaseExtensionType):
            shape = getattr(kind, "shape", None)
            rows = values if shape is None else [_flat(value, tuple(shape)) for value in values]
            return pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))
        if pt.is_dictionary(kind):
            return pa.array(values, kind.value_type).cast(kind)
        return exactly(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        raise _misfit(name, kind, error) from error


def exactly(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as `pa.array` converts them, but an error where it would truncate floats to ints."""
    if pt.is_integer(_item_type(kind)):
        found = pa.array(values)
        if pt.is_floating(_item_type(found.type)):
            return found.cast(kind)
    return pa.array(values, kind)


def _item_type(kind: pa.DataType) -> pa.DataType:
    return _item_type(kind.value_type) if hasattr(kind, "value_type") else kind


def _flat(value: Any, shape: tuple[int, ...]) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"a row of shape {array.shape}")
    return array.reshape(-1)


def _misfit(name: str, kind: pa.DataType, error: Exception) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"transform returned column {name!r} with values that do not fit {kind}, its type after a call on 0 rows or in "
        f"Transform(schema=): {error}"
    )
