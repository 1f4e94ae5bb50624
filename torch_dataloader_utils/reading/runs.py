"""Runs: consecutive segments of a file that are decoded together, and only once for all pieces that need them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.kernels.pages import Chunks, joined
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, RowDraws, Segment, Split, split_of
from torch_dataloader_utils.reading.chosen import COPIES, RowCopies
from torch_dataloader_utils.reading.decoding import Numbers, calls_of, decoder_calls, mask_of, read_columns
from torch_dataloader_utils.reading.files import FileReader
from torch_dataloader_utils.reading.places import RowOfFile, row_of_file
from torch_dataloader_utils.schemas.columns import conform, constant
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder, as_dictionaries, numbered
from torch_dataloader_utils.schemas.merge import without_dictionaries
from torch_dataloader_utils.storage import usable_cores

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.scan import ScanSpec


import os
from concurrent.futures import Future
from typing import TypeAlias

from torch_dataloader_utils.events import Work, recording
from torch_dataloader_utils.storage.waiting import DaemonThreads

_OPEN_FILES = 8  # readers kept open per thread; for windows over more files, see `_window_files`
_MOST_FILES = 4096  # open in a process, if the system allows more
_NAMED_FILES = 4  # named in a message
_TURN_VALUES = 1 << 22  # that a thread decodes and gathers in some 10 ms


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments that are decoded together: `[first, last)` in the layout of a file."""

    file: FileKey
    first: int
    last: int


def runs_of(places: Sequence[tuple[FileKey, int, int]]) -> tuple[list[SegmentRun], list[int]]:
    """The runs that cover these ranges of segments, each segment once; and the index of each range's run.

    Args:
        places: file, and half-open range of its segments.
    """
    runs: list[SegmentRun] = []
    owners = [0] * len(places)
    for i in sorted(range(len(places)), key=places.__getitem__):
        key, first, last = places[i]
        if runs and runs[-1].file == key and first < runs[-1].last:
            runs[-1] = SegmentRun(key, runs[-1].first, max(last, runs[-1].last))
        else:
            runs.append(SegmentRun(key, first, last))
        owners[i] = len(runs) - 1
    return runs, owners


class RunReader:
    """Decodes runs of segments, column by column, to the types that a scan resolved; keeps the last few files open."""

    def __init__(self, spec: ScanSpec, files: Mapping[FileKey, DataFile]) -> None:
        self._spec = spec
        self._files = files
        self._readers: dict[str, FileReader] = {}
        # Consecutive pieces usually belong to one file; in another epoch, it may have other rows.
        self._last_starts: tuple[DataFile, Sequence[int]] | None = None
        self._ahead = FetchAhead()
        self.alone = spec.opener.columnar and spec.local
        self._most_open = _OPEN_FILES

    def close(self) -> None:
        """Close the open files."""
        self._ahead.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def keep_open(self, runs: Sequence[SegmentRun]) -> None:
        """Keep the files of these runs open from now on: they are read once for each of several columns."""
        self._most_open = min(max(_OPEN_FILES, len({run.file for run in runs})), _window_files())

    def announce(self, runs: Sequence[SegmentRun]) -> None:
        """Begin to fetch what these runs need from a remote store; they are decoded next, in this order."""
        if self._spec.local:
            return
        wanted: dict[FileKey, list[Segment]] = {}
        for run in runs:
            wanted.setdefault(run.file, []).extend(self.segments(run))
        self._ahead.start({self._files[key].info.path: self._fetch(key, parts) for key, parts in wanted.items()})

    def _fetch(self, key: FileKey, segments: Sequence[Segment]) -> FileFetch:
        file = self._files[key]
        numbers, size = [segment.number for segment in segments], sum(segment.size_bytes for segment in segments)
        return FileFetch(self._open(file), numbers, size, self._readers.pop(file.info.path, None))

    def draws(self, run: SegmentRun) -> RowDraws | None:
        """How often the rows of a run's file are drawn; None: each once."""
        return self._files[run.file].draws

    def layout(self, run: SegmentRun) -> FileLayout:
        """The layout of a run's file."""
        return self._files[run.file].layout

    def place(self, piece: Piece) -> tuple[FileKey, int, int]:
        """Where a piece of a split is: its file, and the half-open range of its segments."""
        split = split_of(piece)
        file = split.file.key
        if piece.rows is None:
            first, last = split.segments or (0, len(self._files[file].layout.segments))
            return file, first, last
        starts = self._starts(file)
        return (
            file,
            bisect_right(starts, piece.rows.start, hi=len(starts) - 1) - 1,
            bisect_left(starts, piece.rows.stop, hi=len(starts) - 1),
        )

    def whole(self, run: SegmentRun) -> Piece:
        """All rows of a run."""
        return Piece(Split(self._files[run.file].info, segments=(run.first, run.last)), None)

    def start(self, run: SegmentRun) -> int:
        """The plan row number of a run's first row."""
        return self._starts(run.file)[run.first]

    def _starts(self, file: FileKey) -> Sequence[int]:
        """The plan row number of each segment of a file, and the end of the last."""
        found = self._files[file]
        if self._last_starts is None or self._last_starts[0] is not found:
            self._last_starts = found, found.layout.plan_starts()
        return self._last_starts[1]

    def segments(self, run: SegmentRun) -> Sequence[Segment]:
        """The segments of a run."""
        return self._files[run.file].layout.segments[run.first : run.last]

    def where(self, runs: Sequence[SegmentRun]) -> str:
        """The source of runs, for messages: paths and segments."""
        by_file: dict[FileKey, list[int]] = {}
        for run in runs:
            by_file.setdefault(run.file, []).extend(segment.number for segment in self.segments(run))
        named = []
        for file, repeated in list(by_file.items())[:_NAMED_FILES]:
            numbers = dict.fromkeys(repeated)
            plural = "s" if len(numbers) > 1 else ""
            path = self._files[file].info.path
            named.append(f"{path}, {self._spec.opener.segment_name}{plural} {', '.join(map(str, numbers))}")
        more = f" and {len(by_file) - _NAMED_FILES} more files" if len(by_file) > _NAMED_FILES else ""
        return "; ".join(named) + more

    def rows_of(self, places: Sequence[int], runs: Sequence[SegmentRun]) -> list[tuple[str, RowOfFile]]:
        """The rows of these runs that have these places: file, and number.

        Raises:
            LookupError: there is no such row.
        """
        return [next(self._rows_at(place, runs)) for place in places]

    def _rows_at(self, place: int, runs: Sequence[SegmentRun]) -> Iterator[tuple[str, RowOfFile]]:
        assert self._spec.keys is not None
        for run in runs:
            file = self._files[run.file].info
            segments = [segment.number for segment in self.segments(run)]
            found = row_of_file(place, self._spec.keys.of(file), segments)
            if found is not None:
                yield file.path, found
        raise LookupError(f"no row of the files that were read has the place {place}")

    def in_words(self, row: tuple[str, RowOfFile]) -> str:
        """Where a row is, for messages."""
        path, (number, segment) = row
        within = "" if segment is None else f"{self._spec.opener.segment_name} {segment} of "
        return f"row {number} of {within}{path}"

    def decode(self, run: SegmentRun, schema: pa.Schema, rows: Numbers | None = None) -> pa.Table:
        """These columns of the run's rows, with the resolved types, as a table.

        Args:
            run: the segments.
            schema: the columns.
            rows: which of the run's rows: int64 [n], ascending; None for all.
        """
        return pa.Table.from_arrays(self.arrays(run, list(schema), rows=rows), schema=schema)

    def counted(self, run: SegmentRun, schema: pa.Schema, copies: RowCopies | None, epoch: int) -> pa.Table:
        """As `decode`, with the number of copies of each row in the column `COPIES`, unless `copies` is None."""
        if copies is None:
            return self.decode(run, schema)
        file, tables = self._files[run.file], []
        for place in range(run.first, run.last):  # a segment read alone shows how many rows it has
            table = self.decode(SegmentRun(run.file, place, place + 1), schema)
            number = file.layout.segments[place].number
            made = copies.counted(table.column(copies.column), file.name_hash, number, epoch)
            tables.append(table.append_column(COPIES, as_arrow(made)))
        return pa.concat_tables(tables)

    def arrays(
        self, run: SegmentRun, wanted: Sequence[pa.Field], copied: bool = False, rows: Numbers | None = None
    ) -> list[pa.ChunkedArray]:
        """These columns of the run's rows, with the resolved types; `copied` as in `columns`."""
        recorder().enter("decode")
        if rows is not None and not len(rows):
            return [conform(None, 0, item.type) for item in wanted]
        by_name = {
            item.name: column
            for items, columns in self.columns(run, wanted, copied, rows)
            for item, column in zip(items, columns, strict=True)
        }
        return [by_name[item.name] for item in wanted]

    def codes(self, runs: Sequence[SegmentRun], item: pa.Field) -> list[pa.ChunkedArray | None]:
        """A column of strings or bytes as numbers of few words, in each run: None where a decoder refused it.

        [] if it is stored otherwise in any of them, which is known before one is decoded.
        """
        if not self.holds(runs) or item.name in self._spec.partition_names:
            return []
        recorder().enter("decode")
        decoders: list[DictionaryDecoder] = []
        with ExitStack() as stack:
            for run in runs:
                reader = self._reader(self._files[run.file])
                stack.enter_context(unchanged(reader))
                numbers = [segment.number for segment in self.segments(run)]
                found = reader.codes(numbers, _as_resolved(reader, [item]))
                if not found:
                    return []
                decoders.append(found[item.name])
            return [decode() for decode in decoders]

    def holds(self, runs: Sequence[SegmentRun]) -> bool:
        """Whether `chunks` and `codes` may have some of these runs: read alone, from files that are open together."""
        return self.alone and len({run.file for run in runs}) <= self._most_open

    def chunks(self, runs: Sequence[SegmentRun], wanted: Sequence[pa.Field]) -> dict[str, Chunks]:
        """Those of the columns that `kernels.pages` decodes, of all these runs, which it `holds`."""
        items = [item for item in wanted if item.name not in self._spec.partition_names]
        parts: list[Mapping[str, Chunks]] = []
        for run in runs:
            reader = self._reader(self._files[run.file])
            numbers = [segment.number for segment in self.segments(run)]
            parts.append(reader.chunks(numbers, _as_resolved(reader, items)))
            items = [item for item in items if item.name in parts[-1]]
        if len(parts) == 1:
            return dict(parts[0])
        return {item.name: joined([part[item.name] for part in parts]) for item in items}

    @contextmanager
    def unchanged(self, runs: Sequence[SegmentRun]) -> Iterator[None]:
        """A context after which the files of these runs are checked."""
        with ExitStack() as stack:
            for file in dict.fromkeys(run.file for run in runs):
                stack.enter_context(unchanged(self._reader(self._files[file])))
            yield

    def window_turns(self, runs: Sequence[SegmentRun], wanted: Sequence[pa.Field]) -> Iterator[list[pa.Field]]:
        """The columns that a thread reads in a turn, of those of a window that it shares with others: some 10 ms."""
        rows = sum(segment.rows or 0 for run in runs for segment in self.segments(run))
        turn: list[pa.Field] = []
        for call in self.window_calls(runs, wanted):
            numbers = pt.is_primitive(call[0].type) and all(pt.is_primitive(item.type) for item in turn)
            if turn and not (numbers and (len(turn) + len(call)) * rows <= _TURN_VALUES):
                yield turn
                turn = []
            turn += call
        if turn:
            yield turn

    def window_calls(self, runs: Sequence[SegmentRun], wanted: Sequence[pa.Field]) -> Iterator[list[pa.Field]]:
        """The columns of each call that decodes these runs, one run after another, to copy them."""
        rows = sum(segment.rows or 0 for run in runs for segment in self.segments(run))
        return decoder_calls(wanted, rows, self.alone, len(runs))

    def columns(
        self, run: SegmentRun, wanted: Sequence[pa.Field], copied: bool = False, picked: Numbers | None = None
    ) -> Iterator[tuple[list[pa.Field], list[pa.ChunkedArray]]]:
        """The run's rows, or those picked, column by column as they are decoded: those of one decoder call at a time.

        Release them before the next step: their memory, still in the processor's cache, is then reused for decoding.
        If the values are only `copied`, a call decodes no more columns than stay in that cache; otherwise as many as
        the file's reader decodes best together.
        """
        reader = self._reader(self._files[run.file])
        with unchanged(reader):
            yield from self._columns(reader, run, wanted, copied, picked)

    def _columns(
        self, reader: FileReader, run: SegmentRun, wanted: Sequence[pa.Field], copied: bool, picked: Numbers | None
    ) -> Iterator[tuple[list[pa.Field], list[pa.ChunkedArray]]]:
        spec, file, segments = self._spec, self._files[run.file], self.segments(run)
        numbers = [segment.number for segment in segments]
        rows = sum(segment.rows or 0 for segment in segments)
        stored = frozenset(reader.schema.names) - spec.partition_names
        known = all(segment.rows is not None for segment in segments)
        read = [item for item in wanted if item.name in stored]
        together, rest = calls_of(reader, read, rows) if self.alone and not copied else ([], read)
        for items in (*together, *decoder_calls(rest, rows, self.alone)):
            if picked is None:
                arrays = read_columns(reader, numbers, items, self.alone)
                arrays = [self._conformed(*pair, file) for pair in zip(arrays, items, strict=True)]
            else:
                arrays = self._picked(reader, numbers, items, picked, file)
            rows, known = len(arrays[0]), True
            yield items, arrays
            del arrays
        if picked is not None:
            rows = len(picked)
        elif not known:  # rows are known only after reading, and none of the columns has been read
            rows = len(reader.read(numbers, reader.schema.names[:1])[0])
        constants = dict(file.partition)
        for item in wanted:
            if item.name in spec.partition_names:
                yield [item], [constant(constants[item.name], rows, item.type)]
            elif item.name not in stored:
                yield [item], [conform(None, rows, item.type)]

    def _picked(
        self, reader: FileReader, numbers: Sequence[int], items: Sequence[pa.Field], rows: Numbers, file: DataFile
    ) -> list[pa.ChunkedArray]:
        """Some rows of these columns: read alone where the reader can, else taken from all rows."""
        found = dict(reader.read_rows(numbers, [item.name for item in items], rows))
        rest = [item for item in items if item.name not in found]
        if rest:
            arrays = read_columns(reader, numbers, rest, self.alone)
            arrays = [self._conformed(*pair, file) for pair in zip(arrays, rest, strict=True)]
            # All in one call, because each waits for the GIL beside a busy training loop.
            taken = pa.Table.from_arrays(arrays, schema=pa.schema(rest)).filter(mask_of(rows, len(arrays[0])))
            found |= zip(taken.column_names, taken.columns, strict=True)
        return [self._conformed(found[item.name], item, file) for item in items]

    def _conformed(self, column: pa.ChunkedArray, item: pa.Field, file: DataFile) -> pa.ChunkedArray:
        """A file's column as the resolved type; encoded here if the reader cannot."""
        if column.type.equals(item.type):
            return column
        where = f"{file.info.path}: column {item.name!r}"
        if item.name not in self._spec.encoded:
            return conform(column, len(column), item.type, where)
        if as_dictionaries(column.type) != item.type:
            column = conform(column, len(column), without_dictionaries(item.type), where)
        return numbered(column, item.type)

    def _reader(self, file: DataFile) -> FileReader:
        path = file.info.path
        reader = self._ahead.take(path) or self._readers.pop(path, None) or self._open(file)()
        while len(self._readers) >= self._most_open:
            self._readers.pop(next(iter(self._readers))).close()
        self._readers[path] = reader  # the most recently used is last
        return reader

    def _open(self, file: DataFile) -> Callable[[], FileReader]:
        """A function that opens the file."""
        spec, wanted = self._spec, self._spec.schema
        if spec.partition_names:
            wanted = pa.schema([item for item in wanted if item.name not in spec.partition_names])
        return partial(spec.opener.open, file.info, file.layout, spec.storage, spec.format_options, wanted)


def _as_resolved(reader: FileReader, items: Sequence[pa.Field]) -> list[str]:
    """Those of the columns that the file has, with the resolved type."""
    schema = reader.schema
    places = [(schema.get_field_index(item.name), item) for item in items]
    return [item.name for place, item in places if place >= 0 and schema.field(place).type == item.type]


@contextmanager
def unchanged(reader: FileReader) -> Iterator[None]:
    """A context after which the file is checked: bytes of a file that changed may also fail to decode."""
    try:
        yield
    except FileReadError:
        reader.confirm()
        raise
    reader.confirm()


@lru_cache(maxsize=1)
def _window_files() -> int:
    """The number of files that a thread keeps open for a window: all threads use a quarter of what a process may."""
    try:
        import resource
    except ImportError:  # Windows
        return _OPEN_FILES
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    return max(_OPEN_FILES, most // 4 // usable_cores())


# Files of a remote store are opened, and what a task needs of them is fetched, while earlier files are decoded.


# Files of a process that are being opened or fetched. Two requests of a small file, one after the other, hide 30 ms of
# latency from a decoder that takes 2 ms.
_IN_FLIGHT = 32
# What a thread may have fetched, or be fetching, before it decodes it: files, and bytes as their footers estimate the
# decoded size. So the files of a window are requested together, not in turn. The first file is always fetched.
_FILES, _BYTES = 32, 64 << 20

OpenedReader: TypeAlias = tuple[FileReader, Work]


@dataclass(frozen=True, slots=True)
class FileFetch:
    """What a task needs of a file.

    Attributes:
        open: opens the file, unless it is open.
        segments: numbers of the segments that will be read, all columns of each.
        size: their decoded bytes, as estimated.
        reader: the open file, if it is.
    """

    open: Callable[[], FileReader]
    segments: Sequence[int]
    size: int
    reader: FileReader | None = None

    def __call__(self) -> FileReader:
        """The open file, with the bytes of these segments."""
        reader = self.reader or self.open()
        try:
            if reader.prefetch(self.segments):  # otherwise more is read later, and confirmed then
                reader.confirm()  # here, where a request holds up no decoder
        except BaseException:
            reader.close()
            raise
        return reader

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.reader is not None:
            self.reader.close()


class FetchAhead:
    """The files of a task, fetched in the order in which it reads them. For one thread at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, FileFetch] = {}
        self._started: dict[str, tuple[Future[OpenedReader], FileFetch]] = {}

    def start(self, files: Mapping[str, FileFetch]) -> None:
        """Fetch these files, by path; those of the last call that were not taken are closed."""
        self.close()
        self._waiting = dict(files)
        if len(files) > 1:  # a single file is fetched by the thread that needs it
            self._fill()

    def take(self, path: str) -> FileReader | None:
        """The file, once it has been fetched; None if it was not announced, or was taken before."""
        if path in self._waiting:
            return self._waiting.pop(path)()
        if path not in self._started:
            return None
        future, _ = self._started.pop(path)
        self._fill()
        noted = recorder()
        stage = noted.enter("read")
        try:
            reader, work = future.result()
        finally:
            noted.enter(stage)
        noted.include(work)
        return reader

    def close(self) -> None:
        """Close the files that were not taken; those that are being fetched, as soon as they are."""
        for fetch in self._waiting.values():
            fetch.close()
        for future, fetch in self._started.values():
            if future.cancel():
                fetch.close()
            else:
                future.add_done_callback(_close)
        self._waiting, self._started = {}, {}

    def _fill(self) -> None:
        used = sum(fetch.size for _, fetch in self._started.values())
        for path, fetch in list(self._waiting.items()):
            used += fetch.size
            if self._started and (len(self._started) == _FILES or used > _BYTES):
                return
            try:
                future = _pool(os.getpid()).submit(_fetched, fetch)
            except RuntimeError:  # the main thread has ended: this thread fetches what it needs
                return
            del self._waiting[path]
            self._started[path] = future, fetch


def _fetched(fetch: FileFetch) -> OpenedReader:
    """The fetched file, and what that took."""
    with recording() as noted:
        return fetch(), noted.work()


def _close(future: Future[OpenedReader]) -> None:
    if future.exception() is None:
        future.result()[0].close()


@lru_cache(maxsize=1)
def _pool(pid: int) -> DaemonThreads:
    """This process's threads that fetch files; a forked child inherits no threads, so it needs its own."""
    return DaemonThreads(_IN_FLIGHT, "files")
