"""Random numbers for rows: what they depend on, how they are distributed, and that they are frozen."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.hashing import hashed_number, hashes_of_numbers, number_hash, number_hashes
from torch_dataloader_utils.reading.row_generator import RowGenerator, normal_quantiles

ROWS = 20_000
SIGMAS = 5  # that a statistic of a fixed seed may be off


def chi_squared(counts: Any, expected: Any = None) -> float:
    """How many standard deviations the statistic of these counts is above its mean; of equal ones, if not given."""
    counts = np.asarray(counts, float).ravel()
    expected = counts.sum() / len(counts) if expected is None else np.asarray(expected, float).ravel()
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def seeded(rows: int = ROWS, seed: int = 1) -> RowGenerator:
    return RowGenerator.seeded(seed, rows)


CALLS = {
    "random": lambda rng: rng.random(),
    "random, 3": lambda rng: rng.random(3),
    "random, 2 x 3": lambda rng: rng.random(2, 3),
    "integers": lambda rng: rng.integers(10),
    "integers, shaped": lambda rng: rng.integers(-5, 2**40, shape=(2,)),
    "normal": lambda rng: rng.normal(),
    "normal, shaped": lambda rng: rng.normal(3.0, 2.0, shape=4),
    "choice": lambda rng: rng.choice(["a", "b", "c"]),
    "choice, weighted": lambda rng: rng.choice(4, p=[0.1, 0.2, 0.3, 0.4], shape=2),
    "permutation": lambda rng: rng.permutation(5),
    "seeds": lambda rng: rng.seeds(),
}


@given(data=st.data())
def test_a_row_draws_the_same_in_any_block_and_in_any_order(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.integers(0, 49), max_size=20))
    whole, part = seeded(50), seeded(50).take(np.array(rows, np.int64))
    for name in names:
        expected = CALLS[name](whole)
        assert CALLS[name](part).tolist() == expected[rows].tolist()
        assert CALLS[name](whole.take(slice(0, 0))).shape == (0, *expected.shape[1:])


def test_a_part_goes_on_where_the_whole_is() -> None:
    rng = seeded(10)
    rng.random(3)
    assert rng.take(slice(4, 6)).random().tolist() == rng.random()[4:6].tolist()


def test_other_rows_calls_seeds_and_functions_draw_other_numbers() -> None:
    rng = seeded(1000)
    drawn = [rng.seeds(), rng.seeds(), seeded(1000, seed=2).seeds()]
    drawn += [seeded(1000).of_function(place).seeds() for place in (0, 1)]
    assert len(np.unique(np.concatenate(drawn))) == 5000
    first = [seeded(3).generator(row).integers(2**62) for row in range(3)]
    rng = seeded(3)
    rng.random()
    assert [rng.generator(row).integers(2**62) for row in range(3)] == first  # whatever was called before
    assert len(set(first)) == 3


def test_numbers_are_frozen() -> None:
    """Changes would make each run of a user another one: raise no version, but do not make them."""
    rng = RowGenerator(np.array([0, 1, 2**64 - 1], np.uint64))
    assert [f"{x:.17g}" for x in rng.random()] == FROZEN["random"]
    assert rng.integers(1000, shape=2).tolist() == FROZEN["integers"]
    assert [x.hex() for x in rng.normal().tolist()] == FROZEN["normal"]
    assert rng.permutation(4).tolist() == FROZEN["permutation"]
    assert rng.choice([5, 6, 7], p=[0.5, 0.25, 0.25]).tolist() == FROZEN["choice"]
    assert rng.seeds().tolist() == FROZEN["seeds"]


FROZEN: dict[str, Any] = {
    "random": ["0.65244848637403219", "0.36818951565166946", "0.36624209016975739"],
    "integers": [[276, 215], [466, 34], [497, 224]],
    "normal": ["0x1.7a59f94b7fa80p+0", "0x1.8ea67d0ed42e5p-2", "-0x1.84d79e9ae209bp-2"],
    "permutation": [[0, 2, 1, 3], [2, 0, 1, 3], [3, 2, 1, 0]],
    "choice": [5, 5, 5],
    "seeds": [714370105141461142, 9167171739299799523, 48683404466491962],
}


# ------------------------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("shape", [(), (7,)])
def test_floats_are_uniform(shape: tuple[int, ...]) -> None:
    drawn = seeded().random(*shape)
    assert drawn.shape == (ROWS, *shape)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(chi_squared(np.histogram(drawn, 100, (0, 1))[0])) < SIGMAS


def test_rows_calls_and_numbers_are_independent() -> None:
    rng = seeded()
    first, second = rng.random(2), rng.random()
    for a, b in ((first[:, 0], first[:, 1]), (first[:, 0], second), (second[:-1], second[1:])):
        counts = np.histogram2d(a, b, 10, ((0, 1), (0, 1)))[0]
        assert abs(chi_squared(counts)) < SIGMAS


@pytest.mark.parametrize(("low", "high"), [(0, 6), (-3, 4), (0, 1), (5, 6)])
def test_whole_numbers_are_uniform(low: int, high: int) -> None:
    drawn = seeded().integers(low, high)
    assert drawn.dtype == np.int64
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == list(range(low, high))
    assert high - low == 1 or abs(chi_squared(counts)) < SIGMAS


@given(low=st.integers(-(2**63), 2**63 - 2), data=st.data())
def test_whole_numbers_lie_between_their_ends(low: int, data: st.DataObject) -> None:
    high = data.draw(st.integers(low + 1, 2**63 - 1))
    rng = seeded(50)
    words = rng.take(slice(None))._words(())
    drawn = rng.integers(low, high).tolist()
    assert drawn == [low + (int(word) * (high - low) >> 64) for word in words]


def test_each_row_may_have_ends_of_its_own() -> None:
    ends = np.arange(1, ROWS + 1)
    drawn = seeded().integers(0, ends)
    assert (drawn >= 0).all()
    assert (drawn < ends).all()
    assert abs(chi_squared(np.histogram(drawn / ends, 20, (0, 1))[0])) < SIGMAS + 20  # steps of small numbers
    many = seeded(100).integers(-ends[:100, None], ends[:100, None], shape=3)
    assert (np.abs(many) <= ends[:100, None]).all()
    with pytest.raises(ValueError, match="expected low < high"):
        seeded(2).integers(0, np.array([1, 0]))
    with pytest.raises(ValueError, match="expected low < high"):
        seeded(2).integers(3, 3)


def test_normal_numbers_are_normal() -> None:
    drawn = seeded().normal(2.0, 0.5, shape=3)
    inner = np.linspace(-3, 3, 25)
    ends = np.concatenate([[-np.inf], inner, [np.inf]])
    shares = np.diff([0, *(NormalDist().cdf(end) for end in inner), 1])
    counts = np.histogram((drawn - 2) / 0.5, ends)[0]
    assert abs(chi_squared(counts, shares * counts.sum())) < SIGMAS
    assert abs(drawn.mean() - 2) < SIGMAS * 0.5 / math.sqrt(drawn.size)


def test_quantiles_are_those_of_the_normal_distribution() -> None:
    uniform = np.concatenate([np.linspace(0.001, 0.999, 999), 10.0 ** -np.arange(1, 17), 2.0 ** -np.arange(1, 54)])
    found = normal_quantiles(uniform)
    expected = np.array([NormalDist().inv_cdf(share) for share in uniform.tolist()])
    assert (np.abs(found - expected) <= 2e-15 * np.maximum(np.abs(expected), 1e-3)).all()
    assert (normal_quantiles(1 - uniform[:999]) == -found[:999]).mean() > 0.5  # 1 - x is rounded
    assert normal_quantiles(np.array([0.5])).tolist() == [0.0]
    assert (np.diff(normal_quantiles(np.linspace(1e-9, 1 - 1e-9, 100_001))) > 0).all()


def test_choices_are_as_probable_as_said() -> None:
    drawn = seeded().choice(np.array(["a", "b", "c"]))
    assert abs(chi_squared(np.unique(drawn, return_counts=True)[1])) < SIGMAS
    drawn = seeded().choice(4, p=[0.1, 0.0, 0.6, 0.3], shape=2)
    counts = np.bincount(drawn.ravel(), minlength=4)
    assert counts[1] == 0
    assert abs(chi_squared(counts[[0, 2, 3]], np.array([0.1, 0.6, 0.3]) * counts.sum())) < SIGMAS
    for values, p in ([], None), ([[1]], None), (2, [1.0]), (2, [0.5, 0.4]), (2, [1.5, -0.5]):
        with pytest.raises(ValueError, match="choice: expected"):
            seeded(2).choice(values, p=p)


def test_permutations_are_uniform() -> None:
    drawn = seeded().permutation(4)
    assert (np.sort(drawn, axis=1) == np.arange(4)).all()
    codes = np.unique(drawn @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(codes) == 24
    assert abs(chi_squared(codes)) < SIGMAS


def test_seeds_are_those_that_libraries_take() -> None:
    seeds = seeded().seeds()
    assert seeds.dtype == np.int64
    assert seeds.min() >= 0
    assert abs(chi_squared(np.histogram(seeds.astype(float), 64, (0, 2.0**63))[0])) < SIGMAS


# ------------------------------------------------------------------------------------------------------------- hashes


@given(key=st.integers(0, 2**64 - 1), number=st.integers(0, 2**64 - 1))
def test_a_hash_tells_the_number_under_its_key(key: int, number: int) -> None:
    assert hashed_number(key, number_hash(key, number)) == number


@given(key=st.integers(0, 2**64 - 1), first=st.integers(0, 2**40), count=st.integers(0, 40))
def test_hashes_of_numbers_are_those_of_runs(key: int, first: int, count: int) -> None:
    run = np.concatenate([np.zeros(0, np.uint64), *number_hashes(key, first, count)])
    assert hashes_of_numbers(key, np.arange(first, first + count)).tolist() == run.tolist()
