"""`canonical_ranks`: the same global batches for every number of ranks that divides it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.helpers import RowId, all_rows, data_files, groups, make_plan, row_ids
from torch_dataloader_utils.errors import CountsRequiredError, ShardingError
from torch_dataloader_utils.planning.plan import Plan


def lane_batches(plan: Plan, epoch: int, rank: int) -> list[list[tuple[RowId, bool]]]:
    """The batches of a rank: the same number of rows of each of its virtual ranks."""
    found = plan.rank(epoch, rank)
    each = plan.batch_rows // len(found.shards)
    lanes = [[(row, not piece.pad) for piece in shard for row in row_ids([piece])] for shard in found.shards]
    return [
        [row for lane in lanes for row in lane[step * each : (step + 1) * each]] for step in range(found.steps or 0)
    ]


@given(
    groups,
    st.sampled_from([1, 2, 4, 6]),
    st.integers(1, 3),
    st.sampled_from(["interleave", "contiguous", "strided", "rotate", "auto"]),
    st.sampled_from(["none", "drop", "pad"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    sizes: list[list[int]], virtual: int, each: int, sharding: str, even: str, shuffle: bool, buffer: int | None,
    epoch: int, workers: int,
) -> None:  # fmt: skip
    files = data_files(sizes)
    total = len(all_rows(files))
    assume(even != "drop" or total >= virtual * each)
    found = []
    for ranks in [n for n in range(1, virtual + 1) if virtual % n == 0]:
        plan = make_plan(
            files, ranks, split_rows=8, canonical_ranks=virtual, batch_size=virtual * each // ranks, num_shards=workers,
            sharding=sharding, even=even, shuffle=shuffle, buffer_rows=buffer,
        )  # fmt: skip
        by_rank = [lane_batches(plan, epoch, rank) for rank in range(ranks)]
        assert [len(batches) for batches in by_rank] == plan.steps(epoch)
        steps = max(map(len, by_rank))
        assert min(map(len, by_rank)) >= steps - 1
        assert even == "none" or len(set(plan.steps(epoch))) == 1
        found.append(
            [sorted(row for rank in by_rank for row in rank[step : step + 1] for row in row) for step in range(steps)]
        )
        assert all(len(step) == virtual * each for step in found[-1][:-1])
        real = [row for step in found[-1] for row, is_real in step if is_real]
        assert len(real) == len(set(real)) == sum(plan.rows(epoch))
        assert len(real) == (total // (virtual * each) * virtual * each if even == "drop" else total)
    assert all(steps == found[0] for steps in found)


def test_numbers_that_do_not_fit() -> None:
    files = data_files([[40]])
    with pytest.raises(ShardingError, match="one of 1, 2, 4, 8"):
        make_plan(files, 3, canonical_ranks=8, batch_size=8)
    with pytest.raises(ShardingError, match="expected one of 1, 2, 3, 6"):
        make_plan(files, 2, canonical_ranks=4, batch_size=3)
    with pytest.raises(CountsRequiredError, match="canonical_ranks"):
        make_plan(files, 2, canonical_ranks=4, batch_size=2, exact=False)
