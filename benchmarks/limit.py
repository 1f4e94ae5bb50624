"""LIMIT: what decoding alone takes, to which benchmarks relate their figures."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq


def decode(files: Sequence[Path], columns: Sequence[str] | None = None, by_column: bool = False) -> int:
    """Decode every row group on all cores and discard it at once; returns the number of rows.

    Args:
        files: Parquet files.
        columns: to decode; None for all.
        by_column: whether each column has a call of its own.
    """
    footers = {file: pq.read_metadata(file) for file in files}
    groups = iter([(file, group) for file in files for group in range(footers[file].num_row_groups)])
    lock = threading.Lock()

    def work() -> None:
        opened: dict[Path, pq.ParquetFile] = {}
        while True:
            with lock:
                task = next(groups, None)
            if task is None:
                return
            file, group = task
            reader = opened.get(file)
            if reader is None:
                reader = opened[file] = pq.ParquetFile(file, metadata=footers[file], pre_buffer=False)
            for names in [[name] for name in reader.schema_arrow.names] if by_column else [columns]:
                reader.read_row_group(group, columns=names, use_threads=False)

    threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(footer.num_rows for footer in footers.values())
