import datetime
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.filters.literals import KINDS, column, conditions
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, SchemaMismatchError
from torch_dataloader_utils.filters.arrow import as_expression, evaluate, filter_columns
from torch_dataloader_utils.schemas.columns import conform, constant, project, select_columns, top_level
from torch_dataloader_utils.schemas.merge import check_schema, merge_types, resolve_schema

# pyarrow 17 can neither cast views nor structs to more fields.
MODERN = int(pa.__version__.split(".")[0]) >= 21

NESTED = pa.schema(
    {
        "id": pa.int64(),
        "s": pa.struct({"x": pa.int32(), "deep": pa.struct({"y.z": pa.string()})}),
        "s.flat": pa.float64(),
    }
)

# ---------------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint64(), pa.int8(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.uint64(), pa.float32(), pa.float64()),
        (pa.uint64(), pa.int64(), None),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string(), pa.binary(), None),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("ms"), pa.timestamp("us", "UTC"), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.int64(), pa.decimal128(10, 2), None),
        (pa.int64(), pa.decimal128(38, 0), pa.decimal128(38, 0)),
        (pa.uint64(), pa.decimal128(24, 4), pa.decimal128(24, 4)),
        (pa.int64(), pa.decimal128(18, 0), None),
        (pa.float64(), pa.decimal128(10, 2), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3), None),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32()), None),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int16()}), pa.struct({"a": pa.int16()})),
        (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.float32()}), pa.struct({"a": pa.float64()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.string()}), None),
        (pa.struct({"a": pa.int8()}), pa.int8(), None),
    ],
    ids=str,
)
def test_types_merge_where_no_value_is_lost(one: pa.DataType, other: pa.DataType, merged: pa.DataType | None) -> None:
    assert merge_types(one, other) == merged
    assert merge_types(other, one) == merged


NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
]


@given(one=st.sampled_from(NUMBERS), other=st.sampled_from(NUMBERS), fraction=st.floats(0, 1))
def test_merged_numbers_are_exact_or_refused(one: pa.DataType, other: pa.DataType, fraction: float) -> None:
    merged = merge_types(one, other)
    for kind in (one, other):
        if merged is None or pa.types.is_floating(kind):
            continue
        limits = np.iinfo(kind.to_pandas_dtype())
        for value in (limits.min, limits.max, int(int(limits.max) * fraction)):
            value = min(int(value), int(limits.max))
            column = pa.chunked_array([pa.array([value], kind)])
            if pa.types.is_floating(merged) and abs(value) > 2**53:
                with pytest.raises(SchemaMismatchError, match=f"{kind} does not fit double"):
                    conform(column, 1, merged)
            else:
                assert int(conform(column, 1, merged)[0].as_py()) == value


def test_resolved_columns_come_in_the_order_of_first_appearance_and_missing_ones_are_null() -> None:
    one = pa.schema([pa.field("b", pa.int32(), nullable=False), ("a", pa.null())], metadata={"k": "v"})
    two = pa.schema({"c": pa.string(), "b": pa.int64(), "a": pa.bool_()})
    schema = resolve_schema([("1", one), ("2", two), ("3", one)], merge_types)
    assert schema.equals(pa.schema({"b": pa.int64(), "a": pa.bool_(), "c": pa.string()}), check_metadata=True)
    assert conform(None, 3, pa.string()).to_pylist() == [None] * 3


@pytest.mark.skipif(not MODERN, reason="pyarrow too old")
def test_views_become_large_strings_since_arrow_cannot_filter_them() -> None:
    inner = pa.struct({"l": pa.list_(pa.string_view()), "m": pa.map_(pa.string_view(), pa.binary_view())})
    schema = resolve_schema(
        [("1", pa.schema({"v": pa.string_view(), "s": inner})), ("2", pa.schema({"v": pa.string()}))],
        merge_types,
    )
    plain = pa.struct({"l": pa.list_(pa.large_string()), "m": pa.map_(pa.large_string(), pa.large_binary())})
    assert schema == pa.schema({"v": pa.large_string(), "s": plain})
    column = pa.chunked_array([pa.array([{"l": ["a", None], "m": [("k", b"v")]}, None], inner)])
    assert conform(column, 2, plain).to_pylist() == column.to_pylist()


def test_a_mismatch_names_file_column_and_both_types() -> None:
    files = [("one.parquet", pa.schema({"a": pa.int64()})), ("two.parquet", pa.schema({"a": pa.string()}))]
    with pytest.raises(SchemaMismatchError, match=r"two.parquet: column 'a' is string, but int64 in one.parquet"):
        resolve_schema(files, merge_types)
    with pytest.raises(SchemaMismatchError, match=r"one\.parquet: more than one column is called 'a'"):
        resolve_schema([("one.parquet", pa.schema([("a", pa.int8()), ("a", pa.int8())]))], merge_types)


def test_a_declared_schema_is_checked_against_each_file() -> None:
    declared = pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"})])
    fits = ("1", pa.schema({"a": pa.int64(), "rest": pa.string()}))
    assert check_schema(declared, [fits, ("2", pa.schema({}))]).equals(pa.schema({"a": pa.int8()}), check_metadata=True)
    with pytest.raises(SchemaMismatchError, match=r"3: column 'a' is list.*cannot be cast to the type int8"):
        check_schema(declared, [fits, ("3", pa.schema({"a": pa.list_(pa.int8())}))])
    with pytest.raises(OptionError, match=r"expected a pyarrow\.Schema"):
        check_schema({"a": "int8"}, [fits])
    with pytest.raises(SchemaMismatchError, match="int64 does not fit int8"):
        conform(pa.chunked_array([[1, 1000]]), 2, pa.int8())


@pytest.mark.skipif(not MODERN, reason="pyarrow too old")
def test_structs_gain_fields_that_are_null() -> None:
    narrow, wide = pa.struct({"a": pa.int8()}), pa.struct({"b": pa.string(), "a": pa.int64()})
    merged = merge_types(narrow, wide)
    assert merged is not None
    column = conform(pa.chunked_array([pa.array([{"a": 1}, None], narrow)]), 2, merged)
    assert column.to_pylist() == [{"a": 1, "b": None}, None]


@pytest.mark.parametrize("value", [3, None, "x", datetime.date(2024, 1, 1)])
def test_constants_fill_memory_of_their_own(value: object) -> None:
    kind = pa.scalar(value).type
    assert constant(value, 4, kind).to_pylist() == [value] * 4
    assert constant(value, 0, kind).type == kind


# ------------------------------------------------------------------------------------------------------- projection


def test_columns_are_selected_in_the_order_given_structs_whole_and_fields_by_dotted_names() -> None:
    names = ["s.deep.y.z", "s.x", "s.flat", "s", "id"]
    selected = select_columns(NESTED, names)
    assert selected.names == names
    assert selected.types == [pa.string(), pa.int32(), pa.float64(), NESTED.field("s").type, pa.int64()]
    assert [top_level(NESTED, name) for name in names] == ["s", "s", "s.flat", "s", "id"]
    assert select_columns(NESTED, None) == NESTED


def test_a_field_of_a_null_struct_is_null() -> None:
    struct = pa.array([{"x": 1, "deep": {"y.z": "a"}}, None, {"x": 2, "deep": None}], NESTED.field("s").type)
    table = pa.table({"id": [1, 2, 3], "s": struct, "s.flat": [1.0, 2.0, 3.0]})
    projected = project(table, ["s.x", "s.flat", "s.deep.y.z"])
    assert projected.to_pydict() == {"s.x": [1, None, 2], "s.flat": [1.0, 2.0, 3.0], "s.deep.y.z": ["a", None, None]}


def test_an_unknown_column_is_answered_with_the_nearest_name_and_all_names() -> None:
    with pytest.raises(
        ColumnNotFoundError, match=r"no column 's.xx': did you mean 's.x'\? The columns are id, s, s.flat, s.x"
    ):
        select_columns(NESTED, ["id", "s.xx"])
    many = pa.schema({f"c{i}": pa.int8() for i in range(100)})
    with pytest.raises(ColumnNotFoundError, match="and 60 more"):
        select_columns(many, ["d"])


# ---------------------------------------------------------------------------------------------------------- filters

PEOPLE = pa.table(
    {
        "i": pa.array([1, 2, None, 4, 5]),
        "f": pa.array([0.1, None, 2.5, 1.0, 9.0], pa.float32()),
        "t": pa.array(["a", "b", None, "d", "e"]),
        "b": pa.array([True, False, None, True, False]),
        "day": pa.array([datetime.date(2024, 1, d) for d in (1, 2, 3, 4)] + [None]),
        "at": pa.array([datetime.datetime(2024, 1, d) for d in (1, 2, 3, 4)] + [None], pa.timestamp("us")),
        "utc": pa.array([datetime.datetime(2024, 1, d) for d in (1, 2, 3, 4)] + [None], pa.timestamp("ms", "UTC")),
        "dec": pa.array([Decimal(n) for n in (1, 2, 3, 4)] + [None], pa.decimal128(9, 2)),
        "cat": pa.array(["x", "y", None, "x", "y"]).dictionary_encode(),
        "s": pa.array([{"x": 1}, {"x": 2}, None, {"x": None}, {"x": 5}], pa.struct({"x": pa.int64()})),
    }
)


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ([("i", ">", 1)], [1, 3, 4]),
        ([("i", "=", 2)], [1]),
        ([("i", "==", np.int8(2))], [1]),
        ([("i", "!=", 2)], [0, 3, 4]),
        ([("i", ">", 1.5)], [1, 3, 4]),
        ([("i", "==", 2.5)], []),
        ([("i", "<", 2**62)], [0, 1, 3, 4]),
        ([("i", "<", 2**70)], [0, 1, 3, 4]),
        ([("i", "=", 2**70)], []),
        ([("i", "!=", 2**70)], [0, 1, 3, 4]),
        ([("i", "in", [2, 2**70])], [1]),
        ([("i", "not in", [2, 2**70])], [0, 3, 4]),
        ([("i", "in", ["2", "+5", "1.0"])], [0, 1, 4]),
        ([("i", "=", float("nan"))], []),
        ([("i", "!=", float("nan"))], [0, 1, 3, 4]),
        ([("i", "<", float("inf"))], [0, 1, 3, 4]),
        ([("b", "=", "false")], [1, 4]),
        ([("day", "=", np.datetime64("2024-01-03"))], [2]),
        ([("utc", ">=", datetime.date(2024, 1, 3))], [2, 3]),  # midnight in UTC
        ([("dec", "in", ["1.000", 2.0])], [0, 1]),
        ([("dec", "=", Decimal("1.001"))], []),
        ([("dec", ">", Decimal("1.999"))], [1, 2, 3]),
        ([("i", "in", [2, 5, None])], [1, 4]),
        ([("i", "in", [2, 2.5])], [1]),
        ([("i", "in", [])], []),
        ([("i", "not in", [2, 5])], [0, 3]),
        ([("i", "not in", [2, None])], []),
        ([("i", "not in", [])], [0, 1, 3, 4]),
        ([("i", "is null")], [2]),
        ([("i", "is not null", None)], [0, 1, 3, 4]),
        ([("i", ">", 1), ("i", "<", 5)], [1, 3]),
        ([[("i", "=", 1)], [("i", ">", 3), ("b", "=", False)]], [0, 4]),
        ([[["i", "=", 1]], [["t", "=", "b"]]], [0, 1]),  # as YAML has them
        ([["i", ">", 1], ["i", "<", 5]], [1, 3]),
        ([("f", ">", 0.1)], [2, 3, 4]),  # 0.1 as a float32, as it is stored
        ([("f", "=", 0.1)], [0]),
        ([("f", "in", [0.1, "2.5"])], [0, 2]),
        ([("f", ">=", 1)], [2, 3, 4]),
        ([("t", "in", ("a", "e"))], [0, 4]),
        ([("b", "=", False)], [1, 4]),
        ([("b", "in", [False])], [1, 4]),
        ([("day", ">=", "2024-01-03")], [2, 3]),
        ([("day", ">", datetime.datetime(2024, 1, 2, 12))], [2, 3]),
        ([("at", ">", "2024-01-02T12:00")], [2, 3]),
        ([("at", ">=", datetime.date(2024, 1, 3))], [2, 3]),
        ([("at", "in", ["2024-01-02"])], [1]),
        ([("utc", "<", "2024-01-02T01:00:00+01:00")], [0]),
        ([("utc", "<", datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC))], [0]),
        ([("dec", ">", 2)], [2, 3]),
        ([("dec", ">", Decimal("2.5"))], [2, 3]),
        ([("dec", ">", 2.5)], [2, 3]),
        ([("cat", "=", "x")], [0, 3]),
        ([("cat", "not in", ["x"])], [1, 4]),
        ([("s.x", ">", 1)], [1, 4]),
        ([("s.x", "is null")], [2, 3]),
        (pc.field("i") > 1, [1, 3, 4]),
        (~pc.field("i").isin([2]), [0, 2, 3, 4]),  # pyarrow's own meaning: nulls stay
    ],
    ids=str,
)
def test_filters_follow_sql_and_expressions_pyarrow(filters: object, rows: list[int]) -> None:
    expression = as_expression(filters, PEOPLE.schema)
    numbered = PEOPLE.append_column("row", pa.array(range(PEOPLE.num_rows)))
    assert numbered.filter(expression)["row"].to_pylist() == rows


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("i > 3", "Strings and pyiceberg expressions need the iceberg extra"),
        ({"i": 3}, "expected a list of tuples"),
        ([], "expected a list of tuples"),
        ([[]], "expected a list of tuples"),
        (["i", ">", 3], "expected a list of tuples"),
        ([("i", ">", 3), [("i", "<", 5)]], "expected a list of tuples"),
        ([("i", "~", 3)], "expected one of the operators"),
        ([("i", "=", None)], "use 'is null'"),
        ([("i", "in", 3)], "expected a list of values"),
        pytest.param([("i", "in", iter([2, 5]))], "expected a list of values", id="an iterator"),
        ([("t", "in", "abc")], "expected a list of values"),
        (
            [("i", "=", "three")],
            r"\('i', '=', 'three'\): 'three' cannot be compared with a column of type int64: expected",
        ),
        (
            [("i", "in", ["3", "3.5"])],
            r"\('i', 'in', \['3', '3.5'\]\): '3.5' cannot be compared with .* in quotes, an integer that fits int64",
        ),
        ([("i", "=", str(2**63))], "in quotes, an integer that fits int64"),
        ([("i", "=", "1_000")], "cannot be compared"),
        ([("i", "=", True)], "cannot be compared with a column of type int64: expected a number"),
        ([("f", "=", "1e99")], "in quotes, one that fits float"),
        ([("dec", "=", "1.001")], r"in quotes, one that fits decimal128\(9, 2\) without rounding"),
        ([("b", "=", "yes")], "expected True or False"),
        ([("i", "=", np.datetime64("NaT"))], "use 'is null'"),
        ([("t", "<", 3)], "cannot be compared"),
        ([("b", "=", 1)], "cannot be compared"),
        pytest.param([("i", "=", object())], "cannot be compared", id="an object"),
        ([("day", "<", "soon")], "cannot be compared with a column of type date32"),
        ([("day", "=", "2024-01-01T00:00")], "expected a date, or text such as '2024-01-31'"),
        ([("day", "=", "2024-02-30")], "expected a date, or text such as '2024-01-31'"),
        ([("day", "=", 19723)], "expected a date"),
        ([("at", "=", "2024-01-01T00:00:00.1234567")], "fits the column without rounding"),
        ([("at", "=", "2024-01-01T00:00:00Z")], "a datetime without a timezone"),
        ([("utc", "<", "2024-01-01")], "cannot be compared with a column of type timestamp"),
        ([("utc", "<", datetime.datetime(2024, 1, 1))], "cannot be compared"),
        ([("s", "=", 1)], "cannot be compared"),
        (
            pc.equal(pc.field("i"), "3"),
            r"cannot be compared .* a tuple \(column, operator, value\), whose value is cast",
        ),
        (pc.field("i"), "true or false for each row"),
    ],
    ids=str,
)
def test_filters_that_cannot_work_are_refused(filters: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        as_expression(filters, PEOPLE.schema)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_literals_find_the_rows_that_plain_python_finds(kind: pa.DataType, data: st.DataObject) -> None:
    condition = data.draw(conditions(kind))
    cells = column(kind)
    expression = as_expression(condition.tuples("x"), pa.schema([("x", kind)]))
    assert expression is not None
    found = evaluate(pa.table({"x": cells}), expression).to_pylist()
    assert [place for place, kept in enumerate(found) if kept] == condition.places(cells)


EXACT = {
    pa.decimal128(12, 2): st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.binary(16): st.uuids(),
}


@pytest.mark.parametrize("kind", EXACT, ids=str)
@given(data=st.data())
def test_a_filter_given_as_text_is_the_filter_given_as_a_value(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(EXACT[kind], min_size=1, max_size=3))
    texts = [str(value) for value in values]
    schema = pa.schema([("x", kind)])
    for word, typed, text in (("in", values, texts), ("not in", values, texts), (">=", values[0], texts[0])):
        one, other = (as_expression([("x", word, literal)], schema) for literal in (typed, text))
        assert one is not None
        assert one.equals(other)


@given(digits=st.integers(-(10**9), 10**9), places=st.integers(0, 6), word=st.sampled_from(["=", "<", ">=", "in"]))
def test_decimals_as_text_are_exact_or_refused(digits: int, places: int, word: str) -> None:
    text = str(Decimal(digits).scaleb(-places))
    filters = [("x", word, [text] if word == "in" else text)]
    schema = pa.schema([("x", pa.decimal128(12, 2))])
    if digits % 10 ** max(places - 2, 0) == 0:
        assert as_expression(filters, schema) is not None
    else:
        with pytest.raises(OptionError, match=rf"'x', .*'{text}' cannot be compared .* decimal128\(12, 2\)"):
            as_expression(filters, schema)


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="pyarrow has no type of UUIDs before 18")
@pytest.mark.parametrize("value", [uuid.UUID(int=3), str(uuid.UUID(int=3)), uuid.UUID(int=3).bytes])
def test_uuids_are_found_in_columns_of_extension_types_and_beside_them(value: object) -> None:
    ids = pa.array([uuid.UUID(int=number).bytes for number in range(5)], pa.uuid())
    nested = pa.StructArray.from_arrays([ids, pa.array(range(5))], ["u", "k"])
    table = pa.table({"u": ids, "s": nested})
    for name in ("u", "s.u"):
        expression = as_expression([[(name, "=", value)], [("s.k", "in", [4])]], table.schema)
        assert expression is not None
        assert evaluate(table, expression).to_pylist() == [False, False, False, True, True]


@pytest.mark.parametrize("filters", [[("ii", ">", 1)], pc.field("ii") > 1, [("s.y", "=", 1)], pc.field("s", "y") == 1])
def test_filters_on_unknown_columns_list_those_there_are(filters: object) -> None:
    with pytest.raises(ColumnNotFoundError, match="The columns are i, f, t"):
        as_expression(filters, PEOPLE.schema)


def test_no_filter_is_none() -> None:
    assert as_expression(None, PEOPLE.schema) is None


def test_columns_of_a_filter_are_found_nested_ones_too() -> None:
    expression = as_expression([[("s.x", ">", 1), ("t", "=", "a")], [("day", "is null")]], PEOPLE.schema)
    assert expression is not None
    assert filter_columns(expression, PEOPLE.schema) == ("t", "day", "s")
    assert filter_columns(pc.field("f") + pc.field("i") > 1, PEOPLE.schema) == ("i", "f")
    assert filter_columns(pc.scalar(False), PEOPLE.schema) == ()
