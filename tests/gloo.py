"""Threads of Gloo: one that wants the GIL while the interpreter ends aborts the process, now and then.

So it is where something still holds a process group at the end, as FSDP's mesh does (PyTorch's issue 190489).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path


def threads() -> list[str]:
    """The names of this process's threads of Gloo."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def end_before_them() -> None:
    """Let the program end as Python does, but not the interpreter, if there are such threads."""
    if threads():
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
