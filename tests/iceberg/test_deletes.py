import math
import struct
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.errors import FileReadError, SchemaMismatchError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.iceberg.data_files.cache import BoundedCache
from torch_dataloader_utils.iceberg.data_files.deletes import deleted_positions
from torch_dataloader_utils.iceberg.data_files.equality import KeySet
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile, IcebergTable
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.sources.deleted_rows import deletion_vector
from torch_dataloader_utils.storage import Storage

from .by_hand import equality_file, field, positions_file, read_rows, vector_blob, vector_file, write

SCHEMA = pa.schema([field(1, "id", pa.int64()), field(2, "name", pa.string())])
TABLE = IcebergTable(SCHEMA, keys={1: SCHEMA.field("id"), 2: SCHEMA.field("name")})
ROWS = pa.table([pa.array([0, 1, 2, 3, None]), pa.array(["a", "b", None, "d", None])], schema=SCHEMA)


def positions_of(deletes: Sequence[DeleteFile], path: str = "data") -> list[int]:
    return deleted_positions(IcebergFile("parquet", path, 0, deletes=tuple(deletes)), Storage(), 2**30).tolist()


def left(folder: Path, deletes: Sequence[DeleteFile], table: IcebergTable = TABLE, rows: pa.Table = ROWS) -> list[Any]:
    """The ids of the rows that are left."""
    return read_rows(write(rows, folder / "data"), table, deletes=deletes)["id"].to_pylist()


# ------------------------------------------------------------------------------------------------------- by position


@pytest.mark.parametrize("form", ["parquet", "orc", "avro"])
def test_positions_are_those_of_the_data_file_however_it_is_spelled(tmp_path: Path, form: str) -> None:
    rows = {"file:/x/data": [5, 1, 1, 0], "/x//data": [2], "/x/other": [3], "none": []}
    delete = positions_file(tmp_path / "d", rows, form)
    assert positions_of([delete], "file:/x/data") == [0, 1, 2, 5]
    assert positions_of([delete], "/x/data") == [0, 1, 2, 5]
    assert positions_of([delete], "elsewhere") == []


def test_several_delete_files_and_vectors_join(tmp_path: Path) -> None:
    first = positions_file(tmp_path / "a", {"data": [3, 1]})
    second = positions_file(tmp_path / "b", {"other": [9], "data": [1, 2**40]}, "orc")
    assert positions_of([first, second, vector_file(tmp_path / "c", [0, 7])]) == [0, 1, 3, 7, 2**40]


def test_paths_in_many_row_groups_are_found(tmp_path: Path) -> None:
    table = pa.table({"file_path": [f"f{i % 3}" for i in range(100)], "pos": np.arange(100)})
    write(table, tmp_path / "d", segment_rows=7)
    delete = DeleteFile("positions", str(tmp_path / "d"), "parquet", (tmp_path / "d").stat().st_size)
    assert positions_of([delete], "f1") == list(range(1, 100, 3))


def test_an_empty_delete_file_deletes_nothing(tmp_path: Path) -> None:
    assert positions_of([positions_file(tmp_path / "d", {})]) == []


@given(st.sets(st.integers(0, 2**40) | st.integers(0, 70_000), max_size=50), st.integers(0, 5000))
def test_vectors_hold_any_positions(tmp_path_factory: pytest.TempPathFactory, rows: set[int], run: int) -> None:
    folder = tmp_path_factory.mktemp("vector")
    rows |= set(range(100_000, 100_000 + run))
    assert positions_of([vector_file(folder / "d", sorted(rows))]) == sorted(rows)


def test_a_bare_vector_and_one_of_many_in_a_file_are_read(tmp_path: Path) -> None:
    bare = vector_file(tmp_path / "bare", [1, 2], before=b"")
    blobs = [vector_blob([number]) for number in range(3)]
    (tmp_path / "many").write_bytes(b"PFA1" + b"".join(blobs))
    size = (tmp_path / "many").stat().st_size
    many = [
        DeleteFile("vector", str(tmp_path / "many"), "puffin", size, 4 + len(blobs[0]) * i, len(blobs[0]))
        for i in (0, 2)
    ]
    assert positions_of([bare]) == [1, 2]
    assert positions_of(many) == [0, 2]


def test_a_corrupt_vector_is_an_error_that_names_it_wherever_it_is_damaged(tmp_path: Path) -> None:
    delete = vector_file(tmp_path / "vector.puffin", [1, 5, 70_000])
    whole = (tmp_path / "vector.puffin").read_bytes()
    for place in range(delete.offset, delete.offset + delete.length):
        path = tmp_path / f"{place}.puffin"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileReadError, match=rf"{place}\.puffin, deletion vector"):
            positions_of([replace(delete, path=str(path))])


def test_a_vector_with_a_row_number_that_no_file_has_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"2\*\*63 or more"):
        deletion_vector(vector_blob([3, 2**63 + 1]), 9)


def test_a_vector_beyond_the_end_of_its_file_is_an_error(tmp_path: Path) -> None:
    delete = vector_file(tmp_path / "v", [1])
    with pytest.raises(FileReadError, match="its length is given as"):
        positions_of([replace(delete, length=delete.length + 1000)])
    with pytest.raises(FileReadError, match="its length is given as"):
        positions_of([replace(delete, offset=10**6)])


def test_the_time_of_deletes_is_that_of_a_stage(tmp_path: Path) -> None:
    delete = equality_file(tmp_path / "d", pa.table([pa.array([2])], schema=SCHEMA.remove(1)))
    with recording() as noted:
        assert left(tmp_path, [delete]) == [0, 1, 3, None]
    work = noted.work()
    assert work.delete > 0 < work.decode


@pytest.mark.parametrize("kind", ["positions", "vector", "equality"])
def test_a_missing_delete_file_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    gone = DeleteFile(kind, str(tmp_path / "gone"), "parquet", 10, 0, 100, (1,))
    with pytest.raises(FileReadError, match="gone"):
        left(tmp_path, [gone])


def test_a_delete_file_with_nulls_is_an_error(tmp_path: Path) -> None:
    write(pa.table({"file_path": ["data", None], "pos": [1, 2]}), tmp_path / "nulls")
    delete = DeleteFile("positions", str(tmp_path / "nulls"), "parquet", (tmp_path / "nulls").stat().st_size)
    with pytest.raises(FileReadError, match=r"nulls.*path of a file and a position"):
        positions_of([delete])


def test_a_delete_file_whose_dictionary_of_paths_is_damaged_is_an_error(tmp_path: Path) -> None:
    delete = positions_file(tmp_path / "d.parquet", {"file:/a": [0, 2]})
    content = bytearray(Path(delete.path).read_bytes())
    assert content[12] == 2, "the header of the first page does not count one path, as zigzag"
    content[12] = 0
    Path(delete.path).write_bytes(content)
    with pytest.raises(FileReadError, match=r"d\.parquet"):
        positions_of([delete], "file:/a")


class CountingStorage(Storage):
    """The local disk, with a note of each file opened."""

    opened: list[str] = []  # noqa: RUF012 - a frozen class has no other place

    def open_data(self, file: DataFileInfo) -> pa.NativeFile:
        self.opened.append(file.path)
        return super().open_data(file)


def test_a_delete_file_is_parsed_once_for_many_data_files_and_threads(tmp_path: Path) -> None:
    delete = positions_file(tmp_path / "shared", {f"f{i}": [i] for i in range(20)})
    storage = CountingStorage()

    def rows(number: int) -> list[int]:
        return deleted_positions(IcebergFile("parquet", f"f{number}", 9, deletes=(delete,)), storage, 9).tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(rows, range(20))) == [[i] for i in range(20)]
    assert 1 <= storage.opened.count(delete.path) <= 2  # its footer, and its columns


# ---------------------------------------------------------------------------------------------------------- by value


@pytest.mark.parametrize("form", ["parquet", "orc", "avro"])
def test_nulls_equal_nulls_and_a_null_row_needs_all_its_keys(tmp_path: Path, form: str) -> None:
    keys = pa.table([pa.array([None, 1, 2]), pa.array([None, "x", None])], schema=SCHEMA)
    assert left(tmp_path, [equality_file(tmp_path / "d", keys, form)]) == [0, 1, 3]


def test_several_key_sets_apply_one_by_one(tmp_path: Path) -> None:
    by_id = equality_file(tmp_path / "a", pa.table([pa.array([0, 77])], schema=SCHEMA.remove(1)))
    more = equality_file(tmp_path / "b", pa.table([pa.array([3])], schema=SCHEMA.remove(1)))
    by_name = equality_file(tmp_path / "c", pa.table([pa.array(["b"])], schema=SCHEMA.remove(0)))
    empty = equality_file(tmp_path / "e", SCHEMA.remove(0).empty_table())
    assert left(tmp_path, [by_id, more, by_name, empty]) == [2, None]
    assert left(tmp_path, [empty]) == [0, 1, 2, 3, None]


def test_columns_that_are_no_keys_are_not_compared(tmp_path: Path) -> None:
    keys = pa.table([pa.array([1]), pa.array(["not b"])], schema=SCHEMA)
    assert left(tmp_path, [equality_file(tmp_path / "d", keys, ids=(1,))]) == [0, 2, 3, None]


def test_older_types_are_promoted_on_both_sides(tmp_path: Path) -> None:
    narrow = pa.table([pa.array([1, 2], pa.int32())], schema=pa.schema([field(1, "old_name", pa.int32())]))
    assert left(tmp_path, [equality_file(tmp_path / "d", narrow)]) == [0, 3, None]
    data = pa.table([pa.array([0, 1], pa.int32())], schema=pa.schema([field(1, "id", pa.int32())]))
    wide = pa.table([pa.array([1, 2**40])], schema=SCHEMA.remove(1))
    assert left(tmp_path, [equality_file(tmp_path / "e", wide)], rows=data) == [0]


def test_a_key_that_the_data_file_lacks_is_its_default_or_constant_or_null(tmp_path: Path) -> None:
    key = field(3, "later", pa.int32())
    table = IcebergTable(SCHEMA, keys={3: key})
    delete = equality_file(tmp_path / "d", pa.table([pa.array([7], pa.int32())], schema=pa.schema([key])))
    null = equality_file(tmp_path / "n", pa.table([pa.array([None], pa.int32())], schema=pa.schema([key])))
    path = write(ROWS, tmp_path / "data")

    def count(table: IcebergTable, delete: DeleteFile, **more: Any) -> int:
        return int(read_rows(path, table, deletes=[delete], **more).num_rows)

    assert [count(table, delete), count(table, null)] == [5, 0]
    with_default = replace(table, defaults={3: 7})
    assert [count(with_default, delete), count(with_default, null)] == [0, 5]
    assert [count(with_default, delete, constants=((3, 8),)), count(table, delete, constants=((3, 7),))] == [5, 0]


def test_a_key_column_dropped_since_is_null_in_later_files_even_if_it_was_required(tmp_path: Path) -> None:
    key = field(3, "gone", pa.int32(), False)
    table = IcebergTable(SCHEMA, keys={3: key})
    delete = equality_file(tmp_path / "d", pa.table([pa.array([7], pa.int32())], schema=pa.schema([key])))
    assert len(left(tmp_path, [delete], table)) == 5


def test_keys_within_structs_are_found(tmp_path: Path) -> None:
    inner = pa.struct([field(4, "x", pa.int32()), field(5, "y", pa.string())])
    rows = pa.table(
        [pa.array([0, 1, 2, 3]), pa.array([{"x": 1, "y": "a"}, {"x": 2, "y": "a"}, None, {"x": None}], inner)],
        schema=pa.schema([SCHEMA.field(0), field(3, "s", inner)]),
    )
    keys_in = pa.struct([field(4, "x", pa.int32())])
    keys = pa.table([pa.array([{"x": 2}, {"x": None}], keys_in)], schema=pa.schema([field(3, "s", keys_in)]))
    table = IcebergTable(pa.schema([SCHEMA.field(0)]), keys={4: field(4, "x", pa.int64())})
    assert left(tmp_path, [equality_file(tmp_path / "d", keys, ids=(4,))], table, rows) == [0]


def test_a_delete_file_without_its_keys_and_unknown_keys_are_errors(tmp_path: Path) -> None:
    keys = pa.table([pa.array([1])], schema=SCHEMA.remove(1))
    with pytest.raises(SchemaMismatchError, match=r"lacking.*\[2\]"):
        left(tmp_path, [equality_file(tmp_path / "lacking", keys, ids=(2,))])
    with pytest.raises(SchemaMismatchError, match=r"field 99, which is in no schema"):
        left(tmp_path, [equality_file(tmp_path / "unknown", keys, ids=(99,))])


KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-2, 2)),
    (pa.int64(), st.sampled_from([0, 1, -(2**63), 2**63 - 1, 2**32])),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf])),
    (pa.string(), st.sampled_from(["", "a", "ab", "abcdefgh", "abcdefghi", "x" * 300, "x" * 299 + "y", "é"])),
    (pa.binary(), st.sampled_from([b"", b"\0", b"\0\0", b"12345678", b"123456780"])),
    (pa.binary(3), st.sampled_from([b"abc", b"abd"])),
    (pa.decimal128(38, 2), st.sampled_from([Decimal("1.00"), Decimal("-1.00"), Decimal(10) ** 30])),
    (pa.date32(), st.sampled_from([date(1970, 1, 1), date(1969, 12, 31)])),
    (pa.time64("us"), st.sampled_from([time(0), time(23, 59)])),
    (pa.timestamp("us", "UTC"), st.sampled_from([datetime(1970, 1, 1), datetime(2262, 1, 1)])),
]


def same_key(value: Any) -> Any:
    """What two values have in common where Iceberg's library calls them equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    return value


@given(st.data())
def test_a_key_set_holds_what_a_set_of_tuples_holds(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))

    def drawn() -> list[tuple[Any, ...]]:
        return data.draw(st.lists(st.tuples(*(st.none() | values for _, values in kinds)), max_size=12))

    def columns(rows: list[tuple[Any, ...]], skipped: int) -> list[pa.Array]:
        padded = [rows[0] if rows else (None,) * len(kinds)] * skipped + rows
        return [pa.array([row[i] for row in padded], kind).slice(skipped) for i, (kind, _) in enumerate(kinds)]

    keys, rows = drawn(), drawn()
    found = KeySet(columns(keys, data.draw(st.integers(0, 3)))).contains(columns(rows, data.draw(st.integers(0, 3))))
    known = {tuple(map(same_key, key)) for key in keys}
    assert found.tolist() == [tuple(map(same_key, row)) in known for row in rows]


def test_keys_of_one_hash_are_told_apart() -> None:
    # Of long values only beginning and end are hashed.
    texts = ["x" * 500 + f"{number:04d}" + "y" * 500 for number in range(50)]
    keys = KeySet([pa.array(texts[:40] + texts[:5])])
    assert keys.contains([pa.array(texts)]).tolist() == [True] * 40 + [False] * 10


def test_repeated_keys_are_kept_once() -> None:
    values = np.random.default_rng(0).permutation(1000)
    once, often = (KeySet([pa.array(np.repeat(values, times)), pa.nulls(1000 * times, pa.int8())]) for times in (1, 9))
    assert once.nbytes == often.nbytes
    probes = [pa.array(np.arange(2000)), pa.nulls(2000, pa.int8())]
    assert np.array_equal(often.contains(probes), np.arange(2000) < 1000)


def test_a_hundred_thousand_keys_are_found() -> None:
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200_000)
    found = KeySet([pa.array(values[:100_000])]).contains([pa.array(values)])
    assert found.tolist() == [True] * 100_000 + [False] * 100_000
    sequence = np.arange(200_000)
    found = KeySet([pa.array(sequence[::2])]).contains([pa.array(sequence)])
    assert np.array_equal(found, sequence % 2 == 0)


# ------------------------------------------------------------------------------------------------------------- cache


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache, made = BoundedCache(100), []

    def get(key: str, size: int) -> str:
        return cache.get(key, lambda: (made.append(key) or key, size))  # type: ignore[func-returns-value]

    assert [get(key, 40) for key in "abacab"] == list("abacab")
    assert made == list("abcb")  # a was used after b, when c came and b had to go
    get("large", 1000)
    get("large", 1000)
    get("a", 40)
    assert made == [*"abcb", "large", "a"]


def test_the_cache_makes_a_value_once_for_many_threads_and_keeps_no_failure() -> None:
    cache, made, gate = BoundedCache(100), [], threading.Barrier(8)

    def make() -> tuple[str, int]:
        made.append(1)
        return "value", 1

    def get(_: int) -> str:
        gate.wait()
        return cache.get("key", make)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(get, range(8))) == ["value"] * 8
    assert made == [1]

    def fail() -> tuple[str, int]:
        raise OSError("once")

    with pytest.raises(OSError, match="once"):
        cache.get("other", fail)
    assert cache.get("other", make) == "value"


@pytest.mark.parametrize("rows", [1 << 20, 1 << 30, 1 << 33])
def test_a_vector_of_more_rows_than_the_file_has_is_refused_before_it_is_expanded(tmp_path: Path, rows: int) -> None:
    # A run of 2**16 rows takes 11 bytes or so.
    parts = []
    for upper in range(max(1, rows >> 32)):
        keys = min(rows >> 16, 1 << 16)
        flags, heads = b"\xff" * (-(-keys // 8)), b"".join(struct.pack("<HH", key, 65535) for key in range(keys))
        body = struct.pack("<I", 12347 | (keys - 1) << 16) + flags + heads + bytes(4 * keys)
        parts.append(struct.pack("<I", upper) + body + struct.pack("<HHH", 1, 0, 65535) * keys)
    bitmap = b"\xd1\xd3\x39\x64" + struct.pack("<Q", len(parts)) + b"".join(parts)
    blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
    before = restart_peak()
    with pytest.raises(ValueError, match="but there are only 100"):
        deletion_vector(blob, 100)
    assert peak_memory() - before < 60 * 2**20


@given(st.sets(st.one_of(st.integers(0, 9000), st.integers(2**32, 2**32 + 70_000), st.integers(0, 2**62)), max_size=99))
def test_any_vector_is_decoded_as_roaring_decodes_it(rows: set[int]) -> None:
    assert deletion_vector(vector_blob(sorted(rows)), len(rows)).tolist() == sorted(rows)


@given(st.binary(max_size=60))
def test_no_bytes_end_the_decoder_without_an_error_of_values(data: bytes) -> None:
    bitmap = b"\xd1\xd3\x39\x64" + data
    blob = len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")
    try:
        rows = deletion_vector(blob, 1000)
    except ValueError:
        return
    assert len(rows) <= 1000
