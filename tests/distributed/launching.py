"""Jobs of several processes under torchrun, and what each of them found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def launch(scenario: str, data: str, out: Path, num_ranks: int, script: str = "jobs.py") -> list[Any]:
    """What each rank of `torchrun SCRIPT SCENARIO DATA OUT` found."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}"),
            *(str(Path(__file__).parent / script), scenario, data, str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(num_ranks)]
