"""Faults of JSON and CSV files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from tests.faults import rows
from tests.faults.table import fault
from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError

SECTION = "Text"
MIB = 1 << 20


@fault(
    SECTION,
    "JSON that is nested 100,000 levels deep",
    FileReadError,
    "tests/formats/test_json_nesting.py::test_no_nesting_ends_the_process_and_each_is_read_or_named",
)
def nested(folder: Path) -> Callable[[], object]:
    place = folder / "rows"
    place.mkdir()
    (place / "a.jsonl").write_text('{"id": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    return lambda: list(rows.create(place)[0])


@fault(
    SECTION,
    "300 MB of text in a gzip file of 1.5 MB",
    "every row once, within `prefetch_bytes` + 64 MiB",
    "tests/formats/test_text_limits.py::test_a_small_file_that_expands_to_much_text_is_read_in_bounded_memory",
)
def bomb(folder: Path) -> Callable[[], object]:
    place, line = folder / "rows", (json.dumps({"id": 1, "name": "x" * 1000}) + "\n").encode()
    place.mkdir()
    count = 300 * MIB // len(line)
    with gzip.open(place / "a.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(count // 1000):
            file.write(line * 1000)
    loader, _ = rows.create(place, columns=["id"], prefetch_bytes=32 * MIB)
    before = restart_peak()

    def read() -> bool:
        complete = sum(len(batch["id"]) for batch in loader) == count // 1000 * 1000
        return complete and peak_memory() - before < (32 + 64) * MIB

    return read


@fault(
    SECTION,
    "A line of 300 MB",
    FileReadError,
    "tests/formats/test_text_limits.py::test_lines_without_end_are_named_in_bounded_memory",
)
def long_line(folder: Path) -> Callable[[], object]:
    place = folder / "rows"
    place.mkdir()
    with (place / "a.jsonl").open("wb") as file:
        file.write(b'{"id": 1, "name": "')
        for _ in range(300):
            file.write(b"x" * MIB)
        file.write(b'"}\n')
    return lambda: list(rows.create(place)[0])


@fault(
    SECTION,
    "A text that is not UTF-8",
    DataLoaderUtilsError,
    "tests/formats/test_invalid_utf8.py::test_damaged_text_is_named",
)
def not_utf8(folder: Path) -> Callable[[], object]:
    place = folder / "rows"
    place.mkdir()
    (place / "a.csv").write_bytes(b"id,name\n" + b"1,good\n" * 200_000 + b"2,bad\xff\xfe\n")
    return lambda: list(rows.create(place, shuffle=False)[0])
