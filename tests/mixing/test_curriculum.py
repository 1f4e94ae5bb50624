"""The laws of weights that change, for all weights and boundaries: shares in each stretch, and closed forms."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.checkpoint.form import check_form, sealed
from torch_dataloader_utils.errors import CheckpointMismatchError, EmptyDatasetError, OptionError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase, checked, in_rows
from torch_dataloader_utils.mixing.laps import cut_laps
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.mixing.schedule import Schedule, Stretch, prefix_counts
from torch_dataloader_utils.options.mix import MOST_PHASES
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.phases import plain_options

WEIGHTS = st.integers(0, 9).map(Fraction) | st.sampled_from([Fraction(1, 3), Fraction("0.125"), Fraction(7, 2)])


@st.composite
def phases(draw: st.DrawFn, sources: int, longest: int = 90) -> tuple[WeightPhase, ...]:
    lengths = draw(st.lists(st.integers(1, longest), max_size=4))
    weights = st.lists(WEIGHTS, min_size=sources, max_size=sources).filter(any)
    return tuple(WeightPhase(sum(lengths[:number]), tuple(draw(weights))) for number in range(len(lengths) + 1))


@st.composite
def curricula(draw: st.DrawFn, fixed: bool | None = None) -> Curriculum:
    sources = draw(st.integers(1, 4))
    if draw(st.booleans()) if fixed is None else fixed:
        rows = tuple(draw(st.lists(st.integers(0, 30), min_size=sources, max_size=sources).filter(any)))
        return Curriculum(draw(phases(sources)), sum(rows), rows)
    return Curriculum(draw(phases(sources)), draw(st.integers(1, 70)))


def weights_at(curriculum: Curriculum, row: int) -> tuple[Fraction, ...]:
    return next(phase.weights for phase in reversed(curriculum.phases) if phase.first <= row)


def in_stretches(curriculum: Curriculum, first: int, last: int) -> list[tuple[tuple[Fraction, ...], int]]:
    """The weights of these rows of the run, row by row, and for how many rows they hold."""
    of_rows = [
        next(n for n, x in reversed([*enumerate(curriculum.phases)]) if x.first <= r) for r in range(first, last)
    ]
    return [(curriculum.phases[number].weights, len(list(same))) for number, same in groupby(of_rows)]


@given(curricula(fixed=False), st.integers(0, 4), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_every_prefix_of_a_stretch_holds_each_source_in_its_share(
    curriculum: Curriculum, epoch: int, batch: int
) -> None:
    """Within the bound of constant weights, and one row for whole numbers of rows; of weight 0, no row at all."""
    stretches = curriculum.of_epoch(epoch)
    expected = in_stretches(curriculum, epoch * curriculum.total, (epoch + 1) * curriculum.total)
    assert [sum(stretch.rows) for stretch in stretches] == [rows for _, rows in expected]
    table = Schedule(stretches, batch).table(0, -(-curriculum.total // batch)).tolist()
    at, before = 0, [0] * len(table[0])
    for (weights, length), stretch in zip(expected, stretches, strict=True):
        shares = [weight / sum(weights) for weight in weights]
        for step, counts in enumerate(table):
            within = min(step * batch, curriculum.total) - at
            if not 0 <= within <= length:
                continue
            for count, earlier, share in zip(counts, before, shares, strict=True):
                bound = Fraction(3, 2) + len(shares) * (share + Fraction(1, length)) / 2 if share else 0
                assert abs(count - earlier - within * share) <= bound
        at, before = at + length, [sum(pair) for pair in zip(before, stretch.rows, strict=True)]


@given(curricula(), st.integers(0, 6))
def test_what_comes_before_an_epoch_is_what_the_earlier_ones_take(curriculum: Curriculum, epoch: int) -> None:
    taken = np.zeros(len(curriculum.phases[0].weights), np.int64)
    for earlier in range(epoch):
        rows = np.sum([stretch.rows for stretch in curriculum.of_epoch(earlier)], axis=0)
        assert rows.sum() == curriculum.total
        taken += rows
    assert curriculum.before(epoch) == taken.tolist()


@given(curricula(), st.integers(0, 9))
def test_epochs_are_alike_between_the_changes(curriculum: Curriculum, epoch: int) -> None:
    alike = list(curriculum.alike(epoch))
    numbers = [first + n for first, times in alike for n in range(times)]
    assert numbers == list(range(epoch))
    stretches = [stretch for first, times in alike for stretch in [curriculum.of_epoch(first)] * times]
    assert stretches == [curriculum.of_epoch(number) for number in numbers]


@given(curricula(fixed=False), st.integers(1, 4), st.data())
def test_later_weights_change_nothing_before_them(curriculum: Curriculum, epoch: int, data: st.DataObject) -> None:
    """So the laps of a run continue if weights of later epochs change."""
    begin = epoch * curriculum.total
    kept = tuple(phase for phase in curriculum.phases if phase.first < begin)
    other = replace(curriculum, phases=(*kept, *(data.draw(phases(len(kept[0].weights)))[:1])))
    other = replace(other, phases=(*kept, replace(other.phases[-1], first=begin + data.draw(st.integers(0, 9)))))
    assert other.before(epoch) == curriculum.before(epoch)
    assert [other.of_epoch(e) for e in range(epoch)] == [curriculum.of_epoch(e) for e in range(epoch)]


@given(curricula(fixed=True), st.integers(0, 4))
@settings(deadline=None)
def test_weights_that_only_order_rows_leave_their_numbers(curriculum: Curriculum, epoch: int) -> None:
    """Rows by weight as long as all have some; those of weight 0 only after all others."""
    stretches = curriculum.of_epoch(epoch)
    assert np.sum([stretch.rows for stretch in stretches], axis=0).tolist() == list(curriculum.rows or ())
    left = np.array(curriculum.rows)
    spans = in_stretches(curriculum, epoch * curriculum.total, (epoch + 1) * curriculum.total)
    for stretch, (weights, length) in zip(stretches, spans, strict=True):
        assert sum(stretch.rows) == length
        share = [float(weight / sum(weights)) for weight in weights]
        if all(rows > 0 for rows, weight in zip(left - np.array(stretch.rows), weights, strict=True) if weight):
            bound = 1.5 + len(share) / 2
            assert all(abs(rows - length * x) <= bound for rows, x in zip(stretch.rows, share, strict=True))
        paid = sum(rows for rows, weight in zip(left.tolist(), weights, strict=True) if weight)
        free = sum(rows for rows, weight in zip(stretch.rows, weights, strict=True) if not weight)
        assert free == max(length - paid, 0)
        left = left - np.array(stretch.rows)


@given(curricula(), st.integers(0, 3), st.data())
def test_the_rest_of_an_epoch_keeps_the_boundaries(curriculum: Curriculum, epoch: int, data: st.DataObject) -> None:
    whole = np.sum([stretch.rows for stretch in curriculum.of_epoch(epoch)], axis=0).tolist()
    rest = [data.draw(st.integers(0, rows)) for rows in whole]
    stretches = curriculum.of_rest(epoch, rest)
    assert np.sum([stretch.rows for stretch in stretches], axis=0).tolist() == rest
    end = (epoch + 1) * curriculum.total
    lengths = [rows for _, rows in in_stretches(curriculum, end - sum(rest), end)]
    assert [sum(stretch.rows) for stretch in stretches] == (lengths or [0])


@given(curricula())
def test_a_state_holds_it_as_plain_values(curriculum: Curriculum) -> None:
    assert Curriculum.of(json.loads(json.dumps(curriculum.plain))) == curriculum
    assert Curriculum.of({"rows": [1], "rates": [1.0]}) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 90), st.integers(0, 5))
def test_weights_that_never_change_are_those_of_a_plain_mix(weights: list[int], total: int, epoch: int) -> None:
    sizes, names = [90] * len(weights), [""] * len(weights)
    plain = epoch_rows(sizes, names, MixRule(tuple(map(float, weights)), rows_per_epoch=total))
    curriculum = Curriculum((WeightPhase(0, tuple(map(Fraction, weights))),), total)
    assert curriculum.of_epoch(epoch) == (Stretch(plain.rows, plain.rates),)
    assert curriculum.before(epoch) == [epoch * rows for rows in plain.rows]


@given(st.lists(st.tuples(st.integers(0, 40), WEIGHTS), min_size=1, max_size=5).filter(lambda x: any(w for _, w in x)))
@settings(deadline=None)
def test_rows_of_weight_0_come_after_all_others(sources: list[tuple[int, Fraction]]) -> None:
    rows, weights = [size for size, _ in sources], tuple(weight for _, weight in sources)
    table = prefix_counts(rows, WeightPhase(0, weights).rates, np.arange(sum(rows) + 1))
    paid = sum(size for size, weight in sources if weight)
    free = [number for number, weight in enumerate(weights) if not weight]
    assert table[:, free].sum(axis=1).tolist() == [max(prefix - paid, 0) for prefix in range(sum(rows) + 1)]
    assert (np.diff(table, axis=0) >= 0).all()
    assert table[-1].tolist() == rows


@pytest.mark.parametrize("least", [(10**6, Fraction(1, 10**8)), (10**12, Fraction(1, 10**9))])
def test_rows_of_weight_0_come_last_in_huge_sources(least: tuple[int, Fraction]) -> None:
    rows = (10**11, 3 * 10**10, 7, least[0])
    rates = WeightPhase(0, (Fraction(1), Fraction(0), Fraction(1, 2), least[1])).rates
    paid = 10**11 + 7 + least[0]
    prefixes = np.array([5, 10**10, 10**11 + 10**6, paid - 1, paid, paid + 1, sum(rows) - 1, sum(rows)])
    table = prefix_counts(rows, rates, prefixes)
    assert table.sum(axis=1).tolist() == prefixes.tolist()
    assert table[:, 1].tolist() == np.maximum(prefixes - paid, 0).tolist()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_laps_are_cut_where_a_stretch_ends(sizes: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, sum(sizes)), max_size=4)))
    counts = np.diff([0, *cuts, sum(sizes)]).tolist()
    found = [
        (stretch, lap, row) for stretch, (lap, first, last) in cut_laps(sizes, counts) for row in range(first, last)
    ]
    assert [(lap, row) for _, lap, row in found] == [
        (lap, row) for lap, size in enumerate(sizes) for row in range(size)
    ]
    assert [sum(stretch == number for stretch, _, _ in found) for number in range(len(counts))] == counts


@given(curricula(), st.integers(0, 2), st.integers(1, 9))
@settings(deadline=None)
def test_rows_are_needed_in_the_order_of_the_schedule(curriculum: Curriculum, epoch: int, batch: int) -> None:
    schedule = Schedule(curriculum.of_epoch(epoch), batch, padding=3)
    totals = schedule.after(schedule.steps)
    assume(max(totals) < 200)
    places = sorted(
        (when, number) for number, rows in enumerate(totals) for when in schedule.needed(number, range(rows))
    )
    order = [number for _, number in places]
    for step in range(schedule.steps):
        rows = min(step * batch, len(order))
        counts = [order[:rows].count(number) for number in range(len(totals))]
        assert all(abs(a - b) <= 1 + len(totals) for a, b in zip(counts, schedule.after(step), strict=True))


def test_what_cannot_be_mixed_is_an_error() -> None:
    only_b = (WeightPhase(0, (Fraction(1), Fraction(0))), WeightPhase(50, (Fraction(0), Fraction(1))))
    with pytest.raises(EmptyDatasetError, match="b has no rows"):
        checked(Curriculum(only_b, 10), [5, 0], ["a", "b"])
    with pytest.raises(OptionError, match="100,000 rows of b, which has 5"):
        checked(Curriculum(only_b, 100_000), [50, 5], ["a", "b"])
    far = (WeightPhase(0, (Fraction(1), Fraction(1, 10**10))),)
    with pytest.raises(OptionError, match="none is more than"):
        checked(Curriculum(far, 10), [5, 5], ["a", "b"])
    assert checked(Curriculum(only_b, 10), [5, 5], ["a", "b"]).total == 10


def test_weights_change_as_often_as_a_state_can_hold() -> None:
    """A loader whose states cannot be loaded is refused when it is made."""
    same = [WeightPhase(row, (Fraction(1), Fraction(2))) for row in range(MOST_PHASES + 1)]
    held, more = (Curriculum(tuple(phases), 9) for phases in (same[:-1], same))
    options = {**plain_options(PlanOptions(), 1, Feature()), "mixing": {"batches": "proportional", **held.plain}}
    state = {"version": 1, "plan_version": 1, "data": {}, "epoch": 0, "links": [{"options": options, "batches": 0}]}
    check_form(sealed(state))
    with pytest.raises(OptionError, match="65,537 pairs of a start and weights: expected at most 65,536"):
        checked(more, [9, 9], ["a", "b"])
    options["mixing"] = {"batches": "proportional", **more.plain}
    with pytest.raises(CheckpointMismatchError):
        check_form(sealed(state))


@given(total=st.integers(1, 30), step_rows=st.integers(1, 40), full=st.booleans())
def test_steps_and_rows_of_a_run_are_each_others(total: int, step_rows: int, full: bool) -> None:
    """The steps of all epochs in turn; with only full steps, the rows after them are no step's."""
    assume(not full or step_rows <= total)
    rows = [list(range(at, min(at + step_rows, total))) for at in range(0, total, step_rows)]
    of_epoch = [step for step in rows if len(step) == step_rows or not full]
    run = [[epoch * total + row for row in step] for epoch in range(3) for step in of_epoch]
    weights, others = ["1"], {"batches": "proportional", "total": total}
    given = in_rows({**others, "unit": "step", "phases": [[n, weights] for n in range(len(run))]}, step_rows, full=full)
    assert given == {**others, "phases": [[step[0], weights] for step in run]}
    assert in_rows(given, step_rows, full=full) is given
    curriculum = Curriculum.of(given)
    assert curriculum is not None
    for number, step in enumerate(run):
        assert {curriculum.step(row, step_rows, full=full) for row in step} == {number}
