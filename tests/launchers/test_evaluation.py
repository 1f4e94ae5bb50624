"""Metrics of several processes with padded batches: those of one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from tests import forkrun
from torch_dataloader_utils import OptionError, Pack, StructuredDataset
from torch_dataloader_utils.integrations.accelerate import gather_for_metrics
from torch_dataloader_utils.integrations.evaluation import NO_REAL_ROWS, EvalLoader, real_rows, rows_in, without_repeats

JOB = Path(__file__).with_name("evaluation_job.py")


def x_of(rows: int) -> Any:
    return np.sin(np.arange(rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for rows in (57, 33):
        words = [[row] * (row % 4) for row in range(rows)]
        columns = {"id": range(rows), "x": x_of(rows), "words": words, "word": [f"w{row}" for row in range(rows)]}
        (folder / str(rows)).mkdir()
        pq.write_table(pa.table(columns), folder / str(rows) / "part.parquet", row_group_size=5)
    return folder


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What one process found, and each of two."""
    out = tmp_path_factory.mktemp("out")
    for launcher in ([sys.executable], forkrun.command()):
        done = subprocess.run(
            [*launcher, JOB, data, out],
            env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"found-{name}.json").read_text()) for name in ("1-0", "2-0", "2-1")]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [57, 33])
def test_a_trainer_of_two_processes_has_the_metrics_of_one(found: list[Any], rows: int) -> None:
    for process in found:
        said = process["trainers"][str(rows)]
        assert [said["ids"], *said["predicted"]] == [list(range(rows))] * 3
        assert said["mean"] == pytest.approx(x_of(rows).mean())
        assert said["loss"] == pytest.approx([(x_of(rows) ** 2).mean()] * 2)
        assert said["loss_of_rows"] == pytest.approx((x_of(rows) ** 2).mean())


def weights(data: Path, rows: int, ranks: int, by_row: bool) -> Iterator[float]:
    """The weight 1 and that after each step: each process's mean over its real rows, or the mean over those of all."""
    given = {"even": "pad", "columns": ["id", "x"], "split_rows": 5, "batch_size": {57: 8, 33: 16}[rows]}
    made = [
        StructuredDataset.create_dataloader(f"{data}/{rows}", **given, num_ranks=ranks, rank=r) for r in range(ranks)
    ]
    weight = 1.0
    yield weight
    for batches in zip(*(loader for loader, _ in made), strict=True):
        squares = [batch["x"][batch["valid"]].numpy() ** 2 for batch in batches]
        means = [np.concatenate(squares).mean()] if by_row else [one.mean() if len(one) else 0.0 for one in squares]
        weight -= 0.5 * float(np.mean(means))
        yield weight


@pytest.mark.slow
@pytest.mark.parametrize("rows", [57, 33])
@pytest.mark.parametrize("kind", ["Trainer", "Seq2SeqTrainer", "counted labels"])
def test_repeated_rows_have_no_weight_in_training_and_evaluation(
    found: list[Any], data: Path, kind: str, rows: int
) -> None:
    """Of models that take no mask; rank 0 of 2 has nothing but repeats in the last step of 33 rows."""
    for process, ranks in zip(found, (1, 2, 2), strict=True):
        said = process["trained"][str(rows)][kind]
        expected = list(weights(data, rows, ranks, kind == "counted labels"))
        assert said["weight"] == pytest.approx(expected[-1])
        assert said["eval"] == pytest.approx(expected[-1] * (x_of(rows) ** 2).mean())
        steps = zip(pairwise(expected), said["losses"], strict=True)
        assert all(loss == pytest.approx(before * (before - after) / 0.5, abs=1e-4) for (before, after), loss in steps)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [57, 33])
def test_a_loop_of_two_processes_has_the_metrics_of_one(found: list[Any], rows: int) -> None:
    for process in found:
        said = process["loops"][str(rows)]
        assert said["ids"] == list(range(rows))
        assert said["mean"] == pytest.approx(x_of(rows).mean())
    for process in found[1:]:
        assert process["loops"][str(rows)]["words"] == sorted(f"w{row}" for row in range(rows))


@pytest.mark.slow
def test_gather_for_metrics_of_accelerate_says_that_it_counts_repeats(found: list[Any]) -> None:
    assert [process["own"]["counts"] for process in found] == [[64, 48], [64, 64], [64, 64]]
    for process in found:
        (said,) = process["own"]["said"]
        assert "keeps the repeats of padded batches" in said


class Alone:
    """As an Accelerator of one process."""

    num_processes, process_index, device = 1, 0, torch.device("cpu")

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


OPTIONS: dict[str, dict[str, Any]] = {
    "lists": {},
    "padded": {"lists": "padded"},
    "nested": {"lists": "nested"},
    "bytes": {"strings": "bytes"},
    "workers": {"num_workers": 2, "even": "none", "last_batch": "pad"},
    "laps": {"even": "none", "steps_per_epoch": 9},
    "none": {"even": "none"},
}


def values(batch: Any) -> Any:
    """A batch as lists of rows."""
    if isinstance(batch, dict) and batch.keys() == {"values", "offsets"}:
        ends = batch["offsets"].tolist()
        return [batch["values"][start:stop].tolist() for start, stop in pairwise(ends)]
    if isinstance(batch, dict) and batch.keys() == {"values", "lengths"}:
        return [row[:end].tolist() for row, end in zip(batch["values"], batch["lengths"], strict=True)]
    if isinstance(batch, torch.Tensor):
        return [row.tolist() for row in batch.unbind()]
    return {key: values(item) for key, item in batch.items()} if isinstance(batch, dict) else batch


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_real_rows_of_each_kind_of_column(data: Path, options: dict[str, Any]) -> None:
    """Each row once, whole, in the order in which it was delivered."""
    given = {"batch_size": 8, "even": "pad", **options}
    loader, _ = StructuredDataset.create_dataloader(f"{data}/57", **given)
    key = "valid" if "valid" in next(iter(loader)) else None
    rows: list[Any] = []
    evaluated = EvalLoader(loader, key, (), Alone(), 5)
    for batch in evaluated:
        assert key not in batch
        if counted := len(evaluated.gather(batch["id"])):
            assert rows_in(batch) == len(batch["id"]) == counted
            assert evaluated.gather({"aux_loss": torch.tensor(2.5)})["aux_loss"].tolist() == [2.5] * counted
            plain = values(batch)
            rows += zip(plain["id"], plain["words"], plain["word"], strict=True)
    words = [list(f"w{row}".encode()) if "strings" in options else f"w{row}" for row in range(57)]
    assert sorted(rows) == [(row, [row] * (row % 4), words[row]) for row in range(57)]


def test_repeated_tokens_of_a_stream_have_no_labels(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[row] * 7 for row in range(33)]}), tmp_path / "part.parquet", row_group_size=5)
    options = {"pack": Pack(16, columns=["ids"], method="wrap"), "batch_size": 4, "even": "pad"}
    rows: list[int] = []
    for rank in range(2):
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path), **options, num_ranks=2, rank=rank, collate_fn=lambda batch: {**batch, "labels": batch["ids"]}
        )
        for batch in loader:
            kept = without_repeats(batch, "valid", ["labels"])
            assert "valid" not in kept
            assert kept["ids"].shape == kept["labels"].shape == (4, 16)
            rows += [] if NO_REAL_ROWS in kept else kept["labels"][kept["labels"] != -100].tolist()
    assert sorted(rows) == sorted(list(range(33)) * 7)
    with pytest.raises(OptionError, match="the batch has no labels of tokens"):
        without_repeats({"ids": torch.ones(1, 2), "valid": torch.tensor([[True, False]])}, "valid", ["labels"])


def test_values_without_rows_are_left_alone() -> None:
    valid = torch.tensor([True, False])
    batch = {"x": torch.ones(2), "scale": torch.tensor(3.0), "name": "n", "pair": (1, 2), "sizes": [1, 2, 3]}
    kept = real_rows(batch, valid)
    assert len(kept["x"]) == 1
    assert {name: kept[name] for name in batch if name != "x"} == {name: batch[name] for name in batch if name != "x"}


def test_a_batch_without_its_mask_is_an_error(data: Path) -> None:
    options = {"batch_size": 8, "even": "pad", "collate_fn": lambda batch: {"x": batch["x"]}}
    loader, _ = StructuredDataset.create_dataloader(f"{data}/57", **options)
    with pytest.raises(OptionError, match="their mask 'valid' is missing from the result of collate_fn"):
        next(iter(EvalLoader(loader, "valid", (), Alone(), 5)))


@pytest.mark.parametrize("given", [torch.ones(3), torch.ones(()), "text", ["a"], {"x": 3}])
def test_data_without_an_item_for_each_row_is_an_error(given: Any) -> None:
    with pytest.raises(OptionError, match="for each of the batch's 2 rows"):
        gather_for_metrics(Alone(), given, torch.tensor([True, False]))
