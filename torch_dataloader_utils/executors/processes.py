"""The process driver: one worker process per shard, kept across passes; blocks arrive through shared slots."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

from torch_dataloader_utils.errors import BatchTimeoutError, OptionError, use
from torch_dataloader_utils.executors import fork_server
from torch_dataloader_utils.executors.described import describe
from torch_dataloader_utils.executors.guard import end_if_importing
from torch_dataloader_utils.executors.member import Member, end_all
from torch_dataloader_utils.executors.script import WORKER_NAME, deferred, worker_name
from torch_dataloader_utils.executors.signals import held_back
from torch_dataloader_utils.executors.worker import OpenReader, worker_main
from torch_dataloader_utils.model import DataFile, FileKey, Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, stopped
from torch_dataloader_utils.storage.locks import renew_in_children

# What workers import, loaded once in the process that forks them; other formats are loaded by the workers.
_SHIELD = "torch_dataloader_utils.executors.in_fork_server"
_PRELOAD = [_SHIELD] + [
    f"torch_dataloader_utils.{module}"
    for module in ("executors.worker", "reading.scan", "reading.windows", "formats.parquet", "storage")
]


def start_context(context: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context: the given one, else forkserver with the worker's module preloaded, else spawn."""
    if isinstance(context, BaseContext):
        return context
    if sys.platform == "win32":
        raise OptionError(
            "worker_mode='process' needs a Unix system (descriptors over pipes).", remedies=[use(worker_mode="thread")]
        )
    methods = multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise OptionError(
            f"multiprocessing_context={context!r}: expected one that this system has: {', '.join(methods)}."
        )
    chosen = multiprocessing.get_context(context or ("forkserver" if "forkserver" in methods else "spawn"))
    if chosen.get_start_method() == "forkserver":
        own = _PRELOAD if context is None else [*fork_server.preloaded(), _SHIELD]
        chosen.set_forkserver_preload(list(dict.fromkeys(own)))
    return chosen


class WorkerPool:
    """The worker processes of one loader.

    Args:
        open_reader: creates the reader in each process from the files that it receives; picklable.
        count: the number of processes.
        budget: the maximum number of bytes decoded and not delivered, over all processes.
        context: how processes start.
        timeout: the seconds for processes to start, and for them to read a message; 0 for no limit.
    """

    def __init__(
        self, open_reader: OpenReader, count: int, budget: int, context: BaseContext, timeout: float = 0
    ) -> None:
        end_if_importing()
        self.members: list[Member] = []
        self._numbers = 0
        self._known: list[set[FileKey]] = [set() for _ in range(count)]
        self._pid = os.getpid()
        # At exit, also of a process that multiprocessing started, before it terminates its children and joins them,
        # which would wait forever for stopped ones, and for these, as they outlive SIGTERM.
        self._finalizer = Finalize(self, end_all, args=(self.members,), exitpriority=0)
        renew_in_children(self)
        fork = context.get_start_method() == "fork"
        packed = None if fork else _packed(open_reader)
        # A reader that arrives with the process is unpickled before the worker's own code could import the script.
        name = WORKER_NAME if packed is None else worker_name(context)
        try:
            with fork_server.answering(context, timeout):
                for _ in range(count):
                    ours, theirs = context.Pipe()
                    inherited = (*(member.conn for member in self.members), ours) if fork else ()
                    opener = open_reader if packed is None else None
                    arguments = (theirs, opener, budget // count, inherited, deferred(name))
                    with theirs:
                        self.members.append(Member(ours, _started(context, name, arguments), timeout))
            if packed is not None:
                for member in self.members:
                    member.send_packed(packed)
        except BaseException:
            self.close()
            raise

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

    def renew(self) -> None:
        """Leave the processes to the parent of this one, which was forked from it: its exit must not end them."""
        children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())  # Python ends these at exit
        children -= {member.process for member in self.members}

    @property
    def closed(self) -> bool:
        """Whether the processes have been ended, or belong to the parent that this process was forked from."""
        return not self._finalizer.still_active() or os.getpid() != self._pid

    @property
    def broken(self) -> bool:
        """Whether a process has died, or is stopped."""
        return self.closed or not all(member.usable for member in self.members)

    def close(self) -> None:
        """End the processes and wait for them; idempotent."""
        self._finalizer()


def _started(context: BaseContext, name: str, arguments: tuple[Any, ...]) -> BaseProcess:
    """A new worker process."""
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=worker_main, args=arguments, name=name, daemon=True
    )
    if context.get_start_method() != "fork":
        with held_back():
            resource_tracker.ensure_running()  # which lets some of them through: not as a part of the start
    with held_back():  # also from the fork server, which the first process starts
        process.start()
    process.terminate = process.kill  # type: ignore[method-assign] # it outlives SIGTERM
    return process


def _packed(open_reader: OpenReader) -> memoryview | None:
    """The pickled reader to send to a running worker; None if it can only be passed when a process starts.

    Python hangs if it spawns a process with more data than fit a pipe, and that process dies during its imports.
    """
    try:
        return ForkingPickler.dumps(open_reader)
    except RuntimeError:  # from locks and similar objects
        return None


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
                f"no block arrived within timeout={self._timeout} s while reading {describe(task)}: {member.state()}"
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
            for shard, started in enumerate(self._started):  # there may be more workers than shards
                member = self._pool.members[shard]
                under_way = started and self._taken[shard] < len(self._tasks[shard])
                if under_way and not self._pool.closed and member.process.is_alive():
                    with suppress(BatchTimeoutError):  # then the next pass starts new workers
                        member.send(("stop", self._number))
