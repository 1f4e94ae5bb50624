"""Rows deleted by their values: equality deletes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import SchemaMismatchError
from torch_dataloader_utils.formats.sizes import storage_type
from torch_dataloader_utils.iceberg.data_files.cache import process_cache
from torch_dataloader_utils.iceberg.data_files.fields import FileField, file_fields, find_path
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.inner import opened
from torch_dataloader_utils.iceberg.data_files.projection import Convert, Make, Projection
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.sources.deleted_rows import Mask
from torch_dataloader_utils.storage import Naming, Storage

# A set of rows for lookups: built once, then queried for each block.

Numbers = npt.NDArray[np.int64]


class KeySet:
    """A set of rows over several columns. As in Iceberg's library, nulls are equal, NaNs are equal, -0.0 is not 0.0.

    Why not `pyarrow.compute.is_in`: it hashes the keys again in each call, so a block of 125,000 rows takes 4 times as
    long with 100,000 keys, and 13 times as long with a million. Here the keys are sorted by hash once; a directory of
    the hashes' upper bits, at most a quarter full, maps a hash to the position to search from.

    Args:
        columns: at least one, of scalar types.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        order = _each_once(columns, hashes, np.argsort(hashes))
        self._keys = [column.take(order) for column in columns]
        self._hashes: Hashes = np.append(hashes[order], np.uint64(1 << HASH_BITS))  # greater than any hash
        bits = max(4, (4 * len(order)).bit_length())
        self._shift = np.uint64(HASH_BITS - bits)
        counts = np.bincount(self._slots(hashes[order]), minlength=1 << bits)
        self._starts = (np.cumsum(counts) - counts).astype(np.int32)

    @property
    def nbytes(self) -> int:
        """Its size in memory, in bytes."""
        return int(self._hashes.nbytes + self._starts.nbytes + sum(key.nbytes for key in self._keys))

    def contains(self, columns: Sequence[pa.Array]) -> Mask:
        """Which rows of these columns are in the set: bool [n]. The order and types must be those of the keys."""
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        result = np.zeros(len(hashes), np.bool_)
        places = self._places(hashes)
        rows = np.flatnonzero(self._hashes[places] == hashes)
        while len(rows):  # more than once only if different keys have the same hash
            same = _same([column.take(rows) for column in columns], [key.take(places[rows]) for key in self._keys])
            result[rows[same]] = True
            rows = rows[~same]
            places[rows] += 1
            rows = rows[self._hashes[places[rows]] == hashes[rows]]
        return result

    def _places(self, hashes: Hashes) -> Numbers:
        """For each row, the position of the first key whose hash is not less than the row's: int64 [n]."""
        places = self._starts[self._slots(hashes)].astype(np.int64)
        rows = np.flatnonzero(self._hashes[places] < hashes)
        while len(rows):
            places[rows] += 1
            rows = rows[self._hashes[places[rows]] < hashes[rows]]
        return places

    def _slots(self, hashes: Hashes) -> Numbers:
        return (hashes >> self._shift).view(np.int64)


def _each_once(columns: Sequence[pa.Array], hashes: Hashes, order: Numbers) -> Numbers:
    """The rows in `order`, which is sorted by hash, without rows equal to the previous one."""
    places = 1 + np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    one, other = ([column.take(order[rows]) for column in columns] for rows in (places, places - 1))
    return np.delete(order, places[_same(one, other)])


def _comparable(column: pa.Array) -> pa.Array:
    """The column with equal bytes for equal values: floats become their bits, with a single bit pattern for NaN."""
    if not pt.is_floating(column.type):
        return column
    column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Which rows are equal in all columns, with nulls equal to each other: bool [n]."""
    result = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        equal = pc.equal(a, b).fill_null(False)
        if a.null_count and b.null_count:
            equal = pc.or_(equal, pc.and_(a.is_null(), b.is_null()))
        result &= equal.to_numpy(zero_copy_only=False)
    return result


# Row hashes over several columns, computed with NumPy: equal rows have equal hashes. pyarrow has no such function.

Hashes: TypeAlias = npt.NDArray[np.uint64]

HASH_BITS = 63

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 / golden ratio: multiplying by it spreads nearby numbers
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_NULL = np.uint64(0x6A09E667F3BCC909)
_HALF = np.uint64(32)
_WORD_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)
_HEAD_WORDS, _TAIL_WORDS = 32, 8  # of 8 bytes: only these at the beginning and end of longer values are hashed


def row_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """A hash of `HASH_BITS` bits per row, shape [n], over columns of scalar types; all nulls have the same hash.

    The upper bits differ even for nearby or regularly spaced values, so hash tables can be ordered by them.

    Args:
        columns: at least one, each of shape [n]; equal values must have equal bytes.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns if len(hashes) else ():
        for words in _words(column):
            hashes = _mixed(hashes, words)
    return (hashes * _SPREAD) >> np.uint64(64 - HASH_BITS)


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = (hashes ^ words) * _FACTOR
    mixed ^= mixed >> _HALF
    return mixed


def _words(column: pa.Array) -> list[Hashes]:
    """The values as 64-bit words."""
    kind = column.type
    if pt.is_boolean(kind):
        words = [column.cast(pa.uint8()).fill_null(0).to_numpy().astype(np.uint64)]
    elif pt.is_primitive(kind):
        numbers = np.frombuffer(column.buffers()[1], f"<i{kind.bit_width // 8}", len(column), _start(column))
        words = [numbers.astype(np.int64, copy=False).view(np.uint64)]
    elif pt.is_decimal(kind):
        wide = np.frombuffer(column.buffers()[1], "<u8", len(column) * kind.bit_width // 64, _start(column))
        words = list(wide.reshape(len(column), -1).T)
    else:
        words = [_text_hashes(column.cast(pa.large_binary()))]
    if not column.null_count:
        return words
    null = column.is_null().to_numpy(zero_copy_only=False)
    return [np.where(null, _NULL, part) for part in words]


def _start(column: pa.Array) -> int:
    return int(column.offset * column.type.bit_width // 8)


def _text_hashes(column: pa.Array) -> Hashes:
    """A hash of the bytes of each value, 8 at a time."""
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    starts, sizes = offsets[:-1], np.diff(offsets)
    words = _at_every_byte(column.buffers()[2], int(offsets[-1]))
    hashes = _mixed(words[starts] & _WORD_MASKS[np.minimum(sizes, 8)], sizes.view(np.uint64))
    rows = np.arange(len(sizes))
    for word in range(1, _HEAD_WORDS):
        rows = rows[sizes[rows] > 8 * word]
        if not len(rows):
            return hashes
        rest = np.minimum(sizes[rows] - 8 * word, 8)
        hashes[rows] = _mixed(hashes[rows], words[starts[rows] + 8 * word] & _WORD_MASKS[rest])
    for word in range(1, _TAIL_WORDS + 1):
        hashes[rows] = _mixed(hashes[rows], words[starts[rows] + sizes[rows] - 8 * word])
    return hashes


def _at_every_byte(data: pa.Buffer | None, size: int) -> Hashes:
    """The 8 bytes starting at each byte, as numbers, shape [size + 1]; padded with zeros at the end."""
    padded = np.zeros(size + 8, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size)
    return np.ndarray((size + 1,), np.dtype("<u8"), padded, strides=(1,))


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
