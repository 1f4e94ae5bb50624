"""Converted columns: slicing, joining, shipping, and late Python objects."""

import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.convert.columns import Dense, Objects, Ragged, Text, concat, rebuild
from torch_dataloader_utils.kernels import join_offsets

LISTS = [[1, 2], [], [3], [4, 5, 6], [], [7]]
WORDS = ["añb", None, "", "c" * 40, None, "日本"]
BLOBS = [b"\x00\xff", b"", None, b"x", b"yy", None]
OBJECTS = [{"a": 1}, None, {"a": 3}, {"a": None}, None, {"a": 6}]


def ragged(rows, layout="ragged"):
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return Ragged(np.array([x for row in rows for x in row], np.int32), offsets, layout)


def text(rows):
    binary = any(isinstance(row, bytes) for row in rows)
    data = [b"" if row is None else row if binary else row.encode() for row in rows]
    valid = np.array([row is not None for row in rows]) if None in rows else None
    offsets = np.cumsum([0, *map(len, data)]).astype(np.int64)
    return Text(np.frombuffer(b"".join(data), np.uint8), offsets, valid, binary)


def objects(rows):
    return Objects(pa.chunked_array([rows[:2], rows[2:]], type=pa.struct([("a", pa.int64())])))


def rows_of(column):
    if isinstance(column, Dense):
        return column.array.tolist()
    if isinstance(column, Ragged):
        bounds = (column.offsets - column.offsets[0]).tolist()
        assert len(column.values) == bounds[-1]
        return [column.values[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    return column.to_list()


CASES = [
    pytest.param(Dense(np.arange(6)), list(range(6)), id="dense"),
    pytest.param(Dense(np.arange(12.0).reshape(6, 2)), [[2.0 * i, 2.0 * i + 1] for i in range(6)], id="vectors"),
    pytest.param(ragged(LISTS), LISTS, id="ragged"),
    pytest.param(ragged(LISTS, "nested"), LISTS, id="nested"),
    pytest.param(text(WORDS), WORDS, id="text"),
    pytest.param(text(["a", "", "bc", "d", "e", "f"]), ["a", "", "bc", "d", "e", "f"], id="text-without-null"),
    pytest.param(text(BLOBS), BLOBS, id="binary"),
    pytest.param(objects(OBJECTS), OBJECTS, id="objects"),
]


@pytest.mark.parametrize(("column", "rows"), CASES)
def test_every_slice_has_the_rows_of_the_list_slice(column, rows):
    assert len(column) == len(rows)
    for first in range(len(rows) + 1):
        for last in range(first, len(rows) + 3):
            part = column.slice(first, last)
            assert rows_of(part) == rows[first:last]
            assert len(part) == len(rows[first:last])
            assert rows_of(part.slice(1, 2)) == rows[first:last][1:2]


@pytest.mark.parametrize(("column", "rows"), CASES)
def test_concat_joins_slices(column, rows):
    joined = concat([column.slice(4, 6), column.slice(1, 1), column.slice(0, 3)])
    assert rows_of(joined) == rows[4:6] + rows[0:3]
    assert type(joined) is type(column)


@pytest.mark.parametrize("column", [CASES[0].values[0], CASES[1].values[0], CASES[2].values[0], CASES[4].values[0]])
def test_slices_are_views_and_concat_is_fresh(column):
    for whole, part in zip(column.parts()[1], column.slice(1, 4).parts()[1], strict=True):
        assert np.shares_memory(whole, part)
    for whole, joined in zip(column.parts()[1], concat([column]).parts()[1], strict=True):
        assert not np.shares_memory(whole, joined)
        assert joined.flags.writeable


@pytest.mark.parametrize(("column", "rows"), CASES)
def test_parts_travel_as_a_small_header_and_bytes(column, rows):
    header, arrays = column.slice(1, 5).parts()
    data = pickle.dumps(header)
    assert len(data) < 200
    shipped = [np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for array in arrays]
    again = rebuild(pickle.loads(data), shipped)
    assert rows_of(again) == rows[1:5]
    assert getattr(again, "layout", None) == getattr(column, "layout", None)


@pytest.mark.parametrize(("column", "rows"), CASES)
def test_nbytes_of_a_slice_is_of_its_rows(column, rows):
    assert column.nbytes > column.slice(0, 3).nbytes > 0


def test_a_text_column_with_nulls_joins_one_without():
    joined = Text.concat([text(["a", "b"]), text([None, "c"])])
    assert joined.to_list() == ["a", "b", None, "c"]
    assert joined.to_list(1, 3) == ["b", None]


def test_objects_keep_the_memory_they_were_rebuilt_from():
    header, arrays = objects(OBJECTS).parts()
    again = rebuild(header, [arrays[0].copy()])
    del arrays
    assert again.to_list() == OBJECTS


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5), st.integers(0, 100))
def test_join_offsets_adds_up(parts, start):
    offsets = [np.cumsum([start, *part]).astype(np.int64) for part in parts]
    expected = np.cumsum([0, *[length for part in parts for length in part]])
    np.testing.assert_array_equal(join_offsets(offsets), expected)


def test_join_offsets_of_nothing_is_zero():
    assert join_offsets([]).tolist() == [0]
