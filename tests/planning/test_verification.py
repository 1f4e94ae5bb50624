"""The union of all ranks' plans, counted row by row."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import all_rows, data_file, data_files, make_plan, row_ids
from torch_dataloader_utils import Strided
from torch_dataloader_utils.model import Piece, Rows, Split
from torch_dataloader_utils.planning.verification import verified

OPTIONS = [
    {},
    {"shuffle": True, "buffer_rows": 7, "num_shards": 2},
    {"even": "drop"},
    {"even": "pad", "shuffle": True, "buffer_rows": 5},
    {"last_batch": "drop", "sharding": "contiguous"},
    {"last_batch": "wrap", "shuffle": True, "buffer_rows": 9},
    {"sharding": "strided"},
    {"sharding": Strided("batch"), "even": "pad"},
]

groups = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=4)


def pieces_of(plan, ranks, epoch=0):
    return {rank: list(chain.from_iterable(plan.rank(epoch, rank).shards)) for rank in range(ranks)}


@given(groups, st.integers(1, 4), st.sampled_from(OPTIONS), st.integers(0, 2))
def test_a_plan_of_the_package_has_no_fault(groups, ranks, options, epoch) -> None:
    files = [*data_files(groups), data_file("z.parquet", [ranks * 3, 5], pruned=[1])]  # rows for a step of all ranks
    plan = make_plan(files, ranks, split_rows=6, batch_size=3, **options)
    found = verified(files, pieces_of(plan, ranks, epoch), plan.left_out(epoch))
    assert found.faults == ()
    assert found.expected == len(all_rows(files)) == found.delivered + found.left_out


@given(groups, st.integers(1, 3), st.sampled_from(OPTIONS[:2]), st.data())
def test_faults_are_the_rows_not_delivered_once(groups, ranks, options, data) -> None:
    """Against a count of the rows one by one, after pieces were removed and repeated."""
    files = data_files(groups)
    plan = make_plan(files, ranks, split_rows=6, batch_size=3, **options)
    ranks_pieces = {
        rank: [piece for piece in pieces for _ in range(data.draw(st.sampled_from([1, 1, 0, 2])))]
        for rank, pieces in pieces_of(plan, ranks).items()
    }
    found = verified(files, ranks_pieces)
    times = Counter(row for pieces in ranks_pieces.values() for row in row_ids(pieces))
    wrong = {row: times[row] for row in all_rows(files) if times[row] != 1}
    listed = {(fault.path, row): fault.times for fault in found.faults for row in range(fault.start, fault.stop)}
    assert listed == wrong
    assert found.missing == sum(not count for count in wrong.values())
    assert found.repeated == sum(count - 1 for count in wrong.values() if count)
    for fault in found.faults:
        holding = {rank for rank, pieces in ranks_pieces.items() if (fault.path, fault.start) in row_ids(pieces)}
        assert holding <= set(fault.ranks)
        assert bool(fault.ranks) == bool(fault.times)


def test_a_fault_names_the_row_groups_that_hold_it() -> None:
    file = data_file("a", [10, 10, 10], pruned=[1])
    split = Split(file.info, Rows(0, 10), (0, 1), index=0)
    found = verified([file], {0: [Piece(split, Rows(0, 8))]})
    assert [(fault.start, fault.stop, fault.times, fault.segments) for fault in found.faults] == [
        (8, 10, 0, (0,)),
        (20, 30, 0, (2,)),
    ]


@pytest.mark.parametrize(("shards", "times"), [([(0, 2)], [0]), ([(0, 3), (2, 3)], [2])])
def test_segments_are_counted_where_rows_are_unknown(shards, times) -> None:
    file = data_file("a.csv", [None, None, None])
    pieces = [Piece(Split(file.info, None, place, index=number), None) for number, place in enumerate(shards)]
    found = verified([file], {0: pieces})
    assert (found.unit, found.expected) == ("segment", 3)
    assert [(fault.start, fault.stop, fault.times) for fault in found.faults] == [(2, 3, each) for each in times]


def test_rows_both_delivered_and_left_out_are_a_fault() -> None:
    file = data_file("a", [4])
    piece = Piece(Split(file.info, Rows(0, 4), (0, 1), index=0), Rows(0, 4))
    (fault,) = verified([file], {0: [piece]}, [piece]).faults
    assert (fault.start, fault.stop, fault.times) == (0, 4, 1)
