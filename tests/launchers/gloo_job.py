"""Runs a script as `python SCRIPT` does, for those that leave threads of Gloo: `python gloo_job.py SCRIPT`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
script = Path(sys.argv[1])
sys.path.insert(0, str(script.parent))
kept = runpy.run_path(str(script), run_name="__main__")

sys.path.insert(0, str(ROOT))
from tests.gloo import end_before_them  # noqa: E402 - the script runs as if this were not there

end_before_them()
