"""The policies: their table of rows per rank, their rules, and the seam for a policy of the user."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import all_rows, chunk_files, chunks, data_file, delivered, make_plan, numbers, rank_rows
from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.errors import OptionError, ShardingError
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.order import Order
from torch_dataloader_utils.planning.sharding import Policy, register_policy, shard_number, strided


def of_rank(rows: int, ranks: int, **options: object) -> list[list[int]]:
    """The rows of each rank in epoch 0, from one file of `rows` rows."""
    plan = make_plan([data_file("a", [rows])], ranks, **options)
    return [numbers(plan, 0, rank) for rank in range(ranks)]


@pytest.mark.parametrize(("rows", "ranks"), [(10, 3), (8, 2), (7, 7), (3, 5), (1000, 7)])
def test_contiguous_cuts_by_the_floor_formula(rows: int, ranks: int) -> None:
    expected = [list(range(r * rows // ranks, (r + 1) * rows // ranks)) for r in range(ranks)]
    assert of_rank(rows, ranks, sharding="contiguous") == expected


def test_contiguous_cuts_splits_at_those_rows() -> None:
    plan = make_plan(chunk_files(3, 4, 3), 2, sharding="contiguous")
    assert rank_rows(plan, 0, 0) == [("C0", 0), ("C0", 1), ("C0", 2), ("C1", 0), ("C1", 1)]
    assert rank_rows(plan, 0, 1) == [("C1", 2), ("C1", 3), ("C2", 0), ("C2", 1), ("C2", 2)]


def test_rotate_moves_on_each_epoch_and_sticks_if_told() -> None:
    plan = make_plan(chunk_files(9), 3, sharding="rotate")
    assert [numbers(plan, epoch, 0) for epoch in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]
    sticky = make_plan(chunk_files(9), 3, sharding=Rotate(stick_to_shard=True))
    assert [numbers(sticky, epoch, 1) for epoch in range(3)] == [[3, 4, 5]] * 3


def test_rotate_shuffles_the_splits_of_a_shard_anew_in_each_epoch() -> None:
    plan = make_plan(chunk_files(*[1] * 40), 2, sharding=Rotate(stick_to_shard=True), shuffle=True)
    first, second = (rank_rows(plan, epoch, 0) for epoch in (0, 1))
    assert sorted(first) == sorted(second)
    assert first != second


def test_total_shards_are_the_contiguous_cut_without_losing_rows() -> None:
    plan = make_plan(chunk_files(11), 2, sharding=Rotate(4))
    assert [[numbers(plan, epoch, rank) for rank in (0, 1)] for epoch in (0, 1, 2)] == [
        [[0, 1], [2, 3, 4]],
        [[5, 6, 7], [8, 9, 10]],
        [[0, 1], [2, 3, 4]],
    ]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 50))
def test_rotation_of_total_shards(ranks: int, rounds: int, first: int) -> None:
    total = ranks * rounds
    plain = PlanOptions(sharding=Rotate(total))
    full = PlanOptions(sharding=Rotate(total, full_rotation=True))
    for options in (plain, full):
        for epoch in range(first, first + 3):
            assert len({shard_number(PlanShape(r, ranks, epoch, options)) for r in range(ranks)}) == ranks
        met = {shard_number(PlanShape(r, ranks, e, options)) for e in range(rounds) for r in range(ranks)}
        assert met == set(range(total))
    for r in range(ranks):
        # Plain: only the shards congruent to r; full: every one, once in `total` epochs, wherever one begins.
        assert {shard_number(PlanShape(r, ranks, e, plain)) % ranks for e in range(total)} == {r}
        for begin in (0, first * total):
            met_by_rank = sorted(shard_number(PlanShape(r, ranks, begin + e, full)) for e in range(total))
            assert met_by_rank == list(range(total))


def test_strided_deals_rows_and_blocks() -> None:
    assert of_rank(8, 2, sharding="strided") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert of_rank(8, 2, sharding=Strided("batch"), batch_size=2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert of_rank(7, 2, sharding=Strided("batch"), batch_size=3) == [[0, 1, 2, 6], [3, 4, 5]]
    assert of_rank(8, 2, sharding=Strided("split_batch"), batch_size=4) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    plan = make_plan(chunk_files(8), 2, sharding=Strided("split_batch"), batch_size=4)
    assert (plan.batch_rows, plan.steps(0)) == (2, [2, 2])


def test_strided_counts_rows_over_splits() -> None:
    plan = make_plan(chunk_files(3, 1, 3), 2, sharding="strided")
    assert rank_rows(plan, 0, 0) == [("C0", 0), ("C0", 2), ("C2", 0), ("C2", 2)]
    assert rank_rows(plan, 0, 1) == [("C0", 1), ("C1", 0), ("C2", 1)]


def test_a_strided_share_is_one_piece_per_split() -> None:
    plan = make_plan(chunk_files(1000, 1000), 4, sharding=Strided("batch"), batch_size=10)
    (pieces,) = plan.rank(0, 1).shards
    assert len(pieces) == 2
    # Rows 10..20, 50..60, ... of each file.
    assert [(piece.rows.start, piece.rows.stop, piece.rows.step, piece.rows.block) for piece in pieces] == [
        (10, 980, 40, 10),
        (10, 980, 40, 10),
    ]


@pytest.mark.parametrize(("splits", "chosen"), [(11, "contiguous"), (12, "interleave")])
def test_auto_interleaves_where_each_shard_gets_two_splits(splits: int, chosen: str) -> None:
    plan = make_plan(chunk_files(*[2] * splits), 2, num_shards=3, sharding="auto")
    assert plan.sharding == chosen
    same = make_plan(chunk_files(*[2] * splits), 2, num_shards=3, sharding=chosen)
    assert [plan.rank(0, rank) for rank in (0, 1)] == [same.rank(0, rank) for rank in (0, 1)]


def test_shards_and_batches_that_do_not_fit_the_ranks() -> None:
    with pytest.raises(ShardingError, match=r"total_shards=10 with num_ranks=8.*multiple"):
        make_plan(chunk_files(20), 8, sharding=Rotate(10))
    with pytest.raises(OptionError, match="total_shards=0: expected a whole number of at least 1"):
        PlanOptions(sharding=Rotate(0))
    with pytest.raises(ShardingError, match="batch_size=5 and num_ranks=2"):
        make_plan(chunk_files(20), 2, sharding=Strided("split_batch"), batch_size=5)
    for caught in (ValueError, RuntimeError):
        with pytest.raises(caught):
            make_plan(chunk_files(20), 8, sharding=Rotate(10))


# ---------------------------------------------------------------- policies of the user


def backwards(order: Order, world: PlanShape) -> Order:
    return order.part(world.num_ranks - 1 - world.rank, world.num_ranks)


def last_splits_first(order: Order, world: PlanShape) -> Order:
    return order.every(world.num_ranks - 1 - world.rank, world.num_ranks)


def forgetful(order: Order, world: PlanShape) -> Order:
    return order.take(0, 1)


def test_a_policy_is_one_function() -> None:
    plan = make_plan(chunk_files(5, 5), 2, sharding=backwards)
    assert plan.sharding == "backwards"
    assert [rank_rows(plan, 0, rank)[0] for rank in (0, 1)] == [("C1", 0), ("C0", 0)]
    register_policy("backwards for tests", backwards)
    assert make_plan(chunk_files(5, 5), 2, sharding="backwards for tests").rank(0, 0) == plan.rank(0, 0)
    with pytest.raises(OptionError, match="the name is taken"):
        register_policy("backwards for tests", backwards)
    with pytest.raises(OptionError, match="the name is taken"):
        register_policy("auto", backwards)


@dataclass(frozen=True)
class Shifted:
    by: int
    unless: list[int] = field(default_factory=list)

    def __call__(self, order: Order, world: PlanShape) -> Order:
        by = 0 if world.num_ranks in self.unless else self.by
        return order.part((world.rank + by) % world.num_ranks, world.num_ranks)


@dataclass(frozen=True)
class Reversed:
    """Without options, which another version may have."""

    def __call__(self, order: Order, world: PlanShape) -> Order:
        return backwards(order, world)


register_policy("shifted for tests", Shifted)


def test_a_policy_with_options_is_a_dataclass() -> None:
    plan = make_plan(chunk_files(5, 5), 2, sharding=Shifted(by=1))
    assert plan.sharding == "Shifted"
    assert [rank_rows(plan, 0, rank)[0] for rank in (0, 1)] == [("C1", 0), ("C0", 0)]
    for same in (Reversed, Reversed()):
        assert make_plan(chunk_files(5, 5), 2, sharding=same).rank(0, 0) == plan.rank(0, 0)
    named = make_plan(chunk_files(5, 5), 2, sharding={"kind": "Shifted for Tests", "by": 1})
    assert (named.sharding, named.rank(0, 0)) == ("Shifted for Tests", plan.rank(0, 0))
    with pytest.raises(OptionError, match="the name is taken"):
        register_policy("SHIFTED for tests", Shifted)
    still = make_plan(chunk_files(5, 5), 2, sharding=Shifted(by=1, unless=[2]))
    assert [rank_rows(still, 0, rank)[0] for rank in (0, 1)] == [("C0", 0), ("C1", 0)]


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (Shifted, "missing 1 required positional argument: 'by'"),
        (Shifted(by={1}), "not JSON serializable.*as a plain value"),
        ({"kind": "SHIFTED for tests", "of": 1}, "has no option 'of'; it has by, unless"),
    ],
)
def test_an_option_that_cannot_be_kept_is_named(sharding: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_plan(chunk_files(5, 5), 2, sharding=sharding)


@pytest.mark.parametrize("policy", [backwards, last_splits_first, Policy(last_splits_first, deals_kept=False)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_policy_of_the_user_gets_equal_steps(policy: object, shuffle: bool) -> None:
    files = chunk_files(7, 2, 9, 1, 3)
    drop = make_plan(files, 3, sharding=policy, even="drop", batch_size=2, shuffle=shuffle)
    assert drop.steps(1) == [3, 3, 3]
    got = [row for rank in range(3) for row in rank_rows(drop, 1, rank)]
    assert len(set(got)) == 18
    pad = make_plan(files, 3, sharding=policy, even="pad", batch_size=2, shuffle=shuffle)
    assert pad.steps(1) == [4, 4, 4]
    assert sorted(row for rank in range(3) for row in rank_rows(pad, 1, rank)) == all_rows(files)


def test_a_policy_that_loses_rows_is_found_out() -> None:
    with pytest.raises(ShardingError, match="gave 2 rows to 2 ranks, expected 10"):
        make_plan(chunk_files(10), 2, sharding=forgetful).rank(0, 0)


@pytest.mark.parametrize(
    ("files", "policy"),
    [
        (chunk_files(12), lambda order, shape: order.part(0, shape.num_ranks)),
        (chunk_files(12), lambda order, shape: order.deal(0, shape.num_ranks)),
        (chunk_files(4, 4, 4), lambda order, shape: order.every(1, shape.num_ranks)),
        ([data_file(f"{i}.csv", [None]) for i in range(3)], lambda order, shape: order.every(1, shape.num_ranks)),
    ],
)
def test_a_policy_that_gives_all_ranks_the_same_rows_is_refused(files: list, policy: object) -> None:
    """As many rows as there are, but not each of them."""
    with pytest.raises(ShardingError, match="some rows to several of 3 ranks"):
        make_plan(files, 3, sharding=policy).rank(0, 0)


def test_ranks_with_more_blocks_than_others_get_equal_steps_with_padding() -> None:
    def half_to_the_first(order: Order, shape: PlanShape) -> Order:
        return order.deal(0, 2) if shape.rank == 0 else order.deal(2 * shape.rank - 1, 4)

    plan = make_plan(chunk_files(16), 3, sharding=half_to_the_first, even="pad", batch_size=2)
    assert [len(delivered(plan, 0, rank)) for rank in range(3)] == plan.steps(0) == [3, 3, 3]
    assert sorted(row for rank in range(3) for row in rank_rows(plan, 0, rank)) == all_rows(plan.files)


def test_a_policy_of_splits_needs_no_counts() -> None:
    files = [data_file(f"{i}.csv", [None]) for i in range(4)]
    plan = make_plan(files, 2, sharding=last_splits_first)
    assert chunks(plan.rank(0, 0)) == ["1.csv", "3.csv"]


def test_rows_are_left_out_before_they_are_assigned_in_turn() -> None:
    plan = make_plan(chunk_files(17), 2, sharding=Policy(strided, deals_kept=False), even="drop", batch_size=2)
    with pytest.raises(ValueError, match="deals_kept=True"):
        plan.rank(0, 0)


def test_an_unknown_name() -> None:
    with pytest.raises(OptionError, match="sharding='interleaved': expected one of 'auto', 'interleave', 'contiguous'"):
        make_plan(chunk_files(4), sharding="interleaved")


def test_rows_are_assigned_once() -> None:
    with pytest.raises(ValueError, match="cannot be assigned again"):
        make_plan(chunk_files(8), 2, sharding=lambda order, world: order.deal(0, 2).deal(world.rank, 2)).rank(0, 0)
