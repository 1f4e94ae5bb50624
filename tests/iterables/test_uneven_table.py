"""The table of what equal steps cost: the documentation shows what the benchmark prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_documentation_shows_the_table_of_the_benchmark():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "uneven.py"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8
    assert done.stdout in (ROOT / "docs" / "sharding.md").read_text()
