"""What a transform in each format gets, and what its result becomes."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import NullValueError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.reading.transform_formats import FormattedTransform, formatted, no_rows

TENSOR = pa.fixed_shape_tensor(pa.int32(), (2, 3))
TURNED = pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=(1, 0))
VALUES: dict[pa.DataType, list[Any]] = {
    **{kind: [0, 1, 127] for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())},
    **{kind: [0.5, -1.0] for kind in (pa.float16(), pa.float32(), pa.float64())},
    pa.bool_(): [True, False],
    **{kind: ["", "a", "é"] for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))},
    **{kind: [b"", b"a\0"] for kind in (pa.binary(), pa.large_binary())},
    pa.binary(2): [b"ab", b"\0\0"],
    pa.date32(): [date(1969, 12, 31), date(2024, 1, 1)],
    pa.date64(): [date(1969, 12, 31), date(2024, 1, 1)],
    pa.time32("s"): [time(0), time(13, 45)],
    pa.time64("us"): [time(0), time(13, 45, 0, 1)],
    **{pa.timestamp(unit): [datetime(1970, 1, 1), datetime(2024, 1, 1, 1)] for unit in ("s", "ms", "us")},
    pa.timestamp("us", "Europe/Oslo"): [datetime(2024, 1, 1, 1), datetime(1969, 1, 1)],
    pa.duration("s"): [timedelta(seconds=3), timedelta(days=-1)],
    pa.list_(pa.int64()): [[], [1, 2]],
    pa.large_list(pa.float32()): [[], [1.0, 2.0]],
    pa.list_(pa.int32(), 2): [[1, 2], [3, 4]],
    pa.list_(pa.float32(), 2): [[1.0, 2.0], [3.0, 4.0]],
    pa.list_(pa.string()): [[], ["a", None]],
    pa.struct({"a": pa.int64(), "b": pa.string()}): [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    pa.map_(pa.string(), pa.int64()): [[("a", 1)], []],
    **({pa.uuid(): [uuid.UUID(int=n).bytes for n in (0, 1)]} if hasattr(pa, "uuid") else {}),
}
FORMATS = ("numpy", "torch", "pandas", "polars")


def needs(name: str) -> None:
    if name in ("pandas", "polars"):
        pytest.importorskip(name)


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def run(
    transform: Callable[[Any], Any], name: str, batch: pa.RecordBatch, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """What the loader does: a call on 0 rows, unless the schema is given, then one on the rows."""
    made = formatted(transform, name, batch.schema)
    assert isinstance(made, FormattedTransform)
    expected = made(no_rows(batch.schema)).schema if schema is None else schema
    made = FormattedTransform(made.transform, made.format, made.given, made.changed, expected)
    result = made(batch)
    assert result.schema.equals(expected)
    return result


def same(rows: Any) -> Any:
    return rows


def keeps_nulls(kind: pa.DataType, name: str) -> bool:
    """Whether nulls of this type come back as nulls, not as an error."""
    values = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    if name in ("pandas", "polars") or not (pa.types.is_primitive(values) or pa.types.is_boolean(values)):
        return True
    return pa.types.is_floating(values) or name == "numpy"


# ---------------------------------------------------------------------------------------------------------- identity


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_a_transform_that_changes_nothing_changes_no_type_and_no_value(
    kind: pa.DataType, name: str, data: st.DataObject
) -> None:
    needs(name)
    pool = [*VALUES[kind], None] if keeps_nulls(kind, name) else VALUES[kind]
    column = pa.array(data.draw(st.lists(st.sampled_from(pool), max_size=6)), kind)
    column = column.slice(data.draw(st.integers(0, len(column))))
    expected = column
    if name == "torch" and pa.types.is_temporal(kind):  # tensors of whole numbers, in the column's own unit
        expected = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        expected = expected if pa.types.is_date32(kind) else expected.cast(pa.int64())
    result = run(same, name, batch_of(x=column))["x"]
    assert result.type.equals(expected.type)
    assert result.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [TENSOR, TURNED], ids=["plain", "permuted"])
def test_tensors_of_fixed_shape_come_back(kind: pa.DataType, name: str) -> None:
    needs(name)
    storage = pa.array([list(range(6)), list(range(6, 12))], kind.storage_type)
    column = pa.ExtensionArray.from_storage(kind, storage)
    result = run(same, name, batch_of(x=column))["x"]
    np.testing.assert_array_equal(result.to_numpy_ndarray(), column.to_numpy_ndarray())


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_decimals_are_floats_for_numpy_and_torch_and_stay_so(name: str) -> None:
    column = pa.array([Decimal("1.10"), None], pa.decimal128(12, 2))
    result = run(same, name, batch_of(x=column))["x"]
    assert result.type == pa.float64()
    assert result.to_pylist() == [1.1, None]


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_decimals_are_exact_in_frames(name: str) -> None:
    needs(name)
    batch = batch_of(x=pa.array([Decimal("1.10"), None], pa.decimal128(12, 2)))
    assert run(same, name, batch).equals(batch)


# ------------------------------------------------------------------------------------------------------ what it gets

BATCH = batch_of(
    i=pa.array([1, None, 3]),
    f=pa.array([0.5, None, 2.5], pa.float32()),
    s=pa.array(["a", None, "c"]),
    d=pa.array([date(1970, 1, 2), None, None]),
    l=pa.array([[1, 2], None, []]),
    v=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
)


def test_numpy_gets_arrays_whose_dtype_no_null_changes() -> None:
    seen: dict[str, Any] = {}
    run(lambda rows: seen.update(rows) or rows, "numpy", BATCH)
    dtypes = {name: str(array.dtype) for name, array in seen.items()}
    assert dtypes == {"i": "int64", "f": "float32", "s": "object", "d": "datetime64[D]", "l": "object", "v": "int8"}
    assert seen["i"].tolist() == [1, None, 3]  # a masked array
    assert np.isnan(seen["f"][1])
    assert seen["s"].tolist() == ["a", None, "c"]
    assert np.isnat(seen["d"]).tolist() == [False, True, True]
    assert [None if row is None else row.tolist() for row in seen["l"]] == [[1, 2], None, []]
    assert seen["v"].shape == (3, 2)


def test_torch_gets_tensors_and_lists() -> None:
    seen: dict[str, Any] = {}
    run(lambda rows: seen.update(rows) or rows, "torch", BATCH.select(["f", "s", "l", "v"]))
    assert seen["f"].dtype == torch.float32
    assert seen["s"] == ["a", None, "c"]
    assert [None if row is None else row.tolist() for row in seen["l"]] == [[1, 2], None, []]
    assert seen["v"].tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("torch", pa.array([1, None])),
        ("torch", pa.array([True, None])),
        ("torch", pa.array([date(2024, 1, 1), None])),
        ("torch", pa.array([[1, 2], None], pa.list_(pa.int64(), 2))),
        ("torch", pa.array([[1, None]])),
        ("numpy", pa.array([[1, None]])),
        ("numpy", pa.array([[1, None]], pa.list_(pa.int64(), 2))),
    ],
    ids=str,
)
def test_a_null_that_a_format_has_no_place_for_is_an_error_with_remedies(name: str, column: pa.Array) -> None:
    with pytest.raises(NullValueError, match=r"'x' has a null before transform.*nulls=\{'x': 'drop'\}.*'pandas'"):
        run(same, name, batch_of(x=column))


def test_pandas_gets_dtypes_that_have_nulls() -> None:
    pytest.importorskip("pandas")
    seen: dict[str, Any] = {}
    batch = BATCH.append_column("at", pa.array([datetime(2024, 1, 1), None, None], pa.timestamp("ms")))
    run(lambda frame: seen.update(frame.dtypes) or frame, "pandas", batch)
    dtypes = {name: str(dtype) for name, dtype in seen.items()}
    assert dtypes == {
        "i": "Int64", "f": "Float32", "s": "string", "d": "date32[day][pyarrow]", "l": "list<item: int64>[pyarrow]",
        "v": "fixed_size_list<item: int8>[2][pyarrow]", "at": "datetime64[ms]",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_arrays_are_the_transforms_own_to_write_to(name: str) -> None:
    def double(rows: Any) -> Any:
        for key in ("f", "v"):
            rows[key] *= 2
        return rows

    batch = BATCH.select(["f", "v"])
    before = batch.to_pylist()
    assert run(double, name, batch)["v"].to_pylist() == [[2, 4], [6, 8], [10, 12]]
    assert batch.to_pylist() == before


# -------------------------------------------------------------------------------------------------- what it returns


@pytest.mark.parametrize("name", FORMATS)
def test_columns_can_be_added_left_out_and_reordered(name: str) -> None:
    needs(name)

    def renewed(rows: Any) -> Any:
        new = {"sum": rows["a"] + rows["b"], "a": rows["a"]}
        return new if name in ("numpy", "torch") else type(rows)(new)

    result = run(renewed, name, batch_of(a=pa.array([1, 2]), b=pa.array([0.5, 1.5], pa.float32())))
    assert result.schema.names == ["sum", "a"]
    assert result.to_pydict() == {"sum": [1.5, 3.5], "a": [1, 2]}


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.ones((2, 3), np.float32), pa.list_(pa.float32(), 3)),
        (np.ones((2, 0), np.int64), pa.list_(pa.int64(), 0)),
        (np.ones((2, 3, 4), np.uint8), pa.fixed_shape_tensor(pa.uint8(), (3, 4))),
        (np.ones((2, 3, 4)).transpose(0, 2, 1), pa.fixed_shape_tensor(pa.float64(), (4, 3))),
        (np.array(["a", "bc"]), pa.string()),
        (np.array([b"a", b"bc"]), pa.binary()),
        (np.array([1, 2], "datetime64[ms]"), pa.timestamp("ms")),
        (np.ma.MaskedArray([1, 2], [True, False]), pa.int64()),
        (np.arange(4)[::2], pa.int64()),
        (torch.ones(2, 3, dtype=torch.bool), pa.list_(pa.bool_(), 3)),
        (torch.ones(2, 3, 4, requires_grad=True), pa.fixed_shape_tensor(pa.float32(), (3, 4))),
        (torch.arange(2), pa.int64()),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_arrays_become_columns_of_their_dtype_and_shape(array: Any, kind: pa.DataType) -> None:
    def made(rows: Any) -> Any:
        return {"new": array[: len(rows["x"])]}

    name = "torch" if isinstance(array, torch.Tensor) else "numpy"
    column = run(made, name, batch_of(x=pa.array([1.0, 2.0])))["new"]
    assert column.type == kind
    values = column.to_numpy_ndarray() if array.ndim > 2 else np.array(column.to_pylist())
    expected = array.detach().numpy() if isinstance(array, torch.Tensor) else array
    if isinstance(array, np.ma.MaskedArray):
        assert column.to_pylist() == [None, 2]
    else:
        np.testing.assert_array_equal(values.astype(expected.dtype).reshape(expected.shape), expected)


TOKENS = {"the": 1, "cat": 2, "sat": 3}


def token_ids(texts: Any) -> list[list[int]]:
    return [[TOKENS[word] for word in text.split()] for text in texts]


IDS = pa.schema({"ids": pa.list_(pa.int64())})
TEXTS = batch_of(text=pa.array(["the cat", "sat", "the cat sat"]))


@pytest.mark.parametrize("name", FORMATS)
def test_ragged_lists_of_tokens_need_a_schema_and_have_it(name: str) -> None:
    needs(name)

    def tokenized(rows: Any) -> Any:
        ids = {"ids": token_ids(rows["text"])}
        return ids if name in ("numpy", "torch") else type(rows)(ids)

    assert run(tokenized, name, TEXTS, IDS)["ids"].to_pylist() == [[1, 2], [3], [1, 2, 3]]
    with pytest.raises(SchemaMismatchError, match=r"ids.*Transform\(schema=\)"):
        run(tokenized, name, TEXTS)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_padded_tokens_are_a_matrix_or_lists_as_the_schema_says(name: str) -> None:
    def tokenized(rows: Any) -> Any:
        ids = [(row + [0] * 4)[:4] for row in token_ids(rows["text"])]
        return {"ids": np.array(ids, np.int64).reshape(-1, 4) if name == "numpy" else torch.tensor(ids).reshape(-1, 4)}

    padded = [[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 0]]
    for schema in (IDS, pa.schema({"ids": pa.list_(pa.int64(), 4)})):
        assert run(tokenized, name, TEXTS, schema)["ids"].to_pylist() == padded


def test_lists_made_of_one_length_under_their_name_are_a_matrix() -> None:
    polars = pytest.importorskip("polars")
    batch = batch_of(x=pa.array([[1, 2], [3, 4]]))
    result = run(lambda frame: frame.with_columns(polars.col("x").list.to_array(2)), "polars", batch)["x"]
    assert result.type == pa.list_(pa.int64(), 2)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_rows_of_tensors_fill_a_column_of_tensors(name: str) -> None:
    make = torch.tensor if name == "torch" else np.array
    schema = pa.schema({"x": TENSOR})

    def stacked(rows: Any) -> Any:
        return {"x": [make([[n, 1, 2], [3, 4, 5]]) for n in rows["x"].tolist()]}

    column = run(stacked, name, batch_of(x=pa.array([7, 8])), schema)["x"]
    assert column.to_numpy_ndarray().tolist() == [[[7, 1, 2], [3, 4, 5]], [[8, 1, 2], [3, 4, 5]]]
    with pytest.raises(SchemaMismatchError, match=r"'x' with values that do not fit .*a row of shape \(3, 2\)"):
        run(
            lambda rows: {"x": [make([[0, 1], [2, 3], [4, 5]])] * len(rows["x"])},
            name,
            batch_of(x=pa.array([7])),
            schema,
        )


NULLABLE = pa.schema({"f": pa.list_(pa.float32(), 2), "i": pa.list_(pa.int8(), 2)})


@pytest.mark.parametrize("rows", [0, 3])
def test_nan_and_masked_numbers_of_rows_become_nulls(rows: int) -> None:
    values = np.array([[1, 2], [np.nan, 4], [np.nan, np.nan]], np.float32)[:rows]
    whole = np.ma.MaskedArray(np.zeros((rows, 2), np.int8), np.isnan(values))
    result = run(lambda given: {"f": values, "i": whole}, "numpy", batch_of(x=pa.array([0] * rows)), NULLABLE)
    assert result["f"].to_pylist() == [[1, 2], [None, 4], None][:rows]
    assert result["i"].to_pylist() == [[0, 0], [None, 0], None][:rows]


def test_objects_under_a_name_that_was_there_are_of_the_type_that_was_there() -> None:
    def upper(rows: Any) -> Any:
        rows["s"] = [None if text is None else text.upper() for text in rows["s"]]
        return rows

    assert run(upper, "numpy", BATCH)["s"].to_pylist() == ["A", None, "C"]
    assert run(upper, "torch", BATCH.select(["s"]))["s"].to_pylist() == ["A", None, "C"]


@pytest.mark.parametrize(
    ("name", "made", "error", "message"),
    [
        ("numpy", lambda rows: None, UnsupportedTypeError, "NoneType: expected a dict of numpy arrays"),
        ("torch", lambda rows: [1], UnsupportedTypeError, "list: expected a dict of tensors"),
        ("pandas", lambda rows: {}, UnsupportedTypeError, "dict: expected a pandas DataFrame"),
        ("polars", lambda rows: rows.lazy(), UnsupportedTypeError, "LazyFrame: expected a polars DataFrame"),
        ("numpy", lambda rows: {"x": 3}, UnsupportedTypeError, "3 as column 'x': expected an array or a list"),
        ("numpy", lambda rows: {3: rows["x"]}, UnsupportedTypeError, "called 3: expected a string"),
        ("numpy", lambda rows: {"x": rows["x"] + 1j}, UnsupportedTypeError, "'x' as an array of complex128"),
        ("torch", lambda rows: {"x": rows["x"].bfloat16()}, UnsupportedTypeError, "'x' as a tensor .*another dtype"),
        ("numpy", lambda rows: {**rows, "y": np.ones(9)}, SchemaMismatchError, "lengths: {'x': 0, 'y': 9}"),
        ("numpy", lambda rows: {}, SchemaMismatchError, "lengths: {}"),
        ("numpy", lambda rows: {"new": [1 for _ in rows["x"]]}, SchemaMismatchError, "'new' as Python objects"),
        ("numpy", lambda rows: {"x": ["a" for _ in rows["x"]]}, SchemaMismatchError, "'x' .* do not fit int64"),
        ("numpy", lambda rows: {"x": [1.5 for _ in rows["x"]]}, SchemaMismatchError, "'x' .* do not fit int64"),
    ],
)  # fmt: skip
def test_what_is_no_column_is_refused(name: str, made: Any, error: type[Exception], message: str) -> None:
    needs(name)
    with pytest.raises(error, match=message):
        run(made, name, batch_of(x=pa.array([1, 2])))


@pytest.mark.parametrize("name", FORMATS)
def test_it_can_be_sent_to_other_processes(name: str) -> None:
    needs(name)
    batch = batch_of(
        x=pa.array([datetime(2024, 1, 1)], pa.timestamp("s")), v=pa.array([[1.0]], pa.list_(pa.float32(), 1))
    )
    if name == "torch":
        batch = batch.select(["v"])
    made = formatted(same, name, batch.schema)
    assert isinstance(made, FormattedTransform)
    sent = pickle.loads(pickle.dumps(FormattedTransform(same, name, batch.schema, made.changed, batch.schema)))
    assert sent(batch).equals(batch)
