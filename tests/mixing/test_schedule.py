"""The laws of a mix, for all weights and sizes: exact quotas at every prefix, which only grow, and laps."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import EmptyDatasetError, OptionError
from torch_dataloader_utils.mixing.laps import even_counts, laps_of
from torch_dataloader_utils.mixing.rows import MOST_LAPS, MixRule, epoch_rows
from torch_dataloader_utils.mixing.schedule import Schedule, Stretch, prefix_counts

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
WEIGHT = st.floats(0.1, 10)  # far from the most laps of an epoch


def named(sizes: list[int]) -> list[str]:
    return [f"source {i}" for i in range(len(sizes))]


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    sizes = draw(SIZES)
    return sizes, draw(st.lists(WEIGHT, min_size=len(sizes), max_size=len(sizes)))


@given(mixes())
@settings(max_examples=60, deadline=None)
def test_prefixes_are_those_of_the_rows_sorted_by_position(mix: tuple[list[int], list[float]]) -> None:
    sizes, rates = mix
    placed = sorted(((j + 0.5) / rates[i], i) for i, size in enumerate(sizes) for j in range(size))
    expected = [Counter(i for _, i in placed[:end]) for end in range(len(placed) + 1)]
    found = prefix_counts(sizes, rates, np.arange(len(placed) + 1))
    assert [[counts[i] for i in range(len(sizes))] for counts in expected] == found.tolist()


@given(SIZES, st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_quotas_stay_within_three_rows_of_exact_and_only_grow(sizes: list[int], batch: int, pads: bool) -> None:
    schedule = Schedule((Stretch(tuple(sizes), tuple(map(float, sizes))),), batch, padding=3 if pads else 0)
    table = schedule.table(0, schedule.steps)
    assert (np.diff(table, axis=0) >= 0).all()
    total = sum(sizes)
    for step, counts in enumerate(table[:, : len(sizes)].tolist()):
        taken = min(step * batch, total)
        assert sum(counts) == taken
        assert all(abs(count - Fraction(taken * size, total)) <= 3 for count, size in zip(counts, sizes, strict=True))
    assert schedule.after(schedule.steps)[: len(sizes)] == sizes
    assert schedule.table(1, 3).tolist() == [schedule.after(step) for step in (1, 2, 3)]


@given(mixes(), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_single_batches_hold_one_source_each(mix: tuple[list[int], list[float]], batch: int) -> None:
    sizes, rates = mix
    schedule = Schedule((Stretch(tuple(sizes), tuple(rates)),), batch, single=True)
    grown = np.diff(schedule.table(0, schedule.steps), axis=0)
    assert (np.count_nonzero(grown, axis=1) == 1).all()
    assert (grown.sum(axis=1) <= batch).all()
    assert grown.sum(axis=0).tolist() == sizes


def test_positions_of_huge_sources_are_found_without_walking_to_them() -> None:
    rows = (10**11, 3 * 10**10, 7)
    schedule = Schedule((Stretch(rows, tuple(map(float, rows))),), 1000)
    counts = schedule.after(schedule.steps // 2)
    assert all(abs(count - row / 2) <= 3 for count, row in zip(counts, rows, strict=True))


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 6))
def test_every_row_before_any_twice_across_epochs(size: int, rows: int, epochs: int) -> None:
    taken: Counter[int] = Counter()
    for epoch in range(epochs):
        laps = list(laps_of(size, epoch * rows, (epoch + 1) * rows))
        assert sum(last - first for _, first, last in laps) == rows
        for lap, first, last in laps:
            for place in range(first, last):
                taken[(place + lap) % size] += 1  # another order in each lap
                assert max(taken.values()) - min(taken[row] for row in range(size)) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 7))
def test_ranks_get_equal_counts_of_each_source_and_of_all(sizes: list[int], ranks: int) -> None:
    counts = even_counts(sizes, ranks)
    assert counts.sum(axis=1).tolist() == sizes
    assert np.ptp(counts, axis=1).max() <= 1
    assert np.ptp(counts.sum(axis=0)) <= 1


@given(mixes(), st.integers(1, 500))
@settings(deadline=None)
def test_rows_per_epoch_are_apportioned_exactly(mix: tuple[list[int], list[float]], total: int) -> None:
    sizes, weights = mix
    rows = epoch_rows(sizes, named(sizes), MixRule(tuple(weights), rows_per_epoch=total)).rows
    assert sum(rows) == total
    assert all(abs(n - total * w / sum(weights)) < 1.001 for n, w in zip(rows, weights, strict=True))


@given(mixes())
def test_stop_rules_end_with_the_first_source_or_the_last(mix: tuple[list[int], list[float]]) -> None:
    sizes, weights = mix
    names = named(sizes)
    longest = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    assume(all(weight * longest < size * MOST_LAPS for size, weight in zip(sizes, weights, strict=True)))
    first, every = (epoch_rows(sizes, names, MixRule(tuple(weights), stop=stop)).rows for stop in ("first", "all"))
    assert all(n <= size for n, size in zip(first, sizes, strict=True))
    assert any(n == size for n, size in zip(first, sizes, strict=True))
    assert all(n >= size for n, size in zip(every, sizes, strict=True))
    assert any(n == size for n, size in zip(every, sizes, strict=True))


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (MixRule(), (100, 1000)),
        (MixRule((0.1, 0.3)), (100, 1000)),
        (MixRule((0.1, 0.3), stop="first"), (100, 300)),
        (MixRule((0.1, 0.3), stop="all"), (333, 1000)),
        (MixRule((1.0, 1.0), stop="all", max_repeats=3), (300, 1000)),
        (MixRule(temperature=2.0, stop="all"), (316, 1000)),
        (MixRule(repeat=(2.5, 1.0)), (250, 1000)),
        (MixRule((1.0, 1.0), rows_per_epoch=1001), (501, 500)),
        (MixRule((1.0, 1.0), rows_per_epoch=1000, max_repeats=2), (200, 800)),
    ],
)
def test_rows_of_an_epoch(rule: MixRule, rows: tuple[int, ...]) -> None:
    assert epoch_rows((100, 1000), ["a", "b"], rule).rows == rows


def test_weights_that_only_order_rows_are_the_rates() -> None:
    assert epoch_rows((100, 1000), ["a", "b"], MixRule((1.0, 2.0))).rates == (0.5, 1)
    assert epoch_rows((100, 1000), ["a", "b"], MixRule((1.0, 2.0), stop="first")).rates == (100, 200)


def test_what_cannot_be_mixed_is_an_error() -> None:
    with pytest.raises(EmptyDatasetError, match="b has no rows"):
        epoch_rows((5, 0), ["a", "b"], MixRule(stop="all"))
    with pytest.raises(OptionError, match="give at most 22 rows"):
        epoch_rows((5, 6), ["a", "b"], MixRule(rows_per_epoch=23, max_repeats=2))
    with pytest.raises(OptionError, match="none is more than"):
        epoch_rows((5, 6), ["a", "b"], MixRule((1.0, 1e-10)))
    with pytest.raises(OptionError, match="1,000,000 rows of a, which has 5"):
        epoch_rows((5, 1_000_000), ["a", "b"], MixRule((1.0, 1.0), stop="all"))
