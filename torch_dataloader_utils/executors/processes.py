"""The process driver: one worker process per shard, kept across passes; blocks arrive through shared slots."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler, recv_handle
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import BatchTimeoutError, FileReadError, OptionError, WorkerError, use
from torch_dataloader_utils.executors.drivers import describe
from torch_dataloader_utils.executors.parcels import Parcel
from torch_dataloader_utils.executors.script import WORKER_NAME, deferred, importing, worker_name
from torch_dataloader_utils.executors.signals import held_back
from torch_dataloader_utils.executors.slots import MappedSlot, unpack
from torch_dataloader_utils.executors.task_stream import TaskStream
from torch_dataloader_utils.executors.worker import OpenReader, worker_main
from torch_dataloader_utils.file_limit import remedy
from torch_dataloader_utils.model import DataFile, FileKey, Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, stopped
from torch_dataloader_utils.storage.locks import renew_in_children
from torch_dataloader_utils.storage.renewal_desk import RenewalDesk

# One worker process, as the main process sees it.

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
        data = ForkingPickler.dumps(message)
        self._send(lambda conn: conn.send_bytes(data))

    def send_parcel(self, parcel: Parcel) -> None:
        """Send what the process `receive`s first; raises as `send`."""
        self._send(parcel.send)

    def _send(self, by: Callable[[Connection], None]) -> None:
        try:
            with self._sending:
                by(self.conn)
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
        end_fork_server()  # it is stopped, or it would have collected them
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


# Python's fork server, which starts worker processes: it is ended if it does not answer, and started when needed.


@contextmanager
def fork_server_answers(context: BaseContext, timeout: float) -> Iterator[None]:
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
            end_fork_server()

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


def end_fork_server() -> None:
    """Kill this process's fork server, even if it is stopped. Python starts another when it needs one."""
    pid = getattr(_fork_server(), "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def preloaded_modules() -> list[str]:
    """The modules that the fork server imports when it starts."""
    from multiprocessing import forkserver

    return list(getattr(forkserver._forkserver, "_preload_modules", ["__main__"]))


def _fork_server() -> Any:
    """Python's record of its fork server, which no public name reaches; None before a module of Python loads it."""
    return getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)


def _forget_fork_server() -> None:
    """Let a forked child have a fork server of its own: Python would wait for the parent's, and fail."""
    server = _fork_server()
    if getattr(server, "_forkserver_pid", None) is not None:
        with suppress(OSError, TypeError):
            os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None
        server._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_fork_server)


# Explains why a worker process died, and ends a worker that would start workers while it imports the script.

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
            f"the loop again. {_REMEDY}, move what they need into a module, or leave worker_mode at 'threads', which "
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
            "worker_mode='processes' needs a Unix system (descriptors over pipes).",
            remedies=[use(worker_mode="threads")],
        )
    methods = multiprocessing.get_all_start_methods()
    if context is not None and context not in methods:
        raise OptionError(f"Processes(context={context!r}): expected one that this system has: {', '.join(methods)}.")
    chosen = multiprocessing.get_context(context or ("forkserver" if "forkserver" in methods else "spawn"))
    if chosen.get_start_method() == "forkserver":
        own = _PRELOAD if context is None else [*preloaded_modules(), _SHIELD]
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
        desk: issues credentials to the processes; None if nothing that they read needs any that expire.
    """

    def __init__(
        self,
        open_reader: OpenReader,
        count: int,
        budget: int,
        context: BaseContext,
        timeout: float = 0,
        desk: RenewalDesk | None = None,
    ) -> None:
        end_if_importing()
        self.members: list[Member] = []
        self._numbers = 0
        self._known: list[dict[FileKey, DataFile]] = [{} for _ in range(count)]
        self._pid = os.getpid()
        # At exit, also of a process that multiprocessing started, before it terminates its children and joins them,
        # which would wait forever for stopped ones, and for these, as they outlive SIGTERM.
        self._finalizer = Finalize(self, end_all, args=(self.members,), exitpriority=0)
        renew_in_children(self)
        parcel = None if context.get_start_method() == "fork" else _parcel(open_reader)
        opener = open_reader if parcel is None else None
        try:
            with parcel or nullcontext():
                with fork_server_answers(context, timeout):
                    for _ in range(count):
                        self._start(context, opener, budget // count, timeout, desk)
                if parcel is not None:
                    for member in self.members:
                        member.send_parcel(parcel)
            if desk is not None:
                desk.open()
        except BaseException:
            self.close()
            if desk is not None:
                desk.close()
            raise

    def _start(
        self,
        context: BaseContext,
        opener: OpenReader | None,
        budget: int,
        timeout: float,
        desk: RenewalDesk | None,
    ) -> None:
        """Start one more process, with the reader's opener, or None if it is to be sent."""
        # A reader that arrives with the process is unpickled before the worker's own code could import the script.
        name = WORKER_NAME if opener is not None else worker_name(context)
        ours, theirs = context.Pipe()
        line, ends = (None, ()) if desk is None else (desk.line(context), desk.ends)
        fork = context.get_start_method() == "fork"
        inherited = (*(member.conn for member in self.members), ours, *ends) if fork else ()
        arguments = (theirs, opener, budget, inherited, deferred(name), line)
        with theirs, line or nullcontext():
            self.members.append(Member(ours, _started(context, name, arguments), timeout))

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

    def send_tasks(
        self, shard: int, number: int, tasks: Sequence[Task], files: Mapping[FileKey, DataFile], kind: str = "pass"
    ) -> None:
        """Send a worker tasks of a pass ("more": further ones), and their files that it does not know as they are."""
        keys = {split_of(piece).file.key for task in tasks for piece in split_pieces(task.pieces)}
        known = self._known[shard]
        new = {key: file for key in keys if known.get(key) is not (file := files[key])}
        known |= new
        self.members[shard].send((kind, number, list(tasks), new))

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


def _parcel(open_reader: OpenReader) -> Parcel | None:
    """The reader to send to running workers; None if it can only be passed when a process starts.

    Python hangs if it spawns a process with more data than fit a pipe, and that process dies during its imports.
    """
    try:
        return Parcel(open_reader)
    except RuntimeError:  # from locks and similar objects
        return None


# Tasks that a worker is sent at a time; of those without end few, as it shows while they are taken which come next.
_SENT, _SENT_OF_STREAMS = 1024, 16


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
        self._sent = [0] * len(shards)
        self._taken = [0] * len(shards)
        self._held: list[int | None] = [None] * len(shards)  # bytes of the block being delivered
        self._timeout = timeout
        self._stopped = self._closed = False

    def start(self, shard: int) -> None:
        """Start the shard's worker."""
        self._started[shard] = True
        self._send(shard, "pass")

    def _send(self, shard: int, kind: str) -> None:
        """Send the shard's worker its next tasks: of those without end, some."""
        first = self._sent[shard]
        self._sent[shard] = last = min(first + self._most(shard), len(self._tasks[shard]))
        self._pool.send_tasks(shard, self._number, self._tasks[shard][first:last], self._files, kind)

    def _most(self, shard: int) -> int:
        """How many tasks the shard's worker is sent at a time."""
        return _SENT_OF_STREAMS if isinstance(self._tasks[shard], TaskStream) else _SENT

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
        left = len(self._tasks[shard]) - self._taken[shard]
        if self._sent[shard] - self._taken[shard] < min(self._most(shard) // 2, left):
            self._send(shard, "more")
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
