"""Row groups and codecs: what decoding would gain if the Parquet files were written differently."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.source import Source

_SAMPLE_ROWS, _SAMPLE_BYTES = 1 << 18, 64 << 20
_ROW_GROUPS = (1 << 14, 1 << 16, 1 << 18)
_CODECS = ("SNAPPY", "LZ4", "ZSTD", "NONE")
GAIN = 1.15


@dataclass(frozen=True)
class Layout:
    """A way to write the sample.

    Attributes:
        row_group_rows: rows per row group.
        codec: the compression.
        bytes: the size of the file.
        rate: rows per second and core, decoded.
        as_now: whether the files are written so now.
    """

    row_group_rows: int
    codec: str
    bytes: int
    rate: float
    as_now: bool


def is_parquet(source: Source) -> bool:
    """Whether the files are Parquet, with their footers at hand."""
    return bool(source.files) and all(isinstance(file.layout.metadata, Footer) for file in source.files)


def layouts(source: Source, seconds: float, begin: Callable[[str, float], None]) -> list[Layout]:
    """A sample of the rows, written with other row groups and codecs, and decoded; first as the files are now.

    That is measured last, too, and the faster one counts: nothing may seem faster than it because it was disturbed.
    """
    sample = _sample(source)
    now = _row_group_rows(source, len(sample)), _codec(source)
    ways = list(
        dict.fromkeys([now, *((rows, now[1]) for rows in _sizes(len(sample))), *((now[0], c) for c in _CODECS)])
    )
    each = seconds / (len(ways) + 1)
    with TemporaryDirectory(prefix="tdu-bench-") as folder:
        first, *others, last = (_measured(sample, way, way == now, Path(folder), each, begin) for way in [*ways, now])
    return [max(first, last, key=lambda layout: layout.rate), *others]


def best_of(found: list[Layout], local: bool) -> Layout | None:
    """The layout that decodes fastest, if it is worth writing the files again; from a remote store, without more bytes.

    Args:
        found: the layouts, among them the current one.
        local: whether the files are on a local disk.
    """
    now = next(each for each in found if each.as_now)
    small = [each for each in found if local or each.bytes <= now.bytes]
    best = max(small, key=lambda each: each.rate)
    return best if best.rate >= GAIN * now.rate else None


def _sizes(rows: int) -> Iterator[int]:
    """Sizes of row groups that the sample is large enough to show."""
    return (size for size in _ROW_GROUPS if size <= rows)


def _sample(source: Source) -> pa.Table:
    """The first rows of the first files."""
    scan = source.scan
    assert isinstance(scan, ScanSpec)  # of one dataset
    parts: list[pa.Table] = []
    for file in source.files:
        reader = scan.opener.open(file.info, file.layout, scan.storage, scan.format_options, scan.schema)
        try:
            names = [name for name in scan.schema.names if name in reader.schema.names]
            for segment in file.layout.segments:
                parts.append(pa.table(reader.read([segment.number], names), names=names))
                if sum(map(len, parts)) >= _SAMPLE_ROWS or sum(part.nbytes for part in parts) >= _SAMPLE_BYTES:
                    return pa.concat_tables(parts, promote_options="permissive").slice(0, _SAMPLE_ROWS)
        finally:
            reader.close()
    return pa.concat_tables(parts, promote_options="permissive")


def _row_group_rows(source: Source, sample_rows: int) -> int:
    rows = [segment.rows or 0 for file in source.files for segment in file.layout.segments]
    return min(median_low(rows), sample_rows)


def _codec(source: Source) -> str:
    """The compression of the first column chunk."""
    metadata = source.files[0].layout.metadata.metadata
    codec = str(metadata.row_group(0).column(0).compression)
    return "NONE" if codec == "UNCOMPRESSED" else codec


def _measured(
    sample: pa.Table,
    way: tuple[int, str],
    as_now: bool,
    folder: Path,
    seconds: float,
    begin: Callable[[str, float], None],
) -> Layout:
    rows, codec = way
    begin(f"row groups of {rows:,}, {codec}", seconds)
    path = folder / f"{rows}-{codec}.parquet"
    pq.write_table(sample, path, row_group_size=rows, compression=codec)
    rate = _decode_rate(path, seconds)
    size = path.stat().st_size
    path.unlink()
    return Layout(rows, codec, size, rate, as_now)


def _decode_rate(path: Path, seconds: float) -> float:
    """Rows per second that one core decodes: by its own time, which other processes do not change."""
    file, rows = pq.ParquetFile(path), 0
    began, deadline = time.thread_time(), time.perf_counter() + seconds
    while not rows or time.perf_counter() < deadline:
        for number in range(file.num_row_groups):
            rows += len(file.read_row_group(number, use_threads=False))
    spent = time.thread_time() - began
    file.close()
    return rows / spent if spent else 0.0
