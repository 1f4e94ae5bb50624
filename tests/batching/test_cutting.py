"""Blocks to batches, without plan or file: sizes, the last batch, the turns of shards, formats and lists."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batching.shards import Blocks, as_list, block, blocks_of
from torch_dataloader_utils.batching.batches import (
    BatchSize,
    exactly,
    in_step,
    joint_batches,
    rank_batches,
    scheduled_batches,
    shard_batches,
)
from torch_dataloader_utils.batching.columns import LARGE_BATCH
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.convert.columns import Objects, Ragged, Text
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.errors import EmptyDatasetError, UnsupportedTypeError
from torch_dataloader_utils.model import WorkerCursor
from torch_dataloader_utils.reading.blocks import Block

FORMATS = ["torch", "numpy", "arrow", "dict"]


def cut(counts: Sequence[int], how: BatchSize, output: str = "numpy", delivered: int = 0) -> list[dict[str, list[Any]]]:
    """The batches of a shard of which `delivered` rows were delivered before, as lists."""
    form = make_form(output, ["id", "valid"], pin_memory=False)
    head = lambda: iter(blocks_of(counts, output))  # noqa: E731
    batches = shard_batches(
        Blocks([blocks_of(counts, output)]), 0, how, form, BlockLog(WorkerCursor(0, delivered)), head
    )
    return [{key: as_list(batch[key]) for key in ("id", "valid")} for batch in batches]


counts = st.lists(st.integers(0, 40), max_size=6)


@settings(deadline=None)
@given(counts, st.integers(1, 50), st.sampled_from(FORMATS), st.sampled_from(["partial", "drop", "pad"]), st.data())
def test_batches_are_full_whatever_the_blocks_and_the_last_is_as_asked_for(counts, size, output, last, data) -> None:
    total = sum(counts)
    delivered = data.draw(st.integers(0, counts[0] if counts else 0))
    batches = cut(counts, BatchSize(size, last), output, delivered)
    ids = [row for batch in batches for row in batch["id"]]
    left = list(range(delivered, total))
    short = len(left) % size
    assert all(len(batch["id"]) == size for batch in batches[:-1])
    if last == "drop":
        assert ids == left[: len(left) - short]
    elif last == "partial":
        assert ids == left
    else:
        repeats = list(itertools.islice(itertools.cycle(range(total)), -len(left) % size if total else 0))
        assert ids == left + repeats
        assert [real for batch in batches for real in batch["valid"]] == [True] * len(left) + [False] * len(repeats)


def test_what_fills_up_a_batch_is_a_copy() -> None:
    blocks = blocks_of([2, 3])
    form = make_form("torch", ["id", "valid"], pin_memory=False)
    full, last = shard_batches(Blocks([blocks]), 0, BatchSize(4, "pad"), form, BlockLog(), lambda: iter(blocks))
    last["id"].zero_()
    assert full["id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("output", FORMATS)
def test_no_rows_are_no_batches(output: str) -> None:
    assert [
        cut(counts, BatchSize(4, last), output) for counts in ([], [0, 0]) for last in ("partial", "drop", "pad")
    ] == [[]] * 6


@pytest.mark.parametrize("output", FORMATS)
def test_each_format_has_its_kind_of_value(output: str) -> None:
    form = make_form(output, ["id", "valid"], pin_memory=False)
    batches = list(form.slices(block(0, 10, output), 2, 2, 3))
    batches.append(form.join([(block(0, 10, output), 8, 9), (block(10, 4, output), 0, 2)]))
    assert [as_list(batch["id"]) for batch in batches] == [[2, 3, 4], [5, 6, 7], [8, 10, 11]]
    kind = {"torch": torch.Tensor, "numpy": np.ndarray, "arrow": pa.Array, "dict": list}[output]
    assert all(isinstance(batch["id"], kind) for batch in batches)
    assert all(isinstance(batch, pa.RecordBatch if output == "arrow" else dict) for batch in batches)


@pytest.mark.parametrize("layout", ["ragged", "padded", "nested"])
@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("size", [2, LARGE_BATCH])
def test_lists_are_cut_with_offsets_of_their_own(output: str, layout: str, size: int) -> None:
    lists = [[1, 2], [], [3], [4, 5, 6], [], [7]] * (size // 2)
    offsets = np.cumsum([0, *map(len, lists)])
    form_of = Padding() if layout == "padded" else layout
    column = Ragged(np.array([value for values in lists for value in values]), offsets, form_of)
    form = make_form(output, ["items"], pin_memory=False)
    batches = list(form.slices(Block.of_columns(len(lists), {"items": column}), 1, 2, size))
    for batch, rows in zip(batches, (lists[1 : 1 + size], lists[1 + size : 1 + 2 * size]), strict=True):
        items = batch["items"]
        if layout == "padded":
            longest = max(map(len, rows))
            assert items["values"].tolist() == [row + [0] * (longest - len(row)) for row in rows]
            assert items["lengths"].tolist() == [len(row) for row in rows]
        elif layout == "nested" and output == "torch":
            assert [row.tolist() for row in items.unbind()] == rows
        else:
            assert items["values"].tolist() == list(itertools.chain.from_iterable(rows))
            assert items["offsets"].tolist() == [0, *np.cumsum([len(row) for row in rows]).tolist()]


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_objects_are_lists(output: str) -> None:
    form = make_form(output, ["word"], pin_memory=False)
    words = Block.of_columns(4, {"word": Objects(pa.chunked_array([["a", None, "c", "d"]]))})
    assert [batch["word"] for batch in form.slices(words, 0, 2, 2)] == [["a", None], ["c", "d"]]


def test_shards_take_turns_and_one_that_has_ended_is_left_out() -> None:
    def shards() -> list[Iterator[str]]:
        return [iter("aaa"), iter("b"), iter("cc")]

    assert "".join(rank_batches(shards())) == "abcaca"
    assert "".join(rank_batches(shards(), turn=2)) == "cabcaa"
    assert "".join(scheduled_batches(shards(), [2, 2, 0, 1, 1, 0])) == "ccab"


@settings(deadline=None)
@given(st.lists(counts, min_size=1, max_size=3), st.integers(1, 8), st.sampled_from(["numpy", "arrow"]))
def test_joint_batches_hold_as_many_rows_of_every_shard(shards, each, output) -> None:
    size = each * len(shards)
    form = make_form(output, ["id", "valid"], pin_memory=False)
    driver = Blocks([blocks_of(counts, output, 1000 * number) for number, counts in enumerate(shards)])
    batches = [as_list(batch["id"]) for batch in joint_batches(driver, [BlockLog() for _ in shards], size, form)]
    for step in range(min(map(sum, shards)) // each):
        rows = [1000 * number + row for number in range(len(shards)) for row in range(step * each, (step + 1) * each)]
        assert batches[step] == rows
    expected = [1000 * number + row for number, counts in enumerate(shards) for row in range(sum(counts))]
    assert sorted(row for batch in batches for row in batch) == expected


def test_a_fixed_number_of_steps_is_cut_or_an_error() -> None:
    assert list(exactly(iter("abcd"), 3, "rows")) == ["a", "b", "c"]
    with pytest.raises(EmptyDatasetError, match="2 steps of steps_per_epoch are missing"):
        list(exactly(iter("ab"), 4, "rows"))


@pytest.mark.parametrize(("mine", "others"), [(10, 10), (10, 7), (7, 10), (8, 8), (3, 0)])
def test_ranks_in_step_end_after_the_smallest_number_of_batches(mine: int, others: int) -> None:
    left = itertools.count(others, -4)
    batches = in_step(iter(range(mine)), 4, lambda at_hand: min(at_hand, max(0, min(4, next(left)))))
    assert list(batches) == list(range(min(mine, others)))


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_strings_become_python_objects_batch_by_batch(output: str) -> None:
    rows, size = 80_000, 10_000
    text = Text(np.full(rows * 8, ord("x"), np.uint8), np.arange(rows + 1) * 8, None, False)
    form = make_form(output, ["s"], pin_memory=False)
    tracemalloc.start()
    try:
        batch = next(form.slices(Block.of_columns(rows, {"s": text}), 0, rows // size, size))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(batch["s"]) == size
    assert used < 2 * size * (sys.getsizeof("x" * 8) + 8)


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_the_strings_of_small_batches_are_made_together(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, size = 3000, 32
    offsets, calls, made = np.arange(rows + 1) * 4, [], Text.to_list
    text = Text(np.frombuffer(b"".join(b"%04d" % row for row in range(rows)), np.uint8), offsets, None, False)
    monkeypatch.setattr(Text, "to_list", lambda self, *span: calls.append(span) or made(self, *span))
    form = make_form(output, ["s"], pin_memory=False)
    batches = [batch["s"] for batch in form.slices(Block.of_columns(rows, {"s": text}), 8, 93, size)]
    assert batches == [[f"{row:04d}" for row in range(start, start + size)] for start in range(8, 8 + 93 * size, size)]
    assert len(calls) == 3, "of 1,024 rows each at most"
    batches[0].append("changed")
    assert batches[1][0] == "0040"


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_an_object_that_python_has_not_is_an_error_of_its_own_batch(output: str) -> None:
    times = pa.chunked_array([pa.array([[0], [1], [2], [10**18]], pa.list_(pa.timestamp("s")))])
    batches = make_form(output, ["t"], pin_memory=False).slices(Block.of_columns(4, {"t": Objects(times)}), 0, 4, 1)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(UnsupportedTypeError, match="has a value that Python has not"):
        next(batches)
