"""Jobs of several processes with torchrun's variables, and what each of them found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import forkrun

Launcher = Callable[[int], list[str]]


def torchrun(num_ranks: int) -> list[str]:
    """torchrun itself, for what is to be seen under it; `forkrun` starts ranks in a fraction of the time."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}"]


def launch(
    scenario: str, data: str, out: Path, num_ranks: int, script: str = "jobs.py", launcher: Launcher = forkrun.command
) -> list[Any]:
    """What each rank of `SCRIPT SCENARIO DATA OUT` found, the script one of this folder."""
    return run_ranks(Path(__file__).parent / script, [scenario, data, str(out)], out, num_ranks, launcher)


def run_ranks(
    script: Path, arguments: list[str], out: Path, num_ranks: int, launcher: Launcher = forkrun.command
) -> list[Any]:
    """What each rank of `SCRIPT ARGUMENTS` wrote to OUT/rank.json."""
    done = subprocess.run(
        [*launcher(num_ranks), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(num_ranks)]
