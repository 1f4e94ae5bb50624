"""Random draws: permutations, independent of numpy's generators, and frozen."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import seeding
from torch_dataloader_utils.seeding import (
    derive_key,
    permutation,
    random_below,
    random_words,
    window_key,
    window_order,
)


@given(st.integers(0, 400), st.integers(0, 2**64 - 1))
def test_a_permutation_holds_every_number_once(n: int, key: int) -> None:
    drawn = permutation(n, key)
    assert drawn.dtype == np.int64
    assert sorted(drawn.tolist()) == list(range(n))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**64 - 1))
def test_a_word_depends_on_its_index_and_not_on_how_many_are_drawn(n: int, more: int, key: int) -> None:
    assert random_words(n + more, key)[:n].tolist() == random_words(n, key).tolist()


@given(st.integers(1, 2**40), st.integers(0, 2**64 - 1))
def test_a_number_below_n(n: int, key: int) -> None:
    assert 0 <= random_below(n, key) < n


def test_keys_differ_by_purpose_number_and_type() -> None:
    keys = {
        derive_key("order", 1, 2),
        derive_key("order", 12),
        derive_key("order", 2, 1),
        derive_key("shard", 1, 2),
        derive_key("order", "1", 2),
    }
    assert len(keys) == 5


def test_all_places_are_reached_about_equally_often() -> None:
    counts = np.zeros((8, 8))
    for seed in range(4000):
        counts[np.arange(8), permutation(8, derive_key("spread", seed))] += 1
    # 500 expected in each cell, with a standard deviation of about 21.
    assert abs(counts - 500).max() < 120


def test_words_are_those_of_splitmix64() -> None:
    # The first outputs for this seed are published with the generator's test vectors (Rosetta Code, "Splitmix64").
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert random_words(5, 1234567).tolist() == expected


@given(st.integers(0, 2**64 - 1))
@example(0)
@settings(max_examples=10)
def test_many_places_are_sorted_as_few_are(key: int) -> None:
    words = random_words(3 * seeding._SORTED // 2, key).astype(np.uint32)
    assert np.array_equal(permutation(len(words), key), np.argsort(words, kind="stable"))


@pytest.mark.parametrize("n", [0, 1, 1000, seeding._DRAWN, seeding._DRAWN + 1, 2**17, 2**17 + 1, 300_000, 2**23 + 1])
def test_the_order_of_a_window_holds_every_row_once(n: int) -> None:
    orders = [window_order(n, window_key(3, "window", number)) for number in range(2)]
    assert all(order.dtype == np.uint32 for order in orders)
    assert all(np.array_equal(np.sort(order), np.arange(n)) for order in orders)
    assert n < 2 or not np.array_equal(*orders)


def test_large_windows_are_permuted_uniformly() -> None:
    """Windows of one seed share permutations: neither one window nor several together differ from uniform ones."""
    n, cells = 100_000, 10
    orders = [window_order(n, window_key(seed, number)).astype(np.int64) for seed in range(3) for number in range(20)]
    counts = sum(np.histogram2d(order, np.arange(n), bins=cells, range=[[0, n], [0, n]])[0] for order in orders)
    expected = len(orders) * n / cells**2
    freedom = (cells - 1) ** 2
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 4 * (2 * freedom) ** 0.5
    neighbours = [int((np.diff(order) == 1).sum()) for order in orders]  # Poisson with mean 1
    assert abs(sum(neighbours) - len(orders)) < 4 * len(orders) ** 0.5
    correlations = [np.corrcoef(first, second)[0, 1] for first, second in itertools.combinations(orders[:20], 2)]
    assert max(map(abs, correlations)) < 5 / n**0.5
    kept = [int((np.abs(first - second) < n // 100).sum()) for first, second in itertools.pairwise(orders)]
    assert abs(np.mean(kept) / n - 0.0199) < 0.0005


def test_draws_are_frozen() -> None:
    assert derive_key("order", 42, 0) == 17266905067049876075
    assert permutation(10, derive_key("order", 42, 0)).tolist() == [4, 9, 6, 5, 2, 1, 8, 3, 0, 7]
    assert random_below(1000, derive_key("left_out", 42)) == 561
    assert window_key(42, "window", 0) == 7236855143015250472
    assert window_order(10, window_key(42, "window", 0)).tolist() == [9, 4, 2, 3, 8, 1, 6, 0, 7, 5]
    large = {100_000: [81901, 47515, 62373, 48852, 84497], 10_000_000: [2801833, 206090, 8013791, 5786924, 461895]}
    for n, first in large.items():
        assert window_order(n, window_key(42, "window", 0))[:5].tolist() == first
