"""The conversion table: Arrow type x null policy x output format, each row written out."""

import datetime as dt
import decimal
import json
import uuid

import numpy as np
import pyarrow as pa
import pytest

from tests.convert.rows import rows_of
from torch_dataloader_utils import Fill
from torch_dataloader_utils.convert.columns import Dense, Objects, Ragged, Text
from torch_dataloader_utils.convert.converter import build_converter, compact
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.errors import NullValueError
from torch_dataloader_utils.options import ConvertOptions

D = decimal.Decimal
DAY = dt.date(1970, 1, 3)
NOON = dt.datetime(1970, 1, 2, 12, 0, 0, 5)
UUID = uuid.UUID(int=7).bytes


def newer(name, *arguments):
    """A type that old pyarrow does not have: None there, and its cases are left out."""
    return getattr(pa, name)(*arguments) if hasattr(pa, name) else None


def case(name, type_, values, expected=None, dtype=None, width=None):
    """Arrow values and what they become; `dtype` None means Python objects."""
    return pytest.param(type_, values, values if expected is None else expected, dtype, width, id=name)


INTS = [1, -2, 3]
US = [129600000005, 0]  # microseconds
DENSE = [
    *[case(str(t), t, INTS, dtype=str(t)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    *[case(str(t), t, [1, 2, 3], dtype=str(t)) for t in (pa.uint8(), pa.uint16(), pa.uint32())],
    case("int64 beyond float64", pa.int64(), [2**53 + 1, -(2**63), 2**63 - 1], dtype="int64"),
    case("uint64 beyond int64", pa.uint64(), [2**63 + 1, 2**64 - 1, 0], dtype="uint64"),
    case("bool", pa.bool_(), [True, False, True], dtype="bool"),
    case("bool8", newer("bool8"), [True, False, True], dtype="bool"),
    case("date32", pa.date32(), [DAY], [2], "int32"),
    case("date64", pa.date64(), [DAY], [2 * 86400000], "int64"),
    case("time32", pa.time32("ms"), [dt.time(0, 0, 1)], [1000], "int64"),
    case("time64", pa.time64("us"), [dt.time(0, 0, 1)], [1000000], "int64"),
    case("timestamp", pa.timestamp("us"), [NOON, dt.datetime(1970, 1, 1)], US, "int64"),
    case("timestamp s tz", pa.timestamp("s", "Europe/Paris"), [5, 6], [5, 6], "int64"),
    case("duration", pa.duration("ms"), [dt.timedelta(seconds=1)], [1000], "int64"),
    case("dictionary int", pa.dictionary(pa.int8(), pa.int32()), [5, 5, 7], dtype="int32"),
    case("run-end int", pa.run_end_encoded(pa.int32(), pa.int16()), [5, 5, 7], dtype="int16"),
    case("ints[2]", pa.list_(pa.int16(), 2), [[1, 2], [3, 4]], dtype="int16", width=2),
    case("bools[3]", pa.list_(pa.bool_(), 3), [[True, False, True]] * 2, dtype="bool", width=3),
]  # fmt: skip
FLOATS = [
    *[case(str(t), t, [1.5, -0.0, float("inf")], dtype=f"float{t.bit_width}") for t in
      (pa.float16(), pa.float32(), pa.float64())],
    case("decimal32", newer("decimal32", 5, 2), [D("1.10"), D("-999.99")], [1.1, -999.99], "float64"),
    case("decimal64", newer("decimal64", 15, 2), [D("9999999999999.99")], [9999999999999.99], "float64"),
    case("decimal128", pa.decimal128(38, 4), [D("-0.0003"), D("9" * 30 + ".1234")], [-0.0003, 1e30], "float64"),
    case("decimal256", pa.decimal256(60, 1), [D("9" * 50 + ".5")], [1e50], "float64"),
    case("decimal, scale < 0", pa.decimal128(5, -2), [D("12300")], [12300.0], "float64"),
    case("decimal, scale > 22", pa.decimal128(38, 30), [D("0.1")], [0.1], "float64"),
    case("floats[2]", pa.list_(pa.float32(), 2), [[1.5, 2.5], [3.5, 4.5]], dtype="float32", width=2),
    case("decimals[1]", pa.list_(pa.decimal128(3, 1), 1), [[D("1.5")], [D("2.5")]], [[1.5], [2.5]], "float64", 1),
    case("tensor extension", pa.fixed_shape_tensor(pa.float32(), [2]), [[1.0, 2.0]], dtype="float32", width=2),
]  # fmt: skip
LISTS = [
    case("list", pa.list_(pa.int64()), [[1, 2], [], [3]], dtype="int64"),
    case("large list", pa.large_list(pa.float32()), [[1.5], [2.5, 3.5]], dtype="float32"),
    case("list view", pa.list_view(pa.int32()), [[1], [2, 3], []], dtype="int32"),
    case("large list view", pa.large_list_view(pa.int32()), [[1], [2, 3], []], dtype="int32"),
    case("list of bools", pa.list_(pa.bool_()), [[True], [False, True]], dtype="bool"),
    case("list of dates", pa.list_(pa.date32()), [[DAY], []], [[2], []], "int32"),
    case("list of decimals", pa.list_(pa.decimal128(5, 2)), [[D("1.10")], []], [[1.1], []], "float64"),
]
WORDS = ["a", "", "longer than twelve bytes", "日本"]
BLOBS = [b"a", b"", b"longer than twelve bytes", b"\xff"]
TEXTS = [
    *[case(str(t), t, WORDS) for t in (pa.string(), pa.large_string(), pa.string_view())],
    *[case(str(t), t, BLOBS) for t in (pa.binary(), pa.large_binary(), pa.binary_view())],
    case("fixed-size binary", pa.binary(2), [b"ab", b"cd"]),
    case("dictionary", pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    case("run-end", pa.run_end_encoded(pa.int32(), pa.string()), ["a", "a", "b"]),
    case("uuid", newer("uuid"), [UUID, UUID]),
    case("json", newer("json_"), [json.dumps({"a": 1})]),
]
OBJECTS = [
    case("map", pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
    case("list of lists", pa.list_(pa.list_(pa.int8())), [[[1], []], []]),
    case("list of strings", pa.list_(pa.string()), [["a"], []]),
    case("list of structs", pa.list_(pa.struct([("a", pa.int8())])), [[{"a": 1}], []]),
    case("vectors of vectors", pa.list_(pa.list_(pa.int8(), 1), 1), [[[1]]]),
    case("vectors of strings", pa.list_(pa.string(), 1), [["a"]]),
    case("struct without fields", pa.struct([]), [{}, {}]),
    case("other extension", newer("opaque", pa.int64(), "type", "vendor"), [1, 2]),
    case("interval", pa.month_day_nano_interval(), [(1, 2, 3)]),
]


def array_of(type_, values):
    """An Arrow array; extension and encoded types by way of their storage."""
    if isinstance(type_, pa.BaseExtensionType):
        storage = [None if v is None else int(v) for v in values] if type_.extension_name == "arrow.bool8" else values
        return pa.ExtensionArray.from_storage(type_, pa.array(storage, type_.storage_type))
    if pa.types.is_run_end_encoded(type_):
        return pa.compute.run_end_encode(pa.array(values, type_.value_type), type_.run_end_type)
    if type_ == pa.float16():  # old pyarrow takes numpy's only
        values = [None if v is None else np.float16(v) for v in values]
    return pa.array(values, type_)


def convert(array, output_format="torch", owned=False, **options):
    table = pa.table({"x": array})
    return build_converter(table.schema, ConvertOptions(**options), output_format).convert(table, owned, "the file")


def check_kind(column, dtype, width, rows):
    if isinstance(column, Dense):
        assert column.array.dtype == dtype
        assert column.array.shape == ((rows,) if width is None else (rows, width))
        assert column.array.flags.carray
    elif isinstance(column, Ragged):
        assert column.values.dtype == dtype
        assert column.offsets.dtype == np.int64
        assert column.values.flags.carray


DENSE, FLOATS, LISTS, TEXTS, OBJECTS = (
    [param for param in cases if param.values[0] is not None] for cases in (DENSE, FLOATS, LISTS, TEXTS, OBJECTS)
)
ALL = [*DENSE, *FLOATS, *LISTS, *TEXTS, *OBJECTS]
OWN_NULL = [*FLOATS, *TEXTS, *OBJECTS]
POLICIES = ["error", "mask", "drop"]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("nulls", POLICIES)
@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), ALL)
def test_without_nulls(type_, values, expected, dtype, width, nulls, output_format):
    found = convert(array_of(type_, values), output_format, nulls=nulls)
    assert rows_of(found["x"]) == expected
    check_kind(found["x"], dtype, width, len(values))
    if "x_valid" in found:
        assert rows_of(found["x_valid"]) == [True] * len(values)
    assert ("x_valid" in found) == (nulls == "mask" and (type_, values) in [p.values[:2] for p in [*DENSE, *LISTS]])


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), [*DENSE, *LISTS])
def test_nulls_where_the_output_has_none(type_, values, expected, dtype, width):
    array = array_of(type_, [values[0], None, *values])
    with pytest.raises(
        NullValueError, match=r"'x' has a null in the file, at row 1 of the .* rows read.*'mask'.*'drop'"
    ):
        convert(array)
    found = convert(array, nulls="mask")
    assert list(found) == ["x", "x_valid"]
    check_kind(found["x"], dtype, width, len(array))
    rows = rows_of(found["x"])
    blank = [] if isinstance(found["x"], Ragged) else [0] * width if width else 0
    assert rows == [expected[0], blank, *expected]
    assert rows_of(found["x_valid"]) == [True, False, *[True] * len(values)]
    with pytest.raises(NullValueError, match=r"'drop' looks at what transform gets.*Leave such rows out with filters="):
        convert(array, nulls="drop")


@pytest.mark.parametrize("nulls", POLICIES)
@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), OWN_NULL)
def test_nulls_where_the_output_has_its_own(type_, values, expected, dtype, width, nulls):
    found = convert(array_of(type_, [values[0], None, *values]), nulls=nulls)
    assert list(found) == ["x"]
    check_kind(found["x"], dtype, width, len(values) + 2)
    rows = rows_of(found["x"])
    assert [rows[0], *rows[2:]] == [expected[0], *expected]
    if dtype is None:
        assert rows[1] is None
    else:
        assert np.isnan(rows[1]).all()


@pytest.mark.parametrize("nulls", POLICIES)
@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), OWN_NULL)
def test_a_policy_for_a_column_by_name_holds_for_every_type(type_, values, expected, dtype, width, nulls):
    array = array_of(type_, [values[0], None, *values])
    if nulls != "mask":
        with pytest.raises(NullValueError):
            convert(array, nulls={"x": nulls})
    else:
        found = convert(array, nulls={"x": nulls})
        assert rows_of(found["x_valid"]) == [True, False, *[True] * len(values)]


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), ALL)
def test_dropped_rows(type_, values, expected, dtype, width):
    table = pa.table({"x": array_of(type_, [values[0], None, *values]), "y": range(len(values) + 2)})
    converter = build_converter(table.schema, ConvertOptions(nulls={"x": "drop"}), "torch")
    assert converter.drop_columns == ("x",)
    mask = converter.null_mask(table).to_pylist()
    kept = pa.concat_tables([table.slice(i, 1) for i, keep in enumerate(mask) if keep])  # filter() lacks some types
    found = converter.convert(kept, True, "the file")
    assert rows_of(found["x"]) == [expected[0], *expected]
    assert rows_of(found["y"]) == [0, *range(2, len(values) + 2)]
    assert converter.null_mask(kept) is None


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), [*DENSE, *FLOATS, *LISTS])
def test_filled_nulls(type_, values, expected, dtype, width):
    one = dtype == "bool"
    found = convert(array_of(type_, [values[0], None]), nulls=Fill({"x": one or 7}))
    assert list(found) == ["x"]
    check_kind(found["x"], dtype, width, 2)
    blank = [one or 7] if isinstance(found["x"], Ragged) else [one or 7] * width if width else one or 7
    assert rows_of(found["x"])[1] == blank


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), TEXTS)
@pytest.mark.parametrize("strings", ["list", "bytes"])
def test_filled_text(type_, values, expected, dtype, width, strings):
    fill = type(expected[0])(b"ab" if isinstance(expected[0], bytes) else "ab")
    found = convert(array_of(type_, [None, *values]), nulls=Fill({"x": fill}), strings=strings)
    rows = rows_of(found["x"])
    if strings == "bytes":
        rows = [bytes(row) if isinstance(fill, bytes) else bytes(row).decode() for row in rows]
    assert rows == [fill, *expected]


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), TEXTS)
def test_strings_as_bytes(type_, values, expected, dtype, width):
    found = convert(array_of(type_, values), strings="bytes")["x"]
    assert isinstance(found, Ragged)
    assert found.layout == "ragged"
    check_kind(found, "uint8", None, len(values))
    assert [bytes(row) for row in rows_of(found)] == [v if isinstance(v, bytes) else v.encode() for v in expected]
    with pytest.raises(NullValueError, match="'x'"):
        convert(array_of(type_, [*values, None]), strings="bytes")
    masked = convert(array_of(type_, [*values, None]), strings={"x": "bytes"}, nulls="mask")
    assert rows_of(masked["x"])[-1] == []
    assert rows_of(masked["x_valid"])[-1] is False


@pytest.mark.parametrize("layout", ["padded", "nested"])
def test_the_layout_of_lists_is_kept_for_the_batch(layout):
    found = convert(pa.array([[1], [2, 3]]), lists=layout)["x"]
    assert isinstance(found, Ragged)
    assert found.layout == (Padding() if layout == "padded" else layout)


@pytest.mark.parametrize("nulls", POLICIES)
@pytest.mark.parametrize("output_format", ["arrow", "dict"])
@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), ALL)
def test_arrow_and_dict_are_not_converted(type_, values, expected, dtype, width, nulls, output_format):
    table = pa.table({"x": array_of(type_, [values[0], None, *values])})
    converter = build_converter(table.schema, ConvertOptions(nulls=nulls), output_format)
    assert converter.keys == ("x",)
    assert not converter.converts
    assert converter.null_error_columns == frozenset()
    batch = compact(pa.concat_tables([table.slice(1), table]))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema == table.schema
    assert batch.column(0).to_pylist() == table.slice(1).column(0).to_pylist() + table.column(0).to_pylist()


@pytest.mark.parametrize(("type_", "values", "expected", "dtype", "width"), ALL)
def test_the_dtype_does_not_depend_on_the_rows(type_, values, expected, dtype, width):
    full = convert(array_of(type_, values), nulls="mask")
    for chunks in ([], [array_of(type_, [])], [array_of(type_, [None] * 3)], [array_of(type_, values)] * 2):
        found = convert(pa.chunked_array(chunks, type_), nulls="mask")
        assert list(found) == list(full)
        for key, column in found.items():
            assert type(column) is type(full[key])
            if not isinstance(column, Objects | Text):
                for array, as_full in zip(column.parts()[1], full[key].parts()[1], strict=True):
                    assert (array.dtype, array.shape[1:]) == (as_full.dtype, as_full.shape[1:])


def test_a_column_of_type_null_is_a_list_of_none():
    assert rows_of(convert(pa.nulls(3))["x"]) == [None] * 3


def test_unions_are_python_objects():
    types = pa.array([0, 1, 0], pa.int8())
    dense = pa.UnionArray.from_dense(types, pa.array([0, 0, 1], pa.int32()), [pa.array([1, None]), pa.array(["a"])])
    assert rows_of(convert(dense)["x"]) == [1, "a", None]
    sparse = pa.UnionArray.from_sparse(types, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    assert rows_of(convert(pa.chunked_array([sparse, sparse.slice(1)]))["x"]) == [1, "b", 3, "b", 3]


def test_structs_become_a_column_per_field():
    inner = pa.struct([("b", pa.int32()), ("c", pa.string())])
    type_ = pa.struct([("a", inner), ("v", pa.list_(pa.float32(), 2))])
    rows = [
        {"a": {"b": 1, "c": "x"}, "v": [1.0, 2.0]},
        None,
        {"a": None, "v": None},
        {"a": {"b": 4, "c": None}, "v": [3.0, 4.0]},
    ]
    found = convert(pa.array([rows[0], *rows], type_).slice(1), nulls="mask")
    assert list(found) == ["x.a.b", "x.a.b_valid", "x.a.c", "x.v"]
    assert rows_of(found["x.a.b"]) == [1, 0, 0, 4]
    assert rows_of(found["x.a.b_valid"]) == [True, False, False, True]
    assert rows_of(found["x.a.c"]) == ["x", None, None, None]
    np.testing.assert_array_equal(found["x.v"].array, [[1, 2], [np.nan] * 2, [np.nan] * 2, [3, 4]])


def test_scaled_decimals():
    values = [D("1.23"), None, D("-9999999999999999.99"), D("0.07")]
    for type_ in filter(None, (pa.decimal128(18, 2), pa.decimal256(18, 2), newer("decimal64", 18, 2))):
        found = convert(pa.array(values, type_), decimals="scaled", nulls="mask")
        assert found["x"].array.dtype == np.int64
        assert rows_of(found["x"]) == [123, 0, -999999999999999999, 7]


@pytest.mark.skipif(not hasattr(pa, "bool8"), reason="this pyarrow has no such type")
def test_bools_of_a_byte_are_bools():
    bools = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None, 5], pa.int8()))
    found = convert(bools, nulls="mask")
    assert found["x"].array.dtype == np.bool_
    assert rows_of(found["x"]) == [True, False, False, True]
    assert rows_of(found["x_valid"]) == [True, True, False, True]
    lists = pa.ListArray.from_arrays([0, 2, 2], bools.slice(0, 2))
    assert rows_of(convert(lists)["x"]) == [[True, False], []]
    assert convert(bools, dtypes={"x": "float32"})["x"].array.dtype == np.float32


@pytest.mark.parametrize("fill", [[], [5], [7, 8, 9]])
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.float64()), pa.list_(pa.int64())])
def test_a_list_fills_null_lists(fill, kind):
    array = pa.array([None, [1, 2], None, [], [3], None], kind)
    filled = [fill, [1, 2], fill, [], [3], fill]
    for given in (fill, tuple(fill), np.array(fill)):
        assert rows_of(convert(array, nulls=Fill({"x": given}))["x"]) == filled
    assert rows_of(convert(array.slice(1, 3), nulls=Fill({"x": fill}))["x"]) == filled[1:4]
    whole = pa.chunked_array([array.slice(0, 2), array.slice(2)])
    assert rows_of(convert(whole, nulls=Fill({"x": fill}))["x"]) == filled


def test_a_row_fills_null_vectors_and_tensors():
    vectors = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2))
    assert rows_of(convert(vectors, nulls=Fill({"x": [5, 6]}))["x"]) == [[1, 2], [5, 6], [3, 4]]
    type_ = pa.fixed_shape_tensor(pa.int64(), [2, 3], permutation=[1, 0])
    rows = pa.ExtensionArray.from_storage(type_, pa.array([[1, 2, 3, 4, 5, 6], None], type_.storage_type))
    fill = [[1, 2], [3, 4], [5, 6]]
    assert rows_of(convert(rows, nulls=Fill({"x": fill}))["x"]) == [[[1, 4], [2, 5], [3, 6]], fill]


@pytest.mark.parametrize(
    ("kind", "row"), [(pa.list_(pa.int64()), [3, None]), (pa.list_(pa.int64(), 2), [3, None])], ids=str
)
def test_a_null_in_a_list_is_an_error_where_only_null_lists_are_filled(kind, row):
    array = pa.array([[1, 2], None, row], kind)
    with pytest.raises(NullValueError, match=r"at row 2.*replaces null lists, and this null is in a list"):
        convert(array, nulls=Fill({"x": [7, 8]}))
    floats = pa.array([[1, 2], None, row], pa.list_(pa.float32()))
    found = rows_of(convert(floats, nulls=Fill({"x": [7]}))["x"])
    assert str(found) == "[[1.0, 2.0], [7.0], [3.0, nan]]"


def test_null_elements_in_lists_of_integers_make_the_row_a_null():
    array = pa.array([[1, 2], [3, None], None, [], [4]])
    with pytest.raises(NullValueError, match="at row 1"):
        convert(array)
    found = convert(array, nulls="mask")
    assert rows_of(found["x"]) == [[1, 2], [3, 0], [], [], [4]]
    assert rows_of(found["x_valid"]) == [True, False, False, True, True]
    assert rows_of(convert(array, nulls=Fill({"x": -1}))["x"]) == [[1, 2], [3, -1], [-1], [], [4]]
    table = pa.table({"x": array})
    mask = build_converter(table.schema, ConvertOptions(nulls="drop"), "torch").null_mask(table)
    assert mask.to_pylist() == [True, False, False, True, True]


def test_null_elements_of_floats_are_nan():
    found = convert(pa.array([[1.0, None], []]))
    np.testing.assert_array_equal(found["x"].values, [1.0, np.nan])
    found = convert(pa.array([[1.0, None], None, [2.0, 3.0]], pa.list_(pa.float64(), 2)))
    np.testing.assert_array_equal(found["x"].array, [[1, np.nan], [np.nan] * 2, [2, 3]])
