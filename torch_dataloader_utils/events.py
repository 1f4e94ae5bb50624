"""What reading takes: seconds and counts, recorded in the reading thread, carried by each block, given to callbacks.

While a task is executed, its thread has a `Recorder`. The recorded values leave as a `Work` with the block; a worker
process sends them in the block's message. The dataset reports them once the block is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import add, attrgetter
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Stage: TypeAlias = Literal["read", "decode", "delete", "filter", "transform", "shuffle", "convert", "pack"]
Count: TypeAlias = Literal[
    "repeats",
    "bytes_read",
    "requests",
    "retries",
    "cache_hits",
    "cache_misses",
    "cache_hit_bytes",
    "cache_miss_bytes",
    "skipped_lines",
    "bytes_decoded",
    "bytes_by_pyarrow",
]


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row for which a transform failed, if that is no error.

    Attributes:
        file: the path of its file.
        row: its number in the file as written, from 0; with a segment, in that segment.
        segment: the number of its segment, where the file does not say how many rows are before it; else None.
        kind: the name of the error's class.
        error: the message, without secrets.
        source: the dataset of a combination, by its name or number; None for a single dataset.
    """

    file: str
    row: int
    segment: int | None
    kind: str
    error: str
    source: int | str | None = None

    @property
    def where(self) -> str:
        """Where it is, in words."""
        return f"row {self.row} of {'' if self.segment is None else f'segment {self.segment} of '}{self.file}"


class PackedTokens(NamedTuple):
    """What documents were packed into, or rows that were cut into batches with a budget of tokens.

    Attributes:
        source: the dataset of a combination that all of them are of, by its name or number; else None.
        rows: of the block: sequences, tokens that are still to be cut into sequences, or batches.
        tokens: places for tokens, with padding.
        real: tokens of documents.
        trained: those of which the label is trained; None if labels are made when sequences are cut.
        unit: what there are places in.
    """

    source: int | str | None
    rows: int
    tokens: int
    real: int
    trained: int | None = None
    unit: Literal["sequences", "batches"] = "sequences"


@dataclass(frozen=True, slots=True)
class Work:
    """What it took to read a block, in the thread or process that read it.

    No second counts twice. A count is 0 if its event does not occur.

    Attributes:
        read: seconds until a remote store or the cache returned the bytes. Arrow reads local files while it decodes, so
            their reading is part of `decode`.
        decode: seconds in the format's decoder, including the conversion to the schema's columns.
        delete: seconds spent leaving out rows that a table has deleted, including the columns read to find them.
        filter: seconds in filters, and in dropping rows with nulls.
        transform: seconds in the user's `transform`.
        shuffle: seconds spent permuting the rows of shuffle windows.
        convert: seconds spent converting Arrow to the arrays of the output.
        pack: seconds in which a worker process copied the block into shared memory.
        queue_full: seconds that a thread or process waited before it read, because there was no room for another block.
        repeats: rows of the block that are repeats (padding).
        bytes_read: bytes that remote stores sent; local files are not counted.
        requests: requests to remote stores for ranges of bytes.
        retries: the number of these requests, or of those that open a file, that were repeated after a failure.
        cache_hits: blocks of bytes found in `cache=`.
        cache_misses: blocks of bytes of which some were fetched because they were not in `cache=`.
        cache_hit_bytes: those of the bytes asked for that were in `cache=`.
        cache_miss_bytes: those that were not.
        skipped_lines: bad lines left out by `on_bad_lines="skip"`.
        bytes_decoded: stored bytes of Parquet columns that the package's own decoder decoded.
        bytes_by_pyarrow: those that pyarrow decoded.
        sources: rows by dataset of a combination, as (its name or number, rows); empty for a single dataset.
        ids: ids that a `Preprocess` made, as (output, all, those of missing values, those of unknown ones).
        failed: rows for which the transform failed, if that is no error.
        tokens: of documents that were packed.
    """

    read: float = 0.0
    decode: float = 0.0
    delete: float = 0.0
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
    cache_hit_bytes: int = 0
    cache_miss_bytes: int = 0
    skipped_lines: int = 0
    bytes_decoded: int = 0
    bytes_by_pyarrow: int = 0
    sources: tuple[tuple[int | str, int], ...] = ()
    ids: tuple[tuple[str, int, int, int], ...] = ()
    failed: tuple[FailedRow, ...] = ()
    tokens: tuple[PackedTokens, ...] = ()

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, _values_of(self), _values_of(other)))


_values_of = attrgetter(*(field.name for field in fields(Work)))  # `astuple` copies each value, which takes 50 us


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block was taken from its I/O worker; batches of its rows follow.

    Attributes:
        epoch: the epoch.
        shard: the number of its I/O worker.
        rows: of the block, including repeats; for the first block of a resumed pass, those not delivered before.
        nbytes: decoded bytes of the block, measured.
        queue_empty: seconds for which the loop waited for it. In-line (`num_workers=0`), this is the reading itself.
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
    """A pass ended: after its last batch, or because another one begins, a state is loaded or the dataset is closed.

    Attributes:
        epoch: the epoch.
        steps: batches that this pass delivered.
        rows: of these batches, including repeats, except those that `last_batch="pad"` adds if counts are unknown.
        complete: True if no batch of the epoch is known to be left.
    """

    epoch: int
    steps: int
    rows: int
    complete: bool


@dataclass(frozen=True, slots=True)
class RowFailedEvent:
    """A transform failed for a row, and `Transform(on_error=)` goes on without it.

    Attributes:
        epoch: the epoch.
        row: the row, and its error.
    """

    epoch: int
    row: FailedRow


@dataclass(frozen=True, slots=True)
class UnreadFilesEvent:
    """Files of a folder that is followed, which no pass will read: on the rank that lists the folder.

    Attributes:
        reason: "changed" if they have changed since they were read; "late" if they came to a folder that is forgotten.
        names: the changed files, or the folder of the late ones, below the path.
        files: how many there are; of late ones at least so many.
    """

    reason: Literal["changed", "late"]
    names: tuple[str, ...]
    files: int


Event: TypeAlias = BlockEvent | PassEvent | RowFailedEvent | UnreadFilesEvent


class Hooks:
    """The callbacks of one dataset."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Event], object]] = []

    def add(self, callback: Callable[[Event], object]) -> None:
        """Call it with each event from now on."""
        self._callbacks.append(callback)

    def __call__(self, event: Event) -> None:
        """Report an event. An exception of a callback is raised here, with a note."""
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:
                error.add_note(f"raised by a callback of dataset.on_event, for {event}")
                raise


class Recorder:
    """What a thread records. For one thread at a time."""

    __slots__ = ("_failed", "_ids", "_noted", "_since", "_stage")

    def __init__(self) -> None:
        self._noted: dict[str, Any] = {}  # by attribute of `Work`
        self._ids: dict[str, list[int]] = {}  # by output
        self._failed: list[FailedRow] = []
        self._stage: Stage = "decode"
        self._since = perf_counter()

    def enter(self, stage: Stage) -> Stage:
        """Assign the time from now on to this stage; returns the previous stage."""
        now, before = perf_counter(), self._stage
        self._noted[before] = self._noted.get(before, 0.0) + now - self._since
        self._stage, self._since = stage, now
        return before

    def count(self, name: Count, number: int = 1) -> None:
        """Add to a count."""
        self._noted[name] = self._noted.get(name, 0) + number

    def count_source(self, source: int | str, rows: int) -> None:
        """Add rows of a dataset of a combination, by its name or number."""
        self._noted["sources"] = (*self._noted.get("sources", ()), (source, rows))

    def count_ids(self, output: str, ids: int, missing: int, unknown: int) -> None:
        """Add ids of an output: all, those of missing values, and those of unknown ones."""
        counts = self._ids.setdefault(output, [0, 0, 0])
        for place, number in enumerate((ids, missing, unknown)):
            counts[place] += number

    def count_tokens(self, tokens: PackedTokens) -> None:
        """Add tokens of documents that were packed."""
        self._noted["tokens"] = (*self._noted.get("tokens", ()), tokens)

    def fail(self, row: FailedRow) -> None:
        """Add a row for which the transform failed."""
        self._failed.append(row)

    def include(self, work: Work) -> None:
        """Add the counts of work that another thread did meanwhile."""
        for name in get_args(Count):
            self.count(name, getattr(work, name))

    def pause(self) -> None:
        """Assign the time so far to its stage."""
        self.enter(self._stage)

    def resume(self) -> None:
        """Continue after `pause`: the time since then is not counted."""
        self._since = perf_counter()

    def work(self, queue_full: float = 0.0) -> Work:
        """Everything recorded so far.

        Args:
            queue_full: seconds waited before.
        """
        self.pause()
        ids = tuple((output, *counts) for output, counts in self._ids.items())
        failed = tuple(self._failed)
        return Work(**self._noted, queue_full=queue_full, ids=ids, failed=failed)  # type: ignore[arg-type]  # three counts each


class _Thread(threading.local):
    def __init__(self) -> None:
        self.recorder = Recorder()  # for work that belongs to no block: nobody reads it


_THREAD = _Thread()


def recorder() -> Recorder:
    """The recorder of this thread."""
    return _THREAD.recorder


@contextmanager
def during(stage: Stage) -> Iterator[None]:
    """Assign the time within the `with` block to this stage."""
    noted = recorder()
    before = noted.enter(stage)
    try:
        yield
    finally:
        noted.enter(before)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Give this thread a recorder of its own within the `with` block; its previous one does not count that time."""
    before, _THREAD.recorder = _THREAD.recorder, Recorder()
    before.pause()
    try:
        yield _THREAD.recorder
    finally:
        _THREAD.recorder = before
        before.resume()
