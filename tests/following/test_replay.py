"""replay=: older rows beside the appended ones, the same on all ranks and after a restart, none twice in a pass."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.iceberg.helpers import compact
from tests.iceberg.test_advance import DRIVERS, SCHEMA, ids_of, open_table, rows
from torch_dataloader_utils import Appended, Follow, merge_state_dicts
from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError
from torch_dataloader_utils.following.replay import drawn


def file(path: str, records: int) -> Any:
    return SimpleNamespace(info=SimpleNamespace(path=path), file=SimpleNamespace(record_count=records))


@given(
    share=st.floats(0.01, 5), appended=st.integers(1, 1000), older=st.lists(st.integers(1, 400), max_size=30),
    key=st.integers(0, 2**63),
)  # fmt: skip
def test_no_more_files_are_drawn_than_needed(share: float, appended: int, older: list[int], key: int) -> None:
    files = [file(f"{number}.parquet", records) for number, records in enumerate(older)]
    found = drawn(share, [file("new", appended)], files, key)
    taken = [one.file.record_count for one in found.files]
    assert sum(taken[:-1]) < share * appended
    if sum(older) <= share * appended:
        assert (len(taken), found.choice) == (len(older), None)
    else:
        assert sum(taken) >= share * appended
        assert (found.choice is None) == (sum(taken) == share * appended)
    assert found == drawn(share, [file("new", appended)], files[::-1], key)


@pytest.fixture
def grown(catalog: Catalog) -> Table:
    """A table of 20 files of 100 rows: 0 to 1999."""
    made = catalog.create_table("ns.grown", schema=SCHEMA)
    for first in range(0, 2000, 100):
        made.append(rows(first, first + 100))
    return made


def split(ids: list[int], first: int) -> tuple[list[int], list[int]]:
    """The new rows, and those read again, each of which comes once."""
    again = [row for row in ids if row < first]
    assert len(set(again)) == len(again)
    return [row for row in ids if row >= first], again


@pytest.mark.parametrize("worker", DRIVERS)
def test_older_rows_come_with_the_appended_ones(grown: Table, worker: dict[str, Any]) -> None:
    loader, dataset = open_table(grown, follow=Follow(wait=0, replay=0.6), **worker)
    assert ids_of(loader) == list(range(2000))
    samples = []
    for first in (2000, 2400):
        grown.append(rows(first, first + 400))
        new, again = split(ids_of(loader), first)
        assert new == list(range(first, first + 400))
        assert 200 <= len(again) <= 280  # of three files
        samples.append(again)
    assert samples[0] != samples[1]
    assert ids_of(loader) == []
    dataset.close()


def test_few_of_the_older_files_are_read(grown: Table) -> None:
    loader, dataset = open_table(grown, follow=Follow(wait=0, replay=0.5))
    ids_of(loader)
    grown.append(rows(2000, 2400))
    ids_of(loader)
    assert len(dataset._source.files) == 1 + 2


def test_a_large_share_reads_the_whole_table(grown: Table) -> None:
    loader, _ = open_table(grown, follow=Follow(wait=0, replay=100))
    ids_of(loader)
    grown.append(rows(2000, 2010))
    assert len(ids_of(loader)) == 1010  # 1,000 of the older rows, from ten whole files
    grown.append(rows(2010, 2100))
    assert ids_of(loader) == list(range(2100))


def test_deleted_rows_are_not_read_again(grown: Table) -> None:
    loader, _ = open_table(grown, follow=Follow(wait=0, replay=100, non_appends="ignore"))
    ids_of(loader)
    grown.delete("id < 1000")
    grown.append(rows(2000, 2100))
    assert ids_of(loader) == list(range(1000, 2100))


def test_compacted_appends_are_not_read_twice(grown: Table) -> None:
    loader, _ = open_table(grown, follow=Follow(wait=0, replay=1000))
    ids_of(loader)
    grown.append(rows(2000, 2010))
    compact(grown, "id >= 1500")
    new, again = split(ids_of(loader), 2000)
    assert new == list(range(2000, 2010))
    assert again == list(range(1500))  # the compacted file may hold appended rows


def test_ranks_and_restarts_read_the_same_rows(grown: Table) -> None:
    options = {"appended": Appended(grown.metadata.current_snapshot_id, replay=0.5), "shuffle": True}
    grown.append(rows(2000, 2100))
    whole = ids_of(open_table(grown, **options)[0])
    assert split(whole, 2000)[0] == list(range(2000, 2100))
    assert 30 <= len(split(whole, 2000)[1]) <= 70
    for num_ranks in (2, 3):
        of_ranks = [
            ids_of(open_table(grown, num_ranks=num_ranks, rank=rank, num_workers=2, **options)[0])
            for rank in range(num_ranks)
        ]
        assert sorted(sum(of_ranks, [])) == whole
    for step in count():
        loader, _ = open_table(grown, **options)
        taking = iter(loader)
        done = sum((next(taking)["id"].tolist() for _ in range(step)), [])
        state = loader.state_dict()
        again, _ = open_table(grown, **options)
        again.load_state_dict(state)
        assert sorted(done + ids_of(again)) == whole
        if step == len(loader) - 1:
            break


def test_other_ranks_finish_the_pass(grown: Table) -> None:
    options = {"appended": Appended(grown.metadata.current_snapshot_id, replay=0.5)}
    grown.append(rows(2000, 2100))
    whole = ids_of(open_table(grown, **options)[0])
    done, states = [], []
    for rank in range(2):
        loader, dataset = open_table(grown, num_ranks=2, rank=rank, **options)
        taking = iter(loader)
        done += sum((next(taking)["id"].tolist() for _ in range(3)), [])
        states.append(loader.state_dict())
        dataset.close()
    state = merge_state_dicts(states)
    for rank in range(3):
        loader, _ = open_table(grown, num_ranks=3, rank=rank, **options)
        loader.load_state_dict(state)
        done += ids_of(loader)
    assert sorted(done) == whole


def test_another_share_is_another_pass(grown: Table) -> None:
    start = grown.metadata.current_snapshot_id
    grown.append(rows(2000, 2100))
    loader, _ = open_table(grown, appended=Appended(start, replay=0.5))
    next(iter(loader))
    other, _ = open_table(grown, appended=Appended(start, replay=0.4))
    with pytest.raises(CheckpointMismatchError):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "half", True])
def test_a_wrong_share_is_an_error(grown: Table, wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"replay.*a number of at least 0"):
        Appended(1, replay=wrong)
