"""Batches without a mask: labels of repeats, whichever way batches are made of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import Pack
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.convert.columns import Dense
from torch_dataloader_utils.packing.masked_labels import LabelsForMask
from torch_dataloader_utils.reading.blocks import Block

LENGTH = 2
PACK = Pack(LENGTH, keys="hf", pad={"labels": -7})
MASKS = st.lists(st.booleans(), max_size=12)


def block_of(first: int, mask: list[bool], by_token: bool) -> Block:
    """Rows of which each label tells its place; of a mask of tokens, only the first token may be real."""
    labels = np.arange(first, first + len(mask) * LENGTH).reshape(-1, LENGTH)
    valid = np.array(mask, np.bool_)
    if by_token:
        valid = np.stack([valid, np.zeros_like(valid)], axis=1)
    return Block.of_columns(len(mask), {"labels": Dense(labels), "real": Dense(valid)})


def expected(parts: list[Block]) -> list[list[int]]:
    """The labels of a batch of these rows."""
    labels = np.concatenate([np.asarray(part.columns["labels"].array) for part in parts])  # type: ignore[index,union-attr]
    masks = [part.columns["real"].array.reshape(part.rows, -1) for part in parts if part.rows]  # type: ignore[index,union-attr]
    mask = np.concatenate(masks)
    return np.where(mask if mask.any() else np.True_, labels, -7).tolist()  # type: ignore[no-any-return]


def maker() -> LabelsForMask:
    return LabelsForMask(make_form("numpy", ("labels",), False), PACK, "real")


def labels(batches: Any) -> list[Any]:
    found = list(batches)
    assert all(list(batch) == ["labels"] for batch in found)
    return [batch["labels"].tolist() for batch in found]


@given(MASKS, st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_slices(mask: list[bool], size: int, first: int, by_token: bool) -> None:
    block = block_of(0, mask, by_token)
    count = max(0, len(mask) - first) // size
    starts = [first + number * size for number in range(count)]
    found = labels(maker().slices(block, first, count, size))
    assert found == [expected([block.slice(start, start + size)]) for start in starts]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_joined_parts(masks: list[list[bool]], by_token: bool) -> None:
    blocks = [block_of(100 * number, mask, by_token) for number, mask in enumerate(masks)]
    found = maker().join([(block, 0, block.rows) for block in blocks])
    assert labels([found]) == [expected(blocks)]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.data())
def test_mixed_parts(parts: int, each: int, count: int, by_token: bool, data: st.DataObject) -> None:
    rows = st.lists(st.booleans(), min_size=count * each, max_size=count * each)
    blocks = [block_of(100 * number, data.draw(rows), by_token) for number in range(parts)]
    quotas = np.full((count, parts), each)
    found = labels(maker().mix([(block, 0, block.rows) for block in blocks], quotas))
    spans = [(number * each, number * each + each) for number in range(count)]
    assert found == [expected([block.slice(*span) for block in blocks]) for span in spans]
