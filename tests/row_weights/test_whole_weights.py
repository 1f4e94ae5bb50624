"""Weights as whole numbers: rounding, digests, updates, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.row_weights.whole_weights import WholeWeights, checked

WEIGHT = st.one_of(st.just(0.0), st.floats(5e-324, 1.7e308))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=30).filter(any)


@given(WEIGHTS)
def test_weights_are_rounded_up_to_24_bits_and_are_the_same_again(values: list[float]) -> None:
    given = np.array(values)
    found = WholeWeights.of(given)
    assert ((found.numbers > 0) == (given > 0)).all()
    assert 2**23 < found.numbers.max() <= 2**24 or given.max() < 2.0**-1050
    assert (found.values >= given).all()
    assert (found.values - given <= given.max() * 2.0**-23).all()
    again = WholeWeights.of(found.values)
    assert again.digest == found.digest
    assert (again.values == found.values).all()


@given(WEIGHTS, st.integers(-900, 900))
def test_a_power_of_two_changes_nothing(values: list[float], exponent: int) -> None:
    scaled = np.ldexp(np.array([min(max(value, 1e-9), 1e9) for value in values]), exponent // 3)
    assert WholeWeights.of(scaled).digest == WholeWeights.of(np.ldexp(scaled, 5)).digest


def test_small_weights_do_not_vanish() -> None:
    assert WholeWeights.of(np.array([1e-12, 1.0, 0.0])).numbers.tolist() == [1, 2**24, 0]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), max_size=20), st.randoms())
def test_updates_do_not_depend_on_their_order(updates: list[tuple[int, float]], random: Any) -> None:
    base = WholeWeights.of(np.linspace(1, 2, 12))
    shuffled = random.sample(updates, len(updates))
    one, other = (
        base.updated(np.array([row for row, _ in some], np.int64), np.array([value for _, value in some]))
        for some in (updates, shuffled)
    )
    assert one.digest == other.digest
    for row in range(12):
        own = [value for updated, value in updates if updated == row]
        expected = max(own) if own else base.values[row]
        assert one.values[row] == pytest.approx(expected, abs=100 * 2.0**-23)


def test_digests_differ() -> None:
    base = np.ones(100_000)
    other = base.copy()
    other[77_777] = 1.001
    assert len(WholeWeights.of(base).digest) == 32
    assert WholeWeights.of(base).digest != WholeWeights.of(other).digest
    assert WholeWeights.of(base).digest != WholeWeights.of(base[:-1]).digest


@pytest.mark.parametrize("values", [[1, 2], np.array([1, 2], np.int32), torch.tensor([1.0, 2.0]), (1, 2.0)])
def test_any_numbers(values: Any) -> None:
    assert checked(values, 2, "row").tolist() == [1, 2]


def test_a_tensor_with_a_gradient() -> None:
    assert checked(torch.ones(3, requires_grad=True), 3, "row").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -1.0, 1.0], "1 weight.s. are negative, NaN or infinite; the first is number 1, -1.0"),
        ([1.0, 1.0, float("nan")], "number 2, nan"),
        ([float("inf"), 1.0, float("inf")], "2 weight"),
        ([1.0, 1.0], r"shape \[2\].* shape \[3\]"),
        ([[1.0, 1.0, 1.0]], r"shape \[1, 3\]"),
        (["a", "b", "c"], "expected numbers"),
        ([0.0, 0.0, 0.0], "all 3 weights are 0"),
    ],
)
def test_what_is_refused(values: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        WholeWeights.of(checked(values, 3, "row"))
    assert isinstance(raised.value, ValueError)
