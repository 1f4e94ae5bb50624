"""Faults of local files and folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import rows
from tests.faults.table import fault
from torch_dataloader_utils.errors import DataNotFoundError, FileChangedError, FileReadError

SECTION = "Files"


def every_row(folder: Any, **options: Any) -> Callable[[], bool]:
    """A call that creates a loader and reads it: whether it delivers every row once."""
    return lambda: sorted(rows.ids_of(rows.create(folder, **options)[0])) == list(range(rows.ROWS))


@fault(
    SECTION,
    "A file is overwritten after the loader was created",
    FileChangedError,
    "tests/storage/test_changed_files.py::test_a_pass_ends_by_the_name_of_the_file",
)
def overwritten(folder: Path) -> Callable[[], object]:
    loader, _ = rows.create(rows.write_files(folder / "rows"))
    path = folder / "rows" / "020.parquet"
    path.write_bytes(path.read_bytes() + b"more")
    return lambda: list(loader)


@fault(
    SECTION,
    "A file is replaced by another of the same size while it is read",
    FileChangedError,
    "tests/storage/test_replaced_files.py::test_a_pass_over_a_local_file_replaced_while_it_is_read_ends",
)
def replaced(folder: Path) -> Callable[[], object]:
    place = folder / "rows"
    place.mkdir()
    path = place / "0.parquet"
    write_numbers(path, 0)
    loader, _ = rows.create(place, "inline", batch_size=1000, shuffle=False)
    iterator = iter(loader)
    next(iterator)  # a row group is read; the file stays open
    other = folder / "other"
    write_numbers(other, 1)
    assert other.stat().st_size == path.stat().st_size
    path.write_bytes(other.read_bytes())
    return lambda: list(iterator)


def write_numbers(path: Path, first: int) -> None:
    """Row groups that are read one by one, in a file whose size does not depend on the values."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = pa.array(np.arange(first, first + 280_000, dtype=np.int64))
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    pq.write_table(pa.table({"id": ids}), path, row_group_size=70_000, **options)


@fault(
    SECTION,
    "A file is removed after the loader was created",
    FileReadError,
    "tests/storage/test_changed_files.py::test_a_pass_ends_by_the_name_of_the_file",
)
def removed(folder: Path) -> Callable[[], object]:
    loader, _ = rows.create(rows.write_files(folder / "rows"))
    (folder / "rows" / "020.parquet").unlink()
    return lambda: list(loader)


@fault(
    SECTION,
    "A Parquet file is cut in the middle",
    FileReadError,
    "tests/storage/test_changed_files.py::test_a_file_that_was_cut_before_its_footer_was_read_has_changed",
)
def cut(folder: Path) -> Callable[[], object]:
    path = rows.write_files(folder / "rows") / "020.parquet"
    os.truncate(path, path.stat().st_size // 2)
    return lambda: rows.create(folder / "rows")


@fault(
    SECTION,
    'Damaged files, with `on_error="skip"`',
    "the rows of all other files; the damaged ones are listed in metrics and the verdict",
    "tests/end_to_end/test_damage.py::test_workers_deliver_what_is_left",
    "the rows of the damaged files",
)
def skipped(folder: Path) -> Callable[[], object]:
    path = rows.write_files(folder / "rows") / "020.parquet"
    os.truncate(path, path.stat().st_size // 2)
    left = [row for row in range(rows.ROWS) if row // rows.ROWS_OF_FILE != 20]
    return lambda: sorted(rows.ids_of(rows.create(folder / "rows", on_error="skip")[0])) == left


@fault(
    SECTION,
    "Links to folders: `latest -> v2`, a link to `..`, a loop",
    "every row once",
    "tests/sources/test_links.py::test_links_that_lead_back_are_not_followed",
)
def links(folder: Path) -> Callable[[], object]:
    place = rows.write_files(folder / "rows" / "v2").parent
    (place / "latest").symlink_to("v2")
    (place / "v2" / "up").symlink_to("..")
    (place / "v2" / "loop").symlink_to(".")
    return every_row(place)


@fault(
    SECTION,
    "A link that leads nowhere",
    DataNotFoundError,
    "tests/sources/test_links.py::test_a_link_that_leads_nowhere_is_an_error_unless_it_is_not_asked_for",
)
def dangling(folder: Path) -> Callable[[], object]:
    (rows.write_files(folder / "rows") / "040.parquet").symlink_to("gone")
    return lambda: rows.create(folder / "rows")


@fault(
    SECTION,
    "A FIFO and a device among the data",
    "every row once; a line names what was left out",
    "tests/sources/test_links.py::test_only_regular_files_are_read",
)
def special(folder: Path) -> Callable[[], object]:
    place = rows.write_files(folder / "rows")
    os.mkfifo(place / "pipe.parquet")
    (place / "zero.parquet").symlink_to("/dev/zero")
    return every_row(place)


@fault(
    SECTION,
    "No descriptors left (`ulimit -n 64`)",
    "every row once, or one error that names the limit",
    "tests/executors/test_file_limit.py::test_every_row_or_an_error_that_says_what_to_raise",
)
def few_descriptors(folder: Path) -> Callable[[], object]:
    import resource

    from torch_dataloader_utils.errors import DataLoaderUtilsError

    place = rows.write_files(folder / "rows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    def read() -> bool:
        try:
            return every_row(place, mode="processes by fork", num_workers=30)()
        except DataLoaderUtilsError:
            return True

    return read
