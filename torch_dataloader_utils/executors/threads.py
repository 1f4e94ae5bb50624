"""The thread driver: a pool of threads decodes the shards' tasks ahead, and blocks are delivered in order.

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
from torch_dataloader_utils.events import NO_WORK, Work, recording
from torch_dataloader_utils.executors.drivers import describe
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, BlockReader, SharedRead, read_block, stopped
from torch_dataloader_utils.reading.windows import of_windows
from torch_dataloader_utils.storage.locks import renew_in_children

# What decode threads have claimed: the progress of each shard, and the tasks that are being read.


@dataclass(slots=True)
class ShardQueue:
    """The progress of one shard; tasks `[taken, started)` are being decoded or are ready."""

    tasks: Sequence[Task]
    started: int = 0
    taken: int = 0
    held: int = 0  # bytes of the block being delivered
    ready: dict[int, Block | BaseException] = field(default_factory=dict)


@dataclass(slots=True)
class Claim:
    """A task that a thread decodes; if its read is shared, other threads join it."""

    queue: ShardQueue
    number: int
    estimate: int  # bytes
    shared: SharedRead | None = None
    begun: Work = NO_WORK  # of the thread that began the shared read

    @property
    def task(self) -> Task:
        """The task."""
        return self.queue.tasks[self.number]


# What the consumer and the decode threads wait for.


class Conditions:
    """Two conditions under one lock.

    The garbage collector may end a driver in any thread, even in one that holds the lock.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        self.work, self.arrived = threading.Condition(lock), threading.Condition(lock)

    def ring(self) -> None:
        """Wake all waiting threads."""
        with self.work:
            self.work.notify_all()
            self.arrived.notify_all()


_LARGE = 4 << 20  # decoded bytes of a task from which on its bytes, not requests, take the time
_CLOSE_SECONDS = 10.0  # how long to wait for running reads: a store that hangs must not hang the program

# Daemon threads that decode while the interpreter shuts down can crash it, so stop them first.
_RUNNING: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for driver in list(_RUNNING):
        driver.close()


class ThreadDriver:
    """Decodes up to `budget` bytes ahead on `threads` threads.

    Decoded, undelivered bytes stay within `budget`, but each shard may always hold one block: otherwise taking blocks
    from the shards in turn could wait forever. While a shuffle window is delivered, the next one may be read, too.
    Sizes are estimated before a decode (the footer's estimate times the ratio observed so far) and measured after it.

    Args:
        open_reader: creates a reader; called once in each thread.
        shards: the tasks of each shard, in order.
        budget: the maximum number of decoded, undelivered bytes.
        threads: the number of decode threads.
        timeout: the seconds without a block after which an error is raised; 0 for no limit.
        remote: whether the reads share the bandwidth of a network. The first one, if it is large, then has it alone:
            beside all others, the first batch would come with the last.
    """

    def __init__(
        self,
        open_reader: Callable[[], BlockReader],
        shards: Sequence[Sequence[Task]],
        budget: int,
        threads: int,
        timeout: float,
        remote: bool = False,
    ) -> None:
        self._state = state = _State([ShardQueue(tasks) for tasks in shards], budget, threads, open_reader)
        self._state.first_alone = remote and any(
            task.size_bytes >= _LARGE for tasks in shards[:1] for task in tasks[:1]
        )
        self._timeout = timeout
        self._patience = _CLOSE_SECONDS
        # Several threads may share the read of a window.
        shared = any(of_windows(task) for tasks in shards for task in tasks[:1])
        count = threads if shared else min(threads, max(1, sum(map(len, shards))))
        # What a thread references cannot be collected, so a waiting thread references only the bell. The state has
        # readers, a reader has a transform, and a transform may refer to the object that holds the iterator.
        self._threads = [
            threading.Thread(
                target=_decode, args=(state.bell, weakref.ref(state), i), name=f"tdu-decode-{i}", daemon=True
            )
            for i in range(count)
        ]
        weakref.finalize(self, state.bell.ring)
        for thread in self._threads:
            thread.start()
        _RUNNING.add(self)

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        try:
            outcome = self._state.take(shard, self._timeout)
        except BatchTimeoutError:
            self._patience = 0.0
            raise
        if isinstance(outcome, BaseException):
            self.close()
            raise outcome
        return outcome

    def stop(self) -> None:
        """Let the threads end after their current read; a thread that waits for a block gets an error."""
        self._state.stop()

    def close(self) -> None:
        """Stop the threads and wait for them, but not for one that hangs."""
        self.stop()
        _RUNNING.discard(self)
        if threading.current_thread() in self._threads:
            return  # the garbage collector runs this, perhaps under the lock that the other threads need to end
        deadline = time.monotonic() + self._patience
        for number, thread in enumerate(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if not thread.is_alive():
                self._state.close_reader(number)


class _State:
    """The state that the consumer and the decode threads share, under the bell's lock, and each thread's reader."""

    def __init__(
        self, queues: list[ShardQueue], budget: int, threads: int, open_reader: Callable[[], BlockReader]
    ) -> None:
        self._queues = queues
        self._budget = budget
        self._ahead = threads + len(queues)  # blocks started and not taken; more would only cost memory and cache
        self._open_reader = open_reader
        self._readers: dict[int, BlockReader] = {}
        self._opening = 0  # claimed tasks of which it is not known yet whether threads may join
        self._begun: list[Claim] = []  # shared reads that threads may join
        self._used = 0  # bytes decoded or being decoded, and not delivered
        self.first_alone = False  # whether the first task is read before all others
        self._estimated, self._measured = 1, 1
        self.stopped = False
        self.bell = Conditions()
        renew_in_children(self)

    def renew(self) -> None:
        """Stop after a fork, which leaves the decode threads and their files to the parent."""
        self.bell = Conditions()
        self._begun = []  # a thread of the parent may hold the lock of a read
        self._readers = {}
        self.stop()

    def take(self, shard: int, timeout: float) -> Block | BaseException | None:
        """The shard's next block or error; None after the last."""
        queue = self._queues[shard]
        deadline = time.monotonic() + timeout if timeout else None
        with self.bell.work:
            self._used -= queue.held
            queue.held = 0
            self.bell.work.notify()
            if queue.taken == len(queue.tasks):
                return None
            while queue.taken not in queue.ready:
                left = None if deadline is None else deadline - time.monotonic()
                if self.stopped:
                    raise stopped()
                if left is not None and left <= 0:
                    raise BatchTimeoutError(
                        f"no block arrived within timeout={timeout} s while reading "
                        f"{describe(queue.tasks[queue.taken])}."
                    )
                self.bell.arrived.wait(left)
            outcome = queue.ready.pop(queue.taken)
            queue.taken += 1
            queue.held = outcome.nbytes if isinstance(outcome, Block) else 0
            self.bell.work.notify_all()
            return outcome

    @property
    def over(self) -> bool:
        """Whether there is nothing more to decode."""
        more = self._opening or self._joinable() or any(queue.started < len(queue.tasks) for queue in self._queues)
        return self.stopped or not more

    def claim(self) -> Claim | None:
        """The shared read that has begun, else the task needed soonest; None while there is no room."""
        begun = self._joinable()
        if begun is not None:
            return begun
        if self.first_alone and any(queue.started for queue in self._queues):
            return None
        open_queues = [queue for queue in self._queues if queue.started < len(queue.tasks)]
        for queue in sorted(open_queues, key=lambda queue: queue.started - queue.taken):
            if self._opening and of_windows(queue.tasks[queue.started]):
                return None  # in a moment this thread can join: together, threads have the first window sooner
            estimate = queue.tasks[queue.started].size_bytes * self._measured // self._estimated
            if self._admits(queue, estimate):
                queue.started += 1
                self._opening += 1
                self._used += estimate
                return Claim(queue, queue.started - 1, estimate)
        return None

    def _joinable(self) -> Claim | None:
        self._begun = [claim for claim in self._begun if claim.shared is not None and claim.shared.open]
        return self._begun[0] if self._begun else None

    def _admits(self, queue: ShardQueue, estimate: int) -> bool:
        if queue.started == queue.taken and (not queue.held or of_windows(queue.tasks[queue.started])):
            return True
        ahead = sum(queue.started - queue.taken for queue in self._queues)
        return ahead < self._ahead and self._used + estimate <= self._budget

    def decode(self, thread: int, claim: Claim, waited: float) -> None:
        """Decode a task that was claimed after `waited` seconds, and store its block or error."""
        outcome: Block | BaseException | None
        try:
            outcome = self._decoded(self._opened(thread, claim, waited), claim, waited)
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer's thread, in its turn
            outcome = error if claim.shared is None or claim.shared.abandon() else None
        if outcome is not None:
            self._put(claim, outcome)
        del outcome

    def _decoded(self, reader: BlockReader, claim: Claim, waited: float) -> Block | None:
        """The task's block; None if another thread finishes it."""
        if claim.shared is None:
            return read_block(reader, claim.task, waited)
        block = claim.shared.read(reader)
        return None if block is None else block.after(claim.begun, claim.task)

    def _opened(self, thread: int, claim: Claim, waited: float) -> BlockReader:
        """The thread's reader, after it has begun the read of a new claim, for others to join if they can."""
        new = claim.shared is None
        try:
            if thread not in self._readers:
                self._readers[thread] = self._open_reader()
            if new:
                with recording() as noted:
                    claim.shared, claim.begun = self._readers[thread].share(claim.task), noted.work(waited)
        finally:
            if new:
                with self.bell.work:
                    self._opening -= 1
                    self._begun.append(claim)
                    if self.stopped and claim.shared is not None:
                        claim.shared.abandon()
                    self.bell.work.notify_all()
        return self._readers[thread]

    def _put(self, claim: Claim, outcome: Block | BaseException) -> None:
        queue, size = claim.queue, claim.task.size_bytes
        with self.bell.work:
            measured = outcome.nbytes if isinstance(outcome, Block) else 0
            self._used += measured - claim.estimate
            self._estimated += size
            self._measured += measured
            if not self.stopped:
                queue.ready[claim.number] = outcome
            self.bell.arrived.notify_all()
            if self.first_alone:
                self.first_alone = False
                self.bell.work.notify_all()
            self.bell.work.notify()

    def close_reader(self, thread: int) -> None:
        """Close the files of a thread that has ended."""
        reader = self._readers.pop(thread, None)
        if reader is not None:
            reader.close()

    def stop(self) -> None:
        """Let the threads end, and free the blocks that wait."""
        with self.bell.work:
            self.stopped = True
            for claim in self._begun:
                if claim.shared is not None:
                    claim.shared.abandon()
            for queue in self._queues:
                queue.ready.clear()
            self.bell.ring()


def _decode(bell: Conditions, find: weakref.ref[_State], thread: int) -> None:
    """The main function of a decode thread."""
    while _decode_next(bell, find, thread):
        pass
    state = find()
    if state is not None:
        state.close_reader(thread)


def _decode_next(bell: Conditions, find: weakref.ref[_State], thread: int) -> bool:
    """Decode a task once there is room for it; returns False if there are no more."""
    began = time.perf_counter()
    with bell.work:
        while True:
            state = find()
            if state is None or state.over:
                return False
            claimed = state.claim()
            if claimed is not None:
                break
            del state
            bell.work.wait()
    state.decode(thread, claimed, time.perf_counter() - began)
    if state.stopped:  # this may be its last reference: the driver did not wait for a read that takes long
        state.close_reader(thread)
    return not state.stopped
