"""The scripts of the benchmarks start: what they import is there."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(
    path for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py") if "ArgumentParser" in path.read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.stem))
def test_a_script_tells_its_options(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
