"""shuffle="partition": partitions one after another, on all ranks and workers at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import Delta, Files, Follow, Iceberg, Shuffle, merge_state_dicts, stream
from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.planning.partitions import partition_ranges

HOURS = range(8, 13)  # 9 comes before 10, though not as text
NO_ROWS = np.zeros(0, np.int64)
OPTIONS: dict[str, Any] = {"batch_size": 4, "split_rows": 7, "shuffle": Shuffle("partition", window_rows=10)}


@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 5), st.integers(1, 4))
def test_a_list_gets_as_many_rows_of_a_partition_as_it_is_dealt(sizes: list[int], lists: int, block: int) -> None:
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    ranges = [partition_ranges(ends, number, lists, block) for number in range(lists)]
    for place, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True)):
        rows = range(end - size, end)
        own = [range(int(first[place]), int(last[place])) for first, last in ranges]
        assert list(itertools.chain(*own)) == list(rows)
        for number in range(lists):
            assert len(own[number]) == sum(row // block % lists == number for row in rows)


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    """A folder of hours with one to three files, and the hour of each row."""
    folder, rng, of_rows = tmp_path_factory.mktemp("hours"), random.Random(0), list[int]()
    for hour in HOURS:
        (folder / f"hour={hour}").mkdir()
        for file in range(rng.randint(1, 3)):
            rows = range(len(of_rows), len(of_rows) + rng.randint(1, 40))
            pq.write_table(pa.table({"id": rows}), folder / f"hour={hour}" / f"{file}.parquet", row_group_size=7)
            of_rows += [hour] * len(rows)
    return str(folder), of_rows


def ids(batches: Iterable[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"][batch.get("valid", slice(None))].tolist()]


def check(of_ranks: Sequence[list[int]], hours: list[int], apart: int = 1) -> None:
    """Each rank has the hours in order, and all have as many rows of each."""
    for rows in of_ranks:
        own = [hours[row] for row in rows]
        assert own == sorted(own)
    for hour in HOURS:
        counts = [sum(hours[row] <= hour for row in rows) for rows in of_ranks]
        assert max(counts) - min(counts) <= apart


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("options", [{}, {"even": "pad"}, {"even": "drop"}, {"sharding": "strided"}])
def test_all_ranks_and_workers_read_hour_by_hour(
    hours: tuple[str, list[int]], num_ranks: int, num_workers: int | None, options: dict[str, Any]
) -> None:
    path, of_rows = hours
    place = {"num_ranks": num_ranks, "num_workers": num_workers}
    loaders = [stream(path, rank=rank, **place, **OPTIONS, **options) for rank in range(num_ranks)]
    orders = []
    for epoch in range(2):
        of_ranks = []
        for loader in loaders:
            loader.set_epoch(epoch)
            of_ranks.append(ids(loader))
        check(of_ranks, of_rows)
        rows = sorted(itertools.chain(*of_ranks))
        total = len(of_rows)
        if options.get("even") == "drop":
            assert len(set(rows)) == len(rows) == total // (4 * num_ranks) * 4 * num_ranks
        else:
            assert rows == list(range(total))
        orders.append(of_ranks)
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("num_ranks", "then"), [(1, 2), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize(("num_workers", "then_workers"), [(0, 2), (2, 0), (2, 3)])
def test_what_other_ranks_resume_is_in_order_too(
    hours: tuple[str, list[int]], num_ranks: int, then: int, num_workers: int, then_workers: int
) -> None:
    path, of_rows = hours

    def loader(rank: int, of: int, workers: int) -> Any:
        return stream(path, num_ranks=of, rank=rank, num_workers=workers, even="pad", **OPTIONS)

    for steps in (1, 6, 17):
        first = [loader(rank, num_ranks, num_workers) for rank in range(num_ranks)]
        taken = [ids(itertools.islice(each, steps)) for each in first]
        state = merge_state_dicts([each.state_dict() for each in first])
        rest = []
        for rank in range(then):
            resumed = loader(rank, then, then_workers)
            resumed.load_state_dict(state)
            rest.append(ids(resumed))
        assert sorted(itertools.chain(*taken, *rest)) == list(range(len(of_rows)))
        check(taken, of_rows, apart=len(of_rows))
        check(rest, of_rows)


def test_later_laps_are_in_order_too(hours: tuple[str, list[int]]) -> None:
    path, of_rows = hours
    rows = ids(stream(path, steps_per_epoch=2 * len(of_rows) // 4, num_workers=0, **OPTIONS))
    for lap in (rows[: len(of_rows)], rows[len(of_rows) :]):
        check([lap], of_rows)
    assert rows[: len(of_rows)] != rows[len(of_rows) :]


def test_virtual_ranks_are_in_order_too(hours: tuple[str, list[int]]) -> None:
    path, of_rows = hours
    steps = []
    for num_ranks in (1, 2, 4):
        options = {**OPTIONS, "batch_size": 8 // num_ranks, "num_ranks": num_ranks, "num_workers": 0}
        loaders = [stream(path, rank=rank, canonical_ranks=4, **options) for rank in range(num_ranks)]
        of_ranks = [list(loader) for loader in loaders]
        for batches in of_ranks:  # of a batch, the rows of one virtual rank come after those of another
            check([[row for batch in batches for row in sorted(ids([batch]), key=of_rows.__getitem__)]], of_rows)
        steps.append([sorted(ids(batches)) for batches in itertools.zip_longest(*of_ranks, fillvalue={"id": NO_ROWS})])
    assert steps[0] == steps[1] == steps[2]


def test_a_folder_without_keys_is_a_partition(tmp_path: Path) -> None:
    for number, name in enumerate(("b/x", "a/y", "a/x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(10 * number, 10 * number + 10)}), tmp_path / f"{name}.parquet")
    rows = ids(stream(str(tmp_path), **OPTIONS))
    assert sorted(rows[:20]) == list(range(10, 30))
    assert set(rows[:10]) != set(range(20, 30))


def test_files_without_partitions_are_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    with pytest.raises(OptionError, match="there are no partitions"):
        stream(str(tmp_path), **OPTIONS)
    write_deltalake(str(tmp_path / "t"), pa.table({"id": range(10)}))
    with pytest.raises(OptionError, match="a table without any: there are no partitions"):
        stream(Delta(str(tmp_path / "t")), **OPTIONS)


def test_ranks_need_counts(hours: tuple[str, list[int]]) -> None:
    path, of_rows = hours
    odd = [row for row in range(len(of_rows)) if row % 2]
    odd_ids = pc.bit_wise_and(pc.field("id"), 1) == 1
    options = {**OPTIONS, "filters": odd_ids}
    check([rows := ids(stream(path, num_ranks=1, rank=0, num_workers=None, **options))], of_rows)
    assert sorted(rows) == odd
    with pytest.raises(CountsRequiredError, match="needs row counts"):
        stream(path, num_ranks=2, rank=0, **options)
    loaders = [stream(path, num_ranks=2, rank=rank, count_rows=True, num_workers=2, **options) for rank in (0, 1)]
    check([ids(loader) for loader in loaders], of_rows)


def test_tables_are_read_by_their_partitions(tmp_path: Path) -> None:
    rows = pa.table({"id": range(60), "hour": [7 + row % 4 for row in range(60)]})
    write_deltalake(str(tmp_path / "delta"), rows, partition_by=["hour"])
    config = {"name": "test", **sql_config(tmp_path)}
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "hour", LongType()))
    with SqlCatalog(**config) as catalog:
        catalog.create_namespace("ns")
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "hour"))
        catalog.create_table("ns.t", schema=schema, partition_spec=spec).append(rows)
    for source in (Delta(str(tmp_path / "delta")), Iceberg("ns.t", catalog=config)):
        found = ids(stream(source, **OPTIONS))
        assert [row % 4 for row in found] == sorted(row % 4 for row in range(60))
        assert found[:15] != list(range(0, 60, 4))


def test_rounds_of_a_folder_are_read_hour_by_hour(hours: tuple[str, list[int]]) -> None:
    path, of_rows = hours
    loader = stream(Files(path, follow=Follow(wait=0, settle=0)), **OPTIONS)
    check([rows := ids(loader)], of_rows)
    assert len(rows) == len(of_rows)
    assert ids(loader) == []
