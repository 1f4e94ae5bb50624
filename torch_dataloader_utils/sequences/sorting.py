"""A copy of the live rows, sorted by key and time, in bounded memory: written once, in a folder on the local disk.

Rows are spread over files by ranges of (key, time), which are then sorted one by one. Keys are ordered by their hashes:
what matters is that the rows of a key are together.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options.sequences import Windows
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.progress import Shown
from torch_dataloader_utils.reading.row_count_scan import Over
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.rows import I64, stable_order
from torch_dataloader_utils.schemas.columns import top_level
from torch_dataloader_utils.schemas.merge import without_dictionaries
from torch_dataloader_utils.sequences.scan import U64, TimeColumn, keys_of_rows, live_columns
from torch_dataloader_utils.storage.file_locks import locked

_LOG = logging.getLogger("torch_dataloader_utils")

VERSION = 1  # of the form of copies
SHARE = 16 * 2**20  # bytes of rows that are sorted at a time
_MOST_FILES = 256  # that are written at a time
_GATHERED = 16 * 2**20  # bytes of rows that are spread at a time
_BATCH_ROWS = 65_536  # of a record batch of the copy
_SAMPLED = 1024  # rows of a record batch that are looked at to cut a range again
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class RowOrder:
    """By what rows are sorted.

    Attributes:
        windows: which rows are a sequence.
        time: the column of order.
    """

    windows: Windows
    time: TimeColumn

    def of(self, table: pa.Table) -> tuple[U64, npt.NDArray[Any]]:
        """The hash of the key, and the time, of each row."""
        return keys_of_rows(table, self.windows), self.time.numbers(table.column(self.time.name))


@dataclass(frozen=True)
class RangeCuts:
    """Where the ranges of rows begin, but for the first: by key, and by time within a key.

    Attributes:
        keys: hashes, uint64 [cuts], ascending.
        times: [cuts]; None: before all rows of the key.
    """

    keys: U64
    times: npt.NDArray[Any] | None = None

    def ranges(self, keys: U64, times: npt.NDArray[Any]) -> I64:
        """The number of the range of each row."""
        found = np.searchsorted(self.keys, keys, "left" if self.times is not None else "right").astype(np.int64)
        for cut, key in enumerate(self.keys if self.times is not None else ()):
            assert self.times is not None
            found[(keys == key) & (times >= self.times[cut])] = cut + 1
        return found

    @staticmethod
    def even(count: int) -> RangeCuts:
        """Ranges of hashes of one width."""
        return RangeCuts(np.array([(1 << 64) * place // count for place in range(1, count)], np.uint64))

    @staticmethod
    def of_sample(keys: U64, times: npt.NDArray[Any], count: int) -> RangeCuts:
        """Ranges with about as many of these rows each."""
        order = np.lexsort((times, keys))[np.linspace(0, len(keys), count, endpoint=False, dtype=np.int64)[1:]]
        keys, times = keys[order], times[order]
        first = np.concatenate([[True], (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])])[: len(keys)]
        return RangeCuts(keys[first], times[first])


class Spread:
    """Writes rows to a file for each range.

    Args:
        folder: of the files.
        schema: of the rows.
        order: by which rows are sorted.
        cuts: of the ranges.
    """

    def __init__(self, folder: Path, schema: pa.Schema, order: RowOrder, cuts: RangeCuts) -> None:
        self._order, self._cuts, self._schema = order, cuts, schema
        count = len(cuts.keys) + 1
        self.files = [folder / f"{place:05}" for place in range(count)]
        self.sizes = [0] * count
        self._writers = [pa.ipc.new_file(str(file), schema, options=_LZ4) for file in self.files]
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def add(self, table: pa.Table) -> None:
        """Add rows, in the order of the files."""
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _GATHERED:
            self._write()

    def close(self) -> None:
        """Write the rest."""
        self._write()
        for writer in self._writers:
            writer.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._bytes = [], 0
        ranges = self._cuts.ranges(*self._order.of(table))
        order, ends = stable_order(ranges), np.cumsum(np.bincount(ranges, minlength=len(self.files)))
        for place, (first, last) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if first < last:
                rows = table.take(pa.array(order[first:last]))
                self._writers[place].write_table(rows)
                self.sizes[place] += rows.nbytes


class SortedCopy:
    """The copy of what a loader reads.

    Args:
        scan: of the loader.
        files: what it reads.
        order: by which rows are sorted.
        folder: holds copies.
        identity: of what else decides which rows there are, as text.
        needed: columns of the top level that are read, although they may not be delivered.
    """

    def __init__(
        self,
        scan: ScanSpec,
        files: Sequence[DataFile],
        order: RowOrder,
        folder: str | os.PathLike[str],
        identity: str,
        needed: Sequence[str],
    ) -> None:
        delivered = [top_level(scan.schema, item.name) for item in scan.given if item.name not in (PLACE, SHARES)]
        self._spec = live_columns(scan, [*order.windows.keys, order.time.name], dict.fromkeys([*delivered, *needed]))
        self._files, self._order, self._folder = files, order, folder
        self._root = Path(os.path.abspath(os.path.expanduser(folder)))
        # Hidden from listings: the folder may lie within the data.
        self.name = f"_windows-{_fingerprint(self._spec, files, order.windows, identity)}"

    @property
    def path(self) -> str:
        """Its folder."""
        return str(self._root / self.name)

    @property
    def is_there(self) -> bool:
        """Whether it has been written.

        Raises:
            OptionError: other users can change what the folder holds: the rows that are read from it would be theirs.
        """
        if not self._root.is_dir():
            return False
        status = self._root.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OptionError(
                f"Windows(sort={os.fspath(self._folder)!r}): other users may write to the folder, and could change the "
                "data in it: run chmod 700 on it, or choose a folder of your own."
            )
        return os.path.isdir(self.path)

    def write(self, over: Over) -> None:
        """Write it, unless another process does; `over` shows the progress over a number of segments.

        Raises:
            OptionError: nothing can be written there.
        """
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(
                self._root / f".{self.name}.lock", look=0.05
            ):  # until the copy is written, however long that takes
                if not self.is_there:
                    self._write(over)
        except OSError as error:
            raise OptionError(
                f"Windows(sort={os.fspath(self._folder)!r}): expected a folder on a local disk with room: {error}."
            ) from error

    def _write(self, over: Over) -> None:
        began, partial = time.monotonic(), self._root / f".{self.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            with over(sum(len(file.layout.segments) for file in self._files)) as shown:
                _write(self._spec, self._files, self._order, partial, shown)
            partial.joinpath("sorted").rename(self.path)  # whole, or not there
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        seconds = time.monotonic() - began
        _LOG.info("sorted the rows of %d file(s) into %s in %.1f s", len(self._files), self.path, seconds)


def _fingerprint(spec: ScanSpec, files: Sequence[DataFile], windows: Windows, identity: str) -> str:
    """What decides which rows the copy has, and their order."""
    digest = hashlib.sha256(repr((VERSION, windows.keys, windows.order, str(spec.predicate), identity)).encode())
    digest.update(spec.schema.serialize())
    for file in files:
        info, segments = file.info, [(segment.number, segment.rows) for segment in file.layout.segments]
        digest.update(repr((info.path, info.file_size, info.version, file.partition, segments)).encode())
    return digest.hexdigest()[:16]


def _write(spec: ScanSpec, files: Sequence[DataFile], order: RowOrder, folder: Path, shown: Shown) -> None:
    """Write the copy into `folder / "sorted"`."""
    size = sum(segment.size_bytes for file in files for segment in file.layout.segments)
    count = min(_MOST_FILES, -(-size // SHARE)) if order.windows.keys else 1
    schema = pa.schema([pa.field(item.name, without_dictionaries(item.type)) for item in spec.given])
    target = folder / "sorted"
    target.mkdir(mode=0o700, parents=True)
    first = folder / "ranges"
    first.mkdir()
    spread = Spread(first, schema, order, RangeCuts.even(max(count, 1)))
    reader = TaskReader(spec, {file.info.key: file for file in files})
    try:
        for file in files:
            for place in range(len(file.layout.segments)):
                table = reader.live(file.info.key, place)[1]
                spread.add(table.cast(schema))
                shown.advance(1)
    finally:
        reader.close()
    spread.close()
    _sort(spread, order, target)


def _sort(spread: Spread, order: RowOrder, target: Path) -> None:
    """Sort the files of ranges one by one, and append them to the copy; those over their share are cut again."""
    for file, size in zip(spread.files, spread.sizes, strict=True):
        again = _cut_again(file, size, order) if size > 2 * SHARE else None
        if again is not None:
            file.unlink()
            _sort(again, order, target)
            continue
        if size:
            _sort_file(file, order, target / f"{len(os.listdir(target)):05}.arrow")
        file.unlink()


def _cut_again(file: Path, size: int, order: RowOrder) -> Spread | None:
    """The rows of a file, spread over smaller ranges; None if they have one key and one time."""
    with pa.memory_map(str(file)) as mapped:
        reader = pa.ipc.open_file(mapped)
        sampled = (_sampled(reader, place, order) for place in range(reader.num_record_batches))
        keys, times = (np.concatenate(parts) for parts in zip(*sampled, strict=True))
        cuts = RangeCuts.of_sample(keys, times, min(_MOST_FILES, -(-size // SHARE)))
        if len(np.unique(cuts.ranges(keys, times))) < 2:
            return None
        folder = file.with_name(f"{file.name}-again")
        folder.mkdir()
        spread = Spread(folder, reader.schema, order, cuts)
        for place in range(reader.num_record_batches):
            spread.add(pa.Table.from_batches([reader.get_batch(place)]))
        spread.close()
    return spread


def _sampled(reader: pa.ipc.RecordBatchFileReader, place: int, order: RowOrder) -> tuple[U64, npt.NDArray[Any]]:
    """The keys and times of some rows of a record batch."""
    batch = reader.get_batch(place).select([*order.windows.keys, order.time.name])
    rows = np.linspace(0, batch.num_rows, min(_SAMPLED, batch.num_rows), endpoint=False, dtype=np.int64)
    return order.of(pa.Table.from_batches([batch]).take(pa.array(rows)))


def _sort_file(file: Path, order: RowOrder, target: Path) -> None:
    """Write the rows of a file, sorted, to another one."""
    with pa.memory_map(str(file)) as mapped:
        table = pa.ipc.open_file(mapped).read_all().combine_chunks()
    keys, times = order.of(table)
    places = np.lexsort((times, keys))
    with pa.ipc.new_file(str(target), table.schema, options=_LZ4) as writer:
        for first in range(0, len(places), _BATCH_ROWS):
            writer.write_table(table.take(pa.array(places[first : first + _BATCH_ROWS])).combine_chunks())
