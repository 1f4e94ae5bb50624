"""Elastic resume: what is left of an epoch is shared out again, each row exactly once, to any number of ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.planning.helpers import (
    all_rows,
    data_files,
    delivered,
    groups,
    make_plan,
    phase,
    real_rows,
    row_ids,
    settings_of,
)
from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.model import Rows, split_pieces
from torch_dataloader_utils.planning.merging import merged_rows
from torch_dataloader_utils.planning.phases import Phase, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions


def resumed(first: Plan, epoch: int, past: Sequence[Phase], ranks: int, options: PlanOptions) -> Plan:
    return plan_of_rest(replace(first, options=options, num_ranks=ranks), epoch, past)


def plan_or_none(files: list, ranks: int, options: dict[str, object]) -> Plan | None:
    try:
        return make_plan(files, ranks, split_rows=8, **options)
    except (ShardingError, EmptyDatasetError):  # fewer rows than even="drop" needs
        return None


def of_size(rows: Rows) -> list[int]:
    return rows.numbers().tolist()


chains = st.lists(settings_of(buffers=True), min_size=2, max_size=4)


@example([(0, 3, 2, 1), (3, 4, 3, 1)])  # as many rows as of one stride, but not the same
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 6), st.integers(1, 6)), max_size=6))
def test_merged_rows_are_the_same_rows(raw: list[tuple[int, int, int, int]]) -> None:
    used: set[int] = set()
    parts = []
    for start, length, step, block in raw:
        rows = Rows(start, start + length, step, block, start) if block < step else Rows(start, start + length)
        if not used & set(of_size(rows)):
            used |= set(of_size(rows))
            parts.append(rows)
    merged = merged_rows(parts)
    assert sorted(x for part in merged for x in of_size(part)) == sorted(used)
    assert all(len(part) for part in merged)


def test_patterns_of_any_length_are_compared_without_their_numbers() -> None:
    """The second rows are as many as the first pattern would have there; their numbers would take terabytes."""
    many = 10**12
    pairs, others = Rows(0, 4 * many, 4, 2, 0), Rows(4 * many, 8 * many, 2, 1, 0)
    assert merged_rows([pairs, others]) == [part.slice(0, len(part)) for part in (pairs, others)]
    assert merged_rows([pairs, replace(pairs, start=4 * many, stop=8 * many)]) == [Rows(0, 8 * many - 2, 4, 2, 0)]


@given(st.integers(2, 5), st.integers(0, 4), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_what_is_left_of_a_stride_is_one_run(step: int, phase: int, counts: list[int]) -> None:
    """Wherever workers were cut: a single row has no pattern of its own."""
    whole = Rows(phase, phase + step * sum(counts), step, 1, phase)
    cuts = [sum(counts[:number]) for number in range(len(counts) + 1)]
    parts = [whole.slice(first, last) for first, last in pairwise(cuts)]
    assert merged_rows([Rows(x.start, x.stop) if len(x) == 1 else x for x in parts]) == merged_rows([whole])


@given(st.integers(8, 40), st.integers(1, 3), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.integers(0, 6))
def test_strided_rows_at_another_number_of_workers_are_one_piece_per_split(
    rows: int, ranks: int, numbers: list[int], count: int
) -> None:
    workers, others, size = numbers
    first = make_plan(
        data_files([[1] * rows]), ranks, split_rows=8, sharding="strided", batch_size=size, num_shards=workers
    )
    plan = resumed(first, 0, [phase(first.options, ranks, count)], ranks, replace(first.options, num_shards=others))
    for pieces in plan.rest.ranks or ():
        left: dict[int, list[int]] = {}
        for piece in pieces:
            left.setdefault(piece.source.index, []).extend(of_size(piece.rows))
        gaps = [b - a != ranks for same in left.values() for a, b in pairwise(sorted(same))]
        assert len(pieces) <= len(left) + sum(gaps)


@pytest.mark.parametrize(("ranks", "workers"), [(3, 1), (2, 2)])
def test_read_amplification_of_what_is_left_counts_begun_windows(ranks: int, workers: int) -> None:
    files = data_files([[8, 8, 8], [8, 8]])
    first = make_plan(files, 2, sharding="contiguous", batch_size=3, buffer_rows=8, open_splits=1)
    options = replace(first.options, num_shards=workers)
    rest = resumed(first, 0, [phase(first.options, 2, 1)], ranks, options)
    pieces = [split_pieces(piece for shard in rest.rank(0, rank).shards for piece in shard) for rank in range(ranks)]
    segments = [{(path, row // 8) for path, row in row_ids(each)} for each in pieces]
    assert rest.read_amplification(0) == sum(map(len, segments)) / len(set.union(*segments)) > 1


def test_strided_ranks_leave_one_run() -> None:
    """Eight ranks in lockstep, strided: what they leave of a split is one run again."""
    parts = [Rows(0, 800, 8, 1, rank).clip(400, 800) for rank in range(8)]
    assert merged_rows(parts) == [Rows(400, 800)]
    blocks = [Rows(0, 800, 40, 10, 10 * rank).clip(400, 800) for rank in range(4)]
    assert merged_rows(blocks) == [Rows(400, 800)]


@given(groups, chains, st.integers(0, 3), st.data())
def test_every_row_once_over_all_phases(
    sizes: list[list[int]], chain: list[tuple[int, dict[str, object]]], epoch: int, data: st.DataObject
) -> None:
    files = data_files(sizes)
    total = len(all_rows(files))
    seen: Counter = Counter()
    past: list[Phase] = []
    first = plan_or_none(files, *chain[0])
    assume(first is not None and first.options.total_shards is None)
    options = first.options
    for number, (ranks, keywords) in enumerate(chain):
        fresh = plan_or_none(files, ranks, keywords)
        assume(fresh is not None)
        options = replace(fresh.options, shuffle=first.options.shuffle, seed=first.options.seed)
        plan = resumed(first, epoch, past, ranks, options)
        steps = plan.steps(epoch)
        last = number == len(chain) - 1
        count = max(steps) if last else data.draw(st.integers(0, max(steps)))
        for rank in range(ranks):
            batches = delivered(plan, epoch, rank)
            assert len(batches) == steps[rank]
            assert all(len(batch) == plan.batch_rows for batch in batches[:-1])
            seen.update(real_rows(batches[:count]))
        if options.even != "none":
            assert len(set(steps)) == 1
        over = count >= max(steps)
        left_out = {row for piece in plan.left_out(epoch) for row in row_ids([piece])}
        past.append(phase(options, ranks, count))
        if over:
            break
    assert all(times == 1 for times in seen.values())
    assert set(seen) | left_out == set(all_rows(files)) or not over
    assert not set(seen) & left_out
    if over and options.even != "drop":
        assert len(seen) == total
    if over:  # nothing is left, whatever comes after
        assert resumed(first, epoch, past, 3, PlanOptions(shuffle=options.shuffle, seed=options.seed)).steps(epoch) == [
            0,
            0,
            0,
        ]


@given(
    groups, settings_of(buffers=True), st.integers(0, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data()
)
def test_a_change_of_workers_alone_keeps_rows_and_steps(
    sizes: list[list[int]],
    setting: tuple[int, dict[str, object]],
    epoch: int,
    workers: list[int],
    data: st.DataObject,
) -> None:
    ranks, keywords = setting
    files = data_files(sizes)
    first = plan_or_none(files, ranks, keywords)
    assume(first is not None and first.options.sharding != "auto")
    own = [Counter(real_rows(delivered(first, epoch, rank))) for rank in range(ranks)]
    left = first.steps(epoch)
    done = [Counter() for _ in own]
    past: list[Phase] = []
    options = first.options
    for count in [*workers, 2]:
        plan = resumed(first, epoch, past, ranks, options)
        assert plan.steps(epoch) == left
        n = data.draw(st.integers(0, max(left)))
        for rank in range(ranks):
            done[rank].update(real_rows(delivered(plan, epoch, rank)[:n]))
        left = [max(0, steps - n) for steps in left]
        past.append(phase(options, ranks, n))
        options = replace(options, num_shards=count)
        if not any(left):
            break
    plan = resumed(first, epoch, past, ranks, options)
    for rank in range(ranks):
        done[rank].update(real_rows(delivered(plan, epoch, rank)))
    assert done == own


@given(groups, chains, st.data())
def test_ranks_that_are_not_in_lockstep(
    sizes: list[list[int]], chain: list[tuple[int, dict[str, object]]], data: st.DataObject
) -> None:
    files = data_files(sizes)
    ranks, keywords = chain[0]
    first = plan_or_none(files, ranks, keywords)
    assume(first is not None and first.options.total_shards is None and first.options.even == "none")
    steps = first.steps(0)
    counts = tuple(data.draw(st.integers(0, most)) for most in steps)
    seen = Counter(row for r, n in enumerate(counts) for row in real_rows(delivered(first, 0, r)[:n]))
    plan = resumed(first, 0, [phase(first.options, ranks, counts)], 3, replace(first.options, batch_size=6))
    for rank in range(3):
        seen.update(real_rows(delivered(plan, 0, rank)))
    assert seen == Counter(all_rows(files))


def test_many_changes_leave_few_pieces() -> None:
    """8 -> 6 -> 8 -> 6 -> 5 strided ranks over one long split."""
    first = make_plan(data_files([[30_000]]), 8, sharding="strided", batch_size=5)
    past: list[Phase] = []
    for ranks, count in ((8, 100), (6, 117), (8, 31), (6, 59)):
        past.append(phase(first.options, ranks, count))
    plan = resumed(first, 0, past, 5, first.options)
    assert sum(len(plan.rank(0, rank).shards[0]) for rank in range(5)) <= 5


def test_laps_of_workers_come_round_together() -> None:
    """Under `steps_per_epoch` a worker of few rows waits for the others before it begins again."""
    files = data_files([[4], [9]])
    first = make_plan(files, 1, batch_size=4, num_shards=2, steps_per_epoch=10)
    large = max((0, 1), key=lambda worker: len(row_ids(first.rank(0, 0).shards[worker])))
    order = [0, 1, large, large, 0, 1, large, 0, 1, large]
    streams = [
        [row for lap in range(6) for row in row_ids(first.rank(0, 0, lap).shards[worker])] for worker in range(2)
    ]
    for count in range(10):
        rest = resumed(first, 0, [phase(first.options, 1, count)], 1, replace(first.options, num_shards=1))
        left = {row for shard in rest.rank(0, 0).shards for row in row_ids(shard)}
        given_ = [iter(stream) for stream in streams]
        seen = {row for worker in order[:count] for row in islice(given_[worker], 4)}
        assert left == set(all_rows(files)) - seen
        assert not left or count < 4
    over = resumed(first, 0, [phase(first.options, 1, 10)], 1, replace(first.options, num_shards=1))
    assert not any(over.rank(0, 0).shards)
