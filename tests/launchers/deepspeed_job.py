"""Runs a script of DeepSpeed on CPUs as `python SCRIPT` does, but compiles nothing: `python deepspeed_job.py SCRIPT`.

DeepSpeed would compile its own reduction through shared memory, for more than a minute. Without it Gloo reduces.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import deepspeed.ops

ROOT = Path(__file__).parents[2]
script = Path(sys.argv[1])
sys.path.insert(0, str(script.parent))
deepspeed.ops.__compatible_ops__ = {}
kept = runpy.run_path(str(script), run_name="__main__")

sys.path.insert(0, str(ROOT))
from tests.gloo import end_before_them  # noqa: E402 - the script runs as if this were not there

end_before_them()
