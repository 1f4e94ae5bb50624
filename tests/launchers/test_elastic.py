"""torchrun's elastic agents: one of four is killed, and the other three go on with what no rank had delivered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.killing import ROWS, counted, finish, kill, lines, start, wait_for, write_rows
from tests.launchers.conftest import ENDED, EXAMPLES, Rows
from tests.ports import free_ports


def agent(number: int, data: Path, out: Path, port: int) -> subprocess.Popen[bytes]:
    """One machine of the job: an agent with one process."""
    store = number == 0  # the first agent keeps the rendezvous, and must not be the one that dies
    return start(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=1", "--max-restarts=9",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=rows", "--monitor-interval=0.2",
            f"--rdzv-conf=is_host={int(store)},last_call_timeout=8",
            Path(__file__).with_name("elastic_job.py"), data, out,
        ],
        out,
        f"agent-{number}.log",
        # Else all rounds share a store, and a process may look for its peers where they were in the round before.
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip


def children(process: int) -> list[int]:
    """The processes that a process started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def worlds(out: Path) -> list[int]:
    """The number of ranks of each run."""
    return [int(path.read_text() or 0) for path in sorted(out.glob("world-*"))]


@pytest.mark.slow
def test_four_become_three(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    [port] = free_ports(1)
    agents = [agent(number, write_rows(data) if number == 0 else data, out, port) for number in range(4)]

    def noted(run: int, steps: int) -> bool:
        found: list[dict[str, Any]] = lines(out, run)
        return bool(found) and found[-1]["step"] >= steps

    try:
        wait_for(lambda: noted(0, 10), agents, out)
        assert worlds(out) == [4]
        lost = agents.pop()
        workers = children(lost.pid)
        kill(lost)
        for worker in workers:  # the agent's process has a session of its own, and goes with the machine
            os.kill(worker, signal.SIGKILL)
        finish(agents, out)
    finally:
        for job in agents:
            if job.poll() is None:
                job.terminate()  # an agent ends its processes
    sizes = worlds(out)
    assert sizes[0] == 4
    assert sizes[-1] == 3
    assert counted(out, len(sizes)) == {epoch: Counter(range(ROWS)) for epoch in range(2)}
    assert lines(out, len(sizes) - 1)[0]["step"] >= 8, "it did not go on from a checkpoint"


@pytest.mark.slow
def test_the_example(launch: Callable[..., Rows], check: Callable[[Rows, int], None]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    check(launch(*command, ENDED, EXAMPLES / "elastic_train.py"), 2)
