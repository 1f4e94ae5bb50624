"""The process driver: one worker process per shard, kept across passes; blocks arrive through shared slots."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler, recv_handle
from typing import Any

from torch_dataloader_utils.errors import BatchTimeoutError, OptionError, WorkerError
from torch_dataloader_utils.executors.described import describe
from torch_dataloader_utils.executors.guard import cause_of_death, end_if_importing
from torch_dataloader_utils.executors.script import WORKER_NAME, deferred, worker_name
from torch_dataloader_utils.executors.slots import MappedSlot, unpack
from torch_dataloader_utils.executors.worker import OpenReader, worker_main
from torch_dataloader_utils.model import DataFile, FileKey, Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, stopped

# What workers import, loaded once in the process that forks them; other formats are loaded by the workers.
_PRELOAD = [
    f"torch_dataloader_utils.{module}"
    for module in ("executors.worker", "reading.scan", "reading.windows", "formats.parquet", "storage")
]
_LOOK = 0.1  # seconds between checks whether another thread has stopped the pass; blocks are received without delay


def start_context(context: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context: the given one, else forkserver with the worker's module preloaded, else spawn."""
    if isinstance(context, BaseContext):
        return context
    if sys.platform == "win32":
        raise OptionError(
            "worker_mode='process' needs a Unix system (descriptors over pipes): use worker_mode='thread'."
        )
    methods = multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise OptionError(
            f"multiprocessing_context={context!r}: expected one that this system has: {', '.join(methods)}."
        )
    chosen = multiprocessing.get_context(context or ("forkserver" if "forkserver" in methods else "spawn"))
    if context is None and chosen.get_start_method() == "forkserver":
        chosen.set_forkserver_preload(_PRELOAD)
    return chosen


class WorkerPool:
    """The worker processes of one loader.

    Args:
        open_reader: creates the reader in each process from the files that it receives; picklable.
        count: the number of processes.
        budget: the maximum number of bytes decoded and not delivered, over all processes.
        context: how processes start.
    """

    def __init__(self, open_reader: OpenReader, count: int, budget: int, context: BaseContext) -> None:
        end_if_importing()
        self.members = [_Member() for _ in range(count)]
        self._numbers = 0
        self._known: list[set[FileKey]] = [set() for _ in range(count)]
        inherited: list[Connection] = []
        fork = context.get_start_method() == "fork"
        packed = None if fork else _packed(open_reader)
        # A reader that arrives with the process is unpickled before the worker's own code could import the script.
        name = WORKER_NAME if packed is None else worker_name(context)
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self.members, self._pid)
        for member in self.members:
            ours, theirs = context.Pipe()
            inherited.append(ours)
            opener = open_reader if packed is None else None
            process = context.Process(  # type: ignore[attr-defined]
                target=worker_main,
                args=(theirs, opener, budget // count, tuple(inherited) if fork else (), deferred(name)),
                name=name,
                daemon=True,
            )
            process.start()
            theirs.close()
            member.conn, member.process = ours, process
        if packed is not None:
            for member in self.members:
                member.send_packed(packed)

    def begin(
        self,
        shards: Sequence[Sequence[Task]],
        files: Mapping[FileKey, DataFile],
        timeout: float,
        at_once: bool = True,
    ) -> ProcessDriver:
        """Start a pass. Each shard starts at once, or when its first block is requested and its worker is free."""
        self._numbers += 1
        driver = ProcessDriver(self, self._numbers, shards, files, timeout)
        for shard in range(len(shards) if at_once else 0):
            driver.start(shard)
        return driver

    def send_tasks(self, shard: int, number: int, tasks: Sequence[Task], files: Mapping[FileKey, DataFile]) -> None:
        """Send a worker its tasks of a pass, and the files of these tasks that it does not know yet."""
        keys = {split_of(piece).file.key for task in tasks for piece in split_pieces(task.pieces)} - self._known[shard]
        self._known[shard] |= keys
        self.members[shard].send(("pass", number, list(tasks), {key: files[key] for key in keys}))

    @property
    def closed(self) -> bool:
        """Whether the processes have been ended, or belong to the parent that this process was forked from."""
        return not self._finalizer.alive or os.getpid() != self._pid

    @property
    def broken(self) -> bool:
        """Whether a process has died."""
        return self.closed or not all(member.process.is_alive() for member in self.members)

    def close(self) -> None:
        """End the processes and wait for them; idempotent."""
        self._finalizer()


def _packed(open_reader: OpenReader) -> memoryview | None:
    """The pickled reader to send to a running worker; None if it can only be passed when a process starts.

    Python hangs if it spawns a process with more data than fit a pipe, and that process dies during its imports.
    """
    try:
        return ForkingPickler.dumps(open_reader)
    except RuntimeError:  # from locks and similar objects
        return None


def _end(members: Sequence[_Member], pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child shares its parent's pipes: the workers must not receive messages from it
    for member in members:
        member.end()
    for member in members:
        member.join()


class _Member:
    """One worker process, seen from the main process."""

    conn: Connection
    process: BaseProcess

    def __init__(self) -> None:
        self._slots: list[MappedSlot] = []
        self._released: deque[int] = deque()  # slots whose last view has died; finalizers append to it, on any thread
        self._sending = threading.RLock()  # any thread may drop a pass

    def send(self, message: Any) -> None:
        self.send_packed(ForkingPickler.dumps(message))

    def send_packed(self, message: memoryview) -> None:
        """Send a message that is already pickled."""
        try:
            with self._sending:
                self.conn.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead() from None

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
                    continue
                message = self.conn.recv()
                if message[0] == "slot":
                    self._slots.append(MappedSlot(recv_handle(self.conn)))
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

    def _dead(self) -> WorkerError:
        self.process.join(1)
        return WorkerError(cause_of_death(self.process.pid, self.process.exitcode))

    def end(self) -> None:
        """Ask the worker to stop."""
        if hasattr(self, "conn"):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has already exited
                self.conn.send(None)
            self.conn.close()

    def join(self) -> None:
        """Wait until the worker has ended; kill it if it is busy."""
        if hasattr(self, "process"):
            self.process.join(0.2)
            if self.process.is_alive():
                self.process.terminate()
                self.process.join(5)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
            self.process.close()


class ProcessDriver:
    """One pass of a pool."""

    def __init__(
        self,
        pool: WorkerPool,
        number: int,
        shards: Sequence[Sequence[Task]],
        files: Mapping[FileKey, DataFile],
        timeout: float,
    ) -> None:
        self._pool = pool
        self._number = number
        self._tasks = shards
        self._files = files
        self._started = [False] * len(shards)
        self._taken = [0] * len(shards)
        self._held: list[int | None] = [None] * len(shards)  # bytes of the block being delivered
        self._timeout = timeout
        self._stopped = self._closed = False

    def start(self, shard: int) -> None:
        """Start the shard's worker."""
        self._started[shard] = True
        self._pool.send_tasks(shard, self._number, self._tasks[shard], self._files)

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        if self._pool.closed:
            raise stopped()
        if not self._started[shard]:
            self.start(shard)
        member = self._pool.members[shard]
        held, self._held[shard] = self._held[shard], None
        member.report_free(0 if held is None else 1, held or 0)
        if self._taken[shard] == len(self._tasks[shard]):
            return None
        deadline = time.monotonic() + self._timeout if self._timeout else None
        outcome = member.receive(self._number, deadline, lambda: self._stopped)
        if self._stopped:
            raise stopped()
        if outcome is None:
            task = self._tasks[shard][self._taken[shard]]
            outcome = BatchTimeoutError(
                f"no block arrived within timeout={self._timeout} s while reading {describe(task)}."
            )
        if isinstance(outcome, BaseException):
            raise outcome
        self._taken[shard] += 1
        self._held[shard] = outcome.nbytes
        return outcome

    def stop(self) -> None:
        """Stop the pass: a thread that waits for a block soon gets an error."""
        self._stopped = True

    def close(self) -> None:
        """End the pass; the processes stay alive for the next one."""
        self._stopped = True
        if not self._closed:
            self._closed = True
            for shard, member in enumerate(self._pool.members):
                under_way = self._started[shard] and self._taken[shard] < len(self._tasks[shard])
                if under_way and not self._pool.closed and member.process.is_alive():
                    member.send(("stop", self._number))
