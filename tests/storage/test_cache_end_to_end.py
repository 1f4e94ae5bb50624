"""`cache=`: the same batches, few requests, new bytes of changed objects, and right rows after kill -9."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.storage.cache_helpers import block_bytes, forget
from tests.storage.proxy import Faults, Proxy, faulty
from tests.storage.servers import Store
from torch_dataloader_utils import Cache, StructuredDataset

FILES, ROWS = 4, 120_000  # rows of a file, in two row groups: 4 MB each
FORKED = multiprocessing.get_context("forkserver")  # of a process that has imported torch: see conftest.py


def table(number: int, add: float = 0.0) -> pa.Table:
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    rng = np.random.default_rng(number)
    columns = {f"x{i}": rng.standard_normal(ROWS, dtype=np.float32) + np.float32(add) for i in range(15)}
    return pa.table({"id": ids, **columns})


def write(folder: Path, number: int, add: float = 0.0) -> None:
    path = folder / f"part-{number}.parquet"
    pq.write_table(table(number, add), path, ROWS // 2, compression="none", use_dictionary=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    for number in range(FILES):
        write(folder, number)
    return folder


@pytest.fixture
def proxy(moto_s3: Store, folder: Path, tmp_path: Path) -> Iterator[Proxy]:
    moto_s3.put(folder, "cached")
    with faulty(moto_s3, tmp_path) as proxy:
        yield proxy
    forget()


def batches(path: str, rank: int = 0, **options: Any) -> Iterator[dict[str, torch.Tensor]]:
    given = {"num_ranks": 2, "rank": rank, "num_workers": 2, "batch_size": 1024, "shuffle": True, "split_rows": 30_000}
    loader, _ = StructuredDataset.create_dataloader(path, **{**given, **options})
    yield from loader


def everything(path: str, **options: Any) -> list[list[tuple[str, bytes]]]:
    """All batches of both ranks, comparable."""
    return [
        [(name, value.numpy().tobytes()) for name, value in batch.items()]
        for rank in range(2)
        for batch in batches(path, rank, **options)
    ]


def remote(proxy: Proxy, cache: Path | Cache, **options: Any) -> dict[str, Any]:
    return {
        "path": proxy.store.url("cached"),
        "storage_options": proxy.store.storage_options,
        "cache": cache,
        **options,
    }


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_what_was_read_once_is_not_asked_for_again(mode: str, proxy: Proxy, folder: Path, tmp_path: Path) -> None:
    expected = everything(str(folder))
    given = remote(proxy, tmp_path / "cache", worker_mode=mode)
    assert everything(**given) == expected
    cold = proxy.counts().of("part-")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= cold["bytes"] <= 2.1 * size  # two ranks may fetch a block at once
    proxy.inject(Faults())
    assert everything(**given) == expected
    assert proxy.counts().of("part-")["gets"] == 0
    assert sum(map(block_bytes, (tmp_path / "cache").rglob("*.block"))) == size


def test_columns_that_are_not_read_are_not_fetched(proxy: Proxy, folder: Path, tmp_path: Path) -> None:
    ids = [
        row
        for rank in range(2)
        for batch in batches(rank=rank, columns=["id"], **remote(proxy, tmp_path / "cache"))
        for row in batch["id"].tolist()
    ]
    assert sorted(ids) == list(range(FILES * ROWS))
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert proxy.counts().of("part-")["bytes"] < 0.5 * size


def test_a_changed_object_gives_its_new_rows(proxy: Proxy, moto_s3: Store, folder: Path, tmp_path: Path) -> None:
    given = remote(proxy, tmp_path / "cache")
    old = everything(**given)
    new = tmp_path / "new"
    new.mkdir()
    for number in range(FILES):
        write(new, number, add=float(number == 1))
    assert [path.stat().st_size for path in sorted(new.iterdir())] == [
        path.stat().st_size for path in sorted(folder.iterdir())
    ]
    time.sleep(1.1)  # times of change may count whole seconds
    moto_s3.put(new, "cached")
    try:
        assert everything(**given) == everything(str(new)) != old
    finally:
        time.sleep(1.1)
        moto_s3.put(folder, "cached")


def test_a_small_cache_gives_the_same_batches(proxy: Proxy, folder: Path, tmp_path: Path) -> None:
    given = remote(proxy, Cache(tmp_path / "cache", max_bytes="16MiB"))
    assert everything(**given) == everything(**given) == everything(str(folder))


def read_to_the_end(rank: int, given: dict[str, Any]) -> None:
    for _ in batches(rank=rank, **given):
        pass


def epoch_of_two(proxy: Proxy, given: dict[str, Any]) -> dict[str, int]:
    """What two ranks that are started for an epoch ask of a slow store."""
    proxy.inject(Faults(latency=0.02, rate=200e6))
    ranks = [FORKED.Process(target=read_to_the_end, args=(rank, given)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    return proxy.counts().of("part-")


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_ranks_of_a_node_find_what_fits_in_each_later_epoch(shuffle: bool, proxy: Proxy, tmp_path: Path) -> None:
    small = Cache(tmp_path / "cache", max_bytes="16MiB")  # half of the data
    for epoch in range(2):
        given = {**remote(proxy, small), "shuffle": shuffle, "shuffle_seed": epoch}
        plain, cached = epoch_of_two(proxy, {**given, "cache": None}), epoch_of_two(proxy, given)
        assert cached["gets"] <= plain["gets"]
        assert cached["bytes"] <= plain["bytes"] * 1.1 - (0.9 * (16 << 20) if epoch else 0)


def read_rank(rank: int, given: dict[str, Any], started: Any) -> None:
    for _ in batches(rank=rank, **given):
        started.set()
    if rank == 0:
        time.sleep(600)  # until the kill, which a busy machine may delay


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_after_kill_9_of_one_of_two_ranks_that_fill_the_cache_a_clean_run_is_right(
    seed: int, proxy: Proxy, folder: Path, tmp_path: Path
) -> None:
    given = remote(proxy, tmp_path / "cache")
    proxy.inject(Faults(latency=0.05))  # so that most kills come while the cache fills
    starts = [FORKED.Event() for _ in range(2)]
    ranks = [FORKED.Process(target=read_rank, args=(rank, given, starts[rank])) for rank in range(2)]
    for process in ranks:
        process.start()
    assert starts[0].wait(60)
    time.sleep(random.Random(seed).random() * 0.2)
    assert ranks[0].pid is not None
    os.kill(ranks[0].pid, signal.SIGKILL)
    for process in ranks:
        process.join()
    assert ranks[1].exitcode == 0  # the other is not disturbed
    batches_after = everything(**given, worker_mode="processes")
    assert batches_after == everything(str(folder))
    ids = np.concatenate([np.frombuffer(dict(batch)["id"], np.int64) for batch in batches_after])
    assert np.array_equal(np.sort(ids), np.arange(FILES * ROWS))
