"""Runs a script as `python SCRIPT` does, and fails if it leaves threads of Gloo: `python ended_job.py SCRIPT`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
script = Path(sys.argv[1])
sys.path.insert(0, str(script.parent))
kept = runpy.run_path(str(script), run_name="__main__")  # what is global in a script lives as long as it

sys.path.insert(0, str(ROOT))
from tests.gloo import threads  # noqa: E402 - the script runs as if this were not there

assert not threads(), f"left behind: {threads()}"
