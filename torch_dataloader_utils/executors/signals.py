"""Signals that end or warn a job: worker processes and their fork server outlive them, and end with their parent.

A launcher or scheduler sends them to the whole process group (torchrun's agent SIGTERM, SLURM SIGUSR1, a terminal
SIGHUP and SIGINT). The process that trains decides what they mean, and may need batches until it has saved its state.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from types import FrameType

import pyarrow as pa

SHIELDED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)

_LOOK = 1.0  # seconds between looks at who this process's parent is
_GRACE = 0.5  # seconds in which a process that waits for its parent's messages ends by itself


@contextmanager
def held_back() -> Iterator[None]:
    """A context in which this thread starts processes that these signals do not reach until they `outlive` them.

    Until then a process would have the default, which ends it, or, as a fork, its parent's handlers. To this process
    they come afterwards, or to another of its threads.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive() -> None:
    """Let these signals do nothing to this process; in its main thread."""
    pa.enable_signal_handlers(False)  # it would cancel its reads
    signal.set_wakeup_fd(-1)  # as a fork it has the one of its parent, whose event loop would answer
    for number in SHIELDED:
        # A handler rather than SIG_IGN, which programs that a transform starts would inherit: `terminate()` of such
        # a one would do nothing. What the job ignores (nohup) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _nothing)
            signal.siginterrupt(number, False)  # calls of C libraries go on
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIELDED)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def end_with_parent() -> None:
    """Let this worker process end soon after its parent, also within a call that does not return."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel, os.getppid()), name="parent", daemon=True).start()


def _end_after(sentinel: int, starter: int) -> None:
    # The sentinel may be open in a process that the parent forked; the starter may be a fork server that lives on.
    while not wait([sentinel], _LOOK) and os.getppid() == starter:
        pass
    time.sleep(_GRACE)
    os._exit(1)


def hold_back_in_fork_server() -> None:
    """If this process is Python's fork server, let these signals not reach it, but the processes that it forks.

    It also starts the user's own processes, which `Process.terminate` ends by SIGTERM.
    """
    frame = sys._getframe()
    while (frame.f_globals.get("__name__"), frame.f_code.co_name) != ("multiprocessing.forkserver", "main"):
        if frame.f_back is None:
            return
        frame = frame.f_back
    # Blocked, not ignored: one that comes to a process of the user's as it starts waits until that has the default.
    signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    os.register_at_fork(after_in_child=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, SHIELDED))
