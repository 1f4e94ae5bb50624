"""Columns of the extension type `arrow.fixed_shape_tensor`."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import Fill
from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import NullValueError
from torch_dataloader_utils.options import ConvertOptions


def tensors(values, permutation=None, valid=None, kind=None, dim_names=None):
    """A column of the rows of `values`, stored as they are [n, *shape]."""
    rows = values.reshape(len(values), math.prod(values.shape[1:])).tolist()
    kind = kind or pa.from_numpy_dtype(values.dtype)
    type_ = pa.fixed_shape_tensor(kind, values.shape[1:], permutation=permutation, dim_names=dim_names)
    kept = [row if valid is None or valid[i] else None for i, row in enumerate(rows)]
    return pa.ExtensionArray.from_storage(type_, pa.array(kept, type_.storage_type))


def convert(column, owned=False, **options):
    table = pa.table({"x": column})
    converter = build_converter(table.schema, ConvertOptions(**options), "torch")
    return converter, converter.convert(table, owned, "the file")


@given(
    shape=st.lists(st.integers(0, 3), max_size=4),
    rows=st.integers(0, 5),
    dtype=st.sampled_from(["int16", "float32", "float64", "uint8"]),
    data=st.data(),
)
def test_a_dimension_is_the_stored_one_that_the_permutation_says(shape, rows, dtype, data):
    permutation = data.draw(st.none() | st.permutations(range(len(shape))))
    values = np.arange(rows * math.prod(shape), dtype=dtype).reshape(rows, *shape)
    column = tensors(values, permutation)
    cut = data.draw(st.integers(0, rows))
    chunks = pa.chunked_array([column[:cut], column[cut:]], type=column.type)
    axes = range(len(shape)) if permutation is None else permutation
    expected = values.transpose(0, *(axis + 1 for axis in axes))
    converter, columns = convert(chunks)
    array = columns["x"].array
    assert (array.dtype, array.shape) == (values.dtype, expected.shape)
    assert np.array_equal(array, expected)
    assert array.flags.c_contiguous
    sizes = ", ".join(["B", *map(str, expected.shape[1:])])
    assert converter.report()["x"]["shape"] == f"[{sizes}]"


@pytest.mark.parametrize("permutation", [[0, 1], [1, 0]])
def test_rows_are_those_of_pyarrow(permutation):
    column = tensors(np.arange(24, dtype=np.int32).reshape(4, 2, 3), permutation)
    _, columns = convert(column)
    assert np.array_equal(columns["x"].array, column.to_numpy_ndarray())


@pytest.mark.parametrize(("permutation", "copied"), [(None, False), ([0, 1], False), ([1, 0], True)])
def test_memory_of_ours_is_not_copied_unless_dimensions_move(permutation, copied):
    type_ = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=permutation)
    memory = np.arange(24, dtype=np.float32)
    storage = pa.FixedSizeListArray.from_arrays(
        pa.Array.from_buffers(pa.float32(), 24, [None, pa.py_buffer(memory)]), 6
    )
    _, columns = convert(pa.ExtensionArray.from_storage(type_, storage), owned=True)
    assert np.shares_memory(columns["x"].array, memory) != copied


def test_nulls_are_nan_in_floats_and_need_a_policy_elsewhere():
    floats = tensors(np.ones((3, 2, 2), np.float32), valid=[True, False, True])
    _, columns = convert(floats)
    assert np.isnan(columns["x"].array).all(axis=(1, 2)).tolist() == [False, True, False]
    ints = tensors(np.ones((3, 2, 2), np.int8), [1, 0], valid=[True, False, True])
    with pytest.raises(NullValueError, match="column 'x' has a null in the file, at row 1"):
        convert(ints)
    _, columns = convert(ints, nulls="mask")
    assert columns["x_valid"].array.tolist() == [True, False, True]
    _, columns = convert(ints, nulls=Fill({"x": 7}))
    assert columns["x"].array.sum(axis=(1, 2)).tolist() == [4, 28, 4]
    assert np.isnan(convert(ints, dtypes={"x": "float32"})[1]["x"].array[1]).all()


def test_a_null_within_a_tensor_of_ints_is_a_null_row():
    type_ = pa.fixed_shape_tensor(pa.int64(), [2])
    column = pa.ExtensionArray.from_storage(type_, pa.array([[1, 2], [3, None]], type_.storage_type))
    _, columns = convert(column, nulls="mask")
    assert columns["x_valid"].array.tolist() == [True, False]


@pytest.mark.parametrize("dtypes", ["float16", {"float64": "float16"}, {"x": "float16"}])
def test_tensors_are_cast(dtypes):
    _, columns = convert(tensors(np.full((2, 3, 1), 0.5)), dtypes=dtypes)
    assert columns["x"].array.dtype == np.float16
    assert columns["x"].array.tolist() == [[[0.5]] * 3] * 2


def test_dimensions_are_named_in_the_report_as_they_are_delivered():
    column = tensors(np.zeros((1, 4, 5, 3), np.uint8), [2, 0, 1], dim_names=["H", "W", "C"])
    converter, _ = convert(column)
    report = converter.report()["x"]
    assert (report["shape"], report["dims"]) == ("[B, 3, 4, 5]", ["C", "H", "W"])
    assert "dims" not in convert(tensors(np.zeros((1, 2))))[0].report()["x"]
