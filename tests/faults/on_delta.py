"""Faults of the log of a Delta table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from tests.delta.by_hand import delete_rows, live, rewrite
from tests.faults import rows
from tests.faults.table import fault
from torch_dataloader_utils import DeltaDataset
from torch_dataloader_utils.errors import DamagedFileError, FileReadError

SECTION = "Delta Lake"


def _table(folder: Path) -> Path:
    write_deltalake(folder, rows.table(), configuration={"delta.enableDeletionVectors": "true"})
    return folder


def _create(folder: Path) -> Callable[[], Any]:
    return lambda: list(DeltaDataset.create_dataloader(str(folder), batch_size=rows.BATCH)[0])


@fault(
    SECTION,
    "Statistics in the log that are nested 50,000 levels deep",
    FileReadError,
    "tests/delta/test_hostile_logs.py::test_statistics_that_are_nested_without_end_are_named",
)
def nested(folder: Path) -> Callable[[], object]:
    stats = '{"numRecords":' + "[" * 50_000 + "]" * 50_000 + "}"
    rewrite(_table(folder), lambda line: line["add"].update(stats=stats) if "add" in line else None)
    return _create(folder)


@fault(
    SECTION,
    "A deletion vector with row 2^33",
    FileReadError,
    "tests/delta/test_hostile_logs.py::test_a_vector_with_a_far_row_is_an_error_in_bounded_memory",
)
def far_row(folder: Path) -> Callable[[], object]:
    (path,) = live(_table(folder))
    delete_rows(folder, {path: [1, 2**33]})
    return _create(folder)


@fault(
    SECTION,
    "A deletion vector of another number of rows than the log says",
    FileReadError,
    "tests/delta/test_hostile_logs.py::test_a_vector_of_another_number_of_rows_than_the_log_says_is_an_error",
)
def cardinality(folder: Path) -> Callable[[], object]:
    (path,) = live(_table(folder))
    delete_rows(folder, {path: [1, 3]})
    rewrite(folder, lambda line: line["add"]["deletionVector"].update(cardinality=1) if "add" in line else None, -1)
    return _create(folder)


@fault(
    SECTION,
    "A file with rows that the log calls empty",
    DamagedFileError,
    "tests/delta/test_bad_input.py::test_a_wrong_number_of_rows_is_an_error_also_zero",
)
def zero(folder: Path) -> Callable[[], object]:
    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            line["add"]["stats"] = json.dumps({**json.loads(line["add"]["stats"]), "numRecords": 0})

    rewrite(_table(folder), change)
    return _create(folder)


@fault(
    SECTION,
    "A file that the log lists by two names",
    FileReadError,
    "tests/delta/test_bad_input.py::test_a_file_listed_by_two_names_is_an_error",
)
def two_names(folder: Path) -> Callable[[], object]:
    write_deltalake(_table(folder), rows.table(1), mode="append")
    (first, _) = live(folder)
    rewrite(folder, lambda line: line["add"].update(path=f"./{first}") if "add" in line else None, -1)
    return _create(folder)
