"""Converts a data file's arrays to the table's: fields are matched by id, with the table's order, names and types.

Everything is decided when the file is opened; then, for each array, structs, lists and maps are rebuilt around the
buffers of the file's arrays. Nulls of structs, lists and maps are preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import SchemaMismatchError
from torch_dataloader_utils.iceberg.data_files.fields import FileField, children_of, field_id, is_list, places_by_id
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.merge import holds

Make = Callable[[int], pa.Array]  # number of rows -> array


@dataclass(frozen=True)
class Projection:
    """The conversion from one file's fields to the table's.

    Attributes:
        path: the file's path, for messages.
        constants: field id -> value for all rows, for fields that are not in the file.
        defaults: field id -> value for all rows, for fields that were added to the table later.
    """

    path: str
    constants: Mapping[int, Any]
    defaults: Mapping[int, Any]

    def of(self, source: FileField, field: pa.Field) -> Convert:
        """A function that converts the file's arrays of a field to the table's.

        Raises:
            SchemaMismatchError: the file's type cannot be converted to the table's, or it lacks a required field.
        """
        kind = field.type
        if pt.is_struct(kind) and pt.is_struct(source.type):
            return self._struct(source, kind)
        if pt.is_map(kind) and pt.is_map(source.type):
            return self._map(source, kind)
        if is_list(kind) and is_list(source.type):
            return self._list(source, kind)
        convert = None if children_of(kind) else conversion(source.type, kind)
        if convert is None:
            raise SchemaMismatchError(
                f"{self.path}: column {source.name!r} is {source.type} in the file, which cannot be read as {kind}, "
                f"the type of {field.name!r} in the table."
            )
        return convert

    def absent(self, field: pa.Field) -> Make:
        """A function that makes arrays for a field that is not in the file: its constant, its default, or nulls.

        Raises:
            SchemaMismatchError: the field is required and has neither a constant nor a default.
        """
        number = field_id(field)
        for values in (self.constants, self.defaults):
            if number is not None and number in values:
                return _repeated(values[number], field.type)
        if field.nullable:
            return lambda rows: pa.nulls(rows, field.type)
        if pt.is_struct(field.type) and field.type.num_fields:
            parts = [self.absent(child) for child in field.type]
            return lambda rows: pa.StructArray.from_arrays([part(rows) for part in parts], fields=list(field.type))
        raise SchemaMismatchError(
            f"{self.path}: has no column {field.name!r} (field id {number}), which the table requires and which has no "
            "initial default."
        )

    def _struct(self, source: FileField, kind: pa.DataType) -> Convert:
        by_id = places_by_id(source.children)
        places = [by_id.get(field_id(field)) for field in kind]
        parts = [self._part(source, place, field) for place, field in zip(places, kind, strict=True)]

        def convert(array: pa.Array) -> pa.Array:
            if not parts:
                return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], array.null_count, array.offset, [])
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays([part(array) for part in parts], fields=list(kind), mask=mask)

        return convert

    def _part(self, struct: FileField, place: int | None, field: pa.Field) -> Convert:
        """A function that converts the struct's arrays to arrays of one field of the table's struct."""
        if place is None:
            make = self.absent(field)
            return lambda array: make(len(array))
        convert = self.of(struct.children[place], field)
        return lambda array: convert(array.field(place))

    def _list(self, source: FileField, kind: pa.DataType) -> Convert:
        element = self.of(source.children[0], kind.value_field)
        plain = pa.list_(source.type.value_field) if pt.is_fixed_size_list(source.type) else None
        rebuilt = (pa.large_list if pt.is_large_list(source.type) else pa.list_)(kind.value_field)

        def convert(array: pa.Array) -> pa.Array:
            if plain is not None:
                array = array.cast(plain)
            array = _around(rebuilt, array, element(array.values))
            return array if rebuilt.equals(kind) else array.cast(kind)

        return convert

    def _map(self, source: FileField, kind: pa.DataType) -> Convert:
        key, value = (self.of(*pair) for pair in zip(source.children, children_of(kind), strict=True))

        def convert(array: pa.Array) -> pa.Array:
            parts = [key(array.keys), value(array.items)]
            return _around(kind, array, pa.StructArray.from_arrays(parts, fields=children_of(kind)))

        return convert


def _around(kind: pa.DataType, array: pa.Array, inner: pa.Array) -> pa.Array:
    """A list or map array with the offsets and nulls of `array` and other elements."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [inner])


def _repeated(value: Any, kind: pa.DataType) -> Make:
    if value is None:
        return lambda rows: pa.nulls(rows, kind)
    scalar = value.cast(kind) if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
    return lambda rows: pa.repeat(scalar, rows)


# Conversions from a file's types to the table's: Iceberg's promotions, Delta's widenings, types that formats lack.

Convert = Callable[[pa.Array], pa.Array]

_TEXT: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_string,
    pt.is_large_string,
    pt.is_string_view,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_binary_view,
    pt.is_fixed_size_binary,
)
_UNITS = ("s", "ms", "us", "ns")  # from coarse to fine


def conversion(given: pa.DataType, kind: pa.DataType) -> Convert | None:
    """A function that converts arrays from one type without fields to another; None if there is no such conversion.

    If the types are equal, it returns arrays unchanged.
    """
    if given.equals(kind):
        return _as_is
    if isinstance(given, pa.BaseExtensionType):
        return _after(lambda array: array.storage, conversion(given.storage_type, kind))
    if pt.is_dictionary(given):
        return _after(lambda array: array.cast(given.value_type), conversion(given.value_type, kind))
    if pt.is_timestamp(given) and pt.is_timestamp(kind):
        return _timestamps(given, kind)
    return (lambda array: array.cast(kind)) if _promotes(given, kind) else None


def _as_is(array: pa.Array) -> pa.Array:
    return array


def _after(first: Convert, then: Convert | None) -> Convert | None:
    return None if then is None else lambda array: then(first(array))


def _promotes(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a cast preserves every value of `given` in `kind`, or fails."""
    if pt.is_null(given):
        return True
    if pt.is_integer(given):
        # ORC stores times as numbers.
        return (given == pa.int64() and kind == pa.time64("us")) or _holds_integers(kind, given)
    if pt.is_floating(given):
        return bool(pt.is_floating(kind) and kind.bit_width >= given.bit_width)
    if pt.is_decimal(given):
        more = pt.is_decimal(kind) and kind.scale >= given.scale
        return bool(more and kind.precision - kind.scale >= given.precision - given.scale)
    if pt.is_date(given):
        return bool(pt.is_date(kind) or (pt.is_timestamp(kind) and kind.tz is None))
    if pt.is_time(given):
        return bool(pt.is_time(kind))
    return any(is_text(given) for is_text in _TEXT) and any(is_text(kind) for is_text in _TEXT)


def _holds_integers(kind: pa.DataType, given: pa.DataType) -> bool:
    """Whether a type holds all integers of another type."""
    if pt.is_decimal(kind):
        return bool(kind.precision - kind.scale >= len(str(2 ** (given.bit_width - pt.is_signed_integer(given)))))
    if kind == pa.float64():
        return bool(given.bit_width <= 32)
    return bool(pt.is_integer(kind) and holds(kind, given))


def _timestamps(given: pa.DataType, kind: pa.DataType) -> Convert:
    """A conversion of units, rounding down if the table's is coarser; the zone is only a label, as all are in UTC."""
    naive, coarse = pa.timestamp(given.unit), pa.timestamp(kind.unit)

    def convert(array: pa.Array) -> pa.Array:
        array = array.view(naive)
        if _UNITS.index(kind.unit) < _UNITS.index(given.unit):
            array = pc.floor_temporal(array, 1, {"s": "second", "ms": "millisecond", "us": "microsecond"}[kind.unit])
        return array.cast(coarse).view(kind)

    return convert
