"""Bytes that are not UTF-8 where a file promises text: an error that names file, column and row."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.convert.utf8 import check_utf8
from torch_dataloader_utils.errors import FileReadError


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, store_schema=False)
    elif path.suffix == ".orc":
        orc.write_table(table, path, compression="uncompressed")
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)


def read(path: Path, **options: Any) -> list[Any]:
    loader, _ = StructuredDataset.create_dataloader(str(path), num_ranks=1, rank=0, num_workers=0, **options)
    return list(loader)


def damaged_strings() -> pa.Array:
    offsets = b"".join(end.to_bytes(4, "little") for end in (0, 1, 3, 4))
    return pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"a\xff\xfeb"))


@pytest.mark.parametrize("name", ["f.parquet", "f.orc", "f.arrow"])
def test_a_damaged_string_is_named_unless_it_is_read_as_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(pa.table({"id": [1, 2, 3], "s": damaged_strings()}), path)
    for output in ("torch", "numpy", "dict", "arrow"):
        with pytest.raises(FileReadError, match=rf"column 's' .* not UTF-8 .*{name}.*at row 1 of .*strings='bytes'"):
            read(path, output_format=output)
    assert bytes(read(path, strings="bytes")[0]["s"]["values"].tolist()) == b"a\xff\xfeb"
    assert len(read(path, columns=["id"])[0]["id"]) == 3


def test_a_damaged_string_in_a_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    lists = pa.ListArray.from_arrays([0, 1, 1, 3], damaged_strings())
    write(pa.table({"id": [1, 2, 3], "s": lists}), path)
    with pytest.raises(FileReadError, match=r"column 's' .* not UTF-8 .*f.parquet.*at row 2 of"):
        read(path)


@pytest.mark.parametrize("kind", ["dictionary", "json"])
def test_a_damaged_string_is_named_in_all_encodings(tmp_path: Path, kind: str) -> None:
    strings, numbers = damaged_strings(), pa.array([0, 1, 2], pa.int32())
    column = {
        "dictionary": pa.DictionaryArray.from_arrays(numbers, strings),
        "json": pa.ExtensionArray.from_storage(pa.json_(pa.string()), strings),
    }[kind]
    pq.write_table(pa.table({"id": [1, 2, 3], "s": column}), tmp_path / "f.parquet")
    for output in ("torch", "dict", "arrow"):
        with pytest.raises(FileReadError, match=r"column 's' .* not UTF-8 .*f.parquet.*at row 1 of .*strings='bytes'"):
            read(tmp_path / "f.parquet", output_format=output)


def test_damage_that_no_row_has_is_no_error(tmp_path: Path) -> None:
    """After those that are read, in a word that none has, or below a null."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0], pa.int32()), damaged_strings())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), words)
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), damaged_strings(), mask=pa.array([False, True, False]))
    for column in (words, lists, hidden):
        check_utf8("s", pa.chunked_array([column]), "")
    text = pa.array([b"a"] * 90 + [b"\xff"] + [b"b"] * 9).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array(range(101), pa.int32()), text)
    pq.write_table(pa.table({"l": lists}), tmp_path / "f.parquet")
    (batch,) = read(tmp_path / "f.parquet", limit=50, batch_size=50)
    assert batch["l"] == [["a"]] * 50
    with pytest.raises(FileReadError, match="at row 90"):
        read(tmp_path / "f.parquet")


def test_a_damaged_string_beside_a_time_that_python_has_not_is_named(tmp_path: Path) -> None:
    days, strings = pa.array([2**31 - 1, 0, 1], pa.int32()).view(pa.date32()), damaged_strings()
    rows = pa.StructArray.from_arrays([days, strings], ["d", "s"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), rows)
    pq.write_table(pa.table({"l": lists}), tmp_path / "f.parquet")
    with pytest.raises(FileReadError, match=r"column 'l' .* not UTF-8 .*f.parquet.*at row 1 of"):
        read(tmp_path / "f.parquet")


@pytest.mark.parametrize("name", ["f.parquet", "f.orc", "f.arrow"])
def test_a_damaged_name_of_a_column_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(pa.table({"id": [1], "qqqq": ["a"]}), path)
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"qq\xff\xfe"))
    with pytest.raises(FileReadError, match=rf"{name}.*(not UTF-8|UnicodeDecodeError)"):
        read(path)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("f.csv", b"id,s\n1,a\n" + b"1,abcdefgh\n" * 300_000 + b"2,\xff\n", "line 300003, column 's': .*not UTF-8"),
        ("f.jsonl", b'{"id":1}\n' * 300_000 + b'{"id":1,"id":"\xff"}\n', "line 300001: .*not UTF-8"),
        ("names.csv", b"id,\xff\n1,a\n", "line 1, byte 3: is not UTF-8"),
        ("names.jsonl", b'{"id":1}\n{"id":1,"s\xff":"a"}\n', "line 2: .*not UTF-8"),
        ("names.json", b'[{"id":1},\n{"id":1,"s\xff":"a"}]', "line 2: .*not UTF-8"),
    ],
)
def test_damaged_text_is_named(tmp_path: Path, name: str, text: bytes, match: str) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(FileReadError, match=f"{name}, {match}"):
        read(tmp_path / name)


@pytest.mark.parametrize("options", [{}, {"output_format": "arrow"}, {"output_format": "torch", "nulls": "mask"}])
@pytest.mark.parametrize("row", [b'{"st":{"\xf8":1}}', b'{"l":[{"a":{"\xf8":1}}]}'])
def test_a_damaged_name_of_a_nested_field_is_an_error(tmp_path: Path, row: bytes, options: dict[str, Any]) -> None:
    (tmp_path / "f.jsonl").write_bytes(row + b"\n" + row)
    with pytest.raises(FileReadError, match=r"f.jsonl.* the name of a field of column '(st|l)' is not UTF-8"):
        read(tmp_path / "f.jsonl", **options)
