"""The thread driver: a pool of threads decodes the shards' tasks ahead and hands the blocks on in order.

pyarrow releases the GIL while it decodes, so threads of one process use all cores; nothing is copied or pickled.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.errors import BatchTimeoutError
from torch_dataloader_utils.model import Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, BlockReader

_CLOSE_SECONDS = 10.0  # how long to wait for reads under way: a store that hangs must not hang its user

# Daemon threads that still decode while the interpreter goes down can crash it: stop them first.
_RUNNING: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for driver in list(_RUNNING):
        driver.close()


@dataclass(slots=True)
class _Lane:
    """One shard's progress; tasks `[taken, started)` are being decoded or ready."""

    tasks: Sequence[Task]
    started: int = 0
    taken: int = 0
    held: int = 0  # bytes of the block being delivered
    ready: dict[int, Block | BaseException] = field(default_factory=dict)


class ThreadDriver:
    """Decodes up to `budget` bytes ahead on `threads` threads.

    Decoded, undelivered bytes stay within `budget`, except that each shard may always hold one block: otherwise
    draining the shards in turn could wait for ever. Sizes are estimated before a decode (the footer's estimate times
    the ratio seen so far) and measured after it.

    Args:
        open_reader: makes a reader; called once in each thread.
        shards: the tasks of each shard, in order.
        budget: bytes.
        threads: how many threads decode.
        timeout: seconds without a block before an error; 0 for none.
    """

    def __init__(
        self,
        open_reader: Callable[[], BlockReader],
        shards: Sequence[Sequence[Task]],
        budget: int,
        threads: int,
        timeout: float,
    ) -> None:
        self._state = _State([_Lane(tasks) for tasks in shards], budget, threads)
        self._timeout = timeout
        self._patience = _CLOSE_SECONDS
        count = min(threads, max(1, sum(map(len, shards))))
        # The threads hold the state, never the driver: a driver that is dropped is collected, and stops them.
        self._threads = [
            threading.Thread(target=_decode, args=(self._state, open_reader), name=f"tdu-decode-{i}", daemon=True)
            for i in range(count)
        ]
        self._finalizer = weakref.finalize(self, self._state.stop)
        for thread in self._threads:
            thread.start()
        _RUNNING.add(self)

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block, None after the last."""
        try:
            found = self._state.take(shard, self._timeout)
        except BatchTimeoutError:
            self._patience = 0.0
            raise
        if isinstance(found, BaseException):
            self.close()
            raise found
        return found

    def close(self) -> None:
        """Stop the threads after the read they are in, and wait for them (not for one that hangs)."""
        self._finalizer()
        deadline = time.monotonic() + self._patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        _RUNNING.discard(self)


class _State:
    """What consumer and decode threads share, under one lock."""

    def __init__(self, lanes: list[_Lane], budget: int, threads: int) -> None:
        self._lanes = lanes
        self._budget = budget
        self._ahead = threads + 1  # blocks started and not taken: more only costs memory and cache
        self._used = 0  # bytes decoded or being decoded, and not delivered
        self._estimated, self._measured = 1, 1
        self._stopped = False
        lock = threading.Lock()
        self._work, self._arrived = threading.Condition(lock), threading.Condition(lock)

    def take(self, shard: int, timeout: float) -> Block | BaseException | None:
        """The shard's next block or error, None after the last."""
        lane = self._lanes[shard]
        deadline = time.monotonic() + timeout if timeout else None
        with self._work:
            self._used -= lane.held
            lane.held = 0
            self._work.notify()
            if lane.taken == len(lane.tasks):
                return None
            while lane.taken not in lane.ready:
                left = None if deadline is None else deadline - time.monotonic()
                if self._stopped:
                    raise RuntimeError("this pass is closed")
                if left is not None and left <= 0:
                    raise BatchTimeoutError(
                        f"no block within timeout={timeout} s while reading {describe(lane.tasks[lane.taken])}."
                    )
                self._arrived.wait(left)
            found = lane.ready.pop(lane.taken)
            lane.taken += 1
            lane.held = found.nbytes if isinstance(found, Block) else 0
            self._work.notify_all()
            return found

    def claim(self) -> tuple[_Lane, int, int] | None:
        """A task to decode as (lane, number, estimated bytes): the one needed soonest; None when there is no more."""
        with self._work:
            while not self._stopped:
                open_lanes = [lane for lane in self._lanes if lane.started < len(lane.tasks)]
                if not open_lanes:
                    return None
                for lane in sorted(open_lanes, key=lambda lane: lane.started - lane.taken):
                    estimate = lane.tasks[lane.started].size_bytes * self._measured // self._estimated
                    if self._admits(lane, estimate):
                        lane.started += 1
                        self._used += estimate
                        return lane, lane.started - 1, estimate
                self._work.wait()
        return None

    def _admits(self, lane: _Lane, estimate: int) -> bool:
        if lane.started == lane.taken and not lane.held:
            return True
        ahead = sum(lane.started - lane.taken for lane in self._lanes)
        return ahead < max(self._ahead, len(self._lanes)) and self._used + estimate <= self._budget

    def put(self, lane: _Lane, number: int, estimate: int, found: Block | BaseException) -> None:
        """Hand on what decoding a claimed task gave."""
        with self._work:
            measured = found.nbytes if isinstance(found, Block) else 0
            self._used += measured - estimate
            self._estimated += lane.tasks[number].size_bytes
            self._measured += measured
            lane.ready[number] = found
            self._arrived.notify_all()
            self._work.notify()

    def stop(self) -> None:
        """Let the threads end, and free the blocks that wait."""
        with self._work:
            self._stopped = True
            for lane in self._lanes:
                lane.ready.clear()
            self._work.notify_all()
            self._arrived.notify_all()


def _decode(state: _State, open_reader: Callable[[], BlockReader]) -> None:
    """The life of a decode thread."""
    reader: BlockReader | None = None
    try:
        while (claimed := state.claim()) is not None:
            lane, number, estimate = claimed
            found: Block | BaseException
            try:
                reader = reader or open_reader()
                found = reader.block(lane.tasks[number])
            except BaseException as error:  # noqa: BLE001 - it is raised in the consumer's thread, in its place
                found = error
            state.put(lane, number, estimate, found)
            del found
    finally:
        if reader is not None:
            reader.close()


def describe(task: Task) -> str:
    """Where a task reads, for messages: file and rows, or the files that it shuffles rows of."""
    pieces = list(split_pieces(task.pieces))
    paths = list(dict.fromkeys(split_of(piece).file.path for piece in pieces))
    if len(paths) > 1:
        return f"{', '.join(paths[:3])}{f' and {len(paths) - 3} more files' if len(paths) > 3 else ''}"
    rows = pieces[0].rows
    where = "" if rows is None or len(pieces) > 1 else f", rows {rows.start} to {rows.stop}"
    return f"{paths[0]}{where}"
