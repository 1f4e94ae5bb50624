"""The programs of the pages on trainers of language models, one by one, after the one that writes what they read."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forkrun
from tests.launchers.pages import programs

PAGE = programs("trainers.md") + programs("deepspeed-fsdp.md")
NEEDED = ("transformers", "trl", "torchtitan", "lightning")


def run(program: str, folder: Path) -> None:
    for package in re.findall(r"^(?:from|import) ([a-z]+)", program, re.MULTILINE):
        if package in NEEDED and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (folder / "program.py").write_text(program + "\nimport os\nos._exit(0)\n")
    launcher = forkrun.command() if "torchrun" in program.partition("\n")[0] else [sys.executable]
    done = subprocess.run(
        [*launcher, "program.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trainers")
    run(PAGE[0], path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(PAGE)))
def test_program(number: int, folder: Path) -> None:
    run(PAGE[number], folder)
