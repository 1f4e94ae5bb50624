"""The law of packing: each token exactly once, each document whole, in few sequences."""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.packing.sequences import Sequences, best_fit, sequences_of
from torch_dataloader_utils.rows import stable_order

LENGTHS = st.lists(st.integers(0, 60), max_size=80)
WINDOWS = st.tuples(st.integers(1, 40), st.integers(1, 4))
# The mean and deviation of the logarithm of lengths, clipped to the capacity.
LOGNORMAL = [(2048, 6.0, 1.0), (8192, 6.5, 1.2)]


def lengths_of(capacity: int, mean: float, deviation: float, count: int) -> np.ndarray:
    drawn = np.random.default_rng(3).lognormal(mean, deviation, count).astype(np.int64)
    return np.clip(drawn, 1, capacity)


def rooms_of_plain_best_fit(lengths: list[int], capacity: int) -> list[int]:
    """The room left in each sequence, by the textbook's loop."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append(min(fitting, default=capacity) - length)
    return sorted(rooms)


def runs_by_sequence(found: Sequences) -> list[list[tuple[int, int, int]]]:
    """For each sequence, its runs as (source, tokens, document)."""
    runs = list(zip(found.runs.tolist(), found.lengths.tolist(), found.documents.tolist(), strict=True))
    return [runs[first:last] for first, last in zip(found.offsets[:-1], found.offsets[1:], strict=True)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80))
def test_best_fit_is_that_of_the_textbook(lengths: list[int]) -> None:
    sequences = best_fit(np.array(lengths), 40)
    used = np.bincount(sequences, lengths).astype(int)
    assert sorted((40 - used).tolist()) == rooms_of_plain_best_fit(lengths, 40)
    longest = [max(np.flatnonzero(sequences == each), key=lambda i: (lengths[i], -i)) for each in range(len(used))]
    assert longest == sorted(longest)


@pytest.mark.parametrize(("capacity", "mean", "deviation"), LOGNORMAL)
def test_windows_of_documents_fill_sequences(capacity: int, mean: float, deviation: float) -> None:
    lengths = lengths_of(capacity, mean, deviation, 4 * 4096)
    found = sequences_of(lengths, capacity, "split", (4096, 512))
    assert lengths.sum() / (len(found) * capacity) >= 0.995


def test_a_window_takes_milliseconds() -> None:
    lengths = lengths_of(*LOGNORMAL[1], 4096)
    taken = []
    for _ in range(5):
        began = time.thread_time()
        best_fit(lengths, LOGNORMAL[1][0])
        taken.append(time.thread_time() - began)
    assert min(taken) < 0.05  # 3 ms; a loop over all pairs takes seconds


@given(LENGTHS, st.integers(1, 50), WINDOWS)
def test_each_token_is_packed_once(lengths: list[int], capacity: int, window: tuple[int, int]) -> None:
    found = sequences_of(np.array(lengths, np.int64), capacity, "split", window)
    sources = len(found.sources) - 1
    assert sorted(found.runs.tolist()) == list(range(sources))
    assert found.sources[-1] == sum(lengths) + found.padding == len(found) * capacity
    cuts = set(found.sources.tolist())
    assert set(np.cumsum(lengths).tolist()) <= cuts
    whole = {(int(sum(lengths[:i])), length) for i, length in enumerate(lengths) if 0 < length <= capacity}
    assert whole <= {(int(a), int(b - a)) for a, b in zip(found.sources[:-1], found.sources[1:], strict=True)}


@given(LENGTHS, st.integers(1, 50), WINDOWS, st.sampled_from(["split", "truncate", "drop"]))
def test_sequences_are_full_and_in_stream_order(
    lengths: list[int], capacity: int, window: tuple[int, int], long: str
) -> None:
    found = sequences_of(np.array(lengths, np.int64), capacity, long, window)
    pads = 0
    for runs in runs_by_sequence(found):
        assert sum(tokens for _, tokens, _ in runs) == capacity
        documents = [run for run in runs if run[2] >= 0]
        assert [number for *_, number in documents] == list(range(len(documents)))
        assert [source for source, *_ in documents] == sorted(source for source, *_ in documents)
        padding = runs[len(documents) :]
        assert len(padding) <= 1
        pads += sum(tokens for _, tokens, _ in padding)
    assert pads == found.padding


@given(LENGTHS, st.integers(1, 50))
def test_long_documents_are_truncated_or_dropped(lengths: list[int], capacity: int) -> None:
    def kept(long: str) -> list[int]:
        found = sequences_of(np.array(lengths, np.int64), capacity, long, (10, 1))
        return sorted(found.lengths[found.documents >= 0].tolist())

    assert kept("truncate") == sorted(min(length, capacity) for length in lengths if length)
    assert kept("drop") == sorted(length for length in lengths if 0 < length <= capacity)


@given(LENGTHS, st.integers(1, 50), st.sampled_from(["split", "truncate", "drop"]), st.randoms())
def test_a_permuted_stream_packs_as_permuted_documents(
    lengths: list[int], capacity: int, long: str, random: Random
) -> None:
    order = random.sample(range(len(lengths)), len(lengths))
    permuted = sequences_of(np.array([lengths[i] for i in order], np.int64), capacity, long, (10, 1))
    found = sequences_of(np.array(lengths, np.int64), capacity, long, (10, 1), np.array(order, np.int64))
    assert found.lengths.tolist() == permuted.lengths.tolist()
    assert found.documents.tolist() == permuted.documents.tolist()

    def places(sequences: Sequences, names: list[int]) -> list[tuple[int, int]]:
        """The document and the first token of each run."""
        starts = np.cumsum([0, *(lengths[i] for i in names)])
        tokens = sequences.sources[sequences.runs[sequences.documents >= 0]]
        owners = np.searchsorted(starts, tokens, side="right") - 1
        return [(names[owner], int(token - starts[owner])) for owner, token in zip(owners, tokens, strict=True)]

    assert places(found, list(range(len(lengths)))) == places(permuted, order)


@given(st.lists(st.integers(0, 1 << 17)))
def test_equal_keys_stay_in_order(keys: list[int]) -> None:
    assert stable_order(np.array(keys, np.int64)).tolist() == sorted(range(len(keys)), key=lambda i: keys[i])
