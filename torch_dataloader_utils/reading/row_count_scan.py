"""The row count scan: one pass that counts live rows and collects the values of columns of codes, before any plan.

It reads only the columns that it needs: those of the filter, those whose null rows are dropped, and those of codes.
Ranks may share the work: each scans some of the files, and one exchange gives every rank the full result.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from torch_dataloader_utils.convert.codes import CodesLeaf
from torch_dataloader_utils.convert.columns import Ragged
from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.convert.plan import ColumnPlan
from torch_dataloader_utils.errors import PlanMismatchError, WorkerError
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.progress import Shown
from torch_dataloader_utils.reading.encoded import read_encoded
from torch_dataloader_utils.reading.labels import check_labels, counted_labels
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.schemas.columns import top_level

_LOG = logging.getLogger("torch_dataloader_utils")
_JOB_BYTES = 64 * 2**20  # estimated decoded bytes, over all columns, of the segments that a thread takes at a time
REMOTE_SCANS = 16  # reads in flight hide a remote store's latency
_LEAST_PENDING = 65_536  # values collected before they are merged

T = TypeVar("T")

Over = Callable[[int], AbstractContextManager[Shown]]
Exchange = Callable[[object], list[Any]]  # maps this rank's object to those of all ranks, by rank; a collective


@dataclass(frozen=True)
class RowCounts:
    """The result of a scan of some files.

    Attributes:
        of: digest of all files, including those of other ranks; "" if there was nothing to scan.
        live_rows: index in the list of all files -> live rows of each segment.
        values: key of a column of codes -> its distinct values over all live rows, in any order.
        labels: label -> how many live rows have it, null left out; empty if they were not counted.
        stored: index in the list of all files -> all rows of each segment; empty if they were not counted.
    """

    of: str = ""
    live_rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, pa.Array] = field(default_factory=dict)
    labels: Mapping[Any, int] = field(default_factory=dict)
    stored: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sharing:
    """How ranks share a scan: each scans files `[rank::num_ranks]`.

    Attributes:
        rank: this process's rank among those that share the work.
        num_ranks: how many share the work.
        exchange: a collective; None for a single process.
        work: what they do, for errors.
    """

    rank: int = 0
    num_ranks: int = 1
    exchange: Exchange | None = None
    work: str = "creating its loader"

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """A context, before `joined`, that reports an error to the other ranks, which would wait forever otherwise."""
        try:
            yield
        except Exception as error:
            if self.exchange is not None:
                with suppress(PlanMismatchError):  # this error matters more
                    self.exchange(f"{type(error).__name__}: {error}")
            raise

    def gathered(self, part: T) -> list[T]:
        """The parts of all ranks, by rank; no part is a string. A collective.

        Raises:
            WorkerError: another rank failed; says why.
        """
        answers = [part] if self.exchange is None else self.exchange(part)
        failed = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if isinstance(answer, str)]
        if failed:
            raise WorkerError(f"another rank failed while {self.work}: {'; '.join(failed)}")
        return answers

    def joined(self, counts: RowCounts) -> RowCounts:
        """The merged counts of all ranks, the same on each.

        Raises:
            WorkerError: another rank failed; says why.
            PlanMismatchError: ranks see different files.
        """
        if self.exchange is None:
            return counts
        answers = self.gathered(counts)
        if len({answer.of for answer in answers}) > 1:
            raise PlanMismatchError(
                f"ranks see different files to scan: their digests are {[answer.of[:8] for answer in answers]}, by "
                "rank. All ranks must see the same files, with the same filters."
            )
        live = {place: rows for answer in answers for place, rows in answer.live_rows.items()}
        values = {
            key: pa.concat_arrays([answer.values[key] for answer in answers]).unique() for key in answers[0].values
        }
        labels = sum((Counter(answer.labels) for answer in answers), Counter())
        stored = {place: rows for answer in answers for place, rows in answer.stored.items()}
        return RowCounts(counts.of, live, values, labels, stored)


def with_counts(files: Iterable[DataFile], scanned: RowCounts) -> tuple[DataFile, ...]:
    """The files with their segments' live rows; segments and files without any are dropped, as if pruned."""
    kept = []
    for place, file in enumerate(files):
        counts = scanned.live_rows[place]
        segments = tuple(
            replace(segment, live_rows=count)
            for segment, count in zip(file.layout.segments, counts, strict=True)
            if count
        )
        if segments:
            info = replace(file.info, record_count=sum(counts))
            kept.append(replace(file, info=info, layout=replace(file.layout, segments=segments, counted=True)))
    return tuple(kept)


def narrowed(spec: ScanSpec, tokens: str | None = None) -> ScanSpec:
    """The scan of only the columns that determine which rows are live and which values columns of codes have.

    Args:
        spec: the scan of the loader.
        tokens: the key of a column of lists that is needed, too; None for none.
    """
    codes = bool(spec.converter.unlearned) or tokens is not None
    decisive = {plan.key for plan in spec.converter.unlearned} | {tokens}
    decisive |= {plan.key for plan in spec.converter.plans if plan.nulls == "drop"}
    plans = tuple(plan for plan in spec.converter.plans if plan.key in decisive)
    given = [item for item in spec.given if any(_lies_in(plan, item.name) for plan in plans)]
    if codes and spec.transform is not None:
        given = list(spec.given)  # the transform returns the values
    needed = {top_level(spec.schema, item.name) for item in given} | set(spec.predicate_columns)
    # A table without columns would have no rows.
    schema = [item for item in spec.schema if item.name in needed] or [spec.schema.field(0)]
    decisive_scan = replace(
        spec,
        schema=pa.schema(schema),
        given=pa.schema(given or schema[:1]),
        transform=spec.transform if codes else None,
        converter=replace(spec.converter, plans=plans),
    )
    return read_encoded(decisive_scan, None)


def _lies_in(plan: ColumnPlan, name: str) -> bool:
    """Whether the plan's column is `name`, or a field of `name`."""
    return plan.column == name or plan.column.startswith(f"{name}.")


# ------------------------------------------------------------------------------------------------------------- scan


def scan_row_counts(
    spec: ScanSpec, files: Sequence[DataFile], sharing: Sharing, threads: int, over: Over, tokens: str | None = None
) -> RowCounts:
    """This rank's counts: the live rows of its files, and the values of columns of codes without a vocabulary.

    Args:
        spec: the scan of the loader.
        files: of all ranks.
        sharing: the ranks that share the work.
        threads: that read.
        over: shows the progress over a number of segments.
        tokens: the key of a column of lists, whose values are counted instead of rows; None for rows.

    Raises:
        FileReadError: a file cannot be read.
    """
    began = time.monotonic()
    spec = narrowed(spec, tokens)
    lists = None if tokens is None else _only(spec.converter, tokens)
    collected = {plan.key: _Distinct(plan) for plan in spec.converter.unlearned}

    def work(reader: TaskReader, file: DataFileInfo, place: int) -> int:
        return _segment(reader, file, place, collected.values(), lists)

    live = over_segments(spec, files, sharing, threads, over, work)
    counts = RowCounts(
        _digest(files),
        {place: tuple(rows) for place, rows in live.items()},
        {key: distinct.values() for key, distinct in collected.items()},
    )
    _announce(counts, time.monotonic() - began)
    return counts


def scan_stored_rows(
    spec: ScanSpec, files: Sequence[DataFile], sharing: Sharing, threads: int, over: Over
) -> RowCounts:
    """This rank's counts of all rows of each segment; arguments as of `scan_row_counts`.

    Args:
        spec: reads one column of all rows.
        files: of which it reads all rows.
        sharing: the ranks that share the work.
        threads: that read.
        over: shows the progress over a number of segments.
    """

    def work(reader: TaskReader, file: DataFileInfo, place: int) -> int:
        return reader.live(file.key, place)[0]

    stored = over_segments(spec, files, sharing, threads, over, work)
    return RowCounts(_digest(files), stored={place: tuple(rows) for place, rows in stored.items()})


def scan_labels(spec: ScanSpec, files: Sequence[DataFile], sharing: Sharing, threads: int, over: Over) -> RowCounts:
    """This rank's counts of the live rows that have each label; arguments as of `scan_row_counts`.

    Raises:
        FileReadError: a file cannot be read.
        OptionError: a label is no whole number, or there are too many.
    """
    assert spec.copies is not None
    column, counts, lock = spec.copies.column, Counter[Any](), threading.Lock()
    narrow = narrowed(spec)
    given = [item for item in narrow.given if item.name != column]
    narrow = replace(narrow, given=pa.schema([*given, narrow.schema.field(column)]), transform=None)

    def work(reader: TaskReader, file: DataFileInfo, place: int) -> int:
        rows, table = reader.live(file.key, place)
        found = counted_labels(column, table.column(column))
        with lock:
            counts.update(found)
            check_labels(column, len(counts))
        return rows

    over_segments(narrow, files, sharing, threads, over, work)
    return RowCounts(_digest(files), labels=counts)


def over_segments(
    spec: ScanSpec,
    files: Sequence[DataFile],
    sharing: Sharing,
    threads: int,
    over: Over,
    of_segment: Callable[[TaskReader, DataFileInfo, int], T],
) -> dict[int, list[T]]:
    """What a function returns for each segment of this rank's files, by the files' places in the list.

    Args:
        spec: of the readers.
        files: of all ranks.
        sharing: the ranks that share the work.
        threads: that read.
        over: shows the progress over a number of segments.
        of_segment: called with a reader, a file, and the segment's index in its layout.
    """
    places = range(sharing.rank, len(files), sharing.num_ranks)
    jobs = [(place, run) for place in places for run in runs_of_file(files[place])]
    made: dict[int, list[T]] = {place: [] for place in places}
    by_key = {files[place].info.key: files[place] for place in places}
    opened = threading.local()
    readers: list[TaskReader] = []

    def open_reader() -> None:
        opened.reader = spec.open(by_key)
        readers.append(opened.reader)

    def work(job: tuple[int, range]) -> list[T]:
        place, run = job
        return [of_segment(opened.reader, files[place].info, number) for number in run]

    try:
        with (
            over(sum(len(run) for _, run in jobs)) as shown,
            ThreadPoolExecutor(threads, "count", open_reader) as pool,
        ):
            for (place, _), found in zip(jobs, pool.map(work, jobs), strict=True):
                made[place] += found
                shown.advance(len(found))
    finally:
        for reader in readers:
            reader.close()
    return made


def _digest(files: Iterable[DataFile]) -> str:
    """Digest of what must be the same on all ranks; not of the paths, which may differ between machines."""
    digest = hashlib.sha256()
    for file in files:
        segments = [(segment.number, segment.rows) for segment in file.layout.segments]
        digest.update(repr((file.info.file_size, segments)).encode())
    return digest.hexdigest()


def runs_of_file(file: DataFile) -> Iterator[range]:
    """Ranges of the file's segments (indices in its layout), each as large as a thread takes at a time."""
    first, size = 0, 0
    for place, segment in enumerate(file.layout.segments):
        if size and size + segment.size_bytes > _JOB_BYTES:
            yield range(first, place)
            first, size = place, 0
        size += segment.size_bytes
    yield range(first, len(file.layout.segments))


def _segment(
    reader: TaskReader, file: DataFileInfo, place: int, collected: Iterable[_Distinct], lists: Converter | None
) -> int:
    """The number of live rows in a segment, or of the values in their lists; adds its values to `collected`."""
    count, rows = reader.live(file.key, place)
    for distinct in collected:
        distinct.add(rows)
    if lists is None:
        return count
    (column,) = lists.convert(rows, False, file.path).values()
    assert isinstance(column, Ragged)
    return len(column.values)


def _only(converter: Converter, key: str) -> Converter:
    """The converter of one key."""
    plans = tuple(plan for plan in converter.plans if plan.key == key)
    return replace(converter, plans=plans, stacks={}, keys=(key,), jagged={})


def _announce(counts: RowCounts, seconds: float) -> None:
    rows = sum(map(sum, counts.live_rows.values()))
    values = "".join(f"; {key}: {len(array):,} values" for key, array in counts.values.items())
    _LOG.info("counted %d file(s) in %.1f s: %d live rows%s", len(counts.live_rows), seconds, rows, values)


class _Distinct:
    """Collects the distinct values of one column; holds at most about three times as many values."""

    def __init__(self, plan: ColumnPlan) -> None:
        assert isinstance(plan.leaf, CodesLeaf)
        self._plan, self._leaf = plan, plan.leaf
        self._parts: list[pa.Array] = [pa.array([], self._leaf.type)]
        self._pending = 0
        self._lock = threading.Lock()

    def add(self, rows: pa.Table) -> None:
        """Add the values of these rows."""
        values = self._leaf.distinct(self._plan.chunks_of(rows.column(self._plan.column)))
        with self._lock:
            self._parts.append(values)
            self._pending += len(values)
            if self._pending > max(_LEAST_PENDING, 2 * len(self._parts[0])):
                self._merge()

    def values(self) -> pa.Array:
        """The values so far, each once."""
        with self._lock:
            self._merge()
            return self._parts[0]

    def _merge(self) -> None:
        self._parts = [pa.concat_arrays(self._parts).unique()]
        self._pending = 0
