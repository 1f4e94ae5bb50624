"""One schema over all files, and the values of partition columns in its types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError
from torch_dataloader_utils.options import Hive, ReadOptions
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.schemas.merge import (
    check_schema,
    delivered_type,
    guessed_schema,
    merge_types,
    resolve_schema,
)
from torch_dataloader_utils.sources.manifest_file import InspectedFile


def files_schema(
    inspected: Sequence[InspectedFile],
    partitions: Sequence[Mapping[str, str | None]],
    read: ReadOptions,
    typed: bool,
    of_table: bool,
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The schema over all files, and the names of its partition columns.

    A partition value takes precedence over a column of that name in the files, and keeps that column's type and
    position.

    Args:
        inspected: the files.
        partitions: column -> value as text, one mapping per file; all have the same columns.
        read: may declare the schema.
        typed: whether the format records column types.
        of_table: whether a declared column may be absent from all files.

    Raises:
        SchemaMismatchError: the files' columns have incompatible types.
        ColumnNotFoundError: `schema=` names a column that no file has.
    """
    # Once per schema object: files from a manifest share them, and comparing thousands of equal ones is slow.
    distinct: dict[int, InspectedFile] = {}
    for file in inspected:
        distinct.setdefault(id(file.schema), file)
    files = [(printable(file.path), file.schema) for file in distinct.values()]
    keys = list(partitions[0]) if partitions else []
    if read.schema is not None:
        # Types guessed for text do not matter: it is parsed as the declared types.
        schema = check_schema(read.schema, files if typed else ())
        if not of_table:
            _reject_unknown("schema=", schema, {*keys, *(name for _, own_schema in files for name in own_schema.names)})
        return schema, tuple(key for key in keys if key in schema.names)
    schema = resolve_schema(files, merge_types) if typed else guessed_schema(files)
    types = _types_of_folders(read, keys)
    for key in keys:
        place = schema.get_field_index(key)
        if place < 0:
            kind = types.get(key) or _partition_type(texts[key] for texts in partitions)
            schema = schema.append(pa.field(key, kind))
        elif key in types:
            schema = schema.set(place, pa.field(key, types[key]))
    return schema, tuple(keys)


def folder_type(key: str, texts: Iterable[str | None], read: ReadOptions) -> pa.DataType:
    """The type of a column of folders named `key=value` that is in no file.

    Args:
        key: the column.
        texts: its values.
        read: may declare it.
    """
    declared = pa.schema([]) if read.schema is None else read.schema
    if key in declared.names:
        return declared.field(key).type
    return _types_of_folders(read, [key]).get(key) or _partition_type(texts)


def _types_of_folders(read: ReadOptions, keys: Sequence[str]) -> dict[str, pa.DataType]:
    """The types that the user declared of partition columns, by column."""
    if not isinstance(read.partitioning, Hive) or read.partitioning.schema is None:
        return {}
    declared = pa.schema(read.partitioning.schema)
    _reject_unknown(f"partitioning={read.partitioning!r}", declared, set(keys))
    return {field.name: delivered_type(field.type) for field in declared}


def _reject_unknown(where: str, schema: pa.Schema, known: set[str]) -> None:
    for name in schema.names:
        if name not in known:
            raise ColumnNotFoundError(
                f"{where} has a column {name!r} that no file has: expected some of {sorted(known)}."
            )


def _partition_type(texts: Iterable[str | None]) -> pa.DataType:
    """int32 or int64 if all values are integers that fit, else string (as pyarrow and Spark infer)."""
    numbers = []
    for text in texts:
        if text is None:
            continue
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            return pa.string()
        numbers.append(int(text))
    bits = max((number if number >= 0 else ~number).bit_length() for number in numbers) if numbers else 64
    return pa.string() if bits > 63 or not numbers else pa.int64() if bits > 31 else pa.int32()


def partition_constants(
    path: str, texts: Mapping[str, str | None], schema: pa.Schema, names: Sequence[str]
) -> tuple[tuple[str, Any], ...]:
    """(column, value in the schema's type) for each partition column of a file.

    Raises:
        SchemaMismatchError: a text is not a value of its column's type.
    """
    return tuple((name, _typed(texts[name], schema.field(name), path)) for name in names)


def _typed(text: str | None, column: pa.Field, path: str) -> Any:
    try:
        return pa.scalar(text, pa.string()).cast(column.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"{printable(path)}: the folder {column.name}={text} has no value for a column of type {column.type}. "
            "Give another type for it, such as string: in schema= if you pass one, else by "
            f"partitioning=Hive(schema={{{column.name!r}: 'string'}}). Or leave it out of both, with partitioning=None."
        ) from error
