"""The laws of weights that change, for all weights and boundaries: shares in each phase, and closed forms."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.checkpoint.form import check_form, sealed
from torch_dataloader_utils.errors import CheckpointMismatchError, EmptyDatasetError, OptionError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase, checked, in_rows
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
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


def exact(curriculum: Curriculum, first: int, last: int) -> list[Fraction]:
    """The exact share of each source in these units of the run."""
    firsts = [phase.first for phase in curriculum.phases]
    ends = [*firsts[1:], last]
    shares = [Fraction(0)] * curriculum.sources
    for phase, begin, end in zip(curriculum.phases, firsts, ends, strict=True):
        units = max(0, min(end, last) - max(begin, first))
        shares = [x + units * w / sum(phase.weights) for x, w in zip(shares, phase.weights, strict=True)]
    return shares


@given(curricula(fixed=False), st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_every_prefix_of_the_run_holds_each_source_in_its_share(curriculum: Curriculum, epoch: int) -> None:
    """Within 2 units for each phase; of weight 0, no unit at all."""
    before, counts = curriculum.before(epoch), curriculum.of_epoch(epoch).counts(np.arange(curriculum.total + 1))
    first = epoch * curriculum.total
    for units, row in enumerate(counts.tolist()):
        shares = exact(curriculum, 0, first + units)
        begun = sum(phase.first < first + units for phase in curriculum.phases)
        for count, earlier, share in zip(row, before, shares, strict=True):
            assert abs(count + earlier - share) <= 2 * begun
            assert share or not count + earlier


@given(curricula(), st.integers(0, 6))
def test_what_comes_before_an_epoch_is_what_the_earlier_ones_take(curriculum: Curriculum, epoch: int) -> None:
    taken = np.zeros(len(curriculum.phases[0].weights), np.int64)
    for earlier in range(epoch):
        rows = np.array(curriculum.of_epoch(earlier).of_each)
        assert rows.sum() == curriculum.total
        taken += rows
    assert curriculum.before(epoch) == taken.tolist()


@given(curricula(fixed=True), st.integers(0, 9))
def test_epochs_are_alike_between_the_changes(curriculum: Curriculum, epoch: int) -> None:
    alike = list(curriculum.alike(epoch))
    numbers = [first + n for first, times in alike for n in range(times)]
    assert numbers == list(range(epoch))
    turns = [turns for first, times in alike for turns in [curriculum.of_epoch(first)] * times]
    assert turns == [curriculum.of_epoch(number) for number in numbers]


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
    turns, rows = curriculum.of_epoch(epoch), np.array(curriculum.rows)
    assert turns.of_each == rows.tolist()
    counts, begin = turns.counts(np.arange(turns.total + 1)), epoch * turns.total
    ends = [min(max(phase.first - begin, 0), turns.total) for phase in curriculum.phases[1:]]
    for phase, first, last in zip(curriculum.phases, [0, *ends], [*ends, turns.total], strict=True):
        left, taken = rows - counts[first], counts[last] - counts[first]
        share = [weight if more else 0 for weight, more in zip(phase.weights, left, strict=True)]
        if any(share) and all(n < more for n, more, w in zip(taken, left, share, strict=True) if w):
            pairs = zip(taken, share, strict=True)
            assert all(abs(int(n) - (last - first) * w / sum(share)) <= 2 for n, w in pairs)
        free = sum(int(n) for n, w in zip(taken, phase.weights, strict=True) if not w)
        paid = sum(int(more) for more, w in zip(left, phase.weights, strict=True) if w)
        assert free == max(last - first - paid, 0)


@given(curricula(), st.integers(0, 3), st.data())
def test_the_rest_of_an_epoch_is_as_in_the_epoch(curriculum: Curriculum, epoch: int, data: st.DataObject) -> None:
    """Where no source has ended; else the others share its turns anew."""
    turns = curriculum.of_epoch(epoch)
    units = data.draw(st.integers(0, turns.total))
    counts = turns.counts(np.arange(turns.total + 1))
    left = (counts[-1] - counts[units]).tolist()
    rest = curriculum.of_rest(epoch, epoch * curriculum.total + units, left)
    assert rest.of_each == left
    stretches = list(accumulate((stretch.units for stretch in turns.stretches), initial=0))
    ended = curriculum.rows is not None and any(
        rows and not more for rows, more in zip(curriculum.rows, left, strict=True)
    )
    if not ended and units < stretches[-1]:
        assert (rest.counts(np.arange(rest.total + 1)) == counts[units:] - counts[units]).all()


@given(curricula(), st.integers(0, 3), st.data())
def test_the_rest_of_an_epoch_keeps_the_boundaries(curriculum: Curriculum, epoch: int, data: st.DataObject) -> None:
    """Whatever the ranks have left: they may have been at different steps."""
    rest = [data.draw(st.integers(0, rows)) for rows in curriculum.of_epoch(epoch).of_each]
    end = (epoch + 1) * curriculum.total
    turns = curriculum.of_rest(epoch, end - sum(rest), rest)
    assert turns.of_each == rest
    borders = set(accumulate(stretch.units for stretch in turns.stretches))
    assert borders >= {
        phase.first - (end - sum(rest)) for phase in curriculum.phases if end - sum(rest) < phase.first < end
    }


@given(curricula())
def test_a_state_holds_it_as_plain_values(curriculum: Curriculum) -> None:
    assert Curriculum.of(json.loads(json.dumps(curriculum.plain))) == curriculum


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 90), st.integers(0, 5))
def test_weights_that_never_change_are_those_of_a_plain_mix(weights: list[int], total: int, epoch: int) -> None:
    sizes, names = [90] * len(weights), [""] * len(weights)
    plain = epoch_rows(sizes, names, MixRule(tuple(map(float, weights)), rows_per_epoch=total))
    curriculum = Curriculum((WeightPhase(0, tuple(map(Fraction, weights))),), total)
    assert curriculum == Curriculum.constant(plain.weights, total=total)
    again = replace(curriculum, phases=(*curriculum.phases, WeightPhase(10**6, curriculum.phases[0].weights)))
    assert again.of_epoch(epoch) == curriculum.of_epoch(epoch)


@pytest.mark.parametrize("least", [(10**6, Fraction(1, 10**8)), (10**12, Fraction(1, 10**9))])
def test_rows_of_weight_0_come_last_in_huge_sources(least: tuple[int, Fraction]) -> None:
    rows = (10**11, 3 * 10**10, 7, least[0])
    phase = WeightPhase(0, (Fraction(1), Fraction(0), Fraction(1, 2), least[1]))
    turns = Curriculum((phase,), sum(rows), rows).of_epoch(0)
    paid = 10**11 + 7 + least[0]
    prefixes = np.array([5, 10**10, 10**11 + 10**6, paid - 1, paid, paid + 1, sum(rows) - 1, sum(rows)])
    table = turns.counts(np.sort(prefixes))
    assert table.sum(axis=1).tolist() == sorted(prefixes.tolist())
    assert table[:, 1].tolist() == np.maximum(np.sort(prefixes) - paid, 0).tolist()


def test_what_cannot_be_mixed_is_an_error() -> None:
    only_b = (WeightPhase(0, (Fraction(1), Fraction(0))), WeightPhase(50, (Fraction(0), Fraction(1))))
    with pytest.raises(EmptyDatasetError, match="b has no rows"):
        checked(Curriculum(only_b, 10), [5, 0], ["a", "b"])
    with pytest.raises(OptionError, match="100,000 rows of b, which has 5"):
        checked(Curriculum(only_b, 100_000), [50, 5], ["a", "b"])
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


@given(total=st.integers(1, 30), step_rows=st.integers(1, 40), full=st.booleans(), fixed=st.booleans())
def test_steps_and_rows_of_a_run_are_each_others(total: int, step_rows: int, full: bool, fixed: bool) -> None:
    """The steps of all epochs in turn. With only full steps, an epoch begins where the last one ended, or, if its rows
    are given, after those that fill no step."""
    assume(not full or step_rows <= total)
    rows = [list(range(at, min(at + step_rows, total))) for at in range(0, total, step_rows)]
    of_epoch = [step for step in rows if len(step) == step_rows or not full]
    stride = total if fixed or not full else sum(map(len, of_epoch))
    run = [[epoch * stride + row for row in step] for epoch in range(3) for step in of_epoch]
    others = {"batches": "proportional", **({"rows": [total]} if fixed else {"total": total})}
    given = {**others, "unit": "step", "phases": [[n, ["1"]] for n in range(len(run))]}
    curriculum = in_rows(given, step_rows, full=full)
    assert [phase.first for phase in curriculum.phases] == [step[0] for step in run]
    same = {**others, "phases": [[step[0], ["1"]] for step in run]}
    assert in_rows(same, step_rows, full=full) == curriculum
    assert curriculum.first(2) == 2 * stride
    for number, step in enumerate(run):
        assert {curriculum.step(row, step_rows, full=full) for row in step} == {number}


@given(st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_an_epoch_of_whole_steps_has_at_least_one(total: int, step_rows: int, full: bool) -> None:
    given = {"batches": "single", "total": total, "phases": [[0, ["1", "2"]]]}
    found = in_rows(given, step_rows, full=full, whole=True).total
    assert found == (total // step_rows * step_rows or total)
