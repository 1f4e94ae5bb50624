"""Real processes in meshes: tensor-, context- and pipeline-parallel peers read the same rows, others disjoint ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.distributed.launching import launch, torchrun
from torch_dataloader_utils.distributed.peers import is_data_parallel, is_joined

ROWS = 300
SCRIPT = "mesh_jobs.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("meshes") / "data"
    folder.mkdir()
    for number in range(3):
        table = pa.table({"id": range(number * 100, (number + 1) * 100)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10)
    return str(folder)


def check(processes: list[Any], ranks: list[int], rows: range = range(ROWS)) -> None:
    """Each process has its rank, those of one rank have the same rows, and the ranks together have all, once."""
    assert [found["rank"] for found in processes] == ranks
    assert {found["num_ranks"] for found in processes} == {max(ranks) + 1}
    for epoch in range(2):
        by_rank: dict[int, list[int]] = {}
        for found in processes:
            assert by_rank.setdefault(found["rank"], found["epochs"][epoch]) == found["epochs"][epoch]
        assert sorted(sum(by_rank.values(), [])) == list(rows)
    assert processes[0]["epochs"][0] != processes[0]["epochs"][1]


@pytest.mark.slow
def test_meshes_of_four_processes(data: str, tmp_path: Path) -> None:
    found = launch("meshes", data, tmp_path, 4, SCRIPT)
    ranks = {
        "dp x tp": [0, 0, 1, 1],
        "pp x dp x tp": [0, 1, 0, 1],
        "dp x cp": [0, 1, 0, 1],
        "hybrid": [0, 1, 2, 3],
        "one dimension": [0, 1, 2, 3],
        "slice": [0, 0, 1, 1],
        "slice of three": [0, 1, 0, 1],
        "named": [0, 1, 0, 1],
        "all alike": [0, 0, 0, 0],
        "group": [0, 0, 1, 1],
        "numbers": [0, 0, 1, 1],
        "manifest": [0, 1, 0, 1],
    }
    for name, expected in ranks.items():
        check([process[name] for process in found], expected)
    for name in ("counted", "counted in a slice"):
        processes = [process[name] for process in found]
        assert {len(rows) for one in processes for rows in one["epochs"]} == {48}  # 100 rows: 6 steps of 8 on each
        for epoch in range(2):
            rows = {one["rank"]: one["epochs"][epoch] for one in processes}
            assert len({*rows[0], *rows[1]} & {*range(100)}) == 96
    assert [process["counted"]["rank"] for process in found] == [0, 1, 0, 1]
    for epoch in range(2):
        steps = {-(-len(process["sync"]["epochs"][epoch]) // 8) for process in found}
        assert len(steps) == 1
        first, peer, second, _ = (process["sync"]["epochs"][epoch] for process in found)
        assert first == peer
        assert not {*first} & {*second}
    words = {
        "no dp": [
            "OptionError: ranks: mesh has the dimensions ('model', 'data'), and none of their names has the part dp",
            "such as ranks=Mesh(mesh, dims=['data'])",
        ],
        "unknown": ["OptionError: Mesh: dims=['data']: mesh has the dimensions ('dp', 'tp')"],
        "other size": ["OptionError: num_ranks=4, rank=", " with ranks: this process is ", "(by its mesh (dp), rank "],
        "another rank": [
            "OptionError: num_ranks=2, rank=",
            " of 2). Leave out num_ranks and rank, or leave",
        ],
        "peers differ": ["PlanMismatchError: ", "options of ranks 0, 0, 1, 1"],
        "local rank": ["PlanMismatchError: rank 0, 1 was given more than once", "Pass the global rank"],
        "no mesh": ["PlanMismatchError: 4 processes take part, but passed num_ranks=2, 2, 2, 2", "ranks=mesh"],
        "sent away": ["ShardingError: ranks cannot be sent to another process", "pass num_ranks and rank"],
    }
    for process in found:
        for name, expected in words.items():
            assert all(word in process[name]["error"] for word in expected), process[name]
            assert process[name]["seconds"] < 15


@pytest.mark.slow
def test_context_parallel_peers_of_flattened_meshes_read_the_same_rows(data: str, tmp_path: Path) -> None:
    found = launch("flattened", data, tmp_path, 4, SCRIPT)
    ranks = {
        "whole": [0, 0, 1, 1],
        "dp": [0, 0, 1, 1],
        "experts": [0, 1, 2, 3],
        "said to differ": [0, 1, 2, 3],
        "sharded": [0, 1, 2, 3],
        "replicated": [0, 0, 1, 1],
        "batch": [0, 0, 1, 1],
    }
    for name, expected in ranks.items():
        check([process[name] for process in found], expected)
    words = {
        "dp_cp": "'dp_cp' joins data-parallel processes with such as read the same rows: pass a mesh that has them",
        "dp_shard_cp": "or ranks=Mesh(mesh, dims=['dp_shard_cp']), if all",
        "both": "or ranks=Mesh(mesh, dims=['dp_replicate', 'dp_shard_cp']), if all",
        "fsdp": "pass ranks=Mesh(mesh, dims=['dp_replicate', 'fsdp']) if they read different ones, or",
        "no dp": "has the part dp: name the data-parallel ones, such as ranks=Mesh(mesh, dims=['batch'])",
        "dpo": "mesh has the dimensions ('dpo', 'data'), and none of their names has the part dp",
    }
    for process in found:
        for name, expected_words in words.items():
            assert expected_words in process[name]["error"], process[name]


@pytest.mark.parametrize("name", ["dp", "dp_replicate", "dp_shard", "dp0", "DP", "dp_shard_in_ep", "dp_shard_mod_ep"])
def test_dimensions_with_the_part_dp_are_data_parallel(name: str) -> None:
    assert is_data_parallel(name)
    assert not is_joined(name)


@pytest.mark.parametrize("name", ["dp_cp", "dp_shard_cp", "dp_shard_sp", "cp_dp", "dp-tp", "dp_in_ep_cp"])
def test_dimensions_joined_with_peers_that_read_the_same_rows_are_told_apart(name: str) -> None:
    assert is_joined(name)


@pytest.mark.parametrize("name", ["dpo", "dprime", "cp", "fsdp", "dpcp", ""])
def test_other_names_that_begin_with_dp_are_not_data_parallel(name: str) -> None:
    assert not is_data_parallel(name)
    assert not is_joined(name)


@pytest.mark.slow
def test_groups_and_meshes_that_do_not_have_all_processes(data: str, tmp_path: Path) -> None:
    first, second, other = launch("partial", data, tmp_path, 3, SCRIPT)
    check([first["rows"], second["rows"]], [0, 1])
    check([other["rows"]], [0])
    assert "process 2 is not one of its members" in other["outside"]["error"]
    for found in (first, second):
        assert "process(es) 2 did not begin this pass within timeout=1.5 s" in found["late"]["error"]


@pytest.mark.slow
def test_ranks_forgotten_under_torchrun(data: str, tmp_path: Path) -> None:
    found = launch("detected", data, tmp_path, 2, SCRIPT, torchrun)
    check([process["plain"] for process in found], [0, 1])
    for rank, process in enumerate(found):
        assert process["before"] == [rank, 2, "RANK and WORLD_SIZE"]
        assert process["early"]["steps"] == 38  # 300 rows in one process
        assert "there was one (from default: no launcher detected)" in process["early"]["error"]
        assert process["source"] == "torch.distributed"
        assert process["outranking"] == [rank, 2, "torch.distributed"]  # where RANK says something else
        assert sorted(process["workers of a mesh"]) == list(range(ROWS))
    assert sorted(found[0]["workers"] + found[1]["workers"]) == list(range(ROWS))


@pytest.mark.slow
def test_accelerate(data: str, tmp_path: Path) -> None:
    found = launch("accelerated", data, tmp_path, 2, SCRIPT)
    for name in ("given", "state"):
        check([process[name] for process in found], [0, 1])
    check([process["tensor parallel"] for process in found], [0, 0])
    for process in found:
        assert process["source"] == "accelerator"
        assert "num_ranks=4, rank=0 with ranks: this process is" in process["other size"]["error"]
