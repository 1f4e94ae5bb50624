"""Plans of mixes whose weights change: shares on every rank, laps, resume at every step, elastic resume."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.mixing.test_curriculum import curricula
from tests.planning.helpers import data_file, row_ids, window_sizes
from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.feature import Mixing
from torch_dataloader_utils.planning.parts import Part
from torch_dataloader_utils.planning.phases import Phase, plain_options, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits

Row = tuple[str, int]


@st.composite
def plans(draw: st.DrawFn, **fixed: Any) -> tuple[Plan, Curriculum]:
    curriculum = draw(curricula())
    files = []
    for part in range(len(curriculum.phases[0].weights)):
        rows = draw(st.integers(1, 12)) if curriculum.rows is None else curriculum.rows[part]
        groups = [min(3, rows - at) for at in range(0, rows, 3)]
        some = [data_file(f"{part}.{n}", groups[n::2]) for n in range(2) if groups[n::2]]
        files.append([replace(file, info=replace(file.info, part=part)) for file in some])
    splits = [split for part in files for split in make_splits(TargetSizeSplitStrategy(split_rows=3), part)]
    options = {
        "sharding": "contiguous",
        "batch_size": draw(st.integers(1, 6)),
        "shuffle": draw(st.booleans()),
        **draw(window_sizes),
        **fixed,
    }
    plan = Plan(
        [file for part in files for file in part],
        [replace(split, index=index) for index, split in enumerate(splits)],
        PlanOptions(**options),
        draw(st.integers(1, 3)),
        parts=[Part()] * len(files),
        features=Mixing({"batches": "proportional", **curriculum.plain}),
    )
    return plan, curriculum


def batches_of(plan: Plan, epoch: int, rank: int) -> Iterator[list[Row]]:
    """The real rows of each batch."""
    own = plan.rank(epoch, rank)
    rows = [[(row, not piece.pad) for piece in shard for row in row_ids([piece])] for shard in own.shards]
    assert own.schedule is not None
    table = own.schedule.table(0, own.schedule.steps).tolist()
    assert table[-1] == list(map(len, rows))
    for low, high in pairwise(table):
        taken = [row for each, a, b in zip(rows, low, high, strict=True) for row in each[a:b]]
        yield [row for row, real in taken if real]


def source_of(row: Row) -> int:
    return int(row[0].split(".")[0])


@given(plans(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_row_before_any_twice_across_the_changes(case: tuple[Plan, Curriculum], epochs: int) -> None:
    """And the ranks take together what the curriculum says."""
    plan, curriculum = case
    taken: Counter[Row] = Counter()
    for epoch in range(epochs):
        rows = [row for rank in range(plan.num_ranks) for batch in batches_of(plan, epoch, rank) for row in batch]
        counts = Counter(map(source_of, rows))
        expected = curriculum.of_epoch(epoch).of_each
        assert [counts[number] for number in range(len(expected))] == expected
        taken.update(rows)
        for part in range(len(plan.parts)):
            every = [row for file in plan.files if file.info.part == part for row in of_file(file)]
            times = [taken[row] for row in every]
            assert not times or max(times) - min(times) <= 1


def of_file(file: Any) -> list[Row]:
    return [(file.info.path, row) for row in range(file.info.record_count)]


def steps_of(plan: Plan, epoch: int) -> Iterator[list[Counter[int]]]:
    """Of each step, how many rows of each source each rank has."""
    found = [list(batches_of(plan, epoch, rank)) for rank in range(plan.num_ranks)]
    for batches in zip_longest(*found, fillvalue=()):
        yield [Counter(map(source_of, batch)) for batch in batches]


@given(plans(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_ranks_share_each_step_in_proportion(case: tuple[Plan, Curriculum], epoch: int) -> None:
    """Together they have the sources of the curriculum, and each of them its part of each, to within one row."""
    plan, curriculum = case
    size = plan.num_ranks * plan.batch_rows
    turns = curriculum.of_epoch(epoch)
    ends = turns.counts(np.minimum(np.arange(0, turns.total + size, size), turns.total))
    for expected, hands in zip(np.diff(ends, axis=0).tolist(), steps_of(plan, epoch), strict=True):
        for source, rows in enumerate(expected):
            of_ranks = [hand[source] for hand in hands]
            assert sum(of_ranks) == rows
            assert set(of_ranks) <= {rows // plan.num_ranks, -(-rows // plan.num_ranks)}


@given(
    plans(), st.integers(0, 3), st.sampled_from(["none", "drop", "pad"]), st.sampled_from(["partial", "pad", "drop"])
)
@settings(max_examples=60, deadline=None)
def test_equal_steps_and_last_batches(case: tuple[Plan, Curriculum], epoch: int, even: str, last: str) -> None:
    plan, curriculum = case
    options = replace(plan.options, even="none", last_batch=last) if even == "none" else None
    whole = curriculum.total // (plan.num_ranks * plan.batch_rows)
    if even == "drop" and not whole:
        return
    plan = replace(plan, options=options or replace(plan.options, even=even))
    found = [list(batches_of(plan, epoch, rank)) for rank in range(plan.num_ranks)]
    rows = Counter(row for batches in found for batch in batches for row in batch)
    left_out = Counter(row_ids(plan.left_out(epoch)))
    plain = replace(plan, options=replace(plan.options, even="none", last_batch="partial"))
    everything = [row for rank in range(plan.num_ranks) for batch in batches_of(plain, epoch, rank) for row in batch]
    if even == "drop" or (last == "drop" and plan.num_ranks == 1):  # epochs begin where the one before ended
        delivered, planned = (Counter(map(source_of, some)) for some in ((rows + left_out).elements(), everything))
        assert delivered.total() == planned.total()
        assert curriculum.rows is None or delivered == planned
    else:
        assert rows + left_out == Counter(everything)
    assert [len(batches) for batches in found] == plan.steps(epoch)
    assert sum(rows.values()) == sum(plan.rows(epoch) or [])
    if even == "drop":
        assert plan.steps(epoch) == [whole] * plan.num_ranks
        assert all(len(batch) == plan.batch_rows for batches in found for batch in batches)
    elif even == "pad":
        assert plan.steps(epoch) == [-(-curriculum.total // (plan.num_ranks * plan.batch_rows))] * plan.num_ranks


@given(plans(), st.integers(0, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_elastic_resumes_lose_and_repeat_nothing_and_keep_the_boundaries(
    case: tuple[Plan, Curriculum], epoch: int, data: st.DataObject
) -> None:
    """To other numbers of ranks and batch sizes, twice in a row: the rest of a stretch has its weights to its end."""
    plan, curriculum = case
    expected = Counter(
        row for rank in range(plan.num_ranks) for batch in batches_of(plan, epoch, rank) for row in batch
    )
    past: list[Phase] = []
    taken: list[Row] = []
    now = plan
    for _ in range(2):
        steps = data.draw(st.integers(0, max(now.steps(epoch) or [0])))
        for rank in range(now.num_ranks):
            taken += [row for batch in list(batches_of(now, epoch, rank))[:steps] for row in batch]
        past.append(Phase(plain_options(now.options, now.num_ranks, now.features), steps))
        options = replace(plan.options, batch_size=data.draw(st.integers(1, 6)))
        shape = replace(plan, options=options, num_ranks=data.draw(st.integers(1, 3)))
        now = plan_of_rest(shape, epoch, past)
        rest = [row for rank in range(now.num_ranks) for batch in batches_of(now, epoch, rank) for row in batch]
        assert Counter(taken + rest) == expected
        size = now.num_ranks * now.batch_rows
        counts = Counter(map(source_of, rest))
        left = [counts[part] for part in range(len(plan.parts))]
        turns = curriculum.of_rest(epoch, (epoch + 1) * curriculum.total - len(rest), left)
        ends = turns.counts(np.minimum(np.arange(0, turns.total + size, size), turns.total))
        found = [[sum(hand[part] for hand in hands) for part in range(len(left))] for hands in steps_of(now, epoch)]
        assert found == np.diff(ends, axis=0).tolist()


@given(plans(), st.integers(0, 2), st.data())
@settings(max_examples=60, deadline=None)
def test_the_sources_of_the_run_go_on_after_an_elastic_resume(
    case: tuple[Plan, Curriculum], epoch: int, data: st.DataObject
) -> None:
    """Where the epoch takes the next rows of the run, whatever the ranks and batches are then."""
    plan, curriculum = case
    assume(curriculum.rows is None)
    turns = curriculum.of_epoch(epoch)
    past: list[Phase] = []
    now, at = plan, 0
    for _ in range(3):
        size = now.num_ranks * now.batch_rows
        steps = data.draw(st.integers(0, (turns.total - at) // size))
        for number, hands in zip(range(steps), steps_of(now, epoch), strict=False):
            low, high = turns.counts(np.array([at + number * size, at + (number + 1) * size]))
            assert [sum(hand[part] for hand in hands) for part in range(turns.sources)] == (high - low).tolist()
        at += steps * size
        past.append(Phase(plain_options(now.options, now.num_ranks, now.features), steps))
        options = replace(plan.options, batch_size=data.draw(st.integers(1, 6)))
        now = plan_of_rest(replace(plan, options=options, num_ranks=data.draw(st.integers(1, 3))), epoch, past)


@given(plans(), st.integers(0, 2), st.data())
@settings(max_examples=60, deadline=None)
def test_other_weights_begin_a_new_phase_of_the_same_rows(
    case: tuple[Plan, Curriculum], epoch: int, data: st.DataObject
) -> None:
    plan, curriculum = case
    expected = Counter(
        row for rank in range(plan.num_ranks) for batch in batches_of(plan, epoch, rank) for row in batch
    )
    steps = data.draw(st.integers(0, max(plan.steps(epoch) or [0])))
    taken = [
        row for rank in range(plan.num_ranks) for batch in list(batches_of(plan, epoch, rank))[:steps] for row in batch
    ]
    past = [Phase(plain_options(plan.options, plan.num_ranks, plan.features), steps)]
    sizes = [
        sum(len(of_file(file)) for file in plan.files if file.info.part == part) for part in range(len(plan.parts))
    ]
    other: dict[str, Any] = {"batches": "proportional", **Curriculum.constant([1] * len(sizes), rows=sizes).plain}
    if all(sizes) and data.draw(st.booleans()):
        changed = Curriculum(curriculum.phases[::-1][:1], max(curriculum.total + data.draw(st.integers(-3, 3)), 1))
        first = replace(changed.phases[0], first=0)
        other = {"batches": "proportional", **replace(changed, phases=(first,)).plain}
    rest = plan_of_rest(replace(plan, features=Mixing(other)), epoch, past)
    taken += [row for rank in range(plan.num_ranks) for batch in batches_of(rest, epoch, rank) for row in batch]
    assert Counter(taken) == expected
