"""Which rank a process is, by what launchers set; the environment is real, and the loaders read."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.one_mesh import OneMesh
from torch_dataloader_utils import Mesh, ShardingError, StructuredDataset
from torch_dataloader_utils.distributed.ranks import World, _warn_once, agreed_world, resolve_world
from torch_dataloader_utils.errors import OptionError

ROWS = 64
# Each launcher's variables for rank 1 of 2, and what the log line says of them.
LAUNCHERS = {
    "RANK and WORLD_SIZE": {"RANK": "1", "WORLD_SIZE": "2"},
    "HOROVOD_RANK and HOROVOD_SIZE": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
    "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE": {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"},
    "PMI_RANK and PMI_SIZE": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "SLURM_PROCID and SLURM_NTASKS": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"},
}
VARIABLES = {
    *(name for variables in LAUNCHERS.values() for name in variables),
    *("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"),
}
TWO = list(LAUNCHERS.items())


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(ROWS)}), tmp_path / "rows.parquet", row_group_size=8)
    return tmp_path


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def made(data: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(data, split_rows=8, batch_size=8, **options)


def ids(loader: Any) -> list[int]:
    return [int(row) for batch in loader for row in batch["id"]]


@pytest.mark.parametrize("source", LAUNCHERS)
def test_each_launcher_is_found_at_first_use_and_named(
    source: str, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_dataloader_utils")
    read: list[int] = []
    for rank in ("0", "1"):
        loader, _ = made(data)
        set_all(monkeypatch, {**LAUNCHERS[source], next(iter(LAUNCHERS[source])): rank})  # later than the loader
        read += ids(loader)
        assert f"rank {rank} of 2 (from {source})" in caplog.text
    assert sorted(read) == list(range(ROWS))


def test_alone_and_explicit_numbers(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_world(None, None) == World(1, 0, "default: no launcher detected")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resolve_world(None, None).num_ranks == 1
    set_all(monkeypatch, {"RANK": "7", "WORLD_SIZE": "nonsense"})
    loader, dataset = made(data, num_ranks=4, rank=2)  # always count
    assert (dataset.world.num_ranks, dataset.world.rank) == (4, 2)
    assert len(ids(loader)) == ROWS // 4
    for half in ({"num_ranks": 2}, {"rank": 0}):
        with pytest.raises(OptionError, match="expected both"):
            made(data, **half)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK"),
        ({"RANK": "1"}, "RANK=1 without WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK=1 without OMPI_COMM_WORLD_SIZE"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_SIZE=2 without HOROVOD_RANK"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, "SLURM_PROCID=3 without SLURM_NTASKS"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "0 <= RANK < WORLD_SIZE"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK='x'"),
    ],
)
def test_half_or_wrong_variables_are_errors_at_first_use(
    variables: dict[str, str], words: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    loader, dataset = made(data)  # as a Lightning script does before its launcher has set both
    for use in (lambda: len(loader), lambda: dataset.plan(0), lambda: next(iter(loader))):
        with pytest.raises(ShardingError, match=words):
            use()
    set_all(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})
    assert len(ids(loader)) == ROWS // 2


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "0"}, "RANK=0 without WORLD_SIZE: this process reads all rows, as a single one. Set WORLD_SIZE"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "SLURM_PROCID=0 without SLURM_NTASKS"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE"),
        ({"RANK": "0", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, None),  # another source tells
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "1"}, None),  # as in notebooks and containers
        ({"LOCAL_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_rank_0_of_unknown_many_reads_all_rows_with_one_warning(
    variables: dict[str, str],
    words: str | None,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_all(monkeypatch, variables)
    _warn_once.cache_clear()
    for _ in range(2):
        loader, dataset = made(data)
        str(dataset.describe())
        assert len(ids(loader)) == ROWS
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (0 if words is None else 1)
    assert all(warning.startswith(words or "") for warning in warnings)


@pytest.mark.parametrize("other", TWO[1:], ids=lambda item: item[0])
def test_sources_that_disagree_are_listed(
    other: tuple[str, dict[str, str]], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, variables = other
    set_all(monkeypatch, {**variables, "RANK": "0", "WORLD_SIZE": "2"})
    loader, _ = made(data)
    with pytest.raises(ShardingError) as raised:
        next(iter(loader))
    assert f"RANK and WORLD_SIZE: rank 0 of 2; {source}: rank 1 of 2. Pass num_ranks and rank" in str(raised.value)
    assert len(ids(made(data, num_ranks=2, rank=1)[0])) == ROWS // 2
    monkeypatch.setenv("RANK", "1")  # now they agree
    assert resolve_world(None, None).source == "RANK and WORLD_SIZE"


VARIABLES_SAY, SLURM_SAYS = "RANK and WORLD_SIZE", "SLURM_PROCID and SLURM_NTASKS"


@pytest.mark.parametrize(
    ("running", "launched", "found"),
    [
        ([], [], None),
        ([], [World(2, 1, VARIABLES_SAY), World(2, 1, SLURM_SAYS)], 0),
        ([], [World(2, 1, VARIABLES_SAY), World(2, 0, SLURM_SAYS)], "error"),
        ([World(2, 1, "torch.distributed")], [World(2, 1, VARIABLES_SAY)], 0),
        ([World(2, 1, "torch.distributed")], [World(2, 0, VARIABLES_SAY)], 0),  # accelerate.debug_launcher
        ([World(8, 5, "torch.distributed")], [World(2, 1, SLURM_SAYS)], 0),  # processes that a task of srun starts
        ([World(1, 0, "torch.distributed")], [World(2, 1, VARIABLES_SAY)], "error"),  # each would read all rows
        ([World(2, 1, "torch.distributed"), World(2, 1, "Accelerate")], [World(2, 0, VARIABLES_SAY)], 0),
        ([World(2, 1, "torch.distributed"), World(2, 0, "Accelerate")], [], "error"),
        ([World(2, 1, "Horovod")], [World(2, 0, VARIABLES_SAY)], "error"),
        ([World(1, 0, "torch.distributed")], [], 0),
    ],
)
def test_a_process_group_outranks_variables_and_all_else_must_agree(
    running: list[World], launched: list[World], found: int | str | None
) -> None:
    """`found` is the place of the source that counts."""
    if found == "error":
        with pytest.raises(ShardingError, match="sources disagree about this process's rank"):
            agreed_world(running, launched)
    else:
        assert agreed_world(running, launched) == (None if found is None else [*running, *launched][found])


def test_torchrun_within_tasks_of_slurm_and_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """One task a node, each with four processes of torchrun."""
    for _, variables in TWO[2:]:
        set_all(monkeypatch, variables)
    set_all(monkeypatch, {"RANK": "6", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job"})
    assert resolve_world(None, None) == World(8, 6, "RANK and WORLD_SIZE")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with pytest.raises(ShardingError, match=r"rank 6 of 8; OMPI.*rank 1 of 2; SLURM.*rank 1 of 2"):
        resolve_world(None, None)


def test_slurm_counts_only_within_a_step_of_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})  # a batch script
    assert resolve_world(None, None).num_ranks == 1
    set_all(monkeypatch, {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"})  # the shell of salloc
    assert resolve_world(None, None).num_ranks == 1
    set_all(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"})  # and a launcher started there
    assert resolve_world(None, None) == World(2, 1, "RANK and WORLD_SIZE")


def test_horovod_counts_once_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with Horovod's functions: the real one needs its launcher."""
    started = {"now": False}
    horovod = ModuleType("horovod.torch")
    horovod.__dict__.update(is_initialized=lambda: started["now"], size=lambda: 3, rank=lambda: 2)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    assert resolve_world(None, None).num_ranks == 1
    started["now"] = True
    assert resolve_world(None, None) == World(3, 2, "Horovod")
    monkeypatch.setenv("WORLD_SIZE", "3")  # what runs tells enough
    assert resolve_world(None, None) == World(3, 2, "Horovod")
    set_all(monkeypatch, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"})
    with pytest.raises(ShardingError, match="Horovod: rank 2 of 3; HOROVOD_RANK and HOROVOD_SIZE: rank 1 of 3"):
        resolve_world(None, None)


def test_detection_imports_no_framework(data: Path) -> None:
    code = (
        "import sys; from torch_dataloader_utils.distributed.ranks import resolve_world; resolve_world(None, None); "
        "assert not {'torch', 'accelerate', 'horovod'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("variables", "rank", "warned"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 1, True),  # the local rank
        ({"RANK": "3", "WORLD_SIZE": "4"}, 0, True),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, 3, False),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, 1, False),  # other numbers of one's own
        ({}, 1, False),
    ],
)
def test_another_rank_than_the_launchers_is_told(
    variables: dict[str, str],
    rank: int,
    warned: bool,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_all(monkeypatch, variables)
    assert len(ids(made(data, num_ranks=4, rank=rank)[0])) == ROWS // 4
    assert (f"rank={rank} of num_ranks=4 was passed and is used, but the launcher set RANK=3" in caplog.text) is warned


# ------------------------------------------------------------------------------------------------ options and copies


@pytest.mark.parametrize("given", ["dp", True, 4, object(), {"dims": ["dp"]}, {"mesh": "dp"}])
def test_what_names_no_ranks_is_refused(given: Any, data: Path) -> None:
    with pytest.raises(
        OptionError, match=r"a process group, a DeviceMesh|mesh is missing|expected a torch\S* DeviceMesh"
    ):
        made(data, ranks=given)


def test_a_number_of_ranks_is_another_option(data: Path) -> None:
    with pytest.raises(OptionError, match=r"ranks=4: expected a process group.* The number of ranks is num_ranks\."):
        made(data, ranks=4)


@pytest.mark.parametrize("dims", ["dp", 3, ["dp", 3]])
def test_dimensions_are_names(dims: Any) -> None:
    with pytest.raises(OptionError, match=r"Mesh: dims=.*: expected a list of names of dimensions, such as \['dp'\]"):
        Mesh(OneMesh(), dims=dims)


def test_a_mesh_is_a_value_or_a_dict(data: Path) -> None:
    mesh = OneMesh()
    assert Mesh(mesh, dims=["data"]).dims == ("data",)
    with pytest.raises(OptionError, match=r"name the data-parallel ones, such as ranks=Mesh\(mesh, dims=\['data'\]\)"):
        made(data, ranks=mesh)
    for given in (Mesh(mesh, dims=["data"]), {"mesh": mesh, "dims": ["data"]}):
        assert made(data, ranks=given)[1].world == World(2, 1, "mesh (data)", given=True)
    assert made(data, ranks=Mesh(mesh, dims=()))[1].world == World(1, 0, "mesh", given=True)


@pytest.mark.parametrize(("num_ranks", "rank"), [(4, 1), (2, 0)])
def test_numbers_that_differ_from_the_ranks_are_refused(num_ranks: int, rank: int, data: Path) -> None:
    accelerator = SimpleNamespace(num_processes=2, process_index=1)
    for given, source in ((accelerator, "accelerator"), (Mesh(OneMesh(), dims=["data"]), r"mesh \(data\)")):
        with pytest.raises(
            OptionError, match=rf"num_ranks={num_ranks}, rank={rank} with ranks: .* \(by its {source}, rank 1 of 2\)\."
        ):
            made(data, ranks=given, num_ranks=num_ranks, rank=rank)
    assert made(data, ranks=accelerator, num_ranks=2, rank=1)[1].world.rank == 1


def test_a_group_needs_torch_distributed(data: Path) -> None:
    with pytest.raises(ShardingError, match=r"ranks is a process group, but torch\.distributed is not initialised"):
        made(data, ranks=torch.distributed.ProcessGroup(0, 2))


def test_a_dataset_sent_elsewhere_takes_its_rank_there_or_says_why_not(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, dataset = made(data)
    assert len(loader) == ROWS // 8  # it knows its world here
    set_all(monkeypatch, LAUNCHERS["RANK and WORLD_SIZE"])
    assert len(ids(pickle.loads(pickle.dumps(dataset)))) == ROWS // 2
    accelerator = SimpleNamespace(num_processes=2, process_index=1)  # as an Accelerator tells its rank
    _, dataset = made(data, ranks=accelerator)
    assert dataset.world == World(2, 1, "accelerator", given=True)
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            ShardingError, match=r"ranks cannot be sent to another process: .*Leave out ranks \(detects"
        ):
            copied(dataset)
    _, dataset = made(data, ranks=accelerator, num_ranks=2, rank=1)
    assert pickle.loads(pickle.dumps(dataset)).world == World(2, 1, "the arguments", given=True)


@pytest.mark.slow
@pytest.mark.parametrize("peeked", [False, True])
def test_processes_that_are_ranks_detect_their_own(data: Path, peeked: bool) -> None:
    """A dataset handed to torch.multiprocessing.spawn by a process that is no rank, and may have looked at a batch."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    loader, dataset = made(data, even="drop")
    if peeked:
        next(iter(loader))
    torch.multiprocessing.spawn(_as_rank, args=(dataset, results), nprocs=2)
    assert sorted(results.get() + results.get()) == list(range(ROWS))


def _as_rank(rank: int, dataset: Any, results: Any) -> None:
    import os

    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    results.put(ids(dataset))
