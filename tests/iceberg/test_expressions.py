"""What filters mean for rows, in all their forms."""

import uuid
from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    NestedField,
    StringType,
)

from tests.iceberg.helpers import ARROW, DAY, MICROS, NAN, SCHEMA, F
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.filters.sql import rows_expression, table_filter
from torch_dataloader_utils.iceberg.schema import table_schema

WHEN = datetime(2024, 1, 1)
MEANINGS = [
    # (values of a column, tuples, SQL, pyiceberg, places of the rows that match)
    ("i", [1, 2, None], ("i", "=", 1), "i = 1", ice.EqualTo("i", 1), [0]),
    ("i", [1, 2, None], ("i", "!=", 1), "i <> 1", ice.NotEqualTo("i", 1), [1]),
    ("i", [1, 2, None], ("i", "<=", 1), "1 >= i", ice.LessThanOrEqual("i", 1), [0]),
    ("i", [1, 2, None], ("i", "in", [1, 5]), "i in (1, 5)", ice.In("i", [1, 5]), [0]),
    ("i", [1, 2, None], ("i", "not in", [1, 5]), "not i in (1, 5)", ice.Not(ice.In("i", [1, 5])), [1]),
    ("i", [1, 2, None], ("i", "is null"), "i is null", ice.IsNull("i"), [2]),
    ("i", [1, 2, None], ("i", "is not null"), "not i is null", ice.Not(ice.IsNull("i")), [0, 1]),
    ("i", [1, 2, None], ("i", "!=", 2), "not i = 2", ice.Not(ice.EqualTo("i", 2)), [0]),
    ("s", ["a", "b", None], ("s", ">", "a"), "s > 'a'", ice.GreaterThan("s", "a"), [1]),
    ("d", [DAY, DAY + 1, None], ("d", "=", "2024-01-01"), "d = '2024-01-01'", ice.EqualTo("d", date(2024, 1, 1)), [0]),
    ("t", [MICROS, 0, None], ("t", ">=", WHEN), "t >= '2024-01-01T00:00:00'", ice.GreaterThanOrEqual("t", WHEN), [0]),
    (
        "z",
        [MICROS, 0, None],
        ("z", "=", WHEN.replace(tzinfo=UTC)),
        "z = '2024-01-01T01:00:00+01:00'",
        ice.EqualTo("z", WHEN.replace(tzinfo=UTC)),
        [0],
    ),
    ("n", [Decimal("1.10"), None], ("n", "=", Decimal("1.1")), "n = 1.1", ice.EqualTo("n", Decimal("1.10")), [0]),
    ("x", [0.1, NAN, None], ("x", "<", 0.2), "x < 0.2", ice.LessThan("x", 0.2), [0]),
    ("f", [0.5, 2.0, None], ("f", "in", [0.5, 3.0]), "f in (0.5, 3.0)", ice.In("f", [0.5, 3.0]), [0]),
    ("c", [0, 10**6, None], ("c", ">", clock(0, 0)), "c > '00:00:00'", ice.GreaterThan("c", clock(0, 0)), [1]),
    ("b", [True, False, None], ("b", "=", False), "b = false", ice.EqualTo("b", False), [1]),
    (
        "u",
        [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, None],
        ("u", "=", uuid.UUID(int=1)),
        f"u = '{uuid.UUID(int=1)}'",
        ice.EqualTo("u", uuid.UUID(int=1)),
        [0],
    ),
]  # fmt: skip


def places_of(filters, name, values):
    """The places of the rows that match, and whether pruning agrees."""
    found = table_filter(filters, ARROW, SCHEMA)
    columns = [pa.array(values, f.type) if f.name == name else pa.nulls(len(values), f.type) for f in ARROW]
    table = pa.table(columns, schema=ARROW).append_column("place", pa.array(range(len(values))))
    return table.filter(found.rows)["place"].to_pylist()


@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda meaning: meaning[3])
def test_tuples_strings_and_pyiceberg_expressions_mean_the_same(meaning):
    name, values, tuples, sql, expression, expected = meaning
    for filters in ([tuples], [[tuples]], sql, expression):
        assert places_of(filters, name, values) == expected, filters


def test_only_in_sql_and_pyiceberg():
    text = ["abc", "b", "%", None]
    assert places_of("s like 'a%'", "s", text) == [0]
    assert places_of("s not like 'a%'", "s", text) == [1, 2]
    assert places_of(ice.NotStartsWith("s", "a"), "s", text) == [1, 2]
    assert places_of("x is nan", "x", [NAN, 1.0, None]) == [0]
    assert places_of("x is not nan", "x", [NAN, 1.0, None]) == [1]
    assert places_of("i between 2 and 3", "i", [1, 2, 3, None]) == [1, 2]
    assert places_of("true", "i", [1, None]) == [0, 1]
    assert places_of(ice.AlwaysFalse(), "i", [1, None]) == []
    assert places_of("i = 1 or (i = 2 and not s = 'a')", "i", [1, 2]) == [0]


def test_a_pyarrow_expression_means_what_pyarrow_evaluates():
    assert places_of(~F("i").isin([1]), "i", [1, 2, None]) == [1, 2]
    assert places_of([("i", "not in", [1])], "i", [1, 2, None]) == [1]


def test_parts_that_cannot_be_translated_leave_the_others_their_pruning():
    nested = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "s", StringType()))
    arrow = table_schema(nested, {}, None, ("_pos",))
    for filters in ("i = 1 and _pos < 5", [("i", "=", 1), ("_pos", "<", 5)]):
        assert str(table_filter(filters, arrow, nested).files) == str(ice.EqualTo("i", 1))
    either = table_filter("i = 1 or _pos < 5", arrow, nested)
    assert either.files == ice.AlwaysTrue()


def test_none_is_no_filter():
    assert table_filter(None, ARROW, SCHEMA) is None


@pytest.mark.parametrize(
    ("filters", "error", "text"),
    [
        ("i >", OptionError, "'i >'"),
        ("", OptionError, "expected a condition as in SQL"),
        ("ii = 1", ColumnNotFoundError, "ii"),
        ("st.kk = 1", ColumnNotFoundError, "st.kk"),
        ("i = 'x'", OptionError, "'x'"),
        ("z > '2024-01-01T00:00:00'", OptionError, "2024"),
        ("s like '%a'", OptionError, "LIKE"),
        (ice.EqualTo("nobody", 1), ColumnNotFoundError, "nobody"),
        (ice.EqualTo("i", 1).bind(SCHEMA), OptionError, "unbound"),
        ([("i", "~", 1)], OptionError, "~"),
        ([], OptionError, "expected"),
        (F("nobody") == 1, ColumnNotFoundError, "nobody"),
        (5, OptionError, "5"),
    ],
)
def test_filters_that_cannot_work(filters, error, text):
    with pytest.raises(error) as caught:
        table_filter(filters, ARROW, SCHEMA)
    assert text in str(caught.value)


def test_filters_over_columns_that_are_no_tables():
    schema = pa.schema([("a", pa.int8()), ("p.q", pa.string()), ("r", pa.struct([("s", pa.float32())]))])
    table = pa.table([[1, 2], ["x", None], [{"s": 0.5}, None]], schema=schema)
    assert table.filter(rows_expression("a > 1 or r.s = 0.5", schema)).num_rows == 2
    assert table.filter(rows_expression(ice.IsNull("p.q"), schema))["a"].to_pylist() == [2]
    with pytest.raises(ColumnNotFoundError, match=r"did you mean 'p\.q'"):
        rows_expression("pq = 'x'", schema)


@given(st.decimals(-(10**6), 10**6, places=2), st.integers(-(2**31), 2**31 - 1), st.text("ab'é%", max_size=4))
def test_literals_in_sql_are_what_was_written(number, whole, text):
    rows = pa.table(
        [[number], [whole], [text]],
        schema=pa.schema([("n", pa.decimal128(9, 2)), ("i", pa.int32()), ("s", pa.string())]),
    )
    quoted = text.replace("'", "''")
    assert (
        rows.filter(rows_expression(f"n = {number:.2f} and i = {whole} and s = '{quoted}'", rows.schema)).num_rows == 1
    )
    assert (
        rows.filter(rows_expression(f"n != {number:.2f} or i <> {whole} or s != '{quoted}'", rows.schema)).num_rows == 0
    )


@pytest.mark.parametrize(
    "filters",
    [
        "city in ('Rome', 'Oslo', 'Lima', 'Bonn', 'Kyiv', 'Bern')",
        ice.In("city", {"Rome", "Oslo", "Lima", "Bonn", "Kyiv", "Bern"}),
    ],
    ids=["sql", "expression"],
)
def test_the_values_of_a_set_have_an_order_of_their_own(filters: object) -> None:
    """pyiceberg keeps them in a set, whose order is another one in each process; a state holds a digest of the text."""
    text = str(rows_expression(filters, pa.schema([("city", pa.string())])))
    cities = ["Bern", "Bonn", "Kyiv", "Lima", "Oslo", "Rome"]
    assert sorted(cities, key=text.index) == cities


LITERALS = [
    # (filters, values of a column, places of the rows that match)
    ("n = '1.10'", "n", [Decimal("1.10"), Decimal("1.11"), None], [0]),
    ("n in ('1.1', '2.00')", "n", [Decimal("1.10"), Decimal("2.00"), None], [0, 1]),
    (ice.EqualTo("n", 1.1), "n", [Decimal("1.10"), None], [0]),
    (ice.EqualTo("n", Decimal("1.101")), "n", [Decimal("1.10"), None], []),
    (ice.LessThan("n", Decimal(2**60)), "n", [Decimal("1.10"), None], [0]),
    ("i = '2'", "i", [1, 2, None], [1]),
    ("i = 1.5", "i", [1, 2, None], []),
    ("i < 1.5", "i", [1, 2, None], [0]),
    ("not i < 3000000000", "i", [1, None], []),
    ("i != 3000000000", "i", [1, None], [0]),
    ("i in (1, 3000000000)", "i", [1, None], [0]),
    ("i not in (1, 3000000000)", "i", [1, 2, None], [1]),
    ("b = 'true'", "b", [True, False, None], [0]),
    ("f = 1.23", "f", [1.23, 1.24, None], [0]),
    ("f in (1.23, 2.5)", "f", [1.23, 2.5, NAN, None], [0, 1]),
    (ice.NotEqualTo("f", 1.23), "f", [1.23, 2.5, NAN, None], [1, 2]),
    ("x = '1.23'", "x", [1.23, None], [0]),
    ("c = '00:00:00.000001'", "c", [0, 1, None], [1]),
    ("d < '2024-01-02'", "d", [DAY, DAY + 1, None], [0]),
    (ice.LessThanOrEqual("d", datetime(2024, 1, 1, 12)), "d", [DAY, DAY + 1, None], [0]),
    (ice.GreaterThanOrEqual("t", date(2024, 1, 1)), "t", [MICROS - 1, MICROS, None], [1]),
    (f"u in ('{uuid.UUID(int=1)}')", "u", [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, None], [0]),
]  # fmt: skip


@pytest.mark.parametrize(("filters", "name", "values", "expected"), LITERALS, ids=lambda value: str(value)[:50])
def test_literals_are_values_of_the_columns_type(filters, name, values, expected):
    assert places_of(filters, name, values) == expected


@pytest.mark.parametrize("text", ["n = '1.101'", "i = '1.5'", "d = '2024-01-01T00:00:00'", "u = 'abc'", "f = '1e99'"])
def test_text_that_is_no_value_of_the_columns_type_is_refused(text):
    with pytest.raises(OptionError, match=r"cannot be compared with a column of type .*: expected"):
        table_filter(text, ARROW, SCHEMA)
