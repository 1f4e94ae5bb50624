"""The promises of a plan, for any data and options: every row once, equal steps, the short batch last."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.planning.helpers import (
    all_rows,
    chunk_files,
    data_file,
    data_files,
    delivered,
    groups,
    make_plan,
    rank_rows,
    real_rows,
    row_ids,
    settings_of,
)
from torch_dataloader_utils import Rotate
from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.options import parse_options, repeats_rows
from torch_dataloader_utils.planner import plan_options
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.sources.source import splits_of

Settings = tuple[int, dict[str, object]]
REPEATING = [{"even": "pad"}, {"last_batch": "pad"}, {"last_batch": "wrap"}, {"steps_per_epoch": 3}]
OTHERS = [{}, {"even": "drop"}, {"last_batch": "drop"}, {"even": "sync"}]
split_sizes = st.integers(1, 20)
epochs = st.integers(0, 6)


def planned(sizes: list[list[int]], split_rows: int, settings: Settings) -> Plan:
    ranks, options = settings
    try:
        return make_plan(data_files(sizes), ranks, split_rows=split_rows, **options)
    except (ShardingError, EmptyDatasetError):
        assume(False)
        raise


def every_rank(plan: Plan, epoch: int) -> list[list[list]]:
    return [delivered(plan, epoch, rank) for rank in range(plan.num_ranks)]


def epoch_rows(plan: Plan, epoch: int) -> list:
    """The rows of an epoch: all, or those of the shards that are read in it."""
    if plan.options.total_shards is None:
        return all_rows(plan.files)
    free = replace(plan.options, even="none", last_batch="partial")
    whole = Plan(plan.files, plan.splits, free, plan.num_ranks)
    return sorted(row for rank in range(plan.num_ranks) for row in rank_rows(whole, epoch, rank))


@given(groups, split_sizes, settings_of(even=["none"]), epochs)
def test_each_row_once_and_the_short_batch_last(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    ranks = every_rank(plan, epoch)
    assert sorted(row for batches in ranks for row in real_rows(batches)) == epoch_rows(plan, epoch)
    for batches, steps, rows in zip(ranks, plan.steps(epoch), plan.rows(epoch), strict=True):
        lengths = [len(batch) for batch in batches]
        assert all(length == plan.batch_rows for length in lengths[:-1])
        assert all(0 < length <= plan.batch_rows for length in lengths)
        assert (len(batches), sum(lengths)) == (steps, rows)


@given(groups, split_sizes, settings_of(even=["none"], last_batch=["drop", "pad", "wrap"]), epochs)
def test_last_batch(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    partial = Plan(plan.files, plan.splits, replace(plan.options, last_batch="partial"), plan.num_ranks)
    ranks, counts = every_rank(plan, epoch), partial.rows(epoch)
    drops = plan.options.last_batch == "drop"
    for rank, batches in enumerate(ranks):
        assert all(len(batch) == plan.batch_rows for batch in batches)
        full, short = divmod(counts[rank], plan.batch_rows)
        assert len(batches) == plan.steps(epoch)[rank] == full + (1 if short and not drops else 0)
        flags = [is_real for batch in batches for _, is_real in batch]
        assert flags == sorted(flags, reverse=True)
        assert sum(flags) == plan.rows(epoch)[rank]
        padding = [row for batch in batches for row, is_real in batch if not is_real]
        if plan.options.last_batch == "pad":
            # The first rows of the rank: in the plan's order, which several workers deliver in turns.
            assert set(padding) <= set(real_rows(batches))
        if plan.options.last_batch == "wrap" and padding and plan.options.num_shards == 1:
            others = [
                row
                for step in range(1, plan.num_ranks)
                for row in rank_rows(partial, epoch, (rank + step) % plan.num_ranks)
            ]
            assert padding[: len(others)] == others[: len(padding)]
    real = [row for batches in ranks for row in real_rows(batches)]
    left_out = row_ids(plan.left_out(epoch))
    assert sorted(real + left_out) == epoch_rows(plan, epoch)
    assert drops or not left_out


@given(groups, split_sizes, settings_of(even=["drop"]), epochs)
def test_even_drop(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    rows = epoch_rows(plan, epoch)
    per_step = plan.num_ranks * plan.batch_rows
    real = []
    for rank, batches in enumerate(every_rank(plan, epoch)):
        assert len(batches) == plan.steps(epoch)[rank] == len(rows) // per_step
        assert all(len(batch) == plan.batch_rows for batch in batches)
        assert all(is_real for batch in batches for _, is_real in batch)
        real += real_rows(batches)
    left_out = row_ids(plan.left_out(epoch))
    assert len(left_out) == len(rows) % per_step
    assert sorted(real + left_out) == rows


@given(groups, split_sizes, settings_of(even=["drop"], sharding=["interleave", "contiguous", "rotate", "strided"]))
def test_even_drop_leaves_every_row_out_once_before_any_twice(sizes, split_rows, settings) -> None:
    ranks, options = settings
    plan = planned(sizes, split_rows, (ranks, options | {"shuffle": True}))
    rows = all_rows(plan.files)
    count = len(rows) % (ranks * plan.batch_rows)
    assume(count)
    sweeps = [frozenset(row_ids(plan.left_out(epoch))) for epoch in range(-(-len(rows) // count))]
    assert all(len(sweep) == count for sweep in sweeps)
    assert set().union(*sweeps) == set(rows)
    assert sum(map(len, sweeps[:-1])) == len(set().union(*sweeps[:-1]))


@given(groups, split_sizes, settings_of(even=["drop"], sharding=["total_shards"]))
def test_even_drop_with_total_shards_leaves_other_rows_out_when_a_shard_comes_round(
    sizes, split_rows, settings
) -> None:
    ranks, options = settings
    plan = planned(
        sizes,
        split_rows,
        (ranks, options | {"shuffle": True, "sharding": options["sharding"].replace(full_rotation=False)}),
    )
    round_ = plan.options.total_shards // ranks
    laps = [set(row_ids(plan.left_out(lap * round_))) for lap in range(3)]
    assert not laps[0] or laps[0] != laps[1] != laps[2]


@given(groups, split_sizes, settings_of(even=["drop"]))
def test_even_drop_without_shuffle_leaves_out_the_last_rows(sizes, split_rows, settings) -> None:
    ranks, options = settings
    plan = planned(sizes, split_rows, (ranks, options | {"shuffle": False}))
    rows = epoch_rows(plan, 1)
    left_out = row_ids(plan.left_out(1))
    assert sorted(left_out) == rows[len(rows) - len(left_out) :]


@given(groups, split_sizes, settings_of(even=["pad"]), epochs)
def test_even_pad(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    rows = epoch_rows(plan, epoch)
    per_step = plan.num_ranks * plan.batch_rows
    real = []
    for rank, batches in enumerate(every_rank(plan, epoch)):
        assert len(batches) == plan.steps(epoch)[rank] == -(-len(rows) // per_step)
        assert all(len(batch) == plan.batch_rows for batch in batches)
        flags = [is_real for batch in batches for _, is_real in batch]
        assert flags == sorted(flags, reverse=True)
        mine = real_rows(batches)
        padding = Counter(row for batch in batches for row, is_real in batch if not is_real)
        if mine:
            assert set(padding) <= set(mine)
            # Cyclically: no row is repeated twice more often than another.
            assert not padding or max(padding.values()) - min(padding[row] for row in mine) <= 1
        if plan.options.unit == "row" and (len(rows) - 1) % per_step + 1 >= plan.num_ranks:
            assert all(any(is_real for _, is_real in batch) for batch in batches)
        real += mine
    assert sorted(real) == rows


@given(groups, split_sizes, settings_of(), epochs)
def test_levelling_cuts_at_most_one_split_per_rank(sizes, split_rows, settings, epoch) -> None:
    ranks, options = settings
    plan = planned(sizes, split_rows, (ranks, options | {"num_shards": 1}))
    shares = plan._shares(epoch)
    before = sum(len(list(order.runs().pieces())) for order in shares.orders)
    after = sum(len(list(shares.pieces(rank))) for rank in range(ranks))
    assert after - before <= ranks - 1
    dealt_by_rows = plan.sharding in ("contiguous", "strided") or (
        plan.sharding == "rotate" and not plan.options.total_shards
    )
    if plan.options.even == "drop" and dealt_by_rows:
        assert after == before


@given(groups, split_sizes, settings_of(), epochs, st.lists(st.integers(0, 6), max_size=3))
def test_a_plan_is_a_function_of_epoch_and_rank(sizes, split_rows, settings, epoch, asked_before) -> None:
    """Whatever was asked of a plan before, and whoever asks: ranks compute the same plan apart from each other."""
    plan = planned(sizes, split_rows, settings)
    for other in asked_before:
        plan.rank(other, other % plan.num_ranks)
        plan.left_out(other)
    for rank in range(plan.num_ranks):
        assert plan.rank(epoch, rank) == planned(sizes, split_rows, settings).rank(epoch, rank)


@given(groups, split_sizes, settings_of(even=["none"], sharding=["rotate"]), epochs)
def test_rotate_moves_whole_shards_on_by_one_rank(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    ranks = range(plan.num_ranks)
    now = [sorted(rank_rows(plan, epoch, rank)) for rank in ranks]
    assert [sorted(rank_rows(plan, epoch + 1, rank)) for rank in ranks] == now[1:] + now[:1]
    sticky = Plan(plan.files, plan.splits, replace(plan.options, sharding=Rotate(stick_to_shard=True)), plan.num_ranks)
    assert [sorted(rank_rows(sticky, epoch, rank)) for rank in ranks] == [
        sorted(rank_rows(sticky, 0, rank)) for rank in ranks
    ]


@given(groups, split_sizes, settings_of(even=["none"], sharding=["total_shards"]), epochs)
def test_total_shards_are_all_read_after_each_round(sizes, split_rows, settings, first) -> None:
    plan = planned(sizes, split_rows, settings)
    round_ = plan.options.total_shards // plan.num_ranks
    epochs = range(first * round_, (first + 1) * round_)
    got = [row for epoch in epochs for rank in range(plan.num_ranks) for row in rank_rows(plan, epoch, rank)]
    assert sorted(got) == all_rows(plan.files)


@given(groups, split_sizes, settings_of(), epochs)
def test_one_rank_is_the_single_process(sizes, split_rows, settings, epoch) -> None:
    """num_ranks=1: with one worker, every policy without shuffle is file order."""
    _, options = settings
    plan = planned(sizes, split_rows, (1, options | {"shuffle": False, "even": "none", "num_shards": 1}))
    assume(plan.options.total_shards in (None, 1))
    assert rank_rows(plan, epoch, 0) == all_rows(plan.files)


@given(groups, split_sizes, epochs)
def test_shuffle_permutes_splits_by_seed_and_epoch(sizes, split_rows, epoch) -> None:
    plan = planned(sizes, split_rows, (1, {"shuffle": True, "seed": 1}))
    (pieces,) = plan.rank(epoch, 0).shards
    assert sorted(piece.source.index for piece in pieces) == list(range(len(plan.splits)))
    assert [piece.order for piece in pieces] == list(range(len(pieces)))
    assert all(piece.rows == piece.source.row_range for piece in pieces)


def test_epochs_and_seeds_differ_without_shuffle_they_do_not() -> None:
    files = data_files([[1]] * 20)
    orders = {
        (seed, epoch): tuple(rank_rows(make_plan(files, shuffle=True, seed=seed), epoch, 0))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    plain = make_plan(files)
    assert rank_rows(plain, 0, 0) == rank_rows(plain, 5, 0) == all_rows(files)


def test_public_shards_tell_rows_and_bytes() -> None:
    files = chunk_files(10, 6)
    plan = make_plan(files, 2, sharding="contiguous", even="pad", batch_size=6)
    shard = plan.rank(0, 0).shard(0)
    assert (shard.id, shard.row_count, shard.size_bytes) == (0, 8, 80)
    assert [(split.file.path, split.row_range.start, split.row_range.stop) for split in shard.splits] == [("C0", 0, 8)]
    other = plan.rank(0, 1).shard(0)
    assert [(split.file.path, split.row_count, split.size_bytes) for split in other.splits] == [
        ("C0", 2, 20),
        ("C1", 6, 60),
    ]
    assert plan.rank(0, 1).num_splits == 2


@pytest.mark.parametrize("keywords", REPEATING + OTHERS, ids=str)
@settings(max_examples=25)
@given(sizes=groups, ranks=st.integers(1, 3), workers=st.integers(1, 3))
def test_options_announce_every_repeat(keywords, sizes, ranks, workers) -> None:
    options = parse_options({"batch_size": 2, "num_workers": workers} | keywords)
    assert repeats_rows(options) is (keywords in REPEATING)
    try:
        plan = Plan(files := data_files(sizes), splits_of(files, options.split), plan_options(options), ranks)
    except (ShardingError, EmptyDatasetError):
        assume(False)
    laps = range(1 if options.shard.steps_per_epoch is None else 3)
    pieces = [piece for rank in range(ranks) for lap in laps for s in plan.rank(0, rank, lap).shards for piece in s]
    assert repeats_rows(options) or not any(piece.pad for piece in pieces)


# ---------------------------------------------------------------- read amplification


@given(groups, split_sizes, settings_of(last_batch=["partial"]), epochs)
def test_read_amplification_counts_segments_read_by_several_ranks(sizes, split_rows, settings, epoch) -> None:
    plan = planned(sizes, split_rows, settings)
    read = Counter()
    for rank in range(plan.num_ranks):
        mine = set(rank_rows(plan, epoch, rank))
        for file in plan.files:
            for segment in file.layout.segments:
                rows = range(segment.first_row, segment.first_row + segment.rows)
                if any((file.info.path, row) in mine for row in rows):
                    read[file.info.path, segment.number] += segment.rows
    sizes_of = {(f.info.path, s.number): s.rows for f in plan.files for s in f.layout.segments}
    distinct = sum(sizes_of[key] for key in read)
    expected = sum(read.values()) / distinct if distinct else 1.0
    assert plan.read_amplification(epoch) == pytest.approx(expected)


def test_read_amplification_of_each_kind() -> None:
    files = chunk_files(8, 8)
    assert make_plan(files, 2).read_amplification(0) == 1.0
    assert make_plan(files, 4, sharding="contiguous").read_amplification(0) == 2.0
    assert make_plan(files, 4, sharding="strided").read_amplification(0) == 4.0
    assert make_plan([data_file("a.csv", [None])], 4).read_amplification(0) == 1.0
    counted = data_file("a.csv", [None, None], live=[8, 8])
    assert make_plan([counted], 4, sharding="contiguous").read_amplification(0) == 2.0
