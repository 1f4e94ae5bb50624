"""The bucket of each number: that of `bisect`, compiled and by numpy."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import buckets

numbers = st.one_of(st.floats(), st.integers(-40, 40).map(float))
bounds = st.sets(st.one_of(st.floats(-1e9, 1e9), st.integers(-40, 40).map(float)), max_size=70)


@pytest.fixture(params=["compiled", "numpy"])
def each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(buckets, "library", lambda: None)
    elif buckets.library() is None:
        pytest.skip("there was no C compiler when the package was installed")


@pytest.mark.usefixtures("each")
@settings(deadline=None)
@given(values=st.lists(numbers, max_size=300), limits=bounds)
def test_a_bucket_is_the_number_of_bounds_that_are_not_greater(values: list[float], limits: set[float]) -> None:
    ordered = sorted({limit + 0.0 for limit in limits})
    found = buckets.bucketed(np.array(values), np.array(ordered))
    assert found.tolist() == [0 if value != value else 1 + bisect_right(ordered, value) for value in values]


@pytest.mark.usefixtures("each")
@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 18, 31, 32, 33, 64, 100])
def test_values_at_and_beside_each_bound(k: int) -> None:
    limits = np.arange(k, dtype=np.float64)
    values = np.concatenate([limits, np.nextafter(limits, -1), np.nextafter(limits, k), [-np.inf, np.inf, np.nan]])
    found = buckets.bucketed(values[::-1], limits)
    assert found.tolist() == [0 if v != v else 1 + bisect_right(limits.tolist(), v) for v in values[::-1].tolist()]
