"""The programs that stand alone: each makes its data and checks what it did, started as its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.launchers.conftest import EXAMPLES

ROOT = EXAMPLES.parent
PROGRAMS = sorted((EXAMPLES / "programs").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program(program):
    command = next(line.split() for line in program.read_text().splitlines() if line.endswith(f"{program.name}"))
    launcher = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[command[0]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, *launcher, *command[1:]]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(program.read_text().splitlines()) < 120
