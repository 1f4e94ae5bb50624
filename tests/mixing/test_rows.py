"""How many rows an epoch takes of each source, for all weights and sizes, and laps."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import EmptyDatasetError, OptionError
from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.laps import laps_of
from torch_dataloader_utils.mixing.rows import MOST_LAPS, MixRule, epoch_rows

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
WEIGHT = st.floats(0.1, 10)  # far from the most laps of an epoch


def named(sizes: list[int]) -> list[str]:
    return [f"source {i}" for i in range(len(sizes))]


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    sizes = draw(SIZES)
    return sizes, draw(st.lists(WEIGHT, min_size=len(sizes), max_size=len(sizes)))


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


@given(mixes(), st.integers(1, 500), st.integers(0, 9))
@settings(deadline=None)
def test_rows_per_epoch_go_on_over_epochs(mix: tuple[list[int], list[float]], total: int, epoch: int) -> None:
    """Any number of epochs has each source in its share, within 2 rows."""
    sizes, weights = mix
    taken = epoch_rows(sizes, named(sizes), MixRule(tuple(weights), rows_per_epoch=total))
    assert taken.rows is None
    curriculum = Curriculum.constant(taken.weights, total=total)
    assert sum(curriculum.of_epoch(epoch).of_each) == total
    exact = [Fraction(repr(weight)) for weight in weights]
    for count, weight in zip(curriculum.before(epoch), exact, strict=True):
        assert abs(count - epoch * total * weight / sum(exact)) <= 2


@given(mixes())
def test_stop_rules_end_with_the_first_source_or_the_last(mix: tuple[list[int], list[float]]) -> None:
    """With the first: one more row would be more than one has. With the last: one row fewer would leave one out."""
    sizes, weights = mix
    names = named(sizes)
    longest = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    assume(all(weight * longest < size * (MOST_LAPS - 2) for size, weight in zip(sizes, weights, strict=True)))
    first, every = (epoch_rows(sizes, names, MixRule(tuple(weights), stop=stop)) for stop in ("first", "all"))
    assert first.rows is not None
    assert every.rows is not None
    assert all(n <= size for n, size in zip(first.rows, sizes, strict=True))
    more = Curriculum.constant(first.weights, total=sum(first.rows) + 1).of_epoch(0).of_each
    assert any(n > size for n, size in zip(more, sizes, strict=True))
    assert all(n >= size for n, size in zip(every.rows, sizes, strict=True))
    less = Curriculum.constant(every.weights, total=sum(every.rows) - 1).of_epoch(0).of_each
    assert any(n < size for n, size in zip(less, sizes, strict=True))


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (MixRule(), (100, 1000)),
        (MixRule((0.1, 0.3)), (100, 1000)),
        (MixRule((0.1, 0.3), stop="first"), (100, 301)),
        (MixRule((0.1, 0.3), stop="all"), (333, 1000)),
        (MixRule((1.0, 1.0), stop="all", max_repeats=3), (300, 1000)),
        (MixRule(temperature=2.0, stop="all"), (316, 1000)),
        (MixRule(repeat=(2.5, 1.0)), (250, 1000)),
        (MixRule((1.0, 1.0), rows_per_epoch=1000, max_repeats=2), (200, 800)),
    ],
)
def test_rows_of_an_epoch(rule: MixRule, rows: tuple[int, ...]) -> None:
    assert epoch_rows((100, 1000), ["a", "b"], rule).rows == rows


def test_weights_order_rows_unless_these_follow_from_a_limit() -> None:
    """Then rows are delivered in proportion to their number, so that all sources end together."""

    def weights(**rule: Any) -> list[float]:
        return list(map(float, epoch_rows((100, 1000), ["a", "b"], MixRule(**rule)).weights))

    assert weights(weights=(1.0, 2.0)) == [1, 2]
    assert weights(weights=(1.0, 2.0), repeat=(3.0, 1.0), max_repeats=2.0) == [1, 2]
    assert weights(weights=(1.0, 2.0), stop="first") == [1, 2]
    assert weights(weights=(1.0, 1.0), stop="all", max_repeats=3.0) == [300, 1000]
    assert weights(weights=(1.0, 1.0), rows_per_epoch=1000, max_repeats=2.0) == [200, 800]
    assert weights(repeat=(2.5, 1.0)) == [250, 1000]
    assert weights() == [100, 1000]


def test_what_cannot_be_mixed_is_an_error() -> None:
    with pytest.raises(EmptyDatasetError, match="b has no rows"):
        epoch_rows((5, 0), ["a", "b"], MixRule(stop="all"))
    with pytest.raises(OptionError, match="give at most 22 rows"):
        epoch_rows((5, 6), ["a", "b"], MixRule(rows_per_epoch=23, max_repeats=2))
    with pytest.raises(OptionError, match="1,000,000 rows of a, which has 5"):
        epoch_rows((5, 1_000_000), ["a", "b"], MixRule((1.0, 1.0), stop="all"))
