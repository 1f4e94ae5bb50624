"""Names on the local disk that are not valid UTF-8: files by them are read, and what cannot hold them says so."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import OptionError

ROWS = list(range(18))


def write(table: pa.Table, path: str, suffix: str) -> None:
    if suffix == "csv":
        with open(path, "w") as file:
            csv.writer(file).writerows([["id"], *([row] for row in table.column("id").to_pylist())])
    elif suffix == "jsonl":
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        with open(path, "wb") as file:
            {"parquet": pq.write_table, "orc": orc.write_table, "arrow": pf.write_feather}[suffix](table, file)


@pytest.fixture
def folder(tmp_path: Path, suffix: str) -> str:
    """A folder of two files; all three have names of bytes."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/data-\xff")
    os.mkdir(folder)
    for number in range(2):
        name = os.fsdecode(b"%d-\xe9." % number)
        write(pa.table({"id": ROWS[number * 9 : number * 9 + 9]}), f"{folder}/{name}{suffix}", suffix)
    return folder


def loader(path: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(path, **{"batch_size": 4, "num_workers": 0, **options})[0]


def read(path: Any, **options: Any) -> list[int]:
    return sorted(row for batch in loader(path, **options) for row in batch["id"].tolist())


@pytest.mark.parametrize("suffix", ["parquet", "orc", "arrow", "csv", "jsonl"])
def test_files_are_read_by_folder_glob_list_and_url(folder: str, suffix: str) -> None:
    files = sorted(f"{folder}/{name}" for name in os.listdir(folder))
    for path in (folder, Path(folder), f"{folder}/*.{suffix}", files, f"file://{folder}"):
        assert read(path) == ROWS
    assert read(files[0]) == ROWS[:9]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "worker_mode": "processes"},
        {"shuffle": True},
        {"on_error": "skip"},
        {"count_rows": True, "filters": [("id", ">=", 0)]},
    ],
    ids=str,
)
def test_files_are_read_under_other_options(folder: str, options: dict[str, Any]) -> None:
    assert read(folder, **options) == ROWS


@pytest.mark.parametrize("suffix", ["parquet"])
def test_a_state_resumes(folder: str) -> None:
    first = loader(folder, shuffle=True)
    taken = next(iter(first))["id"].tolist()
    second = loader(folder, shuffle=True)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(taken + [row for batch in second for row in batch["id"].tolist()]) == ROWS


@pytest.mark.parametrize("suffix", ["parquet"])
def test_a_manifest_says_that_it_cannot_hold_them(folder: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not valid UTF-8, until the file or folder is renamed") as caught:
        loader(folder, manifest=str(tmp_path / "manifest"))
    assert "0-\\udce9.parquet" in str(caught.value)
    assert str(caught.value).isprintable()
    [remedy] = caught.value.remedies
    assert remedy.left_out == ("manifest",)
    assert list(tmp_path.glob("manifest*")) == []


@pytest.mark.parametrize("suffix", ["parquet"])
@pytest.mark.parametrize("name", [b"k=\xff", b"\xff=1"])
def test_a_partition_column_says_that_it_cannot_hold_them(folder: str, name: bytes) -> None:
    below = f"{folder}/{os.fsdecode(name)}"
    os.mkdir(below)
    pq.write_table(pa.table({"id": ROWS}), (file := pa.OSFile(os.fsencode(f"{below}/x.parquet"), "wb")))
    file.close()
    with pytest.raises(OptionError, match="not valid UTF-8, until it is renamed") as caught:
        loader(below)
    assert str(caught.value).isprintable()
    [remedy] = caught.value.remedies
    assert read(below, **remedy.given) == ROWS
