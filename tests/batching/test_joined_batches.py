"""Batches that cross blocks: their rows are copied into one piece of recycled memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.batching import columns as forms
from torch_dataloader_utils.batching.columns import LARGE_BATCH, ColumnForm
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.convert.columns import Dense, Ragged
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.reading.blocks import Block

DTYPES = ["bool", "int8", "int16", "float32", "int64", "float64"]


def block(rows: int, first: int, dtypes: list[str], width: int) -> Block:
    """`rows` rows numbered from `first`: a column of each dtype, vectors of `width`, and lists of a number's length."""
    numbers = np.arange(first, first + rows)
    columns = {f"c{i}": Dense(numbers.astype(dtype)) for i, dtype in enumerate(dtypes)}
    columns["vector"] = Dense(np.repeat(numbers[:, None], width, axis=1).astype(np.float32))
    offsets = np.concatenate([[0], np.cumsum(numbers % 3)])
    columns["list"] = Ragged(np.repeat(numbers, numbers % 3), offsets)
    return Block.of_columns(rows, columns)


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(1, 50), min_size=2, max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES), max_size=5),
    width=st.integers(0, 3),
    recycled=st.booleans(),
    output=st.sampled_from(["torch", "numpy"]),
)
def test_a_joined_batch_has_the_rows_of_its_parts(rows, dtypes, width, recycled, output):
    starts = np.cumsum([0, *rows[:-1]])
    blocks = [block(count, int(start), dtypes, width) for count, start in zip(rows, starts, strict=True)]
    whole = block(sum(rows), 0, dtypes, width)
    form = make_form(output, list(whole.columns), pin_memory=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "_RECYCLED_BYTES", 1 if recycled else 1 << 40)
        joined = form.join([(part, 0, part.rows) for part in blocks])
    expected = next(form.slices(whole, 0, 1, whole.rows))
    assert list(joined) == list(expected)
    for key, value in expected.items():
        for name, array in value.items() if isinstance(value, dict) else [("", value)]:
            got = joined[key][name] if name else joined[key]
            assert got.dtype == array.dtype
            assert got.shape == array.shape
            np.testing.assert_array_equal(np.asarray(got), np.asarray(array))


def test_memory_of_joined_batches_is_used_again_only_after_their_last_view_has_died(monkeypatch):
    monkeypatch.setattr(forms, "_RECYCLED_BYTES", 1)
    form = make_form("torch", ["c0", "vector", "list"], pin_memory=False)
    assert isinstance(form, ColumnForm)

    def joined(first: int) -> dict:
        return form.join([(block(40, first, ["int64"], 4), 0, 40), (block(40, first + 40, ["int64"], 4), 0, 40)])

    for first in range(0, 800, 80):
        batch = joined(first)
        assert batch["c0"][0] == first
        del batch
    assert form.pool.made == 1
    kept = [joined(first)["c0"][10:20] for first in (0, 1000, 2000)]  # a slice of one column keeps it all
    again = joined(3000)
    assert form.pool.made == 4
    assert [tensor[0].item() for tensor in kept] == [10, 1010, 2010]
    assert again["c0"][0] == 3000


def test_columns_of_a_joined_batch_do_not_overlap_and_are_aligned(monkeypatch):
    monkeypatch.setattr(forms, "_RECYCLED_BYTES", 1)
    form = make_form("torch", ["c0", "c1", "c2", "vector"], pin_memory=False)
    part = block(3, 0, ["int8", "float64", "bool"], 2)
    batch = form.join([(part, 0, 3), (part, 1, 3)])
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in batch.values())
    for key, tensor in batch.items():
        before = {other: value.clone() for other, value in batch.items() if other != key}
        tensor.fill_(1)
        assert all(torch.equal(batch[other], value) for other, value in before.items())


def test_a_kept_column_keeps_little_more_than_itself():
    keys = [f"c{i}" for i in range(64)]
    form = make_form("torch", keys, pin_memory=False)
    rows = np.zeros(1 << 15, np.float32)
    part = Block.of_columns(len(rows), {key: Dense(rows) for key in keys})
    for _ in range(8):
        batch = form.join([(part, 0, len(rows)), (part, 0, len(rows))])
        leases = form.pool.made
        kept = batch["c0"]
        del batch
        again = form.join([(part, 0, len(rows)), (part, 0, len(rows))])
        assert form.pool.made - leases <= 1, "all memory but that of the kept column was used again"
        del again, kept


@pytest.mark.parametrize("layout", ["dense", "ragged", "padded"])
@pytest.mark.parametrize("size", [10, LARGE_BATCH])
def test_tensors_requested_in_inference_mode_can_be_trained_on(layout, size):
    form = make_form("torch", ["c0"], pin_memory=False)
    rows, ones = 3 * size, np.ones(3 * size, np.float32)
    lists = Ragged(ones, np.arange(rows + 1), Padding() if layout == "padded" else layout)
    part = Block.of_columns(rows, {"c0": Dense(ones) if layout == "dense" else lists})
    batches = form.slices(part, 0, 3, size)
    with torch.inference_mode():
        first = next(batches)["c0"]
    second = next(batches)["c0"]
    with torch.inference_mode():
        third = next(batches)["c0"]
    weight = torch.ones(size, requires_grad=True)
    for values in (first, second, third):
        (weight * (values if layout == "dense" else values["values"]).flatten()).sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(3).all()
