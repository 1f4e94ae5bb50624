"""Explains why a worker process died, and ends a worker that would start workers while it imports the script."""

from __future__ import annotations

import os
import signal
import sys

from torch_dataloader_utils.executors.script import importing

_UNGUARDED = 79  # the exit code of a worker that tried to start workers of its own
_UNKNOWN = 255  # the exit code that Python reports for a process whose fork server has gone
_REMEDY = "Put what makes the loader and loops over it under `if __name__ == '__main__':`"


def end_if_importing() -> None:
    """End this process if it is a worker that is importing the user's script and has reached the script's loop.

    It prints nothing, because the process that started it raises the error. Python itself would print a traceback per
    worker.
    """
    if importing():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_UNGUARDED)


def cause_of_death(pid: int | None, code: int | None) -> str:
    """Sentences that say why the worker process `pid` ended with this exit code, and what to do."""
    if code == _UNGUARDED:
        return (
            "worker processes import your script to find a function or class that it defines, and this one reached "
            f"the loop again. {_REMEDY}, move what they need into a module, or leave worker_mode at 'thread', which "
            "imports nothing."
        )
    if code == 1:  # Python itself exits with 1 if it fails before the worker's own code runs
        return (
            f"a worker process (pid {pid}) could not start; its own output says why. Worker processes import your "
            f"script if it defines what they need. {_REMEDY}. Move a function that they cannot import, such as one of "
            "a notebook, into a module. num_workers=0 reads in this process, where a debugger can follow."
        )
    if code == _UNKNOWN:
        return (
            f"a worker process (pid {pid}) ended after Python's fork server, which had started it, was killed (for "
            "memory, perhaps). The next pass starts new ones."
        )
    return (
        f"a worker process (pid {pid}) died with exit code {code}{_name(code)}: killed from outside (for memory, "
        "perhaps), or by a crash in native code. The next pass starts new workers. num_workers=0 reads in this "
        "process, where a debugger can follow."
    )


def _name(code: int | None) -> str:
    """The signal that a negative exit code stands for, in parentheses; "" if there is none."""
    try:
        return f" ({signal.Signals(-(code or 0)).name})"
    except ValueError:
        return ""
