"""The limit of any loader: the same columns decoded on all cores, and dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_dataloader_utils.cli.benchmark.units import ROWS, CountUnit
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage import usable_cores

_ROWS = 1 << 16  # read by one call, at least: row by row group, small ones are far slower than a loader reads them

Item = tuple[DataFile, Sequence[int]]  # a file and the numbers of segments that one thread reads, in order


@dataclass
class Decoded:
    """Rows, or another unit, decoded in so many seconds."""

    rows: int = 0
    seconds: float = 0.0

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(self.rows + other.rows, self.seconds + other.seconds)

    @property
    def rate(self) -> float:
        """Rows, or what is counted, per second."""
        return self.rows / self.seconds if self.seconds else 0.0


def decoded(source: Source, seconds: float, unit: CountUnit = ROWS) -> Decoded:
    """Decode segments on all cores for about so many seconds, again from the beginning after the last."""
    scan = source.scan
    assert isinstance(scan, ScanSpec)  # of one dataset
    work, lock, found = _items(source), threading.Lock(), Decoded()
    began = time.perf_counter()
    errors: list[Exception] = []

    def run() -> None:
        try:
            while True:
                with lock:
                    item = next(work) if not errors and time.perf_counter() - began < seconds else None
                if item is None:
                    return
                rows = _read(scan, *item, unit)
                with lock:
                    found.rows += rows
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(usable_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    found.seconds = time.perf_counter() - began
    return found


def _items(source: Source) -> Iterator[Item]:
    """The segments, a few at a time, without an end; those of a file that must be read in order together."""
    files = [file for file in source.files if file.layout.segments]
    while files:
        for file in files:
            yield from ((file, numbers) for numbers in _runs(file))


def _runs(file: DataFile) -> Iterator[list[int]]:
    """The numbers of consecutive segments with so many rows; each segment alone if its rows are not known."""
    run: list[int] = []
    rows = 0
    for segment in file.layout.segments:
        run.append(segment.number)
        rows += _ROWS if segment.rows is None else segment.rows
        if rows >= _ROWS and not file.layout.sequential:
            yield run
            run, rows = [], 0
    if run:
        yield run


def _read(scan: ScanSpec, file: DataFile, numbers: Sequence[int], unit: CountUnit) -> int:
    """Decode segments, those of a file that must be read in order one by one; returns how many rows they have."""
    schema = scan.schema
    reader = scan.opener.open(file.info, file.layout, scan.storage, scan.format_options, schema)
    rows = 0
    try:
        names = [name for name in schema.names if name in reader.schema.names]
        for run in [[number] for number in numbers] if file.layout.sequential else [numbers]:
            reader.prefetch(run)
            rows += unit.of_columns(names, reader.read(run, names))
    finally:
        reader.close()
    return rows
