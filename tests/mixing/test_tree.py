"""The laws of the tree that says which source each unit is of: bounds for any weights, exact integers, closed forms."""

from collections import Counter
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.mixing.tree import Tree, tree_of, whole_weights
from torch_dataloader_utils.mixing.turns import Stretch, Turns, as_far_as_they_go

WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any)
WIDE = st.lists(st.integers(1, 2**46), min_size=1, max_size=12)


def sources(tree: Tree, last: int) -> list[int]:
    """The source of each of the first units."""
    return np.diff(tree.counts(np.arange(last + 1)), axis=0).argmax(axis=1).tolist()


@given(WEIGHTS, st.integers(0, 5000))
def test_any_prefix_is_within_two_units_of_its_share(weights: list[int], units: int) -> None:
    """One half of a unit with two sources."""
    counts = Tree(weights).of_first(units)
    assert sum(counts) == units
    bound = Fraction(1, 2) if sum(map(bool, weights)) == 2 else 2
    assert all(abs(n - Fraction(units * w, sum(weights))) <= bound for n, w in zip(counts, weights, strict=True))


@given(WEIGHTS | WIDE, st.lists(st.integers(0, 2**60 - 1), min_size=1, max_size=20))
def test_floats_and_integers_agree_exactly(weights: list[int], prefixes: list[int]) -> None:
    tree = Tree(weights)
    assert tree.counts(np.array(prefixes)).tolist() == [tree.of_first(units) for units in prefixes]


@given(WEIGHTS, st.integers(0, 400))
def test_each_unit_is_of_one_source(weights: list[int], first: int) -> None:
    grown = np.diff(Tree(weights).counts(np.arange(first, first + 100)), axis=0)
    assert (grown.sum(axis=1) == 1).all()
    assert (grown >= 0).all()
    assert not grown[:, [not weight for weight in weights]].any()


@given(WEIGHTS | WIDE, st.integers(1, 2**40), st.data())
def test_the_unit_at_which_a_source_has_so_many(weights: list[int], count: int, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([number for number, weight in enumerate(weights) if weight]))
    tree = Tree(weights)
    units = tree.until(source, count)
    assert tree.of_first(units)[source] == count
    assert tree.of_first(units - 1)[source] == count - 1


@given(WEIGHTS, st.integers(0, 90), st.data())
def test_the_most_units_before_a_source_ends_and_the_least_that_hold_all(
    weights: list[int], first: int, data: st.DataObject
) -> None:
    left = [data.draw(st.integers(1, 60)) for _ in weights]
    tree = Tree(weights)
    before, most = tree.of_first(first), tree.most(first, left)

    def ended(units: int) -> bool:
        taken = zip(before, tree.of_first(first + units), left, strict=True)
        return any(after - begun > more for begun, after, more in taken)

    assert not ended(most)
    assert ended(most + 1)
    least = tree.least(left)
    pairs = [(n, more) for n, more, w in zip(tree.of_first(least), left, weights, strict=True) if w]
    assert all(n >= more for n, more in pairs)
    fewer = [(n, more) for n, more, w in zip(tree.of_first(least - 1), left, weights, strict=True) if w]
    assert any(n < more for n, more in fewer)


@pytest.mark.parametrize("many", [20, 90])
def test_one_large_source_beside_many_small_ones_has_no_burst(many: int) -> None:
    turns = sources(tree_of((many, *[1] * many)), 8 * many)
    assert max(len(list(same)) for _, same in groupby(turns, key=lambda source: source == 0)) <= 2


@given(WEIGHTS, st.integers(1, 50))
def test_a_scaled_weight_or_one_of_zero_changes_nothing(weights: list[int], factor: int) -> None:
    plain = whole_weights(list(map(Fraction, weights)))
    assert whole_weights([Fraction(weight, factor) for weight in weights]) == plain
    assert sources(tree_of(plain), 60) == sources(tree_of((*plain, 0)), 60)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=9))
def test_weights_of_many_digits_keep_their_proportion(weights: list[float]) -> None:
    whole = whole_weights([Fraction(repr(weight)) for weight in weights])
    total, exact = sum(whole), sum(map(Fraction, weights))
    assert total < 2**51
    assert all(whole)
    assert all(abs(n / total - w / exact) < 1e-12 for n, w in zip(whole, map(Fraction, weights), strict=True))


# ------------------------------------------------------------------------------------------------ sources that end


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=6), st.integers(0, 400))
@settings(deadline=None)
def test_an_ended_source_gives_its_turns_to_the_others_by_weight(pairs: list[tuple[int, int]], taken: int) -> None:
    weights, units = [weight for weight, _ in pairs], [count for _, count in pairs]
    total = min(taken, sum(units))
    turns = Turns.of(as_far_as_they_go(weights, 0, units, total), len(units))
    counts = turns.counts(np.arange(turns.total + 1))
    assert turns.total == total
    assert (np.diff(counts, axis=0).sum(axis=1) == 1).all()
    assert (counts <= units).all()
    assert counts[-1].tolist() == turns.of_each
    before = np.zeros(len(units))
    for stretch in turns.stretches:
        going = [n > b for n, b in zip(units, before, strict=True)]
        weighted = any(w for w, more in zip(weights, going, strict=True) if more)
        assert [bool(w) for w in stretch.weights] == [
            more and (bool(w) or not weighted) for w, more in zip(weights, going, strict=True)
        ]
        before = before + stretch.of_each
        if weighted and before.sum() < total:
            assert any(n == b for n, b, w in zip(units, before, stretch.weights, strict=True) if w)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_turns_are_found_by_source_and_cut_anywhere(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    weights, units = [weight for weight, _ in pairs], [count for _, count in pairs]
    turns = Turns.of(as_far_as_they_go(weights, 0, units, sum(units)), len(units))
    order = np.diff(turns.counts(np.arange(turns.total + 1)), axis=0).argmax(axis=1).tolist() if any(units) else []
    for source, count in enumerate(units):
        places = [place for place, of in enumerate(order) if of == source]
        assert places == [turns.place(source, number) for number in range(1, count + 1)]
    first = turns.until(data.draw(st.integers(0, turns.total)))
    assert Counter(order[: first.total]) == {i: n for i, n in enumerate(first.of_each) if n}


def test_units_of_no_stretch() -> None:
    turns = Turns.of([Stretch((1, 1), 0, 0)], 2)
    assert turns.total == 0
    assert turns.of_each == [0, 0]
    assert turns.counts(np.array([0, 0])).tolist() == [[0, 0], [0, 0]]
