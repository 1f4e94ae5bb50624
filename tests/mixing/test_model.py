"""The executable model of mixes, where it is at hand, and the product agree."""

from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.mixing.tree import tree_of, whole_weights

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def model() -> ModuleType:
    return model_of("mix_model")


@given(WEIGHTS, st.lists(st.integers(0, 5000), min_size=1, max_size=9))
def test_prefixes(model: ModuleType, weights: list[int], prefixes: list[int]) -> None:
    found = tree_of(tuple(weights)).counts(np.array(prefixes)).tolist()
    assert found == [model.Mix.of(weights).counts(units) for units in prefixes]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=6))
@settings(deadline=None)
def test_how_many(model: ModuleType, pairs: list[tuple[int, int]]) -> None:
    weights, units = [weight for weight, _ in pairs], [count for _, count in pairs]
    fractions, names = list(map(Fraction, weights)), list(map(str, weights))
    mix = model.Mix.of(weights)
    first, every = (epoch_rows(units, names, MixRule(tuple(fractions), stop=stop)).rows for stop in ("first", "all"))
    assert list(first or ()) == mix.counts(model.most_within(fractions, units))
    assert list(every or ()) == mix.counts(model.least_over(weights, units))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=6).filter(
        lambda x: any(w for w, _ in x)
    )
)
@settings(deadline=None)
def test_each_source_once(model: ModuleType, pairs: list[tuple[int, int]]) -> None:
    weights, units = [weight for weight, _ in pairs], [count for _, count in pairs]
    mix, total = model.once(weights, units)
    turns = Curriculum.constant(weights, rows=units).of_epoch(3)
    assert turns.total == total
    assert turns.counts(np.arange(total + 1)).tolist() == [
        mix.counts(n) if n else [0] * len(units) for n in range(total + 1)
    ]


@given(WEIGHTS, st.lists(st.tuples(st.integers(1, 90), WEIGHTS), max_size=3), st.integers(1, 90), st.integers(0, 4))
@settings(deadline=None)
def test_curricula(
    model: ModuleType, weights: list[int], more: list[tuple[int, list[int]]], total: int, epoch: int
) -> None:
    phases, at = [(0, weights)], 0
    for length, other in more:
        at += length
        phases.append((at, (other * len(weights))[: len(weights)]))
    mix = model.Mix.curriculum(phases, 1)
    own = Curriculum(tuple(WeightPhase(first, tuple(map(Fraction, given))) for first, given in phases), total)
    turns = own.of_epoch(epoch)
    before = np.array(mix.counts(epoch * total))
    expected = [(np.array(mix.counts(epoch * total + n)) - before).tolist() for n in range(total + 1)]
    assert turns.counts(np.arange(total + 1)).tolist() == expected
    assert own.before(epoch) == before.tolist()
    assert whole_weights(list(map(Fraction, weights))) == own.phases[0].whole
