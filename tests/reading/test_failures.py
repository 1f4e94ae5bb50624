"""Rows for which a transform fails: which are found, with how many calls, and what takes their places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import OptionError, RowErrors, UnknownValueError
from torch_dataloader_utils.errors import MissingExtraError, SchemaMismatchError
from torch_dataloader_utils.reading.failures import (
    TransformFailed,
    fills_of,
    first_failing,
    is_of_rows,
    survivors,
    with_stand_ins,
)


class Fails:
    """A transform of rows by their numbers that fails for some, and for any call that holds one of these."""

    def __init__(self, bad: set[int], knows: bool = False) -> None:
        self.bad, self.knows, self.calls = bad, knows, 0

    def __call__(self, numbers: Any) -> pa.RecordBatch:
        self.calls += 1
        found = {place: ValueError(f"bad {row}") for place, row in enumerate(numbers.tolist()) if row in self.bad}
        if found:
            raise TransformFailed(RowErrors(found) if self.knows else next(iter(found.values())))
        return pa.record_batch({"row": pa.array(numbers)})


def failed(call: Fails, rows: int) -> Exception:
    with pytest.raises(TransformFailed) as caught:
        call(np.arange(rows))
    return caught.value.error


@given(data=st.data(), knows=st.booleans())
def test_the_rows_that_fail_are_found_and_all_others_are_transformed_once(data: st.DataObject, knows: bool) -> None:
    rows = data.draw(st.integers(1, 200))
    bad = data.draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=8))
    call = Fails(bad, knows)
    results, errors = survivors(rows, call, failed(call, rows), knows=True)
    good = [row for row in range(rows) if row not in bad]
    assert list(errors) == sorted(bad)
    assert errors[min(bad)] == ("ValueError", f"bad {min(bad)}")
    assert [row for result in results for row in result["row"].to_pylist()] == good
    most = 2 if knows else 1 + 2 * len(bad) * math.ceil(math.log2(rows) + 1)
    assert call.calls <= most


@given(rows=st.integers(1, 300), data=st.data())
def test_the_first_row_that_fails_is_found(rows: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1), max_size=5))
    assert first_failing(rows, Fails(bad)) == (min(bad) if bad else None)


def test_rows_that_a_function_names_wrongly_are_found_by_halving() -> None:
    def call(numbers: Any) -> pa.RecordBatch:
        if 3 in numbers:
            raise TransformFailed(RowErrors({99: ValueError("row 99?")}))
        return pa.record_batch({"row": pa.array(numbers)})

    _, errors = survivors(5, call, RowErrors({99: ValueError("row 99?")}), knows=True)
    assert list(errors) == [3]
    # Of rows that another function has changed, the numbers are not known here.
    _, errors = survivors(5, Fails({4}, knows=True), RowErrors({0: ValueError()}), knows=False)
    assert list(errors) == [4]


def test_errors_of_calls_are_those_of_no_row() -> None:
    of_calls = (OptionError("x"), SchemaMismatchError("x"), MissingExtraError("x"), MemoryError(), KeyboardInterrupt())
    assert not any(map(is_of_rows, of_calls))
    assert all(
        map(is_of_rows, (ValueError("x"), UnknownValueError("x"), OSError("x"), RowErrors({0: OptionError("x")})))
    )

    def call(numbers: Any) -> pa.RecordBatch:
        raise TransformFailed(MemoryError("no room"))

    with pytest.raises(TransformFailed):
        survivors(8, call, ValueError("first"), knows=True)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_and_a_long_one_are_told_in_short() -> None:
    def call(numbers: Any) -> pa.RecordBatch:
        raise TransformFailed(Silent() if numbers[0] == 0 else ValueError("x" * 5000))

    _, errors = survivors(2, call, ValueError(), knows=True)
    assert errors[0] == ("Silent", "an error without a text")
    assert len(errors[1].text) < 1100


@given(data=st.data())
def test_a_failed_row_holds_what_the_nearest_good_one_before_it_holds_else_after(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 30))
    bad = data.draw(st.sets(st.integers(0, rows - 1), max_size=rows))
    good = np.array([row for row in range(rows) if row not in bad], np.int64)
    table = pa.table({"a": good, "b": [f"b{row}" for row in good]})
    found = with_stand_ins(table, good, rows, {})
    if not len(good):
        assert found is None
        return
    nearest = [max([one for one in good if one <= row], default=good[0]) for row in range(rows)]
    assert found is not None
    assert found.to_pydict() == {"a": nearest, "b": [f"b{row}" for row in nearest]}
    filled = with_stand_ins(table, good, rows, {"b": pa.array(["none"])})
    assert filled is not None
    assert filled.to_pydict() == {"a": nearest, "b": [f"b{row}" if row in good else "none" for row in range(rows)]}


def test_with_a_value_for_each_column_no_good_row_is_needed() -> None:
    table = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    fills = fills_of(table.schema, {"a": -1, "b": "none"})
    found = with_stand_ins(table, np.zeros(0, np.int64), 2, fills)
    assert found is not None
    assert found.to_pylist() == [{"a": -1, "b": "none"}] * 2


TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 3))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 7, 7),
        (pa.int64(), 0.5, None),
        (pa.int8(), 300, None),
        (pa.int64(), True, None),
        (pa.bool_(), True, True),
        (pa.bool_(), 1, None),
        (pa.float32(), 1, 1.0),
        (pa.string(), "x", "x"),
        (pa.string(), 1, None),
        (pa.binary(), b"x", b"x"),
        (pa.dictionary(pa.int32(), pa.string()), "x", "x"),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
        (pa.list_(pa.int64()), (), []),
        (pa.list_(pa.int64()), 1, None),
        (pa.list_(pa.int64(), 2), 1, [1, 1]),
        (pa.list_(pa.int64(), 2), (1, 2), [1, 2]),
        (pa.list_(pa.list_(pa.int8(), 2), 2), 3, [[3, 3], [3, 3]]),
        (TENSOR, 0.5, [0.5] * 6),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 1}),
    ],
    ids=str,
)
def test_a_value_fills_a_column_that_can_hold_it(kind: pa.DataType, value: Any, expected: Any) -> None:
    schema = pa.schema([("x", kind)])
    if expected is None:
        with pytest.raises(OptionError, match="column 'x' holds"):
            fills_of(schema, {"x": value})
        return
    array = fills_of(schema, {"x": value})["x"]
    assert array.type.equals(kind)
    assert array.to_pylist() == [expected]


def test_a_value_without_a_column_fills_those_that_can_hold_it() -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
    assert {name: array.to_pylist() for name, array in fills_of(schema, 0).items()} == {"id": [0], "x": [0.0]}
    assert list(fills_of(schema, "none")) == ["name"]
    with pytest.raises(OptionError, match="no column of"):
        fills_of(schema, [1])
    with pytest.raises(OptionError, match="no column 'y': the transform returns"):
        fills_of(schema, {"y": 0})
