"""Forks of this process: programs, which lead a session of their own and end as Python does, and single calls."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended


def program(run: Callable[[], object], temporary: Path | None = None, log: Path | None = None) -> int:
    """Run a function in a child, without its parent's frames; the value is the child's pid.

    Args:
        run: what the child does.
        temporary: its folder for temporary files.
        log: the file for its standard error, and for that of the processes that it starts.
    """
    if pid := os.fork():
        return pid
    status = 0
    try:
        os.setsid()
        weakref.finalize._registry.clear()  # the parent's, such as the removal of its temporary folders
        if temporary is not None:
            tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        if log is not None:
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        run()
    except KeyboardInterrupt:
        os.write(2, b"KeyboardInterrupt\n")
        status = INTERRUPTED
    except BaseException:  # noqa: BLE001 - the parent sees the status
        traceback.print_exc()
        status = 1
    finally:
        _end(status)
    raise AssertionError("not reached")


def _end(status: int) -> None:
    """What Python does at the end of a program: wait for threads, run what is registered, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def in_fork(call: Callable[[], T], patience: float) -> T:
    """What the call returns in a forked child, or its error, raised here.

    Args:
        call: its result, or error, can be pickled.
        patience: the seconds that it may take.
    """
    ours, theirs = multiprocessing.Pipe()
    if not (pid := os.fork()):
        try:
            theirs.send((call(), None))
        except Exception as error:  # noqa: BLE001 - sent
            theirs.send((None, error))
        finally:
            os._exit(0)
    theirs.close()
    try:
        answer, error = ours.recv() if ours.poll(patience) else (None, TimeoutError("the child hangs"))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if error is not None:
        raise error
    return cast(T, answer)
