"""Data files that a pyarrow expression rules out, judged by the column bounds and partition values in manifests."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StructType

from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan
from torch_dataloader_utils.filters.facts import can_be_true, is_nan
from torch_dataloader_utils.filters.file_pruning import COMPARABLE
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.columns import type_at

CanHold: TypeAlias = Callable[[DataFile, PartitionSpec], bool]


def file_test(expression: pc.Expression, arrow: pa.Schema, schema: Schema) -> CanHold:
    """A function that reports whether a data file can hold a row that matches.

    Args:
        expression: a filter that fits `arrow`.
        arrow: the columns.
        schema: the same columns as an Iceberg schema; other columns of `arrow` prune nothing.
    """
    if may_name_nan(expression):
        return lambda file, spec: True
    names = filter_columns(expression, arrow)
    needed = pa.schema([arrow.field(name) for name in names])
    columns = []
    for path, field in _comparable(item for item in schema.fields if item.name in names):
        kind = type_at(needed, path)
        nan_matches = pt.is_floating(kind) and can_be_true(expression, [is_nan(path, kind)], needed)
        columns.append(_Column(path, field, kind, nan_matches))

    def can_hold(file: DataFile, spec: PartitionSpec) -> bool:
        constants = {
            item.source_id: value
            for item, value in zip(spec.fields, file.partition._data, strict=False)
            if isinstance(item.transform, IdentityTransform)
        }
        return can_be_true(expression, [fact for column in columns for fact in column.facts(file, constants)], needed)

    return can_hold


def _comparable(
    fields: Iterable[NestedField], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NestedField]]:
    """(path, field) of each field whose values have bounds, including those in structs."""
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.field_type, StructType):
            yield from _comparable(field.field_type.fields, path)
        elif isinstance(field.field_type, COMPARABLE):
            yield path, field


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of single values that the expression needs.

    Attributes:
        path: its name, after those of the structs that contain it.
        field: its Iceberg field.
        kind: its Arrow type.
        nan_matches: whether a row with a NaN here can match: bounds do not cover NaNs.
    """

    path: tuple[str, ...]
    field: NestedField
    kind: pa.DataType
    nan_matches: bool

    def facts(self, file: DataFile, constants: Mapping[int, Any]) -> list[pc.Expression]:
        """Expressions that are true for every row of a data file.

        Args:
            file: as its manifest lists it.
            constants: field id -> value, for columns whose value the partition determines.
        """
        number, column = self.field.field_id, pc.field(*self.path)
        if number in constants:
            value = constants[number]
            return [column.is_null()] if value is None else self._between(value, value)
        counts = (file.value_counts, file.null_value_counts, file.nan_value_counts)
        values, nulls, nans = ((count or {}).get(number) for count in counts)
        if nulls and nulls == values:  # zero of zero says nothing of a file with rows
            return [column.is_null()]
        counted = len(self.path) == 1  # within structs, counts may omit nulls of the structs
        if nans and nans == values and counted:
            return [is_nan(self.path, self.kind)]
        if self.nan_matches and nans != 0:
            return []
        facts = self._between(*self._bounds(file))
        return facts if nulls == 0 and counted else [fact | column.is_null() for fact in facts]

    def _bounds(self, file: DataFile) -> tuple[Any, Any]:
        """The minimum and the maximum; None where unknown."""
        listed = ((bounds or {}).get(self.field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        try:
            lower, upper = (None if bound is None else from_bytes(self.field.field_type, bound) for bound in listed)
        except (struct.error, ValueError):  # the width of the type that the column was promoted from
            return None, None
        return lower, upper

    def _between(self, lower: Any, upper: Any) -> list[pc.Expression]:
        """Expressions that are true for all values except NaNs."""
        if lower != lower or upper != upper:
            return []  # old writers recorded NaN for unknown bounds
        column, ends = pc.field(*self.path), ((operator.ge, lower), (operator.le, upper))
        facts = [compare(column, pa.scalar(end, self.kind)) for compare, end in ends if end is not None]
        if lower is not None and lower == upper and not pt.is_floating(self.kind):
            # Lets Arrow evaluate functions of the value; not for floats, since 0.0 may be -0.0.
            facts.append(column == pa.scalar(lower, self.kind))
        return facts
