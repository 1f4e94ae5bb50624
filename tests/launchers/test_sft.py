"""TRL's SFTTrainer with our loaders: which documents it trains on, a job that is killed, and options without effect."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import forkrun
from torch_dataloader_utils import OptionError, Pack, stream

if importlib.util.find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

# Of transformers, at each SFTConfig of TRL 1.16; and of TRL.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")

JOB = Path(__file__).with_name("sft_job.py")
LENGTH, BATCH, STEPS, SAVED = 24, 2, 7, 8  # SAVED: the step of the newest checkpoint when the job is killed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents of 1 to 19 tokens, each token the number of its document and some more."""
    path = tmp_path_factory.mktemp("data")
    lists = [[row + 3] * (row % 19 + 1) for row in range(200)]
    pq.write_table(pa.table({"input_ids": lists, "labels": lists}), path / "x.parquet", row_group_size=20)
    return str(path)


def run(what: str, data: str, out: Path, returncode: int = 0) -> None:
    done = subprocess.run(
        [*forkrun.command(), str(JOB), what, data, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == returncode, done.stderr[-4000:]


@pytest.fixture(scope="module")
def out(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job left that was killed in its second epoch, and then went on from its newest checkpoint."""
    out = tmp_path_factory.mktemp("out")
    run("killed", data, out, returncode=1)
    for rank in range(2):
        (out / f"trained-{rank}").rename(out / f"killed-{rank}")
    run("resumed", data, out)
    return out


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def planned(data: str, rank: int) -> list[list[int]]:
    """The tokens of each batch of a rank, without a Trainer."""
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "steps_per_epoch": STEPS}
    loader = stream(data, pack=Pack(LENGTH), **options, num_ranks=2, rank=rank)
    return [batch["input_ids"][batch["document_ids"] >= 0].tolist() for _ in range(2) for batch in loader]


@pytest.mark.slow
def test_a_killed_job_goes_on_with_exactly_the_documents_that_are_missing(out: Path, data: str) -> None:
    for rank in range(2):
        killed, resumed = lines(out / f"killed-{rank}"), lines(out / f"trained-{rank}")
        assert killed[:SAVED] + resumed == planned(data, rank)
        assert len(resumed) == 2 * STEPS - SAVED


@pytest.mark.slow
def test_num_tokens_counts_the_real_tokens_of_all_processes(out: Path, data: str) -> None:
    batches = [planned(data, rank)[SAVED:] for rank in range(2)]
    each = [len(one) + len(other) for one, other in zip(*batches, strict=True)]
    expected = [sum(each[: step + 1]) for step in range(len(each))]
    for rank in range(2):
        # TRL's own count begins at 0 when a job is resumed.
        assert lines(out / f"counted-{rank}")[0][-len(expected) :] == expected


@pytest.mark.slow
def test_evaluation_meets_each_token(out: Path) -> None:
    expected = Counter({row + 3: row % 19 + 1 for row in range(200)})
    met = [sum(lines(out / f"evaluated-{rank}"), []) for rank in range(2)]
    every = Counter(met[0] + met[1])
    assert all(every[token] >= 2 * times for token, times in expected.items())  # twice: by name, and as given
    assert every.total() - 2 * expected.total() < 2 * 2 * BATCH * LENGTH  # repeats, whose labels are -100
    for rank in range(2):
        assert "eval_val_loss" in lines(out / f"metrics-{rank}")[0]


# ------------------------------------------------------------------------------------------------ in this process


@pytest.fixture
def job(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The definitions of the job, whose output is in `tmp_path`."""
    monkeypatch.setattr("sys.argv", ["sft_job.py", "tried", data, str(tmp_path)])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = importlib.util.spec_from_file_location("sft_job", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ONE: dict[str, Any] = {"num_ranks": 1, "rank": 0}
OTHER: dict[str, Any] = {
    "packing": True,
    "packing_strategy": "wrapped",
    "eval_packing": True,
    "padding_free": True,
    "max_length": 77,
    "truncation_mode": "keep_end",
    "pad_to_multiple_of": 8,
    "assistant_only_loss": True,
    "completion_only_loss": True,
    "chat_template_path": "chat.jinja",
    "dataset_text_field": "prompt",
    "dataset_num_proc": 3,
    "shuffle_dataset": True,
}


def test_each_option_without_effect_is_refused_by_name(job: Any) -> None:
    from torch_dataloader_utils.integrations.trl import INSTEAD

    assert OTHER.keys() == INSTEAD.keys()
    model, tokens, loader = job.model(), job.tokenizer(), job.loader(**ONE)
    for name, value in OTHER.items():
        args = job.settings(max_steps=1, **{name: value})
        with pytest.raises(OptionError, match=f"{name}={value!r}: leave it out, and "):
            job.OurTrainer(model, args, train_dataset=loader, processing_class=tokens)
    trainer = job.OurTrainer(
        model, job.settings(max_steps=1, max_length=None), train_dataset=loader, processing_class=tokens
    )
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"formatting_func": str}, "formatting_func does nothing to the rows of a loader"),
        ({"data_collator": list}, "data_collator does nothing to the batches of a loader: pass collate_fn"),
        ({"eval_dataset": [1]}, "eval_dataset is a list, but train_dataset is a loader"),
        ({"args": 5}, "args is a int: expected an SFTConfig"),
    ],
)
def test_what_does_not_fit_a_loader(job: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        job.OurTrainer(
            job.model(), **{"train_dataset": job.loader(**ONE), "processing_class": job.tokenizer(), **given}
        )


def test_a_dataset_of_a_loader_is_refused(job: Any) -> None:
    with pytest.raises(OptionError, match="the Trainer was given the dataset"):
        job.OurTrainer(job.model(), train_dataset=job.loader(**ONE).dataset, processing_class=job.tokenizer())


def test_datasets_of_hugging_face_go_to_the_trainer_as_before(job: Any) -> None:
    from datasets import Dataset
    from trl import SFTTrainer

    from torch_dataloader_utils.integrations.trl import SFTMixin

    class Plain(SFTMixin, SFTTrainer):
        pass

    rows = Dataset.from_dict({"input_ids": [[3, 4, 5]] * 8})
    args = job.settings(max_steps=1, packing=True, max_length=8)
    trainer = Plain(job.model(), args, train_dataset=rows, eval_dataset=rows, processing_class=job.tokenizer())
    trainer.train()
    assert "eval_loss" in trainer.evaluate()
    assert "eval_loss" in trainer.evaluate(rows)


@pytest.mark.slow
def test_a_loss_of_wrapped_streams_falls(job: Any) -> None:
    """On text that repeats, a model learns: labels are neither shifted twice nor missing."""
    wrapped = job.loader(pack=Pack(LENGTH, method="wrap"), **ONE, steps_per_epoch=60)
    args = job.settings(num_train_epochs=1, learning_rate=0.05, save_strategy="no", lr_scheduler_type="constant")
    trainer = job.OurTrainer(job.model(), args, train_dataset=wrapped, processing_class=job.tokenizer())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert len(list(islice(losses, 60))) == 60
