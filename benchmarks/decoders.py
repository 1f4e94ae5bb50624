"""Compares the decoders of Parquet: `python benchmarks/decoders.py FOLDER`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from tables import write

from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage

_FORMAT = format_named("parquet")


def row_groups(path: Path) -> None:
    """Decode each row group in one call of plain pyarrow, and drop it."""
    file = pq.ParquetFile(path, pre_buffer=False)
    for number in range(file.num_row_groups):
        file.read_row_group(number, use_threads=False)


def by_engine(engine: str) -> Callable[[Path], None]:
    """A function that decodes each row group of a file as a loader does in file order, and drops it."""

    def decode(path: Path) -> None:
        info = DataFileInfo(str(path), 0)
        layout, schema = _FORMAT.layout(info, Storage(), {})
        reader = _FORMAT.open(info, layout, Storage(), {"engine": engine}, schema)
        for segment in layout.segments:
            rest = list(schema.names)
            while rest:
                names = list(reader.together(rest, segment.rows)) or rest[:1]
                reader.read([segment.number], names)
                rest = [name for name in rest if name not in set(names)]
        reader.close()

    return decode


def cpu_seconds(decode: Callable[[Path], None], paths: list[Path], repeats: int) -> float:
    """The least processor time, over all threads, of decoding all files once."""
    times = []
    for _ in range(repeats + 1):
        start = time.process_time()
        for path in paths:
            decode(path)
        times.append(time.process_time() - start)
    return min(times[1:])


def main() -> None:
    """Print each decoder's processor seconds, and plain pyarrow's divided by it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", nargs="*", default=["wide", "narrow"])
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    given = parser.parse_args()
    for name in given.tables:
        paths = sorted(write(name, given.folder).glob("*.parquet"))[: given.files]
        plain = cpu_seconds(row_groups, paths, given.repeats)
        print(f"{name:8} row groups by plain pyarrow: {plain:.3f} s")
        for engine in ("pyarrow", "auto"):
            seconds = cpu_seconds(by_engine(engine), paths, given.repeats)
            print(f"{name:8} engine={engine!r}: {seconds:.3f} s, ratio {plain / seconds:.2f}")


if __name__ == "__main__":
    main()
