"""The code of a worker process: decodes the tasks of one shard and packs each block into a shared slot.

Neither this module nor what it imports loads torch, so that a worker starts in half a second.

Messages from the main process: first the function that creates the reader, as a parcel, unless it was an argument;
then `("pass", number, tasks, files)`, `("free", slots, blocks, nbytes)` (slots whose views died; blocks delivered
since, and their bytes), `("more", number, tasks, files)`, `("stop", number)`. Messages to it: `("slot", slot)` followed
by the slot's descriptor, `("block", number, packed, slot)`, `("error", number, data)`. Credentials that expire travel
on a pipe of their own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from torch_dataloader_utils.executors.parcels import received
from torch_dataloader_utils.executors.script import started
from torch_dataloader_utils.executors.signals import end_with_parent, outlive
from torch_dataloader_utils.executors.slots import WritableSlot, dump_error, pack
from torch_dataloader_utils.model import DataFile, FileKey, Task
from torch_dataloader_utils.reading.blocks import BlockReader
from torch_dataloader_utils.reading.windows import of_windows
from torch_dataloader_utils.storage.renewal import connect

_AHEAD = 3  # blocks packed and not yet delivered: one is being read, one waits, one is being packed

OpenReader = Callable[[dict[FileKey, DataFile]], BlockReader]


def worker_main(
    conn: Connection,
    open_reader: OpenReader | None,
    budget: int,
    inherited: Sequence[Connection] = (),
    deferred: bool = False,
    line: Connection | None = None,
) -> None:
    """The main function of a worker process.

    Args:
        conn: the connection to the main process.
        open_reader: creates the reader; None if it arrives as the first message.
        budget: the maximum number of bytes decoded and not delivered.
        inherited: ends of other workers' pipes, copied by a fork.
        deferred: whether the user's script is imported only when something names it.
        line: the pipe on which this process can ask for credentials; None if none of its own expire.
    """
    started(deferred)
    outlive()
    end_with_parent()
    for other in inherited:
        other.close()
    if line is not None:
        connect(line)
    if open_reader is None:
        try:
            parcel = received(conn)
        except (EOFError, ConnectionResetError):
            return  # the main process has exited
        open_reader = parcel()  # may import the user's script, which may raise the same errors
    try:
        _Worker(conn, open_reader, budget).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process has exited


class _Worker:
    def __init__(self, conn: Connection, open_reader: OpenReader, budget: int) -> None:
        self._conn = conn
        self._open_reader = open_reader
        self._budget = budget
        self._files: dict[FileKey, DataFile] = {}
        self._reader: BlockReader | None = None
        self._slots: list[WritableSlot] = []
        self._free: list[int] = []
        self._tasks: list[Task] = []
        self._number = -1
        self._waiting = 0  # blocks packed and not delivered
        self._used = 0  # their bytes
        self._full = 0.0  # seconds waited for room since the last task

    def run(self) -> None:
        """Decode while there is work and room; otherwise wait for messages."""
        while True:
            while self._polled():
                message = self._conn.recv()
                if message is None:
                    return
                self._handle(*message)
            if self._may_decode():
                self._step(self._tasks.pop())

    def _polled(self) -> bool:
        """Whether there is a message; waits for one if there is no work, or no room for a result."""
        if self._may_decode():
            return self._conn.poll(0)
        began = time.perf_counter()
        polled = self._conn.poll(None)
        if self._tasks:
            self._full += time.perf_counter() - began
        return polled

    def _handle(self, kind: str, *given: object) -> None:
        match kind, given:
            case "pass", (int(number), list(tasks), dict(files)):
                self._number, self._tasks = number, tasks[::-1]
                self._waiting, self._used, self._full = 0, 0, 0.0
                self._files.update(files)
            case "more", (int(number), list(tasks), dict(files)):
                self._files.update(files)
                if number == self._number:
                    self._tasks[:0] = tasks[::-1]
            case "free", (list(slots), int(blocks), int(nbytes)):
                self._free += slots
                self._waiting -= blocks
                self._used -= nbytes
            case "stop", (int(number),):
                if number == self._number:  # otherwise it is late: another pass has begun
                    self._tasks = []
            case _:
                raise ValueError(f"unknown message {kind!r}")

    def _may_decode(self) -> bool:
        if not self._tasks:
            return False
        fits = self._used + self._tasks[-1].size_bytes <= self._budget
        # While a shuffle window is delivered, the next one may be read.
        return self._waiting < (_AHEAD if fits else 2 if of_windows(self._tasks[-1]) else 1)

    def _step(self, task: Task) -> None:
        try:
            self._reader = self._reader or self._open_reader(self._files)
            slot = self._free_slot()
            packed = pack(self._reader, task, self._slots[slot].reserve, self._full)
            self._full = 0.0
        except Exception as error:  # noqa: BLE001 - raised again in the main process, in its turn
            self._tasks = []
            self._conn.send(("error", self._number, dump_error(error, traceback.format_exc())))
            return
        self._free.remove(slot)
        self._waiting += 1
        self._used += packed.nbytes
        self._conn.send(("block", self._number, packed, slot))

    def _free_slot(self) -> int:
        """A slot that is not in use."""
        if not self._free:
            # All slots hold blocks that wait or that the user keeps: take more memory rather than wait.
            slot = WritableSlot()
            self._conn.send(("slot", len(self._slots)))
            send_handle(self._conn, slot.fd, None)
            self._free.append(len(self._slots))
            self._slots.append(slot)
        return self._free[-1]
