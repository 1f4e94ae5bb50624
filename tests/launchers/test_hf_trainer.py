"""The Trainer of transformers with our loaders: rows, epochs, a job that is killed, and misuses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests import forkrun
from tests.killing import ROWS, write_rows
from tests.launchers.conftest import EXAMPLES, LEAVES_GLOO, Rows
from tests.launchers.pages import program
from torch_dataloader_utils import Pack, StructuredDataset, Transform

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

JOB = Path(__file__).with_name("trainer_job.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
SAVED = 8  # the step of the newest checkpoint when the job is killed; 2 batches a step, 14 batches an epoch


@pytest.mark.slow
def test_example(launch: Callable[..., Rows], check: Callable[[Rows, int], None], tmp_path: Path) -> None:
    # The Trainer uses GPUs where there are some.
    check(launch(*TORCHRUN, LEAVES_GLOO, EXAMPLES / "hf_trainer_train.py", ACCELERATE_USE_CPU="true"), 2)
    assert (tmp_path / "checkpoints" / "checkpoint-20").exists()


@pytest.mark.slow
def test_the_page_trains_and_evaluates(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, program("hf-trainer.md", tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("eval_loss") == 2
    assert (tmp_path / "checkpoints" / "checkpoint-60").exists()


def run(what: str, data: str, out: Path, returncode: int = 0) -> None:
    done = subprocess.run(
        [*forkrun.command(), str(JOB), what, data, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == returncode, done.stderr[-4000:]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_rows(tmp_path_factory.mktemp("rows")))


@pytest.fixture(scope="module")
def out(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job left that was killed in step 11, and then went on from the checkpoint of step 8."""
    out = tmp_path_factory.mktemp("out")
    run("killed", data, out, returncode=1)
    for rank in range(2):
        (out / f"rows-{rank}").rename(out / f"killed-{rank}")
    run("resumed", data, out)
    return out


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def planned(data: str, rank: int) -> list[list[Any]]:
    """The epoch and the real rows of each batch of a rank, without a Trainer."""
    options = {"batch_size": 40, "shuffle": True, "even": "pad", "num_ranks": 2, "rank": rank}
    loader, dataset = StructuredDataset.create_dataloader(data, **options)
    met = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        met += [[epoch, batch["id"][batch["valid"]].tolist()] for batch in loader]
    return met


@pytest.mark.slow
def test_a_killed_trainer_goes_on_with_exactly_the_rows_that_are_missing(out: Path, data: str) -> None:
    assert (out / "checkpoints" / f"checkpoint-{SAVED}").exists()
    for rank in range(2):
        killed, resumed = lines(out / f"killed-{rank}"), lines(out / f"rows-{rank}")
        assert killed[: 2 * SAVED] + resumed == planned(data, rank)
        assert 0 < len(resumed) < 14
    of_all = [sum((ids for epoch, ids in planned(data, rank) if epoch == 1), []) for rank in range(2)]
    assert sorted(of_all[0] + of_all[1]) == list(range(ROWS))


@pytest.mark.slow
def test_evaluation_meets_each_row(out: Path) -> None:
    for rank in range(2):
        met, loss, rows = json.loads((out / f"evaluated-{rank}.json").read_text())
        assert sorted(met) == list(range(ROWS))
        assert loss >= 0
        assert rows == ROWS


@pytest.mark.slow
def test_a_trainer_that_would_meet_other_rows_is_refused_on_every_rank(out: Path, data: str) -> None:
    run("misused", data, out)
    for rank in range(2):
        said = json.loads((out / f"errors-{rank}.json").read_text())
        for name in ("dataset", "dataset, shards", "evaluation"):
            assert "ShardingError" in said[name]
            assert "class MyTrainer(TrainerMixin, Trainer)" in said[name]
        assert "OptionError: the Trainer was given the dataset" in said["dataset, mixin"]
        assert "even='drop'" in said["uneven"]
        assert "CountsRequiredError" in said["uncounted"]
        assert "batch_size: 40 in the checkpoint, 20 here" in said["other batches"]
        assert "gradient_accumulation_steps: 2 in the checkpoint, 1 here" in said["other accumulation"]
        assert "shuffle_seed: 42" in said["other rows"]


@pytest.mark.parametrize(
    "given",
    [
        {"filters": [("odd", "=", 1)]},
        {"filters": [("odd", "=", 1)], "even": "sync"},
        {"transform": Transform(lambda batch: batch, rows="any")},
        {"pack": Pack(16, columns=["ids"])},
        {"pack": Pack(16, columns=["ids"]), "even": "sync"},
    ],
    ids=["filter", "filter and sync", "transform", "pack", "pack and sync"],
)
def test_each_remedy_for_a_trainer_that_cannot_count_steps_works(tmp_path: Path, given: dict[str, Any]) -> None:
    from transformers import Trainer, TrainingArguments

    from torch_dataloader_utils.errors import CountsRequiredError
    from torch_dataloader_utils.integrations.transformers import TrainerMixin

    class OurTrainer(TrainerMixin, Trainer):
        pass

    column = {"ids": [[row] * 3 for row in range(40)]} if "pack" in given else {"odd": [row % 2 for row in range(40)]}
    pq.write_table(pa.table(column), tmp_path / "part.parquet")
    args = TrainingArguments(str(tmp_path / "out"), max_steps=2, use_cpu=True, report_to=[])

    def steps(**options: Any) -> int:
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "part.parquet"), batch_size=2, **options)
        return len(OurTrainer(torch.nn.Linear(1, 1), args, train_dataset=loader).get_train_dataloader())

    with pytest.raises(CountsRequiredError) as caught:
        steps(**given)
    remedies = caught.value.remedies
    assert remedies
    assert all(steps(**remedy.applied(given)) > 0 for remedy in remedies)
