"""The compiled order of large windows: that of `seeding.window_order`, however the rows arrive."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import BucketOrder, compiled, library, rows
from torch_dataloader_utils.seeding import WindowOrder, window_key, window_order

LEAST = 16_385  # rows of the smallest window that is divided into buckets
MANY = (1 << 23) + 1  # whose buckets are numbered by uint16

pytestmark = pytest.mark.skipif(not compiled(), reason="there was no C compiler when the package was installed")


def order_of(n: int, key: int, runs: list[int]) -> BucketOrder:
    order = BucketOrder.drawn(n, key, runs)
    assert order is not None
    return order


@settings(max_examples=30, deadline=None)
@given(
    st.integers(LEAST, 70_000),
    st.lists(st.integers(0, 70_000), max_size=5),
    st.sampled_from(["u1", "u2", "u4", "u8", "V3", "V16", "V20"]),
    st.randoms(use_true_random=False),
)
def test_rows_arrive_in_runs_of_any_order(n: int, cuts: list[int], dtype: str, random: Random) -> None:
    bounds = [0, *sorted(min(cut, n) for cut in cuts), n]
    runs, key = list(pairwise(bounds)), window_key(7, n)
    order = order_of(n, key, [last - first for first, last in runs])
    width = np.dtype(dtype).itemsize
    rows = np.random.default_rng(n).integers(0, 256, (n, width), np.uint8).view(dtype)[:, 0]
    out = np.empty(n, dtype)
    random.shuffle(runs)
    for first, last in runs:
        order.put(first, rows[first:last], out)
    order.permute(out)
    assert np.array_equal(out, rows[window_order(n, key)])


def test_rows_with_gaps_between_them() -> None:
    key, values = window_key(7), np.arange(2 * LEAST)
    order, out = order_of(LEAST, key, [LEAST]), np.empty(LEAST, np.int64)
    order.put(0, values[1::2], out)
    order.permute(out)
    assert np.array_equal(out, values[1::2][window_order(LEAST, key)])


@pytest.mark.parametrize("n", [LEAST, 300_000, MANY])
def test_places_are_those_of_the_order(n: int) -> None:
    key = window_key(42, n)
    assert np.array_equal(order_of(n, key, [n // 3, n - n // 3]).places(), window_order(n, key))


def test_a_run_of_other_rows_than_planned_is_refused() -> None:
    order, out = order_of(LEAST, 5, [LEAST]), np.empty(LEAST, np.int64)
    with pytest.raises(ValueError, match="16386 rows from row 0"):
        order.put(0, np.arange(LEAST + 1), out)


def test_a_small_window_has_no_buckets() -> None:
    assert BucketOrder.drawn(LEAST - 1, 5, [LEAST - 1]) is None
    assert not WindowOrder.orders(LEAST - 1)


def test_there_are_no_such_orders_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "library", lambda: None)
    assert BucketOrder.drawn(LEAST, 5, [LEAST]) is None
    assert library.library() is not None
