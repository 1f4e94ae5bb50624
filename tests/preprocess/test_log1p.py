"""log(1 + x): arrays and one number with equal bits, within one unit in the last place of the exact value."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.preprocess.log1p import log1p, one_log1p

EXACT = Context(prec=400)
NEAR_ONE = st.builds(
    lambda sign, power, x: sign * x * 2.0**-power, st.sampled_from([-1, 1]), st.integers(0, 60), st.floats(0.5, 1)
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(x=st.floats() | NEAR_ONE | st.floats(-1, 4))
def test_an_array_and_one_number_have_the_same_bits_close_to_the_exact_ones(x: float) -> None:
    found = one_log1p(x)
    assert np.array(found).tobytes() == log1p(np.array([x])).tobytes()
    if not -1 < x < math.inf:
        assert found == x or (x == -1 and found == -math.inf) or (not x >= -1 and math.isnan(found))
        return
    if abs(x) < 1e-100:
        assert found == x
        return
    exact = EXACT.ln(EXACT.add(1, Decimal(x)))
    assert abs(Decimal(found) - exact) < Decimal(math.ulp(found))


def test_many_numbers_are_those_of_one() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.lognormal(0, 9, 20_000), -rng.random(10_000), np.exp2(np.arange(-60, 1023)) * 1.4142135])
    assert log1p(x).tobytes() == np.array([one_log1p(value) for value in x.tolist()]).tobytes()
