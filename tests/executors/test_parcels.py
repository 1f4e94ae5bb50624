"""What all worker processes get alike: sent once, mapped by all, and nothing is left behind."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Codes, Processes, stream
from torch_dataloader_utils.convert.ids import IdTable
from torch_dataloader_utils.errors import UnknownValueError
from torch_dataloader_utils.executors.parcels import LongValues, Parcel, received
from torch_dataloader_utils.kernels import table
from torch_dataloader_utils.preprocess import Categorize, Hash, Preprocess, TargetEncode

MANY = 40_000
WORDS = [f"word {number:06d}" for number in range(MANY)]


def sent(parcel: Parcel) -> Any:
    """What a process gets of a parcel."""
    ours, theirs = Pipe()
    with ours, theirs:
        thread = threading.Thread(target=parcel.send, args=(ours,))
        thread.start()
        found = received(theirs)
        thread.join()
    return found()


def arrays(buffer: pa.Buffer) -> np.ndarray:
    return np.frombuffer(buffer, np.uint8)


def test_large_arrays_are_mapped_and_small_ones_are_not() -> None:
    large, small = np.arange(100_000), np.arange(9)
    value = {"large": large, "view": large[:50_000], "again": large, "small": small, "text": pa.array(WORDS)}
    with Parcel(value) as parcel:
        one, other = sent(parcel), sent(parcel)
    for found in (one, other):
        assert [found[name].tolist() for name in ("large", "view", "again", "small")] == [
            large.tolist(), large[:50_000].tolist(), large.tolist(), small.tolist(),
        ]  # fmt: skip
        assert found["text"].equals(value["text"])
        assert np.shares_memory(found["large"], found["again"])
    assert not np.shares_memory(one["large"], other["large"])  # each has mapped it


def test_what_a_process_writes_is_its_own() -> None:
    with Parcel(np.zeros(100_000)) as parcel:
        one = sent(parcel)
        one += 1
        assert not sent(parcel).any()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the descriptors that Linux lists")
def test_no_descriptor_is_left() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    with Parcel([np.zeros(100_000), pa.array(WORDS)]) as parcel:
        found = sent(parcel)
        del found
    with pytest.raises(TypeError, match="pickle"):
        Parcel([np.zeros(100_000), threading.Lock()])
    assert opened() == before


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "values",
    [pa.array(WORDS), pa.array(WORDS, pa.large_string()).slice(3), pa.array(range(5, MANY)), pa.array(["a"]),
     pa.array(range(MANY), pa.int16() if MANY < 2**15 else pa.int32())],
    ids=["text", "slice", "int64", "few", "narrow"],
)  # fmt: skip
def test_tables_arrive_built(values: pa.Array, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(table, "library", lambda: None)
    ids = IdTable(values)
    ids.build()
    asked = pa.concat_arrays([values.take(pa.array([0, len(values) - 1])), values[:0]])
    with Parcel([ids, ids]) as parcel:
        monkeypatch.setattr(table.SlotTable, "__init__", refuse)
        monkeypatch.setattr(table.SortedInts, "__init__", refuse)
        monkeypatch.setattr(table.SortedBytes, "__init__", refuse)
        found, again = sent(parcel)
        assert found is again
        assert found.lookup(asked).tolist() == [0, len(values) - 1]
        assert pickle.loads(pickle.dumps(ids)).values.equals(values)  # without the table, for any machine
    assert found.lookup(values).tolist() == list(range(len(values)))


def refuse(*_: Any) -> None:
    raise AssertionError("the table is built anew")


def test_a_table_that_is_not_built_stays_so() -> None:
    with Parcel(IdTable(pa.array(WORDS))) as parcel:
        assert sent(parcel).lookup(pa.array([WORDS[7], "x"])).tolist() == [7, -2]


@pytest.mark.parametrize("values", [WORDS, [word.encode() for word in WORDS], list(range(-5, MANY))])
def test_options_with_many_values(values: list[Any]) -> None:
    option, by_column = Codes(values), Codes({"x": values, "y": ["a"]}, unknown=3)
    with Parcel({"x": option, "y": by_column, "same": Codes(["a", "b"])}) as parcel:
        found = sent(parcel)
    assert type(found["x"].values) is type(found["y"].values["x"]) is LongValues
    assert (found["x"].values[3], len(found["x"].values)) == (values[3], len(values))
    assert found["x"].values[2:4] == tuple(values[2:4])
    assert found["y"].unknown == 3
    assert repr(found["x"])[:40] == repr(option)[:40]
    again = pickle.loads(pickle.dumps(found))  # as in an error that a worker sends
    assert again == {"x": option, "y": by_column, "same": Codes(["a", "b"])}


@pytest.mark.parametrize("values", [[*WORDS, b"x"], [2**70, *range(MANY)], [True, *range(2, MANY)]])
def test_values_that_arrow_would_change_stay_as_they_are(values: list[Any]) -> None:
    with Parcel(Codes(values)) as parcel:
        assert sent(parcel) == Codes(values)


# Worker processes.


def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, and the bytes that this process has mapped of an unnamed file, privately."""
    size = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        if "memfd:tdu" in line and rights.endswith("p"):
            first, last = (int(end, 16) for end in span.split("-"))
            size += last - first
    return batch.append_column("mapped", pa.array([size] * batch.num_rows, pa.int64()))


class Counting:
    """A transform that keeps an array of its own."""

    def __init__(self) -> None:
        self.seen = np.zeros(1 << 16)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.seen[0] += batch.num_rows
        return batch.append_column("seen", pa.array([int(self.seen[0])] * batch.num_rows, pa.int64()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("words")
    random = np.random.default_rng(0)
    for part in range(2):
        x = [None if n % 11 == 0 else WORDS[n] for n in random.integers(0, MANY, 30_000)]
        rows = {"x": x, "n": random.integers(0, MANY, 30_000), "y": random.random(30_000)}
        pq.write_table(pa.table(rows), path / f"{part}.parquet", row_group_size=6_000)
    return str(path)


def delivered(folder: str, **options: Any) -> pa.Table:
    loader = stream(folder, batch_size=1000, num_ranks=1, rank=0, output_format="arrow", **options)
    try:
        return pa.Table.from_batches(list(loader))
    finally:
        loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_worker_processes_map_vocabularies(folder: str, context: str) -> None:
    spec = {
        "x": {"id": Categorize(), "hash": Hash(99), "mean": TargetEncode("y", by="n")},
        "n": {"code": Categorize(values=list(range(MANY)))},
    }
    prep = Preprocess(spec).fit(folder)
    expected = delivered(folder, transform=[prep, mapped], num_workers=2)
    found = delivered(folder, transform=[prep, mapped], num_workers=2, worker_mode=Processes(context=context))
    assert found.drop_columns("mapped").equals(expected.drop_columns("mapped"))
    if context != "fork" and Path("/proc/self/maps").exists():
        least = 2 * MANY * 16  # slots
        assert min(found["mapped"].to_pylist()) > least
    assert max(expected["mapped"].to_pylist()) == 0


@pytest.mark.slow
def test_what_a_transform_keeps_can_be_written(folder: str) -> None:
    found = delivered(folder, transform=Counting(), num_workers=1, worker_mode="processes")
    assert found["seen"].to_pylist() == sorted(found["seen"].to_pylist())
    assert found["seen"][-1].as_py() == 60_000


@pytest.mark.slow
def test_codes_of_worker_processes(folder: str) -> None:
    given = {"strings": {"x": Codes(WORDS[:-1], unknown=-9)}, "nulls": "mask"}
    here, there = (
        [[batch["x"].tolist() for batch in stream(folder, batch_size=999, num_ranks=1, rank=0, **given, **workers)]]
        for workers in ({"num_workers": 2}, {"num_workers": 2, "worker_mode": "processes"})
    )
    assert here == there
    with pytest.raises(UnknownValueError, match="word 0399") as caught:
        list(
            stream(folder, strings={"x": Codes(WORDS[:39_900])}, nulls="mask", worker_mode="processes", num_workers=1,
                   num_ranks=1, rank=0)
        )  # fmt: skip
    *_, way = caught.value.remedies
    strings = way.applied({})["strings"]
    assert strings == {"x": Codes(WORDS[:39_900], unknown=-1)}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")
def test_tables_are_built_before_workers_start(folder: str) -> None:
    prep = Preprocess({"x": Categorize()}).fit(folder)
    loader = stream(folder, transform=prep, strings="codes", num_ranks=1, rank=0)
    scan = loader.dataset._known_passes.source.scan
    vocabulary = scan.transform._fit.outputs[0].fitted[0]["vocabulary"]
    built: Callable[[], int] = lambda: vocabulary.table.nbytes - vocabulary.array.nbytes  # noqa: E731
    assert built() == 0
    scan.prepare()
    assert built() > 0
    loader.close()
