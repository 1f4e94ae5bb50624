"""loader.replace: another loader of the same listing, and loader.preview: the first rows, as a table."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from tests.iceberg.conftest import sql_config
from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import (
    Delta,
    Files,
    Iceberg,
    OptionError,
    StructuredDataset,
    StructuredLoader,
    Subsets,
    Transform,
    UnknownOptionError,
    combine,
    stream,
)

RANKS = {"num_ranks": 1, "rank": 0}
SIDES = Subsets({"train": 0.5, "val": 0.5})


def ids(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["id"].tolist()]


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """The folder is not there: who lists it or opens a file in it fails."""
    folder.rename(folder.with_name("away"))
    try:
        yield
    finally:
        folder.with_name("away").rename(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        (tmp_path / "data" / f"day={number % 2}").mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": range(number * 10, number * 10 + 10), "name": ["a", "b"] * 5})
        pq.write_table(table, tmp_path / "data" / f"day={number % 2}" / f"{number}.parquet", row_group_size=4)
    return tmp_path / "data"


def test_nothing_is_listed_or_opened_again(folder: Path) -> None:
    loader = stream(folder, subset=SIDES["train"], shuffle=True, batch_size=8, **RANKS)
    with away(folder):
        other = loader.replace(subset=SIDES["val"], shuffle=False)
    assert isinstance(other, StructuredLoader)
    assert ids(other) == ids(stream(folder, subset=SIDES["val"], batch_size=8, **RANKS)) != []
    assert sorted(ids(loader) + ids(other)) == list(range(40))
    assert other.dataset._options == stream(folder, subset=SIDES["val"], batch_size=8, **RANKS).dataset._options


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": ["name", "id"]},
        {"filters": [("day", "=", 1), ("id", ">", 15)]},
        {"limit": 7, "filters": None},
        {"transform": Transform(lambda rows: {"id": rows["id"] * 2}, format="numpy")},
        {"batch_size": 3, "last_batch": "drop", "output_format": "numpy", "num_workers": 2},
        {"split_rows": 3, "shuffle": "splits", "shuffle_seed": 7},
        {"num_ranks": 2, "rank": 1, "sharding": "contiguous"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_replaced_keyword_is_as_if_it_had_been_given(folder: Path, changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"columns": ["id", "day"], "filters": [("id", "<", 38)], "batch_size": 4, **RANKS}
    loader = stream(Files(folder, partitioning="hive"), **given)
    with away(folder):
        other = loader.replace(**changes)
    same = stream(Files(folder, partitioning="hive"), **{**given, **changes})
    assert ids(other) == ids(same) != []
    assert other.plan(1).table() == same.plan(1).table()
    assert other.state_dict() == same.state_dict()


def test_no_position_is_taken_over_and_none_is_moved(folder: Path) -> None:
    loader = stream(folder, batch_size=10, shuffle=True, **RANKS)
    loader.set_epoch(3)
    passing = iter(loader)
    first = next(passing)["id"].tolist()
    other = loader.replace(batch_size=20)
    assert other.plan().epoch == 0
    assert ids(other) == ids(stream(folder, batch_size=20, shuffle=True, **RANKS))
    rest = [row for batch in passing for row in batch["id"].tolist()]
    expected = stream(folder, batch_size=10, shuffle=True, **RANKS)
    expected.set_epoch(3)
    assert first + rest == ids(expected)


def test_a_loader_of_create_dataloader_keeps_the_fields_of_its_source(folder: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, partitioning=None, format="parquet", **RANKS)
    with away(folder):
        other = loader.replace(batch_size=2)
    assert set(next(iter(other))) == {"id", "name"}
    again = other.replace(columns=["id"])
    assert [len(batch["id"]) for batch in again] == [2] * 20
    assert set(next(iter(again))) == {"id"}


def test_damaged_files_are_looked_for_once(folder: Path) -> None:
    (folder / "day=0" / "9.parquet").write_bytes(b"PAR1 is not all PAR1")
    loader = stream(folder, on_error="skip", **RANKS)
    with away(folder):
        other = loader.replace(batch_size=2)
    assert len(other.dataset.describe().skipped) == 1
    assert sorted(ids(other)) == list(range(40))


# --------------------------------------------------------------------------------------------------------------- tables


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[tuple[SqlCatalog, dict[str, str]]]:
    config = {"name": "test", **sql_config(tmp_path)}
    with SqlCatalog(**config) as opened:
        opened.create_namespace("ns")
        table = opened.create_table("ns.t", schema=pa.schema({"id": pa.int64(), "name": pa.string()}))
        for first in (0, 10):
            table.append(pa.table({"id": range(first, first + 10), "name": ["a", "b"] * 5}))
        yield opened, config


def delta(tmp_path: Path) -> tuple[Any, Path]:
    for first in (0, 10):
        table = pa.table({"id": range(first, first + 10), "name": ["a", "b"] * 5})
        write_deltalake(tmp_path / "t", table, mode="append")
    return Delta(tmp_path / "t"), tmp_path / "t"


def log(tmp_path: Path) -> tuple[Any, Path]:
    (tmp_path / "t").mkdir()
    commit(tmp_path / "t", 1, data_file(tmp_path / "t", "a.parquet", range(10), [3]))
    return LogTable(tmp_path / "t"), tmp_path / "t"


@pytest.mark.parametrize("make", [delta, log])
def test_a_table_is_read_at_its_snapshot_without_its_log(
    make: Callable[[Path], tuple[Any, Path]], tmp_path: Path
) -> None:
    source, place = make(tmp_path)
    loader = stream(source, subset=SIDES["train"], shuffle=True, split_rows=4, **RANKS)
    with away(place):
        other = loader.replace(subset=SIDES["val"], shuffle=False)
    assert ids(other) == ids(stream(source, subset=SIDES["val"], split_rows=4, **RANKS)) != []
    assert not set(ids(other)) & set(ids(loader))
    assert len(loader.replace(columns=["id"], subset=None).dataset.schema) == 1


def test_an_iceberg_table_is_read_at_its_snapshot(catalog: Any, tmp_path: Path) -> None:
    opened, config = catalog
    by_id = Subsets({"train": 0.5, "val": 0.5}, by="id")
    table = opened.load_table("ns.t")
    data = Path(table.location().removeprefix("file://"))
    loader = stream(Iceberg("ns.t", catalog=config), subset=by_id["train"], split_rows=4, **RANKS)
    table.append(pa.table({"id": [99], "name": ["a"]}))
    with away(data):
        other = loader.replace(subset=by_id["val"])
    assert sorted(ids(loader) + ids(other)) == list(range(20))
    assert other.dataset._saved_cursor() == loader.dataset._saved_cursor()
    with away(data / "data"):  # the manifests are read again for other columns and filters, but no footer
        narrow = loader.replace(columns=["id"], filters=[("id", ">", 4)], subset=None)
    assert ids(narrow) == list(range(5, 20))
    assert loader.advance()
    newest = loader.replace(subset=None)
    assert sorted(ids(newest)) == [*range(20), 99]
    assert newest.advance() is False
    assert not loader.replace(subset=None).dataset.schema.equals(narrow.dataset.schema)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shufle": True}, UnknownOptionError, "unknown option 'shufle'.*shuffle"),
        ({"cache_dir": "x"}, UnknownOptionError, r"cache_dir='x' is now cache='x'"),
        ({"batch_size": 0}, OptionError, "batch_size=0: expected"),
        (
            {"source": "x"},
            OptionError,
            r"replace\(source=...\): a loader of other data is made by stream\(source, ...\)",
        ),
        ({"path": "x"}, OptionError, r"replace\(path=...\): .* stream\(path, ...\)"),
        ({"partitioning": None}, UnknownOptionError, r"not a keyword of stream, but of its source: stream\(Files\("),
        ({"ref": "main"}, UnknownOptionError, r"'ref' belongs to a table"),
        (
            {"on_error": "skip"},
            OptionError,
            r"replace\(on_error=...\): both loaders share .* stream\(source, on_error=",
        ),
        ({"storage_options": {"auto_mkdir": True}}, OptionError, r"replace\(storage_options=...\): both loaders share"),
    ],
)
def test_what_cannot_be_replaced_says_why(folder: Path, changes: Any, error: type[Exception], message: str) -> None:
    loader = stream(folder, **RANKS)
    with pytest.raises(error, match=message):
        loader.replace(**changes)
    assert loader.replace(on_error="raise", storage_options=None).dataset._options == loader.dataset._options


def test_a_combination_and_a_copy_say_on_what_to_call_it(folder: Path) -> None:
    loader = stream(folder, **RANKS)
    combined: Any = combine([folder, loader], **RANKS)
    combined = combined[0] if isinstance(combined, tuple) else combined
    copy = StructuredLoader(pickle.loads(pickle.dumps(loader.dataset)), loader.dataset._options)
    for call in ("replace", "preview"):
        with pytest.raises(OptionError, match=rf"{call}\(\): this loader is of a combination: call it on the loaders"):
            getattr(combined, call)()
        with pytest.raises(OptionError, match="this dataset is a copy without its listing"):
            getattr(copy, call)()


# -------------------------------------------------------------------------------------------------------------- preview


def test_preview_shows_the_first_rows_in_file_order(folder: Path) -> None:
    options: dict[str, Any] = {
        "shuffle": "all",
        "batch_size": 4,
        "even": "drop",
        "num_workers": 2,
        "filters": [("day", "=", 1)],
    }
    loader = stream(folder, num_ranks=2, rank=1, strings="codes", **options)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    head = loader.preview(n=3)
    assert head.table.to_pydict() == {"id": [10, 11, 12], "name": ["a", "b", "a"], "day": [1, 1, 1]}
    assert len(head) == 3
    assert repr(head) == "id  name  day\n10  a     1\n11  b     1\n12  a     1\n3 rows, 3 columns"
    assert "<td" in head._repr_html_()
    assert loader.state_dict() == state
    assert len(list(passing)) == len(loader) - 1
    assert loader.dataset.preview(1).table == head.table.slice(0, 1)


def test_preview_shows_rows_as_they_are_before_they_are_packed_or_collated(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 2], [3], None]}), tmp_path / "x.parquet")
    loader = stream(tmp_path, pack=4, nulls="drop", collate_fn=lambda batch: 5, transform=lambda rows: rows, **RANKS)
    assert loader.preview().table.to_pydict() == {"ids": [[1, 2], [3]]}
    assert "2 rows, 1 column" in repr(loader.preview())


def test_preview_of_no_rows_and_of_fewer_than_asked(folder: Path) -> None:
    assert repr(stream(folder, filters=[("id", "<", 0)], **RANKS).preview()).endswith("0 rows, 3 columns")
    assert stream(folder, limit=2, **RANKS).preview(100).table["id"].to_pylist() == [0, 1]
    with pytest.raises(OptionError, match=r"preview\(0\): expected a whole number of rows, at least 1"):
        stream(folder, **RANKS).preview(0)


def test_preview_of_tables(catalog: Any, tmp_path: Path) -> None:
    tables = [Iceberg("ns.t", catalog=catalog[1])]
    for make in (delta, log):
        (tmp_path / make.__name__).mkdir()
        tables.append(make(tmp_path / make.__name__)[0])
    for table in tables:
        assert stream(table, shuffle=True, **RANKS).preview(2).table["id"].to_pylist() == [0, 1]
