"""Python's fork server, which starts worker processes: it is ended if it does not answer, and started when needed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext

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
    from multiprocessing import forkserver

    # Python has no public way to reach it.
    server = getattr(forkserver, "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
