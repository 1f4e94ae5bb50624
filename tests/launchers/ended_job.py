"""Runs a script as `python SCRIPT` does, and fails if it leaves threads of Gloo behind: `python ended_job.py SCRIPT`.

One that wants the GIL while the interpreter ends aborts the process, now and then.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

script = Path(sys.argv[1])
sys.path.insert(0, str(script.parent))
runpy.run_path(str(script), run_name="__main__")

left = [name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := path.read_text().strip())]
assert not left, f"left behind: {left}"
