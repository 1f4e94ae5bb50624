"""Conversions from a file's types to the table's: Iceberg's promotions, Delta's widenings, types that formats lack."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.merge import holds

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
