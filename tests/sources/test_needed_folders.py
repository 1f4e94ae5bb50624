"""A filter on columns of folders lists only those folders that it needs, and reads the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from torch_dataloader_utils import Files, Hive, stream

DAYS, HOURS = range(1, 11), range(6)


class Counting(LocalFileSystem):  # type: ignore[misc]
    """The local disk as a store that counts what it lists."""

    protocol = "counting"
    listed: ClassVar[list[str]] = []  # equal filesystems share a client

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self.listed.append(self._strip_protocol(path))
        return super().ls(path, detail, **options)


def write(path: Path, first: int, rows: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(range(first, first + rows), pa.int64())}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten days of six hours, with two rows each."""
    root = tmp_path_factory.mktemp("days")
    for day in DAYS:
        for hour in HOURS:
            write(root / f"day={day}" / f"hour={hour}" / "a.parquet", 100 * day + 10 * hour)
    (root / "_SUCCESS").touch()
    return root


def rows(path: Any, filters: Any, **options: Any) -> list[int]:
    loader = stream(path, filters=filters, columns=["id"], num_workers=0, num_ranks=1, rank=0, **options)
    return [row for batch in loader for row in batch["id"].tolist()]


def listed(folder: Path, filters: Any, **options: Any) -> list[str]:
    """The folders that are listed, by their paths below."""
    Counting.listed.clear()
    rows(Files(str(folder), **options), filters, filesystem=Counting())
    return [Path(path).relative_to(folder).as_posix() for path in Counting.listed]


def test_only_needed_folders_are_listed(folder: Path) -> None:
    assert len(listed(folder, None)) == 1 + len(DAYS) + len(DAYS) * len(HOURS)
    day = [f"day=3/hour={hour}" for hour in HOURS]
    # The first folders show how deep the keys go.
    first = [".", "day=1", "day=1/hour=0"]
    assert sorted(listed(folder, [("day", "==", 3)])) == sorted([*first, "day=3", *day])
    assert sorted(listed(folder, [("day", "==", 3), ("id", ">", 5)])) == sorted([*first, "day=3", *day])
    for filters in ([("day", "==", 3), ("hour", "==", 2)], "day = 3 and hour = 2"):
        assert sorted(listed(folder, filters)) == [*first, "day=3", "day=3/hour=2"]
    days = [f"day={day}" for day in DAYS if day > 1]
    hours = [f"day={day}/hour=2" for day in DAYS]
    assert sorted(listed(folder, [("hour", "==", 2)])) == sorted([*first, *days, *hours])


def test_a_flat_folder_is_listed_once(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 0)
    assert listed(tmp_path, [("id", ">", 0)]) == ["."]


FILTERS: list[tuple[Any, Callable[[int, int, int], bool]]] = [
    ([("day", "==", 3)], lambda day, hour, row: day == 3),
    ([("day", ">=", 9), ("hour", "in", [1, 2])], lambda day, hour, row: day >= 9 and hour in (1, 2)),
    ([[("day", "==", 3)], [("hour", "==", 1)]], lambda day, hour, row: day == 3 or hour == 1),
    ([[("day", "==", 3)], [("id", "<", 120)]], lambda day, hour, row: day == 3 or row < 120),
    ([("hour", "!=", 5), ("day", "==", 2), ("id", ">", 211)], lambda day, hour, row: day == 2 and 211 < row < 250),
    ("day = 3 and hour > 4", lambda day, hour, row: day == 3 and hour == 5),
    ("day = 3 and id > 340", lambda day, hour, row: day == 3 and row > 340),
    ((pc.field("day") == 3) & (pc.field("hour") == 4), lambda day, hour, row: (day, hour) == (3, 4)),
    ([("day", "==", 77)], lambda day, hour, row: False),
]


@pytest.mark.parametrize(("filters", "keep"), FILTERS, ids=lambda value: "" if callable(value) else str(value))
@pytest.mark.parametrize("remote", [False, True])
def test_the_rows_are_those_of_the_filter(folder: Path, filters: Any, keep: Any, remote: bool) -> None:
    expected = [
        row
        for day in DAYS
        for hour in HOURS
        for row in range(100 * day + 10 * hour, 100 * day + 10 * hour + 2)
        if keep(day, hour, row)
    ]
    found = rows(str(folder), filters, **({"filesystem": Counting()} if remote else {}))
    assert sorted(found) == expected


@pytest.mark.parametrize(
    "options", [{"partitioning": "hive"}, {"partitioning": Hive(schema={"day": "int64"})}, {"partitioning": "auto"}]
)
def test_columns_have_the_types_that_all_folders_give_them(folder: Path, options: dict[str, Any]) -> None:
    given = {"filters": [("day", "==", 3)], "num_workers": 0, "output_format": "arrow"}
    narrow = next(iter(stream(Files(str(folder), **options), **given)))
    whole = next(iter(stream(Files(f"{folder}/**/*.parquet", **options), **given)))  # a glob is listed whole
    assert narrow.schema == whole.schema


def test_a_whole_listing_where_levels_do_not_show_it(tmp_path: Path) -> None:
    types, beside, deeper, twice = (tmp_path / name for name in ("types", "beside", "deeper", "twice"))
    for number, day in enumerate(("1", "2", "x", "y", "z")):  # of text, unless the others are left out
        write(types / f"day={day}" / "a.parquet", number)
    assert rows(str(types), [("day", "==", "1")]) == [0, 1]
    write(beside / "day=1" / "a.parquet", 0)
    write(beside / "b.parquet", 2)
    assert rows(Files(str(beside), partitioning=None), [("id", ">", 0)]) == [2, 3, 1]
    for number, name in enumerate(("day=1", "day=2/part", "day=3", "day=4")):
        write(deeper / name / "a.parquet", 2 * number)
    assert rows(str(deeper), [("day", "==", 2)]) == [2, 3]
    for number, name in enumerate(("day=1/day=2", "day=1/day=3", "day=2/day=1", "day=4/day=4")):
        write(twice / name / "a.parquet", 2 * number)
    assert rows(str(twice), [("day", "==", 2)]) == [0, 1]  # the lower folder counts


def test_a_loader_with_another_filter_lists_again(folder: Path) -> None:
    loader = stream(str(folder), filters=[("day", "==", 3)], columns=["id"], num_workers=0)
    other = loader.replace(filters=[("day", "==", 4)])
    assert next(row for batch in other for row in batch["id"].tolist()) == 400
    every = loader.replace(filters=None)
    assert len([row for batch in every for row in batch["id"].tolist()]) == 2 * len(DAYS) * len(HOURS)


def test_a_manifest_has_all_files(folder: Path, tmp_path: Path) -> None:
    manifest = str(tmp_path / "manifest.parquet")
    assert rows(Files(str(folder), manifest=manifest), [("day", "==", 3)])[0] == 300
    assert rows(Files(str(folder), manifest=manifest), [("day", "==", 4)])[0] == 400
