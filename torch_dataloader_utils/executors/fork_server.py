"""Python's fork server, which starts worker processes: it is ended if it does not answer, and started when needed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

from torch_dataloader_utils.errors import BatchTimeoutError, WorkerError


@contextmanager
def answering(context: BaseContext, timeout: float) -> Iterator[None]:
    """A context in which processes start within `timeout` seconds (0 for no limit), or their fork server is ended.

    Raises:
        BatchTimeoutError: the fork server did not answer.
        WorkerError: it ended.
    """
    if context.get_start_method() != "forkserver":
        yield
        return
    started, late = threading.Event(), threading.Event()

    def watch() -> None:
        if not started.wait(timeout):
            late.set()
            end()

    if timeout:
        threading.Thread(target=watch, name="tdu-fork-server", daemon=True).start()
    try:
        yield
    except (EOFError, ConnectionError) as error:
        if late.is_set():
            raise BatchTimeoutError(
                f"Python's fork server started no worker process within timeout={timeout} s: it is stopped, or the "
                "machine is overloaded. It is ended, and the next pass starts another."
            ) from error
        raise WorkerError(
            "Python's fork server, which starts worker processes, was killed (for memory, perhaps). The next pass "
            "starts another."
        ) from error
    finally:
        started.set()


def end() -> None:
    """Kill this process's fork server, even if it is stopped. Python starts another when it needs one."""
    pid = getattr(_server(), "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def preloaded() -> list[str]:
    """The modules that the fork server imports when it starts."""
    from multiprocessing import forkserver

    return list(getattr(forkserver._forkserver, "_preload_modules", ["__main__"]))


def _server() -> Any:
    """Python's record of its fork server, which no public name reaches; None before a module of Python loads it."""
    return getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)


def _forget() -> None:
    """Let a forked child have a fork server of its own: Python would wait for the parent's, and fail."""
    server = _server()
    if getattr(server, "_forkserver_pid", None) is not None:
        with suppress(OSError, TypeError):
            os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None
        server._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
