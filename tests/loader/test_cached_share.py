"""What `describe()` expects of a cache, and that its remedies help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Cache, Rotate, stream
from torch_dataloader_utils.distributed.nodes import ranks_of_node
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.planning.node_share import NodeShare

SIZE = 40 << 20
VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """40 MiB in 64 row groups."""
    files = fsspec.filesystem("memory")
    table = pa.table({"id": pa.array(range(SIZE // 8), pa.int64())})
    with files.open("/shares/data.parquet", "wb") as sink:
        pq.write_table(table, sink, row_group_size=SIZE // 8 // 64, compression="none", use_dictionary=False)
    yield "memory://shares"
    files.rm("/shares", recursive=True)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def described(url: str, folder: Path, **options: Any) -> Description:
    cache = Cache(folder, max_bytes="16MiB")
    return stream(url, cache=cache, split_rows=1, even="drop", **{"num_ranks": 8, "rank": 5, **options}).describe()


def test_on_one_node_it_is_what_fits(url: str, tmp_path: Path) -> None:
    found = described(url, tmp_path, shuffle=True)
    assert found.cache.startswith("16.0 MiB: about 40% of what this node reads")
    assert found.cache in " ".join(str(found).split())
    assert not found.warnings
    assert stream(url, num_ranks=1, rank=0).describe().cache == ""
    roomy = stream(url, cache=Cache(tmp_path, max_bytes="1GiB"), num_ranks=1, rank=0).describe()
    assert roomy.cache == "1.0 GiB: all of what this node reads in later epochs"


def test_where_shares_move_it_says_so_and_each_remedy_helps(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = described(url, tmp_path, shuffle=True)
    assert "about 40%" in found.cache
    [advice] = found.warnings
    assert "only about 40%" in advice.problem
    assert "among 4 nodes" in advice.problem
    assert "then it holds all." in advice.remedy
    for remedy in ({"shuffle": True, "sharding": Rotate(stick_to_shard=True)}, {"shuffle": False}):
        followed = described(url, tmp_path, **remedy)
        assert ": all of what" in followed.cache
        assert not [warning for warning in followed.warnings if "cache" in warning.problem]


def test_expected_hits() -> None:
    assert NodeShare().expected_hits(25, 100) == 0.25
    assert NodeShare(0.25).expected_hits(5, 100) == 0.2
    assert NodeShare(0.25, moves=True).expected_hits(5, 100) == 0.05
    assert NodeShare(0.25).expected_hits(50, 100) == 1.0
    assert NodeShare(0.0).expected_hits(1, 100) == 1.0


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, range(8)),
        ({"LOCAL_WORLD_SIZE": "2"}, range(4, 6)),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, range(4, 8)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}, range(4, 8)),
        ({"LOCAL_WORLD_SIZE": "3"}, range(8)),  # not of these ranks
        ({"LOCAL_WORLD_SIZE": "0", "SLURM_STEP_NUM_NODES": "0"}, range(8)),
        ({"LOCAL_WORLD_SIZE": "many"}, range(8)),
        ({"LOCAL_WORLD_SIZE": "16"}, range(8)),
    ],
)
def test_the_ranks_of_a_node(variables: dict[str, str], ranks: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_of_node(World(8, 5, "test")) == ranks
