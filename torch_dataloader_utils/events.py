"""What reading takes: seconds and counts, noted in the thread that reads, carried by each block, reported to callbacks.

While a task is executed its thread has a `Recorder`. What it noted leaves as a `Work` with the block, from a worker
process in the message that carries the block. The dataset reports it once the block is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

Stage: TypeAlias = Literal["read", "decode", "filter", "transform", "shuffle", "convert", "pack"]
Count: TypeAlias = Literal[
    "repeats", "bytes_read", "requests", "retries", "cache_hits", "cache_misses", "skipped_lines"
]


@dataclass(frozen=True, slots=True)
class Work:
    """What it took to read a block, in the thread or process that read it.

    No second counts twice. Counts are 0 where nothing of the kind happens.

    Attributes:
        read: seconds that went by until a remote store or the cache gave the bytes. Local files are read by Arrow while
            it decodes: their reading is part of `decode`.
        decode: seconds in the decoder of the format, with all that makes its columns those of the schema. What Iceberg
            deletes is left out here, too.
        filter: seconds in filters, and in dropping rows with nulls.
        transform: seconds in the user's `transform`.
        shuffle: seconds in bringing the rows of a shuffle window into order.
        convert: seconds from Arrow to the arrays of the output.
        pack: seconds in which a worker process copied the block to where the main process sees it.
        queue_full: seconds that a thread or process had to wait before it read: there was no room for another block.
        repeats: rows of the block that are repeats (padding).
        bytes_read: bytes that remote stores sent; local files are not counted.
        requests: requests to remote stores for ranges of bytes.
        retries: how many of these, or of those that open a file, were repeated after a fault.
        cache_hits: blocks of bytes that `cache_dir=` held.
        cache_misses: blocks of bytes that it did not hold.
        skipped_lines: bad lines that `on_bad_lines="skip"` left out.
    """

    read: float = 0.0
    decode: float = 0.0
    filter: float = 0.0
    transform: float = 0.0
    shuffle: float = 0.0
    convert: float = 0.0
    pack: float = 0.0
    queue_full: float = 0.0
    repeats: int = 0
    bytes_read: int = 0
    requests: int = 0
    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    skipped_lines: int = 0


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block was taken from its I/O worker; batches of its rows follow.

    Attributes:
        epoch: the epoch.
        shard: number of the I/O worker that it is of.
        rows: of the block, repeats included; in the first block of a resumed pass those that had not been delivered.
        nbytes: decoded bytes of the block, measured.
        queue_empty: seconds for which the loop waited for it. In-line (`num_workers=0`) that is the reading itself.
        work: what reading it took.
    """

    epoch: int
    shard: int
    rows: int
    nbytes: int
    queue_empty: float
    work: Work


@dataclass(frozen=True, slots=True)
class PassEvent:
    """A pass is over: after its last batch, or when another one begins, a state is loaded or the dataset closed.

    Attributes:
        epoch: the epoch.
        steps: batches that this pass delivered.
        rows: of these batches, repeats included, but not what `last_batch="pad"` adds where counts are unknown.
        complete: whether it is known that no batch of the epoch is left.
    """

    epoch: int
    steps: int
    rows: int
    complete: bool


Event: TypeAlias = BlockEvent | PassEvent


class Hooks:
    """The callbacks of one dataset. False while there are none."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Event], object]] = []

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: Callable[[Event], object]) -> None:
        """Call it with each event from now on."""
        self._callbacks.append(callback)

    def __call__(self, event: Event) -> None:
        """Report an event; what a callback raises is raised here, with a note."""
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:
                error.add_note(f"raised by a callback of dataset.on_event, for {event}")
                raise


class Recorder:
    """What a thread notes. For one thread at a time."""

    __slots__ = ("_noted", "_since", "_stage")

    def __init__(self) -> None:
        self._noted: dict[str, Any] = {}  # by attribute of `Work`
        self._stage: Stage = "decode"
        self._since = perf_counter()

    def enter(self, stage: Stage) -> Stage:
        """Count the time from now on to this stage; the stage that ends."""
        now, before = perf_counter(), self._stage
        self._noted[before] = self._noted.get(before, 0.0) + now - self._since
        self._stage, self._since = stage, now
        return before

    def count(self, name: Count, number: int = 1) -> None:
        """Add to a count."""
        self._noted[name] = self._noted.get(name, 0) + number

    def work(self, queue_full: float = 0.0) -> Work:
        """All that was noted up to now.

        Args:
            queue_full: seconds waited before.
        """
        self.enter(self._stage)
        return Work(**self._noted, queue_full=queue_full)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.recorder = Recorder()  # of what belongs to no block: nobody reads it


_THREAD = _Thread()


def recorder() -> Recorder:
    """Where this thread notes what it does."""
    return _THREAD.recorder


@contextmanager
def recording() -> Iterator[Recorder]:
    """Have this thread note what it does from here on in a recorder of its own."""
    before, _THREAD.recorder = _THREAD.recorder, Recorder()
    try:
        yield _THREAD.recorder
    finally:
        _THREAD.recorder = before
