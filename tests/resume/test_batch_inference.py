"""The program of the page on batch inference, killed while it writes, and started again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import forkrun
from tests.test_docs import LEAVE, ROOT, blocks
from torch_dataloader_utils import stream

PAGE = ROOT / "docs" / "cookbook" / "inference.md"
# Kills rank 1 before its third file has its name, once rank 0 has written all of its own.
KILL = """
import os, signal, time
real, names = os.replace, []
def replace(source, target):
    if os.environ["RANK"] == "1" and os.environ["KILLED"] == "1":
        names.append(target)
        if len(names) == 3:
            deadline = time.monotonic() + 60
            while len(list(target.parent.glob("rank-0000-*"))) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = replace
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data of the quickstart and the program."""
    monkeypatch.chdir(tmp_path)
    exec(blocks(ROOT / "docs" / "quickstart.md", launched=False)[0], {})
    (program,) = blocks(PAGE, launched=True)
    (tmp_path / "predict.py").write_text(KILL + program + LEAVE)
    return tmp_path


def run(folder: Path, *, ranks: int = 2, killed: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*forkrun.command(ranks), "predict.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "KILLED": str(int(killed))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def written(folder: Path) -> dict[str, list[int]]:
    """The rows of each file."""
    return {path.name: pq.read_table(path)["id"].to_pylist() for path in folder.glob("predictions/rank-*")}


@pytest.mark.slow
def test_a_killed_job_goes_on_and_predicts_each_row_once(folder: Path) -> None:
    assert run(folder, killed=True).returncode
    before = written(folder)
    mine = [name for name in before if name.startswith("rank-0001")]
    assert len(mine) == 2
    assert len(before) > 4
    changed = {path: path.stat().st_mtime_ns for path in (folder / "predictions").glob("rank-*")}
    resumed = run(folder)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    after = written(folder)
    assert sorted(sum(after.values(), [])) == list(range(40_000))
    assert before.items() <= after.items()
    kept = {path.name for path, time in changed.items() if path.stat().st_mtime_ns == time}
    assert kept >= set(mine)  # what all ranks had written was not read again
    assert run(folder, ranks=1).returncode  # begun by two ranks
    again = run(folder)
    assert again.returncode == 0, again.stderr[-3000:]
    assert written(folder) == after


def test_in_file_order_as_the_page_says(folder: Path) -> None:
    options = {"columns": ["id"], "batch_size": 1_000, "sharding": "contiguous", "num_workers": 0}
    rows = [
        row
        for rank in range(3)
        for batch in stream("data/", **options, num_ranks=3, rank=rank)
        for row in batch["id"].tolist()
    ]
    assert rows == list(range(40_000))
