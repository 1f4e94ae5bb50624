"""Rows deleted by their values: equality deletes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import SchemaMismatchError
from torch_dataloader_utils.formats.sizes import storage_type
from torch_dataloader_utils.iceberg.data_files.cache import process_cache
from torch_dataloader_utils.iceberg.data_files.fields import FileField, file_fields, find_path
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.inner import opened
from torch_dataloader_utils.iceberg.data_files.key_set import KeySet
from torch_dataloader_utils.iceberg.data_files.projection import Make, Projection
from torch_dataloader_utils.iceberg.data_files.values import Convert
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.sources.deleted_rows import Mask
from torch_dataloader_utils.storage import Naming, Storage


@dataclass(frozen=True)
class KeyColumn:
    """How the values of a key column are obtained from a file.

    Attributes:
        source: the file's top-level column, or None if the file does not have the column.
        steps: names of the fields from there down, through structs.
        convert: converts the file's arrays to the key's type.
        make: makes an array with a given number of rows if the file does not have the column.
    """

    source: str | None
    steps: tuple[str, ...] = ()
    convert: Convert | None = None
    make: Make | None = None

    def values(self, columns: Mapping[str, pa.ChunkedArray], rows: int) -> pa.Array:
        """The key's values, shape [rows], from the file's columns."""
        if self.source is None:
            assert self.make is not None
            return self.make(rows)
        assert self.convert is not None
        column = columns[self.source]
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return self.convert(pc.struct_field(array, list(self.steps)) if self.steps else array)


@dataclass(frozen=True)
class EqualityDeletes:
    """Which rows of one data file are deleted by their values.

    Attributes:
        tests: sets of deleted keys, each with the columns that it compares.
    """

    tests: tuple[tuple[KeySet, tuple[KeyColumn, ...]], ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the file that `dead` needs."""
        names = (column.source for _, columns in self.tests for column in columns)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def dead(self, columns: Mapping[str, pa.ChunkedArray], rows: int) -> Mask:
        """Which rows are deleted: bool [rows].

        Args:
            columns: the file's `sources`, for these rows.
            rows: the number of rows.
        """
        result = np.zeros(rows, np.bool_)
        for keys, parts in self.tests:
            result |= keys.contains([part.values(columns, rows) for part in parts])
        return result


def equality_deletes(
    deletes: Iterable[DeleteFile],
    table: IcebergTable,
    fields: Sequence[FileField],
    projection: Projection,
    storage: Storage,
) -> EqualityDeletes | None:
    """The equality deletes among `deletes`, for one data file; None if there are none.

    Args:
        deletes: the deletes that apply to the file.
        table: the table.
        fields: the data file's fields.
        projection: the data file's projection.
        storage: where the delete files are.

    Raises:
        FileReadError: a delete file cannot be read; the message names it.
        SchemaMismatchError: a key column does not match the table.
    """
    by_ids: dict[tuple[int, ...], list[DeleteFile]] = {}
    for delete in deletes:
        if delete.kind == "equality":
            by_ids.setdefault(tuple(sorted(delete.equality_ids)), []).append(delete)
    tests = []
    for ids, files in by_ids.items():
        columns = tuple(_key_column(number, table, fields, projection) for number in ids)
        tests.append((_key_set(ids, tuple(files), table, storage), columns))
    return EqualityDeletes(tuple(tests)) if tests else None


def _key_column(number: int, table: IcebergTable, fields: Sequence[FileField], projection: Projection) -> KeyColumn:
    field = _key_field(number, table, projection.path)
    path = find_path(fields, number)
    if path is None:
        return KeyColumn(None, make=projection.absent(field))
    return KeyColumn(path[0].name, tuple(step.name for step in path[1:]), projection.of(path[-1], field))


def _key_field(number: int, table: IcebergTable, path: str) -> pa.Field:
    if number not in table.keys:
        raise SchemaMismatchError(f"{path}: rows are deleted by field {number}, which is in no schema of the table.")
    field = table.keys[number]
    # A column dropped since is null in later files, even if it was required; UUIDs are compared as bytes.
    return field.with_nullable(True).with_type(storage_type(field.type))


def _key_set(ids: tuple[int, ...], files: tuple[DeleteFile, ...], table: IcebergTable, storage: Storage) -> KeySet:
    """The keys of all these files; files and sets are parsed once per process."""
    kinds = tuple(str(_key_field(number, table, files[0].path).type) for number in ids)
    cache = process_cache()

    def parsed(file: DeleteFile) -> list[pa.Array]:
        return cache.get(("equality", storage, file.path, ids, kinds), lambda: _read_keys(ids, file, table, storage))

    def keys() -> tuple[KeySet, int]:
        parts = [parsed(file) for file in files]
        key_set = KeySet([pa.concat_arrays(columns) for columns in zip(*parts, strict=True)])
        return key_set, key_set.nbytes

    return cache.get(("keys", storage, tuple(file.path for file in files), ids, kinds), keys)


def _read_keys(
    ids: Sequence[int], file: DeleteFile, table: IcebergTable, storage: Storage
) -> tuple[list[pa.Array], int]:
    """The key columns of an equality delete file, and their bytes."""
    projection = Projection(file.path, {}, {})
    with opened(file, storage, pa.schema([])) as (reader, numbers, _):
        fields = file_fields(reader.schema, table.name_mapping, file.path)
        columns = [_key_column(number, table, fields, projection) for number in ids]
        if any(column.source is None for column in columns):
            raise SchemaMismatchError(f"{file.path}: deletes by the fields {list(ids)}, but does not have all of them.")
        names = list(dict.fromkeys(column.source for column in columns if column.source is not None))
        read = reader.read(numbers, names)
    with Naming(file.path):
        by_name = dict(zip(names, read, strict=True))
        arrays = [column.values(by_name, len(read[0])) for column in columns]
    return arrays, sum(array.nbytes for array in arrays)
