"""Signals that end or warn a job: worker processes and their fork server ignore them, and end with their parent.

A launcher or scheduler sends them to the whole process group (torchrun's agent SIGTERM, SLURM SIGUSR1, a terminal
SIGHUP and SIGINT). The process that trains decides what they mean, and may need batches until it has saved its state.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

SHIELDED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


@contextmanager
def held_back() -> Iterator[None]:
    """A context in which this thread starts processes that these signals do not reach until they `ignore` them.

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


def ignore() -> None:
    """Let this process ignore these signals; in its main thread."""
    for number in SHIELDED:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIELDED)


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
