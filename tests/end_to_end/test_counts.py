"""`count_rows=True`, from files to batches: what is counted is what is delivered, on any number of ranks."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import CountsRequiredError, Processes, Shard, Split, StructuredDataset
from torch_dataloader_utils.formats.parquet import ParquetReader

FILTERS: list[Any] = [
    pc.field("id") - pc.field("id") / 3 * 3 == 0,
    [("x", ">", 4.0), ("x", "<", 30.0)],
    [("x", ">", 10.0)],
    None,
]


def write(folder: Path, files: list[list[int]]) -> pa.Table:
    """Files of row groups of these sizes; all rows in file order."""
    tables, at = [], 0
    for number, groups in enumerate(files):
        ids = np.arange(at, at + sum(groups))
        at += sum(groups)
        table = pa.table(
            {
                "id": ids,
                "x": ids * 0.5,
                "maybe": pa.array([None if i % 5 in (1, 2) else int(i) for i in ids], pa.int64()),
            }
        )
        with pq.ParquetWriter(folder / f"{number}.parquet", table.schema) as writer:
            for start, size in zip(np.cumsum([0, *groups[:-1]]), groups, strict=True):
                writer.write_table(table.slice(start, size))
        tables.append(table)
    return pa.concat_tables(tables)


def live_ids(table: pa.Table, filters: Any, drop: bool) -> list[int]:
    if filters is not None:
        table = table.filter(filters if isinstance(filters, pc.Expression) else pq.filters_to_expression(filters))
    if drop:
        table = table.filter(table["maybe"].is_valid())
    ids: list[int] = table["id"].to_pylist()
    return ids


def options_of(data: st.DataObject) -> tuple[dict[str, Any], Any, bool]:
    filters, drop = data.draw(st.sampled_from(FILTERS)), data.draw(st.booleans())
    options = {
        "filters": filters,
        "nulls": "drop" if drop else "mask",
        "count_rows": True,
        "batch_size": data.draw(st.integers(1, 12)),
        "num_workers": data.draw(st.sampled_from([None, 0, 2, 3])),
        "shuffle": data.draw(st.booleans()),
        "split_rows": data.draw(st.sampled_from([5, 20, 1000])),
    }
    return options, filters, drop


FILES = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=40)
@given(files=FILES, data=st.data())
def test_each_live_row_once_in_as_many_batches_as_planned(files: list[list[int]], data: st.DataObject) -> None:
    options, filters, drop = options_of(data)
    options["sharding"] = data.draw(st.sampled_from(["interleave", "contiguous", "rotate", "strided"]))
    num_ranks, seen = data.draw(st.integers(1, 3)), []
    with tempfile.TemporaryDirectory() as name:
        wanted = live_ids(write(Path(name), files), filters, drop)
        for rank in range(num_ranks):
            loader, dataset = StructuredDataset.create_dataloader(name, num_ranks=num_ranks, rank=rank, **options)
            steps, rows = len(loader), dataset.shard_size()
            sizes = [len(batch["id"]) for batch in loader if not seen.extend(batch["id"].tolist())]
            assert len(sizes) == steps
            assert sum(sizes) == rows
            assert all(size == options["batch_size"] for size in sizes[:-1])
    assert sorted(seen) == wanted
    if not options["shuffle"] and num_ranks == 1 and options["num_workers"] in (None, 0):
        assert seen == wanted


@settings(max_examples=40)
@given(files=FILES, even=st.sampled_from(["drop", "pad"]), data=st.data())
def test_even_steps_over_live_rows(files: list[list[int]], even: str, data: st.DataObject) -> None:
    options, filters, drop = options_of(data)
    num_ranks, size = data.draw(st.integers(1, 3)), options["batch_size"]
    with tempfile.TemporaryDirectory() as name:
        wanted = live_ids(write(Path(name), files), filters, drop)
        if len(wanted) < (num_ranks * size if even == "drop" else 1):
            return  # refused: tests/end_to_end/test_even.py
        seen: list[int] = []
        steps = len(wanted) // (num_ranks * size) if even == "drop" else -(-len(wanted) // (num_ranks * size))
        for rank in range(num_ranks):
            loader, _ = StructuredDataset.create_dataloader(name, num_ranks=num_ranks, rank=rank, even=even, **options)
            batches = list(loader)
            assert len(loader) == len(batches) == steps
            for batch in batches:
                assert len(batch["id"]) == size
                seen += batch["id"][batch["valid"]].tolist() if even == "pad" else batch["id"].tolist()
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(wanted)
    assert len(seen) == (len(wanted) if even == "pad" else steps * size * num_ranks)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write(tmp_path, [[30, 20], [10], [40]])
    return str(tmp_path)


@pytest.mark.parametrize("options", [{"filters": FILTERS[0]}, {"nulls": "drop"}])
def test_the_error_without_counts_names_the_remedy(folder: str, options: dict[str, Any]) -> None:
    options = {"nulls": "mask", "batch_size": 4, "even": "drop", "num_ranks": 2, "rank": 1, **options}
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        StructuredDataset.create_dataloader(folder, **options)
    loader, _ = StructuredDataset.create_dataloader(folder, count_rows=True, **options)
    assert len(loader) == len(list(loader)) > 0


def test_the_scan_happens_once(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, filters=FILTERS[0], columns=["id", "x"], count_rows=True, batch_size=8
    )
    reads = []
    read = ParquetReader.read
    monkeypatch.setattr(
        ParquetReader, "read", lambda *given: (reads.append((given[0].path, *map(tuple, given[1:]))), read(*given))[1]
    )
    again = pickle.loads(pickle.dumps(dataset))
    for epoch in range(3):
        dataset.set_epoch(epoch)
        again.set_epoch(epoch)
        assert len(loader) == 5
        assert again.plan().rows == 34
    assert not reads
    list(loader)
    assert {name for _, _, columns in reads for name in columns} == {"id", "x"}


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_and_a_transform(folder: str, workers: int) -> None:
    mode = Processes(False) if workers else "threads"
    loader, _ = StructuredDataset.create_dataloader(
        folder, filters=FILTERS[0], nulls="drop", count_rows=True, transform=doubled, batch_size=7,
        num_workers=workers, worker_mode=mode,
    )  # fmt: skip
    batches = list(loader)
    assert len(loader) == len(batches)
    seen = sorted(row for batch in batches for row in batch["id"].tolist())
    assert seen == [2 * row for row in range(0, 100, 3) if row % 5 not in (1, 2)]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "id", pc.multiply(batch["id"], 2))


class LiveHalves:
    """A user's strategy: it sees live rows."""

    def split(self, files: Any) -> list[Split]:
        halves = []
        for file in files:
            rows = file.info.record_count
            halves += [Split(file.info, (0, rows // 2)), Split(file.info, (rows // 2, rows))]
        return halves


class OneShard:
    """A user's generate strategy."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return [Shard(0, tuple(Split(file) for file in files[rank::num_ranks]))]


@pytest.mark.parametrize("strategy", [LiveHalves(), OneShard()])
def test_strategies_of_the_user_plan_live_rows(folder: str, strategy: Any) -> None:
    seen: list[int] = []
    for rank in range(2):
        loader, _ = StructuredDataset.create_dataloader(
            folder, filters=FILTERS[0], nulls="mask", count_rows=True, split_strategy=strategy,
            batch_size=4, num_ranks=2, rank=rank,
        )  # fmt: skip
        batches = list(loader)
        assert len(loader) == len(batches)
        seen += [row for batch in batches for row in batch["id"].tolist()]
    assert sorted(seen) == list(range(0, 100, 3))


JOB = """
import json, pickle, sys
import pyarrow.compute as pc
import torch.distributed as dist
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.formats.parquet import ParquetReader

rank, folder, store, out = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
read, paths = ParquetReader.read, []
ParquetReader.read = lambda *given: (paths.append(given[0].path), read(*given))[1]
thirds = pc.field("id") - pc.field("id") / 3 * 3 == 0
options = dict(filters=thirds, count_rows=True, columns=["id", "name"], strings="codes", batch_size=4)
loader, dataset = StructuredDataset.create_dataloader(folder, even="drop", **options)
found = {"scanned": sorted(set(paths)), "vocabulary": dataset.vocabulary("name"), "steps": len(loader)}
source = dataset._source
assert source.exact
found["source"] = repr((source.files, list(source.splits)))
found["ids"] = [row for batch in loader for row in batch["id"].tolist()]
paths.clear()
if rank == 0:  # asks nobody
    _, alone = StructuredDataset.create_dataloader(folder, num_ranks=1, rank=0, **options)
    source = alone._source
    found["alone"] = [len(set(paths)), repr((source.files, list(source.splits))), alone.vocabulary("name")]
try:
    StructuredDataset.create_dataloader(folder if rank == 0 else folder + "/nothing", **options)
except Exception as error:
    found["failed"] = f"{type(error).__name__}: {error}"
json.dump(found, open(out, "w"))
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_scan_half_of_the_files_each(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(5):
        ids = np.arange(number * 20, number * 20 + 20)
        table = pa.table({"id": ids, "name": [f"{number}-{i % 4}" for i in ids]})
        pq.write_table(table, data / f"{number}.parquet", row_group_size=7)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(rank), str(data), str(tmp_path / "store"), str(tmp_path / f"{rank}.json")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
    zero, one = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [Path(path).name for path in zero["scanned"]] == ["0.parquet", "2.parquet", "4.parquet"]
    assert [Path(path).name for path in one["scanned"]] == ["1.parquet", "3.parquet"]
    assert zero["source"] == one["source"]
    names = sorted({f"{row // 20}-{row % 4}" for row in range(0, 100, 3)})
    assert zero["vocabulary"] == one["vocabulary"] == names
    assert zero["steps"] == one["steps"] == 34 // (2 * 4)
    seen = zero["ids"] + one["ids"]
    assert len(set(seen)) == len(seen) == 32
    assert set(seen) <= set(range(0, 100, 3))
    assert zero["alone"][0] == 5
    assert zero["alone"][1] == zero["source"]
    assert zero["alone"][2] == names
    assert zero["failed"].startswith("WorkerError: another rank failed while creating its loader: rank 1: DataNotFound")
    assert one["failed"].startswith("DataNotFoundError")
