"""One table in every format: the same rows in the same order, each exactly once, from all drivers and to all ranks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, FileReadError, SchemaMismatchError

ROWS = 3000
FILES = 3


def table_of(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "x": ids * 0.5,
            "big": ids + 2**53,
            "name": [f"row {row}, é" for row in ids],
            "flag": ids % 3 == 0,
        }
    )


def write_csv(table: pa.Table, path: Path) -> None:
    pacsv.write_csv(table, path)


def write_jsonl(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_json(table: pa.Table, path: Path) -> None:
    path.write_text(json.dumps(table.to_pylist(), indent=1))


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def write_orc(table: pa.Table, path: Path) -> None:
    # ORC begins a stripe per batch of its writer once a stripe's size is reached.
    with orc.ORCWriter(path, stripe_size=1, batch_size=100) as writer:
        for batch in table.to_batches(100):
            writer.write(pa.Table.from_batches([batch]))


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=100),
    "orc": write_orc,
    "csv": write_csv,
    "csv.gz": lambda table, path: compress(write_csv, table, path),
    "jsonl": write_jsonl,
    "jsonl.gz": lambda table, path: compress(write_jsonl, table, path),
    "json": write_json,
    "feather": lambda table, path: feather.write_feather(table, str(path), chunksize=100),
    "arrows": write_stream,
}
COUNTED = ("parquet", "orc", "feather")


def compress(write: Callable[[pa.Table, Path], None], table: pa.Table, path: Path) -> None:
    write(table, path)
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for suffix, write in WRITERS.items():
        found[suffix] = folder = tmp_path_factory.mktemp(suffix.replace(".", "-"))
        for number in range(FILES):
            write(table_of(number * ROWS // FILES, ROWS // FILES), folder / f"part-{number}.{suffix}")
    return found


def epoch(path: Path, **options: Any) -> list[dict[str, Any]]:
    loader, dataset = StructuredDataset.create_dataloader(path, **options)
    batches = list(loader)
    dataset.close()
    return batches


def check(batches: list[dict[str, Any]], ids: list[int]) -> None:
    """Every value of every row is as it was written, in the types that it was written in."""
    assert [row for batch in batches for row in batch["id"].tolist()] == ids
    for batch in batches:
        assert list(batch) == ["id", "x", "big", "name", "flag"]
        rows = batch["id"]
        assert (rows.dtype, batch["x"].dtype, batch["big"].dtype, batch["flag"].dtype) == (
            torch.int64, torch.float64, torch.int64, torch.bool,
        )  # fmt: skip
        assert torch.equal(batch["x"], rows * 0.5)
        assert torch.equal(batch["big"], rows + 2**53)
        assert torch.equal(batch["flag"], rows % 3 == 0)
        assert batch["name"] == [f"row {row}, é" for row in rows.tolist()]


@pytest.mark.parametrize("suffix", WRITERS)
def test_file_order_exact_batches_and_types(folders: dict[str, Path], suffix: str) -> None:
    batches = epoch(folders[suffix], batch_size=128)
    check(batches, list(range(ROWS)))
    assert [len(batch["id"]) for batch in batches] == [128] * 23 + [56]


@pytest.mark.parametrize("suffix", WRITERS)
def test_each_row_once_over_ranks_the_same_from_all_drivers(folders: dict[str, Path], suffix: str) -> None:
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "split_bytes": 4096, "num_ranks": 2}
    ranks = [epoch(folders[suffix], rank=rank, num_workers=2, **options) for rank in range(2)]
    ids = [[row for batch in batches for row in batch["id"].tolist()] for batches in ranks]
    assert sorted(ids[0] + ids[1]) == list(range(ROWS))
    for rank in range(2):
        processes = epoch(folders[suffix], rank=rank, num_workers=2, worker_mode="processes", **options)
        check(processes, ids[rank])
        assert [len(batch["id"]) for batch in processes] == [len(batch["id"]) for batch in ranks[rank]]


@pytest.mark.parametrize("suffix", WRITERS)
def test_columns_filters_and_counts(folders: dict[str, Path], suffix: str) -> None:
    options: dict[str, Any] = {"columns": ["name", "x"], "filters": [("id", ">=", 1234)], "batch_size": 100}
    batches = epoch(folders[suffix], **options)
    assert [name for batch in batches for name in batch["name"]] == [f"row {row}, é" for row in range(1234, ROWS)]
    options |= {"count_rows": True, "even": "drop", "num_ranks": 2, "rank": 1}
    loader, _ = StructuredDataset.create_dataloader(folders[suffix], **options)
    assert len(loader) == 8
    assert len(list(loader)) == 8


@pytest.mark.parametrize("suffix", WRITERS)
def test_counts_are_known_where_the_file_tells_them(folders: dict[str, Path], suffix: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folders[suffix], batch_size=128)
    if suffix in COUNTED:
        assert len(loader) == 24
    elif suffix != "arrows":
        with pytest.raises(TypeError):
            len(loader)
        with pytest.raises(CountsRequiredError, match="count_rows=True"):
            StructuredDataset.create_dataloader(folders[suffix], even="drop", num_ranks=2, rank=0)
    loader, _ = StructuredDataset.create_dataloader(folders[suffix], batch_size=128, count_rows=True)
    assert len(loader) == 24
    check(list(loader), list(range(ROWS)))


@pytest.mark.parametrize("suffix", ["parquet", "orc", "csv", "jsonl", "feather"])
def test_one_large_file_is_shared_by_two_workers_within_a_tenth(tmp_path: Path, suffix: str) -> None:
    piece = tmp_path / "piece"
    WRITERS[suffix](table_of(0, 100_000), piece)
    if suffix == "jsonl":
        (tmp_path / "one.jsonl").write_bytes(piece.read_bytes() * 8)
    else:
        WRITERS[suffix](table_of(0, 1_000_000), tmp_path / f"one.{suffix}")
    path = tmp_path / f"one.{suffix}"
    _, dataset = StructuredDataset.create_dataloader(path, num_workers=2, split_bytes="1MiB")
    first, second = (dataset.plan(0).shard(worker).size_bytes for worker in range(2))
    assert abs(first - second) <= 0.1 * max(first, second)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_hive_folders_of_text_and_nothing_but_their_column(tmp_path: Path, suffix: str) -> None:
    for month in (1, 2):
        folder = tmp_path / f"month={month}"
        folder.mkdir()
        WRITERS[suffix](table_of(0, 10 * month), folder / f"a.{suffix}")
    (batch,) = epoch(tmp_path, columns=["month"])
    assert batch["month"].tolist() == [1] * 10 + [2] * 20
    (batch,) = epoch(tmp_path, columns=["id", "month"], filters=[("month", "=", 2), ("id", "<", 3)])
    assert batch["id"].tolist() == [0, 1, 2]
    assert batch["month"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_one_schema_over_files_of_text(tmp_path: Path, suffix: str) -> None:
    """Whole numbers in one file and fractions in another are floats in both; nothing is decided range by range."""
    WRITERS[suffix](pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / f"1.{suffix}")
    WRITERS[suffix](pa.table({"a": [0.5, 4.0], "c": [7, 8]}), tmp_path / f"2.{suffix}")
    (batch,) = epoch(tmp_path, columns=["a"])
    assert batch["a"].dtype == torch.float64
    assert batch["a"].tolist() == [1, 2, 0.5, 4]
    schema = pa.schema({"a": pa.float32(), "c": pa.int8()})
    (batch,) = epoch(tmp_path, schema=schema, nulls={"c": "mask"})
    assert batch["a"].dtype == torch.float32
    assert batch["c"].dtype == torch.int8
    assert batch["c_valid"].tolist() == [False, False, True, True]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_value_beyond_the_sample_that_does_not_fit_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"late.{suffix}"
    rows = 200_000  # more than the sample that types are guessed from
    WRITERS[suffix](pa.table({"id": pa.array(range(rows)), "word": ["some words to fill it"] * rows}), path)
    text = path.read_text().splitlines()
    bad = 150_001
    text[bad - 1] = text[bad - 1].replace("150000" if suffix == "jsonl" else "149999", '"oops"')
    path.write_text("\n".join(text) + "\n")
    with pytest.raises((FileReadError, SchemaMismatchError), match=rf"late\.{suffix}.*{bad}"):
        epoch(path)
    loader, dataset = StructuredDataset.create_dataloader(path, format_options={"on_bad_lines": "skip"})
    assert sum(len(batch["id"]) for batch in loader) == rows - 1
    dataset.close()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_files_of_text_without_rows(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_text({"csv": "id,name\n", "jsonl": "", "json": "[]"}[suffix])
    with pytest.raises(EmptyDatasetError):
        StructuredDataset.create_dataloader(tmp_path)


def test_what_filters_leave_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        WRITERS["parquet"](table_of(number * 1000, 1000), tmp_path / f"{number}.parquet")
    with caplog.at_level("INFO", logger="torch_dataloader_utils"):
        StructuredDataset.create_dataloader(tmp_path, filters=[("id", ">=", 1500)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{tmp_path}: filters keep 2 of 3 files, and 15 of the 30 row groups examined"
    caplog.clear()
    StructuredDataset.create_dataloader(tmp_path)
    assert not caplog.records


def test_signed_links_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(FileReadError) as caught:
        StructuredDataset.create_dataloader(
            ["http://127.0.0.1:9/a.csv?sig=s3cret", "http://127.0.0.1:9/b.csv?sig=s3cret"]
        )
    assert "s3cret" not in "".join(map(str, [caught.value, caught.value.__cause__, caught.value.__context__]))
