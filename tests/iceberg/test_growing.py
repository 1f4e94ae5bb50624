"""What is appended to a table that is also compacted and changed: each appended row is new exactly once."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.iceberg.conftest import sql_config
from tests.iceberg.helpers import compact
from torch_dataloader_utils import Appended, IcebergDataset
from torch_dataloader_utils.errors import OptionError, SnapshotError

SCHEMA = pa.schema({"id": pa.int64()})


def rows(begin: int, end: int) -> pa.Table:
    return pa.table({"id": range(begin, end)}, schema=SCHEMA)


def opened(table: Table, num_ranks: int = 1, rank: int = 0, **options: Any) -> tuple[Any, IcebergDataset]:
    return IcebergDataset.create_dataloader(
        table, **{"num_ranks": num_ranks, "rank": rank, "batch_size": 3, "num_workers": 0, **options}
    )


def ids_of(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A table "ns.t" of the rows 0 to 19."""
    made = catalog.create_table("ns.t", schema=SCHEMA)
    made.append(rows(0, 20))
    return made


def change(table: Table, action: str, begin: int) -> range:
    """Change the table. Returns the ids of the rows that were appended."""
    if action == "append":
        table.append(rows(begin, begin + 5))
        return range(begin, begin + 5)
    if action == "delete":
        table.delete(f"id == {len(table.snapshots())}")  # another row each time: rewrites a file
    elif action == "compact":
        compact(table)
    else:
        compact(table, f"id >= {begin - 7}")
    return range(0)


# ------------------------------------------------------------------------------------------------------ each row once


@settings(max_examples=8, deadline=None)
@given(
    actions=st.lists(
        st.sampled_from(["append", "append", "compact", "compact newest", "delete", "advance"]), min_size=2, max_size=6
    ),
    num_workers=st.sampled_from([0, 2]),
    shuffle=st.booleans(),
)
def test_each_appended_row_is_new_exactly_once(actions: list[str], num_workers: int, shuffle: bool) -> None:
    """Whatever else is committed, under 1, 2 and 3 ranks."""
    options = {"num_workers": num_workers, "shuffle": shuffle}
    with tempfile.TemporaryDirectory() as folder, SqlCatalog("test", **sql_config(Path(folder))) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", schema=SCHEMA)
        table.append(rows(0, 10))
        ranks = {size: [opened(table, size, rank, **options) for rank in range(size)] for size in (1, 2, 3)}
        new: list[int] = []
        end = 10
        for action in [*actions, "advance"]:
            if action != "advance":
                appended = change(table, action, end)
                new, end = [*new, *appended], end + len(appended)
                continue
            for loaders in ranks.values():
                newer = {dataset.advance(appended_only=True, non_appends="ignore") for _, dataset in loaders}
                if newer == {True}:
                    assert sorted(ids_of(batch for loader, _ in loaders for batch in loader)) == new
                else:
                    assert newer == {False}
                    assert new == []
            new = []


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 2), (1, 3)], ids="{0[0]} to {0[1]} ranks".format)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_appended_rows_resume_at_every_step_though_compacted_since(
    table: Table, sizes: tuple[int, int], num_workers: int
) -> None:
    before, after = sizes
    options = {"num_workers": num_workers, "sharding": "contiguous"}  # steps for every rank
    loaders = [opened(table, before, rank, **options) for rank in range(before)]
    table.append(rows(20, 32))
    compact(table)
    table.append(rows(32, 40))
    for _, dataset in loaders:
        dataset.advance(appended_only=True)
    compact(table)
    table.append(rows(40, 50))
    passes = [iter(loader) for loader, _ in loaders]
    read: list[int] = []
    for _ in range(min(len(loader) for loader, _ in loaders)):
        states = [json.loads(json.dumps(loader.state_dict())) for loader, _ in loaders]
        again = [opened(table, after, rank, **options) for rank in range(after)]
        for loader, _ in again:
            loader.load_state_dict(states[0])
        assert sorted([*read, *ids_of(batch for loader, _ in again for batch in loader)]) == list(range(20, 40))
        read += ids_of(next(batches) for batches in passes)
    for _, dataset in again:  # the cursor came along: the next pass has what was appended since
        assert dataset.advance(appended_only=True)
    assert sorted(ids_of(batch for loader, _ in again for batch in loader)) == list(range(40, 50))


# ------------------------------------------------------------------------------------------------------- other changes


def test_other_changes_are_left_out_if_advance_says_so(table: Table) -> None:
    loader, dataset = opened(table)
    table.append(rows(20, 30))
    table.delete("id >= 8 and id < 25")  # an overwrite: rewrites both files
    table.append(rows(30, 35))
    table.delete("id >= 30")  # a delete: drops a whole file
    assert dataset.advance(appended_only=True, non_appends="ignore")
    assert ids_of(loader) == list(range(20, 35))
    assert dataset.advance() is False
    assert sorted(ids_of(loader)) == [*range(8), *range(25, 30)]


def test_an_overwrite_by_pyiceberg_appends_its_rows(table: Table) -> None:
    loader, dataset = opened(table)
    table.overwrite(rows(50, 55))
    assert dataset.advance(appended_only=True, non_appends="ignore")
    assert ids_of(loader) == list(range(50, 55))


def test_a_range_leaves_other_changes_out_too(table: Table) -> None:
    first = table.current_snapshot().snapshot_id
    table.append(rows(20, 30))
    table.delete("id < 25")
    with pytest.raises(SnapshotError, match="non_appends='ignore'"):
        opened(table, appended=Appended(first))
    loader, _ = opened(table, appended=Appended(first, non_appends="ignore"))
    assert ids_of(loader) == list(range(20, 30))


def test_a_state_of_such_a_range_is_resumed_as_it_was_read(table: Table) -> None:
    loader, dataset = opened(table)
    table.append(rows(20, 30))
    table.delete("id < 25")
    with pytest.raises(SnapshotError, match="non_appends='ignore'"):
        dataset.advance(appended_only=True)
    dataset.advance(appended_only=True, non_appends="ignore")
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    again, _ = opened(table)
    again.load_state_dict(state)
    assert ids_of([first, *again]) == list(range(20, 30))


def test_an_unknown_word_names_the_two(table: Table) -> None:
    with pytest.raises(OptionError, match=r"non_appends='skip'.*error.*ignore"):
        opened(table)[1].advance(appended_only=True, non_appends="skip")
