"""Real runs of the examples on two months of flights, and what their processes must have met."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest

from torch_dataloader_utils import stream

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDED = Path(__file__).with_name("ended_job.py")  # runs a script that must leave no threads of Gloo
LEAVES_GLOO = Path(__file__).with_name("gloo_job.py")  # runs a script that leaves some
NOTHING_COMPILED = Path(__file__).with_name("deepspeed_job.py")  # runs a script without what DeepSpeed compiles
EPOCHS = 2
# Ray's workers would give way to all other tests (a niceness of 15), and take minutes.
SETTINGS = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
Rows = list[list[np.ndarray[Any, Any]]]  # epoch -> process -> the ids of the rows that it met, in order


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The options with which the examples read the flights; here these are the first two months, 51,955 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIGHTS_DATA", str(tmp_path_factory.mktemp("flights")))
        patch.syspath_prepend(str(EXAMPLES))
        subprocess.run([sys.executable, str(EXAMPLES / "flights" / "make_data.py")], check=True, stdout=subprocess.PIPE)
        options = runpy.run_path(str(EXAMPLES / "common.py"))["FLIGHTS"]
        for month in range(3, 13):
            shutil.rmtree(options["source"] / f"month={month}")
        yield options


@pytest.fixture(scope="session")
def expected(options: dict[str, Any]) -> Callable[[int], Rows]:
    """For a number of ranks: what each meets in each epoch if it is told its rank and its epoch."""

    def rows_of(num_ranks: int, rank: int, epoch: int) -> np.ndarray[Any, Any]:
        loader = stream(**options, even="pad", num_ranks=num_ranks, rank=rank)
        loader.set_epoch(epoch)
        return np.concatenate([batch["row_id"][batch["valid"]].numpy() for batch in loader])

    return cache(lambda ranks: [[rows_of(ranks, rank, epoch) for rank in range(ranks)] for epoch in range(EPOCHS)])


@pytest.fixture(scope="session")
def check(options: dict[str, Any], expected: Callable[[int], Rows]) -> Callable[[Rows, int], None]:
    """Fails unless each row was met once an epoch, in another order each time, by each process those of a rank."""
    every = np.sort(pyarrow.dataset.dataset(options["source"]).to_table(columns=["row_id"])["row_id"].to_numpy())

    def check(found: Rows, num_ranks: int) -> None:
        for epoch, (processes, ranks) in enumerate(zip(found, expected(num_ranks), strict=True)):
            assert len(processes) == num_ranks, f"epoch {epoch}: {len(processes)} processes met rows"
            assert np.array_equal(np.sort(np.concatenate(processes)), every), f"epoch {epoch}: not each row once"
            # Compared out of pytest's sight, which would show the difference of megabytes, in minutes.
            same = {ids.tobytes() for ids in processes} == {ids.tobytes() for ids in ranks}
            assert same, f"epoch {epoch}: order"
        first, second = (np.concatenate(sorted(processes, key=lambda ids: ids[0])) for processes in found)
        assert not np.array_equal(first, second), "the same order in both epochs"

    return check


@pytest.fixture
def launch(options: dict[str, Any], tmp_path: Path) -> Callable[..., Rows]:
    """Run a command to its end; gives the rows that the processes of this test have met in each epoch."""
    log = tmp_path / "log"
    log.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(*command: str | Path, **environment: str) -> Rows:
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env={**os.environ, **SETTINGS, "PATH": path, "ROW_LOG": str(log), **environment},
            capture_output=True,
            text=True,
            timeout=280,  # seconds, for a hang: slow tests run side by side
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        met = [sorted(log.glob(f"epoch-{epoch}-*")) for epoch in range(EPOCHS)]
        return [[np.fromfile(path, np.int64) for path in paths] for paths in met]

    return run
