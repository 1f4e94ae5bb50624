"""One worker process, as the main process sees it."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler, recv_handle
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import BatchTimeoutError, FileReadError, WorkerError
from torch_dataloader_utils.executors import fork_server
from torch_dataloader_utils.executors.guard import cause_of_death
from torch_dataloader_utils.executors.slots import MappedSlot, unpack
from torch_dataloader_utils.file_limit import remedy
from torch_dataloader_utils.reading.blocks import Block

_LOOK = 0.1  # seconds between checks whether the pass or the process has ended; blocks are received without delay
_GRACE = 0.2  # seconds for processes to end by themselves
_REAPING = 2.0  # seconds for the system, or the fork server, to collect a killed process


class Member:
    """A worker process and the pipe to it.

    Args:
        conn: this process's end of the pipe.
        process: the process, which has started.
        timeout: the seconds that a message may wait for the process to read; 0 for no limit.
    """

    def __init__(self, conn: Connection, process: BaseProcess, timeout: float) -> None:
        self.conn, self.process = conn, process
        self._timeout = timeout
        self._jammed = False  # whether a part of a message is in the pipe
        self._slots: list[MappedSlot] = []
        self._released: deque[int] = deque()  # slots whose last view has died; finalizers append to it, on any thread
        self._sending = threading.RLock()  # any thread may drop a pass
        _limit_sends(conn, timeout)

    @property
    def usable(self) -> bool:
        """Whether the process runs and can be sent tasks."""
        return self.process.is_alive() and not self._jammed and not is_stopped(self.process.pid)

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            WorkerError: the process has died.
            BatchTimeoutError: it does not read.
        """
        self.send_packed(ForkingPickler.dumps(message))

    def send_packed(self, message: memoryview) -> None:
        """Send a message that is already pickled."""
        try:
            with self._sending:
                self.conn.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead() from None
        except BlockingIOError:
            self._jammed = True
            raise BatchTimeoutError(
                f"no tasks could be sent within timeout={self._timeout} s: {self.state()}"
            ) from None

    def report_free(self, blocks: int, nbytes: int) -> None:
        """Tell the worker which slots it may reuse, and how many blocks were delivered."""
        slots = [self._released.popleft() for _ in range(len(self._released))]
        if slots or blocks:
            self.send(("free", slots, blocks, nbytes))

    def receive(self, number: int, deadline: float | None, ended: Callable[[], bool]) -> Block | BaseException | None:
        """The next block or error of this pass; None if the deadline passed or the pass ended."""
        while not ended():
            left = _LOOK if deadline is None else max(0.0, min(_LOOK, deadline - time.monotonic()))
            try:
                if not self.conn.poll(left):
                    if deadline is not None and time.monotonic() >= deadline:
                        return None
                    # Its end of the pipe may be open in a process that it started.
                    if not self.process.is_alive() and not self.conn.poll(0):
                        return self._dead()
                    continue
                message = self.conn.recv()
                if message[0] == "slot":
                    try:
                        self._slots.append(MappedSlot(recv_handle(self.conn)))
                    except RuntimeError as missing:  # the system leaves out descriptors beyond the limit
                        self._jammed = True  # a slot is missing
                        return FileReadError(f"no block can be taken from a worker process: {missing}. {remedy()}")
                    continue
            except (EOFError, ConnectionResetError):
                return self._dead()
            kind, of_pass, content, *rest = message
            if kind == "error":
                if of_pass == number:
                    error: BaseException = pickle.loads(content)
                    return error
                continue
            (slot,) = rest
            if of_pass != number:  # belongs to a pass that has ended
                self._released.append(slot)
                continue
            # A partial, so that the callback keeps neither a frame nor this member alive.
            memory = self._slots[slot].lease(content.size, partial(self._released.append, slot))
            return unpack(content, memory)
        return None

    def state(self) -> str:
        """Sentences on why the process does not answer, and what happens to it."""
        pid = self.process.pid
        if is_stopped(pid):
            return (
                f"its worker process (pid {pid}) is stopped, by a signal such as SIGSTOP or by a debugger. It is "
                "ended, and the next pass starts new workers."
            )
        return (
            f"its worker process (pid {pid}) runs, but has not finished. It is ended, and the next pass starts new "
            "workers. If the store or transform is that slow, raise timeout."
        )

    def _dead(self) -> WorkerError:
        self.process.join(1)
        return WorkerError(cause_of_death(self.process.pid, self.process.exitcode))

    def ask_to_end(self) -> None:
        """Ask the process to end, if it reads."""
        with contextlib.suppress(OSError):  # it has ended, or does not read
            if not self._jammed:
                _limit_sends(self.conn, _GRACE)
                self.conn.send(None)
        self.conn.close()


def end_all(members: Sequence[Member]) -> None:
    """End the processes and wait for them: after a moment, by the signal that ends stopped ones, too."""
    for member in members:
        member.ask_to_end()
    processes = [member.process for member in members]
    left = _alive_after(_GRACE, processes)
    for process in left:
        process.kill()
    if _alive_after(_REAPING, left):
        fork_server.end()  # it is stopped, or it would have collected them
    if not _alive_after(_REAPING, left):
        for process in processes:
            process.close()


def _alive_after(seconds: float, processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """The processes that have not ended after so many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    return [process for process in processes if process.is_alive()]


def is_stopped(pid: int | None) -> bool:
    """Whether a signal or a debugger has stopped the process; False where the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _limit_sends(conn: Connection, seconds: float) -> None:
    """Let writes to the pipe fail after so many seconds without room; 0 for no limit."""
    with socket.fromfd(conn.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:  # a duplicate of the descriptor
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
