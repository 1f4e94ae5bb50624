"""Loaders tell the caches of their stores what their passes read, for as long as they live."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import combine, stream
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.iteration.cached_passes import CachedPasses
from torch_dataloader_utils.storage.cache_plans import PASSES, kept_since


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    files = fsspec.filesystem("memory")
    for name in ("a", "b"):
        with files.open(f"/told/{name}.parquet", "wb") as sink:
            pq.write_table(pa.table({"id": range(100)}), sink)
    yield "memory://told"
    files.rm("/told", recursive=True)


def plans(folder: Path) -> int:
    return len(list(folder.glob("plan-*")))


def given(folder: Path, **options: Any) -> dict[str, Any]:
    return {"cache": folder, "num_ranks": 1, "rank": 0, "batch_size": 10, **options}


def test_a_loader_tells_what_it_reads_until_it_is_closed_or_gone(url: str, tmp_path: Path) -> None:
    loader = stream(url, **given(tmp_path))
    assert plans(tmp_path) == 0
    for _ in range(2):
        for _ in loader:
            assert set(kept_since(str(tmp_path)).values()) == {0.0}
            assert (plans(tmp_path), len(kept_since(str(tmp_path)))) == (1, 2)
    loader.dataset.close()
    assert plans(tmp_path) == 0
    assert len(list(loader)) == 20  # it goes on
    assert plans(tmp_path) == 1
    del loader, _
    gc.collect()
    assert plans(tmp_path) == 0


def test_each_part_of_a_combination_is_told(url: str, tmp_path: Path) -> None:
    parts = [stream(f"{url}/{name}.parquet", **given(tmp_path)) for name in ("a", "b")]
    loader = combine(parts, num_ranks=1, rank=0)
    assert len(list(loader)) > 0
    assert (plans(tmp_path), len(kept_since(str(tmp_path)))) == (2, 2)


def test_after_some_complete_passes_its_other_blocks_are_of_no_use(url: str, tmp_path: Path) -> None:
    loader = stream(url, **given(tmp_path))
    for number in range(PASSES + 1):
        next(iter(loader))  # one that is abandoned counts as none
        assert any(kept_since(str(tmp_path)).values()) == (number >= PASSES)
        assert len(list(loader)) == 20
    assert all(kept_since(str(tmp_path)).values())


@pytest.mark.parametrize(
    ("options", "ranks_of_node", "passes"),
    [({}, "8", PASSES), ({}, "2", 4 * PASSES), ({"steps_per_epoch": 3}, "8", None)],
)
def test_how_many_passes_read_all_that_a_node_reads(
    options: dict[str, Any], ranks_of_node: str, passes: int | None, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_of_node)
    dataset = stream(url, num_ranks=8, rank=0, **options).dataset
    told = CachedPasses(dataset._source, dataset._options)
    assert told._passes(World(8, 0, "test")) == passes
