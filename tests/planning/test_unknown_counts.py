"""Plans whose row counts are known only after reading, and plans with counted live rows."""

import pytest

from tests.planning.helpers import chunk_files, data_file, make_plan, numbers
from torch_dataloader_utils.errors import CountsRequiredError


def test_unknown_counts_deal_whole_splits_and_know_no_steps() -> None:
    files = [data_file(f"{i}.csv", [None]) for i in range(5)]
    plan = make_plan(files, 2, num_shards=2, shuffle=False, last_batch="drop")
    assert (plan.exact, plan.steps(0), plan.rows(0), plan.left_out(0)) == (False, None, None, ())
    rank = plan.rank(0, 0)
    assert (rank.steps, rank.rows, rank.num_splits) == (None, None, 3)
    assert [[piece.source.file.path for piece in shard] for shard in rank.shards] == [["0.csv", "4.csv"], ["2.csv"]]
    assert all(piece.rows is None for shard in rank.shards for piece in shard)
    assert (rank.shard(0).row_count, rank.shard(0).size_bytes) == (None, 200)
    assert make_plan(files, 2, sharding="auto").sharding == "interleave"


@pytest.mark.parametrize("sharding", ["contiguous", "rotate", "strided"])
def test_policies_that_cut_rows_need_counts(sharding: str) -> None:
    files = [data_file("a", [4]), data_file("b.csv", [None])]
    with pytest.raises(CountsRequiredError, match=r"b\.csv.*count_rows=True.*interleave"):
        make_plan(files, 2, sharding=sharding)


def test_an_uncounted_filter_takes_steps_away_but_not_the_physical_rows() -> None:
    plan = make_plan(chunk_files(10, 10), 2, exact=False, sharding="contiguous", batch_size=4, num_shards=2)
    assert plan.steps(0) is None
    assert [numbers(plan, 0, rank) for rank in (0, 1)] == [list(range(10)), list(range(10))]
    # Live rows per worker are not known: rows do not move to make whole batches.
    assert [len(shard) for shard in make_plan(chunk_files(5, 5), exact=False, num_shards=2).rank(0, 0).shards] == [1, 1]


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_equal_steps_need_counts(even: str) -> None:
    for files, exact in ((chunk_files(4), False), ([data_file("a.csv", [None])], True)):
        with pytest.raises(CountsRequiredError, match=r"count_rows=True.*steps_per_epoch=n.*even='sync'"):
            make_plan(files, even=even, exact=exact)
    with pytest.raises(CountsRequiredError, match="last_batch='wrap'"):
        make_plan(chunk_files(4), last_batch="wrap", exact=False)
    assert make_plan(chunk_files(4), even="sync", exact=False).steps(0) is None


def test_live_rows_are_planned_where_they_are_counted() -> None:
    plan = make_plan([data_file("a", [4, 4, 4], live=[3, 0, 2])], 2, sharding="contiguous", batch_size=2, even="pad")
    assert [numbers(plan, 0, rank) for rank in (0, 1)] == [[0, 1], [2, 3, 4]]
    assert plan.rows(0) == [2, 3]
