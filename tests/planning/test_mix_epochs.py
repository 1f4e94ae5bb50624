"""Mixes that deliver full steps alone: what is left out of an epoch is not left out for ever."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.mixing.test_curriculum import phases
from tests.planning.helpers import data_file, row_ids, window_sizes
from tests.planning.test_curricula import Row, batches_of, source_of
from torch_dataloader_utils.mixing.curriculum import Curriculum, in_rows
from torch_dataloader_utils.mixing.feature import Mixing
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.planning.parts import Part
from torch_dataloader_utils.planning.phases import Phase, plain_options, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits

LENGTHS: list[dict[str, Any]] = [
    {"stop": "once"},
    {"stop": "first"},
    {"stop": "all"},
    {"repeat": (2.5, 0.5, 1.0)},
    {"rows_per_epoch": 17},
    {"rows_per_epoch": 40},
]


class Case(NamedTuple):
    plan: Plan
    sizes: list[int]
    once: bool  # whether an epoch takes every row of all datasets once


@st.composite
def mixings(draw: st.DrawFn, sizes: list[int]) -> dict[str, Any]:
    """The option `mixing` for datasets of these sizes."""
    length = draw(st.sampled_from(LENGTHS))
    if "repeat" in length:
        length = {"repeat": length["repeat"][: len(sizes)]}
    weights = draw(st.none() | st.tuples(*[st.sampled_from([1.0, 2.0, 0.1, 7.3])] * len(sizes)))
    if draw(st.booleans()) and length.get("stop", "once") == "once":
        changes, total = draw(phases(len(sizes))), length.get("rows_per_epoch")
        if total is not None:
            return {"batches": "proportional", **Curriculum(changes, total).plain}
        rows = epoch_rows(sizes, list(map(str, sizes)), MixRule(**length)).rows
        return {"batches": "proportional", **Curriculum(changes, sum(rows or ()), rows).plain}
    taken = epoch_rows(sizes, list(map(str, sizes)), MixRule(weights=weights, **length))
    batches = draw(st.sampled_from(["proportional", "proportional", "single"]))
    plain = Curriculum.constant(taken.weights, total=length.get("rows_per_epoch", 0), rows=taken.rows).plain
    return {"batches": batches, **plain}


@st.composite
def cases(draw: st.DrawFn, even: str = "drop", last_batch: str = "partial", most_ranks: int = 3) -> Case:
    sizes = draw(st.lists(st.integers(1, 25), min_size=1, max_size=3))
    files = []
    for part, rows in enumerate(sizes):
        groups = [min(3, rows - at) for at in range(0, rows, 3)]
        some = [data_file(f"{part}.{n}", groups[n::2]) for n in range(2) if groups[n::2]]
        files.append([replace(file, info=replace(file.info, part=part)) for file in some])
    splits = [split for part in files for split in make_splits(TargetSizeSplitStrategy(split_rows=3), part)]
    mixing = draw(mixings(sizes))
    options: dict[str, Any] = {
        "sharding": "contiguous", "batch_size": draw(st.integers(1, 6)),
        "shuffle": draw(st.booleans()), "even": "none", **draw(window_sizes),
    }  # fmt: skip
    plan = Plan(
        [file for part in files for file in part],
        [replace(split, index=index) for index, split in enumerate(splits)],
        PlanOptions(**options),
        draw(st.integers(1, most_ranks)),
        parts=[Part()] * len(sizes),
        features=Mixing(mixing),
    )
    assume(fits(mixing, plan.num_ranks * plan.batch_rows))
    plan = replace(plan, options=replace(plan.options, even=even, last_batch=last_batch))
    return Case(plan, sizes, mixing.get("rows") == sizes)


def shared(mixing: Mapping[str, Any]) -> list[int]:
    """The numbers of rows of an epoch from which full steps are taken."""
    rows = mixing.get("rows", [mixing.get("total", 0)])
    return list(rows) if mixing["batches"] == "single" else [sum(rows)]


def fits(mixing: Mapping[str, Any], step: int) -> bool:
    return any(shared(mixing)) and all(rows >= step for rows in shared(mixing) if rows)


def mixing_of(plan: Plan) -> Mapping[str, Any]:
    assert isinstance(plan.features, Mixing)
    return plan.features.mixing or {}


def taken_by(plan: Plan, epoch: int) -> list[list[list[Row]]]:
    return [list(batches_of(plan, epoch, rank)) for rank in range(plan.num_ranks)]


def flat(found: list[list[list[Row]]]) -> list[Row]:
    return [row for batches in found for batch in batches for row in batch]


def rows_of_part(plan: Plan, part: int) -> list[Row]:
    files = [file.info for file in plan.files if file.info.part == part]
    return [(info.path, row) for info in files for row in range(info.record_count or 0)]


@given(cases(), st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_no_row_is_left_out_for_ever(case: Case, epochs: int) -> None:
    """Every row is delivered before any twice; where an epoch has each row once, left out before any twice."""
    plan, sizes, once = case
    taken: Counter[Row] = Counter()
    for epoch in range(epochs):
        rows = flat(taken_by(plan, epoch))
        taken.update(rows)
        for part in range(len(sizes)):
            every = rows_of_part(plan, part)
            times = [taken[row] for row in every]
            if once and not plan.options.shuffle:
                own = sorted(row for row in rows if source_of(row) == part)
                assert own == sorted(every)[: len(own)]  # the last ones are left out, as of a single dataset
            else:
                assert max(times) - min(times) <= 1
        if once:
            assert max(Counter(rows).values()) == 1
            assert sorted([*rows, *row_ids(plan.left_out(epoch))]) == sorted(
                row for part in range(len(sizes)) for row in rows_of_part(plan, part)
            )


@given(cases(), st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_every_rank_takes_the_full_steps_of_the_schedule(case: Case, epoch: int) -> None:
    """All batches are full. The rows of each dataset are those of the first steps of all rows, on all ranks alike."""
    plan, sizes, _ = case
    step, mixing = plan.num_ranks * plan.batch_rows, mixing_of(plan)
    found = taken_by(plan, epoch)
    curriculum = in_rows(mixing, step, full=True)
    steps = sum(rows // step for rows in shared(mixing))
    assert plan.steps(epoch) == [steps] * plan.num_ranks
    assert all(len(batches) == steps for batches in found)
    assert all(len(batch) == plan.batch_rows for batches in found for batch in batches)
    counts = Counter(map(source_of, flat(found)))
    delivered = [counts[part] for part in range(len(sizes))]
    left_out = Counter(map(source_of, row_ids(plan.left_out(epoch))))
    taken = [rows + left_out[part] for part, rows in enumerate(delivered)]
    if mixing["batches"] == "single":
        assert all(rows % step == 0 for rows in delivered)
        assert len({str([[source_of(row) for row in batch] for batch in batches]) for batches in found}) == 1
        if curriculum.rows is not None:
            assert delivered == [rows // step * step for rows in curriculum.rows]
            assert taken == list(curriculum.rows)
    else:
        turns = curriculum.of_epoch(epoch)
        assert delivered == turns.until(steps * step).of_each
        assert taken == turns.of_each
    for hands in zip(*found, strict=True):
        of_step = Counter(source_of(row) for batch in hands for row in batch)
        for part, rows in of_step.items():
            own = {sum(source_of(row) == part for row in batch) for batch in hands}
            assert own <= {rows // plan.num_ranks, -(-rows // plan.num_ranks)}


@given(cases(even="none", last_batch="drop", most_ranks=1), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_one_rank_drops_its_last_batch_as_all_ranks_drop_theirs(case: Case, epoch: int) -> None:
    plan = case.plan
    other = replace(plan, options=replace(plan.options, even="drop", last_batch="partial"))
    assert plan.rank(epoch, 0).shards == other.rank(epoch, 0).shards
    assert plan.left_out(epoch) == other.left_out(epoch)


@given(cases(), st.integers(0, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_what_an_interrupted_epoch_left_out_is_there_for_its_rest(case: Case, epoch: int, data: st.DataObject) -> None:
    """Twice in a row, on other ranks and with other batches: what is delivered and left out is always the epoch."""
    plan = case.plan
    expected = Counter([*flat(taken_by(plan, epoch)), *row_ids(plan.left_out(epoch))])
    past: list[Phase] = []
    taken: list[Row] = []
    now = plan
    for _ in range(2):
        most = max(now.steps(epoch) or [0])
        steps = data.draw(st.integers(0, max(most - 1, 0)))
        taken += [row for batches in taken_by(now, epoch) for batch in batches[:steps] for row in batch]
        past.append(Phase(plain_options(now.options, now.num_ranks, now.features), steps))
        ranks, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
        assume(fits(mixing_of(plan), ranks * size))
        shape = replace(plan, options=replace(plan.options, batch_size=size), num_ranks=ranks)
        if not most:
            return
        now = plan_of_rest(shape, epoch, past)
        rest = taken_by(now, epoch)
        assert Counter([*taken, *flat(rest), *row_ids(now.left_out(epoch))]) == expected
        assert all(len(batch) == now.batch_rows for batches in rest for batch in batches)
        assert len({len(batches) for batches in rest}) == 1
