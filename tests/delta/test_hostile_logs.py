"""A log that would end the process, or take its memory, is an error before deltalake decodes it."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.by_hand import delete_rows, entries, live, require, rewrite
from tests.delta.reading import ids, opened
from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils import FileReadError

DEEP = 50_000
NESTED = {"lists": "[" * DEEP + "]" * DEEP, "objects": '{"a":' * DEEP + "1" + "}" * DEEP}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(tmp_path, pa.table({"id": range(10)}), configuration=configuration)
    return tmp_path


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("key", ["numRecords", "minValues", "other"])
@pytest.mark.parametrize("kind", NESTED)
def test_statistics_that_are_nested_without_end_are_named(table: Path, kind: str, key: str, escaped: bool) -> None:
    stats = f'{{"{key}":{NESTED[kind]}}}'
    rewrite(table, lambda line: line["add"].update(stats=stats) if "add" in line else None)
    if escaped:
        (entry,) = entries(table)
        text = entry.read_text()
        at = text.index(f'\\"{key}\\":')
        stats_end = text.index('", ', at)
        inside = text[at:stats_end].replace("[", "\\u005b").replace("{", "\\u007B")
        entry.write_text(text[:at] + inside + text[stats_end:])
    with pytest.raises(FileReadError, match=rf"{table}.*{0:020}.json: is nested more than 500 levels deep"):
        opened(table)


@pytest.mark.parametrize("kind", NESTED)
def test_tags_that_are_nested_without_end_are_named(table: Path, kind: str) -> None:
    (entry,) = entries(table)
    entry.write_text(entry.read_text().replace('"tags":null', f'"tags":{NESTED[kind]}'))
    assert len(entry.read_bytes()) > DEEP
    with pytest.raises(FileReadError, match="is nested more than 500 levels deep"):
        opened(table)


def changed_vector(table: Path, **facts: Any) -> None:
    """Have the newest version say this of the deletion vector that it adds."""
    rewrite(table, lambda line: line["add"]["deletionVector"].update(facts) if "add" in line else None, -1)


@pytest.mark.parametrize("cardinality", [0, 1, 3, 100, -1, 2**40])
@pytest.mark.parametrize("kind", ["u", "p", "i"])
def test_a_vector_of_another_number_of_rows_than_the_log_says_is_an_error(
    table: Path, kind: str, cardinality: int
) -> None:
    (path,) = live(table)
    delete_rows(table, {path: [1, 5]}, kind)
    changed_vector(table, cardinality=cardinality)
    with pytest.raises(FileReadError, match=rf"deletion vector of .*{path}: "):
        opened(table)


@pytest.mark.parametrize("row", [2**30, 2**31, 2**33, 2**62])
def test_a_vector_with_a_far_row_is_an_error_in_bounded_memory(table: Path, row: int) -> None:
    (path,) = live(table)
    delete_rows(table, {path: [1, row]})
    before = restart_peak()
    with pytest.raises(FileReadError, match=f"deletes row {row}, but the file has 10 rows"):
        opened(table)
    assert peak_memory() - before < 100 * 2**20


def test_a_vector_that_expands_without_end_is_an_error_in_bounded_memory(table: Path) -> None:
    (path,) = live(table)
    delete_rows(table, {path: [1, 3]})
    keys = 1 << 16
    heads = b"".join(struct.pack("<HH", key, 65535) for key in range(keys))
    body = struct.pack("<I", 12347 | (keys - 1) << 16) + b"\xff" * (keys // 8) + heads + bytes(4 * keys)
    bitmap = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + body + struct.pack("<HHH", 1, 0, 65535) * keys
    (vector,) = table.glob("*.bin")
    vector.write_bytes(b"\x01" + struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap)))
    changed_vector(table, sizeInBytes=len(bitmap))
    before = restart_peak()
    with pytest.raises(FileReadError, match="but there are only 2"):
        opened(table)
    assert peak_memory() - before < 100 * 2**20


@pytest.mark.parametrize("facts", [{"sizeInBytes": -1}, {"sizeInBytes": 2**31 - 1}, {"offset": -1}, {"offset": 9}])
def test_a_vector_that_is_not_where_the_log_says_is_an_error(table: Path, facts: dict[str, Any]) -> None:
    (path,) = live(table)
    delete_rows(table, {path: [1, 3]})
    changed_vector(table, **facts)
    with pytest.raises(FileReadError, match=f"{table}.*"):
        opened(table)


def test_vectors_in_a_checkpoint_and_after_it_apply(table: Path) -> None:
    write_deltalake(table, pa.table({"id": range(10, 20)}), mode="append")
    first, second = live(table)
    delete_rows(table, {first: [1, 3]})
    DeltaTable(table).create_checkpoint()
    assert ids(opened(table)[0]) == [0, 2, *range(4, 20)]
    delete_rows(table, {second: [9]})
    for entry in entries(table)[:-2]:
        entry.unlink()  # as a clean-up does
    assert ids(opened(table)[0]) == [0, 2, *range(4, 19)]


def test_wide_statistics_are_read(tmp_path: Path) -> None:
    rows = {f"c{number}": pa.array([{"x": {"y": 1}}]) for number in range(400)}
    write_deltalake(tmp_path, pa.table({"id": [0], **rows}))
    (add,) = live(tmp_path).values()
    nested = {f"c{number}": {"x": {"y": 1}} for number in range(400)}
    stats = json.dumps({"numRecords": 1, "minValues": nested, "maxValues": nested})
    rewrite(tmp_path, lambda line: line["add"].update(stats=stats) if "add" in line else None)
    require(tmp_path, "deletionVectors")
    assert ids(opened(tmp_path, columns=["id"])[0]) == [0]
    assert add["path"]
