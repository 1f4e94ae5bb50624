"""Accelerate with loaders that it must not wrap: rows, epochs, accumulation, places, and a job that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests import forkrun
from tests.killing import write_rows
from tests.launchers.conftest import ENDED, EXAMPLES, Rows
from tests.launchers.pages import program
from torch_dataloader_utils import OptionError, ShardingError, StructuredDataset, Transform
from torch_dataloader_utils.loader.accelerated import check_accelerator, placed

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("torchdata")  # an Accelerator asks for it where loaders have a state

JOB = Path(__file__).with_name("accelerate_job.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ON_CPU = {"ACCELERATE_USE_CPU": "true"}  # else an Accelerator without a GPU takes itself for the only process
Launch = Callable[..., Rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_rows(tmp_path_factory.mktemp("rows")))


def make(data: str, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(data, **{"batch_size": 100, "shuffle": True, **options})


def planned(data: str, epoch: int, rank: int, **options: Any) -> list[list[int]]:
    """The real rows of each batch of one of two ranks, without Accelerate."""
    options = {"even": "pad", "batch_size": 40, **options}
    loader, dataset = make(data, num_ranks=2, rank=rank, **options)
    dataset.set_epoch(epoch)
    return [batch["id"][batch["valid"]].tolist() if "valid" in batch else batch["id"].tolist() for batch in loader]


# --------------------------------------------------------------------------------------------------- two processes


@pytest.mark.slow
def test_example(launch: Launch, check: Callable[[Rows, int], None]) -> None:
    check(launch(*TORCHRUN, ENDED, EXAMPLES / "accelerate_train.py", **ON_CPU), 2)


@pytest.fixture(scope="module")
def found(data: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found under Accelerate."""
    out = tmp_path_factory.mktemp("out")
    run("every way", data, out)
    return [json.loads((out / f"found-{rank}.json").read_text()) for rank in range(2)]


def run(what: str, data: str, out: Path, returncode: int = 0) -> None:
    done = subprocess.run(
        [*forkrun.command(), str(JOB), what, data, str(out)],
        env={**os.environ, **ON_CPU, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == returncode, done.stderr[-4000:]


@pytest.mark.slow
def test_the_reference_loop_meets_each_row_once_an_epoch(found: list[dict[str, Any]], data: str) -> None:
    for epoch in range(2):
        ranks = [sum(process["snippet"][epoch], []) for process in found]
        assert sorted(sum(ranks, [])) == list(range(1100))
        assert ranks == [
            sum(planned(data, epoch, rank, even="none", num_workers=4, batch_size=100), []) for rank in range(2)
        ]
    assert found[0]["snippet"][0] != found[0]["snippet"][1]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["twice", "given", "plain"])
def test_each_way_meets_the_rows_of_the_epochs_asked_for(found: list[dict[str, Any]], data: str, way: str) -> None:
    for rank, process in enumerate(found):
        assert process[way] == [planned(data, 0, rank), planned(data, 5, rank)]


@pytest.mark.slow
def test_skipped_batches_are_the_first_of_the_epoch(found: list[dict[str, Any]], data: str) -> None:
    for rank, process in enumerate(found):
        assert process["skipped"] == planned(data, 5, rank)[7:]


@pytest.mark.slow
def test_the_last_batch_applies_the_gradients(found: list[dict[str, Any]]) -> None:
    for process in found:
        assert process["synced"] == [step in (4, 8, 12, 14) for step in range(1, 15)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["saved", "saved unknown"])
def test_a_saved_place_is_the_same_on_all_ranks_and_is_continued(found: list[dict[str, Any]], name: str) -> None:
    ours = [process[name] for process in found]
    assert ours[0]["state"] == ours[1]["state"]
    for process in ours:
        assert process["rest"]
        assert process["resumed"] == process["rest"]
    assert ours[0]["first"] != ours[1]["first"]


@pytest.mark.slow
def test_wrappers_around_the_dataset_are_refused_on_every_rank(found: list[dict[str, Any]]) -> None:
    for process in found:
        dispatched, collated, split = process["errors"]
        assert "DataLoaderDispatcher, which would shard the rows of this rank, one of 2, again" in dispatched
        assert "ShardingError" in collated
        assert "sharding=Strided('split_batch') to create_dataloader" in split


@pytest.mark.slow
def test_a_killed_job_goes_on_where_it_was_saved(data: str, tmp_path: Path) -> None:
    run("killed", data, tmp_path, returncode=1)
    saved = int((tmp_path / "checkpoint" / "step").read_text())
    before = [[json.loads(line) for line in (tmp_path / f"rows-{rank}").read_text().splitlines()] for rank in range(2)]
    for rank in range(2):
        (tmp_path / f"rows-{rank}").unlink()
    run("resumed", data, tmp_path)
    after = [[json.loads(line) for line in (tmp_path / f"rows-{rank}").read_text().splitlines()] for rank in range(2)]

    for rank in range(2):
        assert before[rank][-1][1] >= saved, "it was killed before it had saved"
        steps = [line for line in before[rank] if line[1] <= saved] + after[rank]
        assert [line[2] for line in steps if line[0] == 0] == planned(data, 0, rank)
        assert [line[2] for line in steps if line[0] == 1] == planned(data, 1, rank)
        assert [line[1] for line in after[rank]] == list(range(saved + 1, len(steps) + 1))


@pytest.mark.slow
def test_the_group_of_debug_launcher_outranks_its_variables(data: str, tmp_path: Path) -> None:
    command = [sys.executable, str(JOB.with_name("debug_job.py")), data, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(found[0]["ids"] + found[1]["ids"]) == list(range(1100))
    assert [process["RANK"] for process in found] == ["0", "0"]
    assert not found[0]["said"]
    (said,) = found[1]["said"]
    assert "using torch.distributed: rank 1 of 2, but the environment differs: RANK and WORLD_SIZE" in said


# ----------------------------------------------------------------------------------------------------- one process


@pytest.fixture
def accelerator() -> Iterator[Any]:
    reset_accelerate()  # tests of other files may have left a state
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    reset_accelerate()


def reset_accelerate() -> None:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.parametrize(
    "options", [{}, {"filters": [("odd", "=", 1)]}, {"num_workers": 2, "worker_mode": "processes"}]
)
def test_accumulated_gradients_are_applied_at_the_end(data: str, accelerator: Any, options: dict[str, Any]) -> None:
    loader = accelerator.prepare(make(data, **options)[0])
    for _ in range(2):
        synced = []
        for _ in loader:
            with accelerator.accumulate():
                synced.append(accelerator.sync_gradients)
        steps = len(synced)
        assert synced == [step % 4 == 0 or step == steps for step in range(1, steps + 1)]
        assert not accelerator.gradient_state.in_dataloader


def test_validation_within_training_leaves_the_training_alone(data: str, accelerator: Any) -> None:
    loader, validation = accelerator.prepare(make(data)[0], make(data)[0])
    ends = []
    for step, _ in enumerate(loader):
        ends.append(accelerator.gradient_state.end_of_dataloader)
        if step == 3:
            for _ in validation:
                break  # left half-way
            assert len(list(validation)) == 11
        assert accelerator.gradient_state.end_of_dataloader == ends[-1]
    assert ends == [False] * 10 + [True]


def test_an_error_in_the_look_ahead_comes_in_its_turn(data: str, accelerator: Any) -> None:
    def fail(table: Any) -> Any:
        if 600 in table["id"].to_pylist():
            raise ValueError("row 600")
        return table

    options = {"shuffle": False, "transform": Transform(fail, rows="any"), "batch_size": 10}
    loader, _ = make(data, **options)
    plain: list[int] = []
    with pytest.raises(ValueError, match="row 600"):
        plain.extend(batch["id"][0].item() for batch in loader)
    met: list[int] = []
    loader = accelerator.prepare(make(data, **options)[0])
    with pytest.raises(ValueError, match="row 600"):
        met.extend(batch["id"][0].item() for batch in loader)
    assert met == plain


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"filters": [("odd", "=", 1)]}])
def test_skip_first_batches_leaves_out_the_first(data: str, accelerator: Any, options: dict[str, Any]) -> None:
    loader, dataset = make(data, **options)
    loader = accelerator.prepare(loader)
    whole = [batch["id"].tolist() for batch in loader]
    for skip in (accelerator.skip_first_batches, accelerate.skip_first_batches):
        dataset.set_epoch(0)
        ends, rest = [], []
        for batch in skip(loader, 3):
            rest.append(batch["id"].tolist())
            ends.append(accelerator.gradient_state.end_of_dataloader)
        assert rest == whole[3:]
        assert ends == [False] * (len(rest) - 1) + [True]


def test_batches_go_to_the_device(data: str, accelerator: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(accelerator.state, "device", torch.device("meta"))
    loader, dataset = make(data)
    assert {batch["id"].device.type for batch in accelerator.prepare(loader)} == {"meta"}
    assert next(iter(dataset))["id"].is_meta
    assert next(iter(make(data, ranks=accelerator)[0]))["id"].is_meta
    assert not next(iter(make(data)[0]))["id"].is_meta
    accelerator.device_placement = False
    assert not next(iter(accelerator.prepare(make(data)[0])))["id"].is_meta
    assert not next(iter(make(data, ranks=accelerator)[0]))["id"].is_meta


def test_device_of_the_loader_and_of_the_accelerator(data: str, accelerator: Any, monkeypatch: Any) -> None:
    """Batches go where both say; a contradiction is an error, not a second copy."""
    loader, _ = make(data, device="cpu", even="pad")
    assert [batch["id"].tolist() for batch in accelerator.prepare(loader)] == [
        batch["id"].tolist() for batch in make(data, even="pad")[0]
    ]
    monkeypatch.setattr(accelerator.state, "device", torch.device("meta"))
    with pytest.raises(OptionError, match="device='cpu', but the accelerator puts batches on its own device, 'meta'"):
        accelerator.prepare(make(data, device="cpu")[0])
    with pytest.raises(OptionError, match="Leave out device"):
        make(data, device="cpu", ranks=accelerator)
    accelerator.device_placement = False
    assert not next(iter(accelerator.prepare(make(data, device="cpu")[0])))["id"].is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu_of_an_accelerator(data: str) -> None:
    reset_accelerate()
    accelerator = accelerate.Accelerator()
    try:
        loader = accelerator.prepare(make(data, device="cuda", even="pad")[0])
        for batch, other in zip(loader, make(data, even="pad")[0], strict=True):
            assert batch["id"].device == accelerator.device
            assert batch["id"].tolist() == other["id"].tolist()
        with pytest.raises(OptionError, match="device='cpu', but the accelerator"):
            accelerator.prepare(make(data, device="cpu")[0])
    finally:
        reset_accelerate()


@pytest.mark.parametrize(
    ("given", "other", "same"),
    [
        ("cuda", "cuda:1", True),
        ("cuda:1", "cuda", True),
        ("cuda:1", "cuda:1", True),
        ("cuda:0", "cuda:1", False),
        ("cpu", "cuda:0", False),
        ("cuda", "mps", False),
    ],
)
def test_which_devices_of_an_accelerator_contradict(given: str, other: str, same: bool) -> None:
    accelerator = types.SimpleNamespace(device=torch.device(other), device_placement=True)
    with nullcontext() if same else pytest.raises(OptionError, match="pass device=acc"):
        check_accelerator(accelerator, False, given)


def test_batches_with_to_by_a_collate_fn(data: str, accelerator: Any) -> None:
    """As the page says for examples that call `batch.to(device)`."""
    transformers = pytest.importorskip("transformers")
    loader = accelerator.prepare(make(data, collate_fn=transformers.BatchEncoding, even="pad")[0])
    for batch in loader:
        assert batch.to("meta")["id"].is_meta


def test_what_is_placed() -> None:
    pair = namedtuple("pair", "a b")
    one, names = torch.zeros(1), ["x", "y"]
    batch = {"ragged": {"values": one, "offsets": one}, "names": names, "pair": pair(one, 2), "list": [one], "none": []}
    moved = placed(batch, torch.device("meta"))
    assert moved["ragged"]["values"].is_meta
    assert moved["ragged"]["offsets"].is_meta
    assert moved["names"] is names
    assert moved["pair"].a.is_meta
    assert moved["pair"].b == 2
    assert moved["list"][0].is_meta
    assert moved["none"] == []


@pytest.mark.parametrize("given", [True, False])
def test_settings_of_an_accelerator_that_do_not_come_into_it(
    data: str, caplog: Any, accelerator: Any, given: bool
) -> None:
    def prepared() -> None:
        loader, _ = make(data, ranks=accelerator) if given else make(data)
        assert accelerator.prepare(loader) is loader
        assert accelerator._dataloaders[-1] is loader
        assert accelerator.prepare(loader) is loader

    accelerator.dataloader_config.dispatch_batches = True
    prepared()
    assert len(accelerator._dataloaders) == 1
    assert caplog.text.count("dispatch_batches=True of the accelerator is ignored") == 1
    accelerator.dataloader_config.split_batches = True
    with pytest.raises(OptionError, match="split_batches=True, so batch_size would be that of all ranks"):
        prepared()


def test_a_prepared_loader_is_measured(data: str, accelerator: Any) -> None:
    loader = accelerator.prepare(make(data)[0])
    rows = sum(len(batch["id"]) for batch in loader)
    values = loader.metrics()
    assert (values["rows"], values["steps"]) == (rows, len(loader))
    assert 0 < values["data_wait_s"] <= values["epoch_s"]
    assert loader.dataset.verdict().progress.rows == rows


def test_batches_of_batches_are_refused(data: str, accelerator: Any) -> None:
    _, dataset = make(data)
    with pytest.raises(ShardingError, match="would make batches of 8 batches"):
        next(iter(accelerator.prepare(DataLoader(dataset, batch_size=8))))
    ready = accelerator.prepare(DataLoader(dataset, batch_size=None))
    assert sorted(torch.cat([batch["id"] for batch in ready]).tolist()) == list(range(1100))


def test_a_flag_set_by_hand_changes_nothing(data: str) -> None:
    loader, dataset = make(data)
    loader._is_accelerate_prepared = True
    assert loader.batch_size == 100
    assert dataset._accelerated is None


@pytest.mark.parametrize("stateful", [True, False])
def test_a_place_is_restored_where_that_is_configured(
    data: str, accelerator: Any, tmp_path: Path, stateful: bool
) -> None:
    accelerator.dataloader_config.use_stateful_dataloader = stateful
    loader, dataset = make(data)
    loader = accelerator.prepare(loader)
    dataset.set_epoch(2)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    accelerator.save_state(str(tmp_path))
    rest = [batch["id"].tolist() for batch in batches]
    for sets_epoch in (True, False):  # any number of times, and whatever the loader did since
        accelerator.load_state(str(tmp_path))
        if sets_epoch:
            dataset.set_epoch(2)
        resumed = loader if stateful else accelerator.skip_first_batches(loader, 4)
        assert [batch["id"].tolist() for batch in resumed] == rest


@pytest.mark.parametrize("options", [{}, {"filters": [("id", ">=", 0)]}], ids=["known", "unknown"])
def test_an_epoch_is_over_for_accelerate_once_its_last_batch_is_delivered(
    data: str, accelerator: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Its examples save every n steps, and count that the step after the last one is the next epoch's first."""
    accelerator.dataloader_config.use_stateful_dataloader = True
    loader, dataset = make(data, **options)
    loader = accelerator.prepare(loader)
    dataset.set_epoch(1)
    steps = 0
    for _ in loader:
        steps += 1
        if steps == 10:
            assert loader.state_dict()["epoch"] == 1
        if steps == 11:
            accelerator.save_state(str(tmp_path))
    assert steps == 11
    second = [batch["id"].tolist() for batch in loader]
    accelerator.load_state(str(tmp_path))
    assert loader.state_dict()["epoch"] == 2
    assert [batch["id"].tolist() for batch in loader] == second


def test_load_state_of_a_default_accelerator_restores_the_epoch(
    data: str, accelerator: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of Accelerate's own samplers; how many batches to skip is the loop's to know, and a warning says it."""
    loader, dataset = make(data)
    loader = accelerator.prepare(loader)
    orders = [[batch["id"].tolist() for batch in loader] for _ in range(3)]
    accelerator.save_state(str(tmp_path / "after epoch 2"))
    dataset.set_epoch(1)
    for _, _batch in zip(range(4), loader, strict=False):
        pass
    accelerator.save_state(str(tmp_path / "in epoch 1"))

    accelerator.free_memory()
    loader = accelerator.prepare(make(data, shuffle_seed=42)[0])
    accelerator.load_state(str(tmp_path / "in epoch 1"))
    assert "restored epoch 1 but not its position, 4 step(s): call skip_first_batches(loader, 4)" in caplog.text
    assert [batch["id"].tolist() for batch in accelerator.skip_first_batches(loader, 4)] == orders[1][4:]
    assert [batch["id"].tolist() for batch in loader] == orders[2]
    caplog.clear()
    accelerator.load_state(str(tmp_path / "after epoch 2"))
    assert not caplog.text
    assert loader.state_dict()["epoch"] == 3
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())  # a user's own call restores the place, too
    assert len(list(loader)) == 10
    accelerator.free_memory()
    other = accelerator.prepare(make(data, batch_size=50, filters=[("odd", "=", 1)])[0])
    accelerator.load_state(str(tmp_path / "in epoch 1"))  # an epoch is one of any data
    assert other.state_dict()["epoch"] == 1


@pytest.mark.slow
def test_the_page_resumes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, program("accelerate.md", tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("epoch 0\n")
