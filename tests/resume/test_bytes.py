"""The bytes of a state depend on data, options and place only: not on the driver, the process or the Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.resume import state_job

CASES = "known,counted,unknown,windows,laps,auto,codes"
FEW = "unknown"  # each spawned process imports everything anew
OTHERS = [f"python3.{minor}" for minor in range(11, 15) if minor != sys.version_info.minor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    cities = ["Rome", "Oslo", "Lima", "Bonn", "Kyiv", "Bern"]
    for number in range(3):
        rows = range(30 * number, 30 * number + 30)
        table = pa.table(
            {
                "id": rows,
                "city": [cities[row % 6] for row in rows],
                "score": [None if row % 7 == 0 else row / 3 for row in rows],
            }
        )
        pq.write_table(table, path / f"{number}.parquet", row_group_size=7)
    return str(path)


def states(folder: str, driver: str, seed: str, python: str = sys.executable, cases: str = CASES) -> list[str]:
    job = [python, "-m", state_job.__name__, folder, driver, cases]
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        job, cwd=root, env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


@pytest.fixture(scope="module")
def of_threads(folder: str) -> list[str]:
    return states(folder, "threads", "0")


@pytest.mark.parametrize(
    ("driver", "seed", "cases"), [("threads", "1", CASES), ("fork", "2", CASES), ("spawn", "3", FEW)]
)
def test_at_equal_workers_each_driver_and_process_writes_the_same(
    folder: str, of_threads: list[str], driver: str, seed: str, cases: str
) -> None:
    expected = [line for line in of_threads if line.startswith(tuple(cases.split(",")))]
    assert states(folder, driver, seed, cases=cases) == expected


def test_one_shard_in_line_and_on_a_pool_is_the_same(folder: str) -> None:
    assert states(folder, "in-line", "4") == states(folder, "pool", "5")


@pytest.mark.parametrize("python", OTHERS)
def test_another_python_writes_the_same(folder: str, of_threads: list[str], python: str) -> None:
    found = shutil.which(python)
    if found is None or subprocess.run([found, "-c", "import torch, pyarrow"], capture_output=True).returncode:
        pytest.skip(f"{python} with torch and pyarrow is not installed")
    assert states(folder, "threads", "6", found) == of_threads
