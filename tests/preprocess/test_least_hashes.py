"""Different values by the least of their hashes: a function of the set of values."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import hashes as kernel
from torch_dataloader_utils.kernels.hashes import int_hashes
from torch_dataloader_utils.preprocess.least_hashes import LeastHashes


def of(hashes: list[int] | np.ndarray) -> LeastHashes:
    made = LeastHashes()
    made.add(np.array(hashes, np.uint64))
    return made


class Few(LeastHashes):
    limit = 8


@given(st.lists(st.lists(st.integers(0, 40) | st.integers(2**64 - 9, 2**64 - 1))), st.randoms())
def test_any_blocks_order_and_merges_hold_the_least(blocks, random):
    whole = sorted({value for block in blocks for value in block})[:8]
    parts = []
    for block in blocks:
        random.shuffle(block)
        parts.append(Few())
        for value in block:
            parts[-1].add(np.array([value, value], np.uint64))
    random.shuffle(parts)
    merged = Few()
    for part in parts:
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.to_array().tolist() == whole
    assert merged.exact == (len(whole) < 8)
    if merged.exact:
        assert merged.count == len(whole)


@pytest.mark.parametrize("compiled", [True, False])
@given(st.lists(st.lists(st.integers(0, 12) | st.integers(-(2**63), 2**63 - 1), max_size=90), max_size=6))
def test_numbers_are_seen_as_their_hashes(compiled, blocks):
    """Of a block, those hashes are made first that are likely the least ones: that leaves out none."""
    found, expected = Few(), Few()
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(kernel, "library", lambda: None)
        for block in blocks:
            numbers = np.array(block, np.int64)
            found.add_numbers(numbers)
            expected.add(int_hashes(numbers))
            assert found == expected


@pytest.mark.parametrize("distinct", [4095, 4096, 10_000, 300_000])
def test_the_number_is_exact_below_the_limit_and_else_off_by_some_percent(distinct):
    made = of(int_hashes(np.arange(distinct)))
    assert made.exact == (distinct < 4096)
    assert made.count == distinct if made.exact else abs(made.count / distinct - 1) < 4 * 0.0157


def test_what_to_array_never_returns_is_refused():
    made = of([5, 3, 5])
    assert LeastHashes.from_array(made.to_array()) == made
    for wrong in ([3, 3], [5, 3]):
        with pytest.raises(ValueError, match="ascending"):
            LeastHashes.from_array(np.array(wrong, np.uint64))
    with pytest.raises(ValueError, match="uint64"):
        LeastHashes.from_array(np.array([1, 2]))
