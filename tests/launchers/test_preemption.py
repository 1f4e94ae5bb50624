"""The script of the cookbook's page on preemption, told to stop by signals and continued on other numbers of ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cookbook" / "preemption.md"
ROWS, BATCH, STEPS_BEFORE = 8_000, 64, 10
RECORDER = """
import time

def record(epoch, batch):
    time.sleep(0.05)
    with open(f"rows-{RUN}-{dist.get_rank()}-{epoch}", "a") as file:
        file.write(" ".join(map(str, batch["id"].tolist())) + "\\n")

RUN = int(os.environ["RUN"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's script and its data; the script also records the rows of each step, and takes its time."""
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    loop = "        for batch in loader:\n"
    assert loop in code
    assert "batch_size=512" in code
    code = code.replace(loop, f"{loop}            record(epoch, batch)\n").replace(
        "batch_size=512", f"batch_size={BATCH}"
    )
    (tmp_path / "train.py").write_text(code.replace("\nasked =", f"{RECORDER}\nasked ="))
    (tmp_path / "data").mkdir()
    for first in range(0, ROWS, 1000):
        rows = {"id": range(first, first + 1000), "feature_a": [0.5] * 1000}
        pq.write_table(pa.table(rows), tmp_path / "data" / f"{first}.parquet", row_group_size=100)
    return tmp_path


def started(folder: Path, run: int, ranks: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RUN": str(run)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes)


def rows(folder: Path, run: int, epoch: int) -> list[list[int]]:
    """The rows of each step, over all ranks."""
    files = sorted(folder.glob(f"rows-{run}-*-{epoch}"))
    return [list(map(int, line.split())) for file in files for line in file.read_text().splitlines()]


def ranks_of(agent: int) -> list[int]:
    """The ranks that an agent started."""
    return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def in_group(leader: int) -> list[int]:
    found = subprocess.run(["pgrep", "-g", str(leader)], capture_output=True, text=True, check=False)
    return list(map(int, found.stdout.split()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["agent", "groups", "usr1", "one rank", "workers"])
def test_the_pages_script_stops_saves_and_continues_on_other_ranks(folder: Path, kind: str) -> None:
    job = started(folder, 0, 2)
    deadline = time.monotonic() + 100
    while len(rows(folder, 0, 0)) < 2 * STEPS_BEFORE:
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ranks = [pid for pid in ranks_of(job.pid) if len(in_group(pid)) > 1]  # each in a session of its own
    assert len(ranks) == 2
    if kind == "agent":  # it sends SIGTERM to the groups of its ranks
        os.kill(job.pid, signal.SIGTERM)
    elif kind == "groups":
        for rank in ranks:
            os.killpg(rank, signal.SIGTERM)
    elif kind == "usr1":
        for rank in ranks:
            os.killpg(rank, signal.SIGUSR1)
    elif kind == "one rank":
        os.kill(ranks[1], signal.SIGUSR1)
    else:  # workers and fork servers alone: nobody asks the ranks to stop
        for rank in ranks:
            for pid in set(in_group(rank)) - {rank}:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                    os.kill(pid, number)
        time.sleep(0.5)
        os.kill(ranks[0], signal.SIGTERM)
    output, _ = job.communicate(timeout=100)
    assert (folder / "checkpoint.pt").exists(), output
    assert "WorkerError" not in output
    steps = len(rows(folder, 0, 0))
    assert 2 * STEPS_BEFORE <= steps < ROWS // BATCH, "it was told in its first epoch"
    deadline = time.monotonic() + 20
    while left := [pid for rank in ranks for pid in in_group(rank)]:
        assert time.monotonic() < deadline, f"processes stay behind: {left}"
        time.sleep(0.1)

    again = started(folder, 1, 3)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    first = {row for step in rows(folder, 0, 0) for row in step}
    assert len(first) == steps * BATCH
    for epoch, had in enumerate([first, set[int]()]):
        then = rows(folder, 1, epoch)
        dealt = sorted(set(range(ROWS)) - had)  # to three ranks
        met = Counter(row for step in then for row in step)
        assert set(met.values()) == {1}, f"epoch {epoch}: rows were repeated"
        assert met.keys() <= set(dealt), f"epoch {epoch}: rows were repeated"
        # What even="drop" leaves out: the rows that fill no batch of all ranks.
        assert len(dealt) - len(met) == len(dealt) % (3 * BATCH), f"epoch {epoch}: rows were lost"
        assert {len(step) for step in then} == {BATCH}
        if not had:  # they are one run, in the order of files; the rest of an epoch is in that of its windows
            left = [row not in met for row in dealt]
            assert sum(now != before for before, now in pairwise([left[-1], *left])) == 2
