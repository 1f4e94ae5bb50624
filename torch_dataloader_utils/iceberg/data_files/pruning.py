"""Applies the statistics of a data file's own format to the table's columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.filters.arrow import filter_columns
from torch_dataloader_utils.formats.parquet import FORMAT as PARQUET
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.iceberg.data_files.columns import FILE_ID, NAME_IDS
from torch_dataloader_utils.iceberg.data_files.fields import FileField, children_of, data_fields, field_id, places_by_id
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile, IcebergTable
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, FileLayout
from torch_dataloader_utils.options.sources import FILE
from torch_dataloader_utils.sources.row_names import CanHold, name_test

_FIRST_METADATA_ID = 2147483447  # ids from here on are reserved: such columns do not depend on the file alone

Prune = Callable[[FileLayout], FileLayout]


def iceberg_pruner(expression: pc.Expression, table: IcebergTable) -> Prune:
    """A function that drops segments of a data file in which no row can match; opens no file.

    Statistics are looked up by name, so a file is pruned only if the filter's columns have the same names in it as in
    the table, or are absent. Other files, and those in other formats than Parquet, keep all their segments.

    Args:
        expression: a filter that fits the table's schema.
        table: the table.
    """
    needed = [table.schema.field(name) for name in filter_columns(expression, table.schema)]
    schema = pa.schema(list(table.schema)).remove_metadata()
    prune_inner = PARQUET.pruner(expression, schema)

    def prune(layout: FileLayout) -> FileLayout:
        file: IcebergFile = layout.metadata
        fields = _statistics_fields(file, table)
        if fields is None or not all(_same_names(field, fields) for field in needed):
            return layout
        assert file.inner is not None
        known = {**table.defaults, **dict(file.constants)}
        places = places_by_id(fields)
        absent = {f.name: _value(f, known) for f in needed if field_id(f) not in places}
        file_schema = pa.schema([pa.field(source.name, source.type) for source in fields])
        kept = {segment.number for segment in prune_inner(file.inner, file_schema, absent).segments}
        return replace(layout, segments=tuple(s for s in layout.segments if s.number in kept))

    return prune


def table_name_test(expression: pc.Expression | None, table: IcebergTable) -> CanHold | None:
    """Whether rows can match a filter, by their names; None if it is on none of these."""
    added = [field.name for field in table.schema if field_id(field) in NAME_IDS.values()]
    return name_test(expression, table.schema.remove_metadata(), added) if added else None


def named_pruner(expression: pc.Expression, table: IcebergTable) -> Prune | None:
    """A function that drops segments in which, by the names of their rows, none can match; None without such columns.

    Args:
        expression: a filter that fits the table's schema.
        table: the table.
    """
    can_hold = table_name_test(expression, table)
    if can_hold is None:
        return None

    def prune(layout: FileLayout) -> FileLayout:
        file: IcebergFile = layout.metadata
        values = {FILE: file.table_path}
        own = {segment.number: segment for segment in (layout if file.inner is None else file.inner).segments}
        return replace(layout, segments=tuple(s for s in layout.segments if can_hold(values, own[s.number])))

    return prune


def null_evidence(layout: FileLayout, table: IcebergTable) -> frozenset[str]:
    """Columns of the table (nested ones as `parent.child`) that certainly contain a null in the rows of a file."""
    file: IcebergFile = layout.metadata
    fields = _statistics_fields(file, table)
    if fields is None or file.deletes or not layout.segments:
        return frozenset()
    assert file.inner is not None
    kept = {segment.number for segment in layout.segments}
    inner = replace(file.inner, segments=tuple(s for s in file.inner.segments if s.number in kept))
    in_file = PARQUET.null_columns(inner)
    return frozenset(name for name, path in _table_names(table.schema, fields) if path in in_file)


def value_ranges(
    layout: FileLayout, number: int, names: Collection[str], table: IcebergTable
) -> dict[str, tuple[Any, Any]]:
    """The (minimum, maximum) of table columns in a segment, from its partition values or statistics."""
    file: IcebergFile = layout.metadata
    constants = dict(file.constants)
    values = {field.name: _value(field, constants) for field in table.schema if field.name in names}
    ranges = {name: (value, value) for name, value in values.items() if value is not None}
    fields = _statistics_fields(file, table)
    if fields is None:
        return ranges
    assert file.inner is not None
    in_file = {below: name for name, below in _table_names(table.schema, fields) if name in values}
    found = PARQUET.value_ranges(file.inner, number, in_file.keys())
    return {**{in_file[below]: ends for below, ends in found.items()}, **ranges}


def identity_values(file: DataFile, table: IcebergTable) -> dict[str, Any]:
    """The columns that have one value in all rows of a file, with it: those of its partition, and its name.

    Without floats: rows of one partition may be 0.0 and -0.0, and NaNs of several kinds.
    """
    layout: IcebergFile = file.layout.metadata
    constants = {**dict(layout.constants), FILE_ID: layout.table_path}
    return {
        field.name: constants[number]
        for field in table.schema
        if (number := field_id(field)) in constants and not pt.is_floating(field.type)
    }


def _statistics_fields(file: IcebergFile, table: IcebergTable) -> tuple[FileField, ...] | None:
    """The fields of a file with statistics; None if there are none, or planning did not read the file."""
    if file.inner is None or not isinstance(file.inner.metadata, Footer):
        return None
    return data_fields(file.inner.metadata.metadata.schema.to_arrow_schema(), table, file.format)


def _same_names(field: pa.Field, fields: Sequence[FileField]) -> bool:
    """Whether this name refers to the same field in the file, including nested ones, or to no field at all."""
    place = places_by_id(fields).get(field_id(field))
    named = [at for at, source in enumerate(fields) if source.name == field.name]
    if (field_id(field) or 0) >= _FIRST_METADATA_ID or named != ([] if place is None else [place]):
        return False
    if place is None:
        return not pt.is_nested(field.type)
    below, children = children_of(field.type), fields[place].children
    return len(below) == len(children) and all(_same_names(child, children) for child in below)


def _value(field: pa.Field, known: Mapping[int, Any]) -> Any:
    number = field_id(field)
    value = None if number is None else known.get(number)
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _table_names(
    schema: Iterable[pa.Field], fields: Sequence[FileField], above: str = "", below: str = ""
) -> Iterable[tuple[str, str]]:
    """(name in the table, name in the file) for each field in both, with those in structs as `parent.child`."""
    places = places_by_id(fields)
    for field in schema:
        place = places.get(field_id(field))
        if place is None:
            continue
        source = fields[place]
        yield above + field.name, below + source.name
        if pt.is_struct(field.type):
            yield from _table_names(field.type, source.children, f"{above}{field.name}.", f"{below}{source.name}.")
