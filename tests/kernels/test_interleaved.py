"""Rows of several parts interleaved: by the compiled library and by numpy, as plain Python would do it."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import chunks, interleave, interleave_ranges

pytestmark = pytest.mark.usefixtures("found")

EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
QUOTAS = st.integers(1, 4).flatmap(
    lambda parts: st.lists(st.lists(st.integers(0, 40), min_size=parts, max_size=parts), min_size=1, max_size=12)
)


def in_order(parts: list[list[Any]], quotas: list[list[int]]) -> list[Any]:
    """The rows of the parts, batch by batch."""
    rows = [iter(part) for part in parts]
    return [next(rows[part]) for batch in quotas for part, count in enumerate(batch) for _ in range(count)]


@EACH
@given(QUOTAS, st.lists(st.sampled_from([1, 2, 3, 8, 20, 300]), max_size=4), st.integers(0, 15))
def test_columns_are_interleaved(quotas: list[list[int]], widths: list[int], shift: int) -> None:
    totals = np.sum(quotas, axis=0)
    rng = np.random.default_rng(shift)
    columns = [[rng.integers(0, 256, (rows, width), np.uint8) for rows in totals] for width in widths]
    memories = [np.full(shift + totals.sum() * width + 1, 7, np.uint8) for width in widths]
    outs = [memory[shift:-1].reshape(-1, width) for memory, width in zip(memories, widths, strict=True)]
    interleave(columns, np.array(quotas), outs)
    for column, out, memory in zip(columns, outs, memories, strict=True):
        assert out.tolist() == in_order([part.tolist() for part in column], quotas)
        assert (memory[:shift] == 7).all()
        assert memory[-1] == 7


@EACH
@given(QUOTAS, st.sampled_from([1, 4]), st.integers(0, 2**32 - 1))
def test_ranges_are_interleaved(quotas: list[list[int]], item: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [[rng.bytes(item * rng.integers(0, 90)) for _ in range(rows)] for rows in np.sum(quotas, axis=0)]
    parts = [
        (np.frombuffer(b"".join(part), np.uint8), np.cumsum([5, *(len(text) // item for text in part)], dtype=np.int64))
        for part in texts
    ]
    leased: list[int] = []

    def memory(nbytes: int) -> npt.NDArray[np.uint8]:
        leased.append(nbytes)
        return np.empty(nbytes, np.uint8)

    values, offsets = interleave_ranges(parts, np.array(quotas), item, memory)
    assert offsets.dtype == np.int64
    assert [values[a:b].tobytes() for a, b in pairwise(offsets * item)] == in_order(texts, quotas)
    assert leased == [sum(len(text) for part in texts for text in part)]


@EACH
@given(QUOTAS)
def test_chunks_are_the_rows_of_each_part_in_each_batch(quotas: list[list[int]]) -> None:
    rows = [(part, row) for part, first, last in chunks(np.array(quotas)) for row in range(first, last)]
    parts = [[(part, row) for row in range(count)] for part, count in enumerate(np.sum(quotas, axis=0))]
    assert rows == in_order(parts, quotas)


def test_rows_of_empty_values_keep_their_lengths() -> None:
    parts = [(np.empty(0, np.uint8), np.array([0, 2, 2, 5])), (np.empty(0, np.uint8), np.array([0, 1]))]
    values, offsets = interleave_ranges(parts, np.array([[1, 1], [2, 0]]), 0)
    assert values.tolist() == []
    assert offsets.tolist() == [0, 2, 3, 3, 6]
