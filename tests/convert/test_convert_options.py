"""What the schema alone shows to be wrong is an error where the loader is made; and what the schema report says."""

import datetime as dt
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest

from torch_dataloader_utils import Fill
from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.options import ConvertOptions

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "b": pa.bool_(),
        "f": pa.float32(),
        "d": pa.date32(),
        "ts": pa.timestamp("ms", "UTC"),
        "dec": pa.decimal128(38, 2),
        "s": pa.string(),
        "bin": pa.binary(),
        "l": pa.list_(pa.int8()),
        "v": pa.list_(pa.float32(), 4),
        "st": pa.struct([("a", pa.int64()), ("s", pa.string())]),
        "m": pa.map_(pa.string(), pa.int8()),
    }
)
PLAIN = pa.schema([field for field in SCHEMA if field.name not in ("m", "dec")])


def build(output_format="torch", schema=SCHEMA, **options):
    return build_converter(schema, ConvertOptions(**options), output_format)


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize(
    "options",
    [
        {"dtypes": {"nope": "float32"}},
        {"nulls": {"st": "mask"}},
        {"nulls": Fill({"nope": 1})},
        {"strings": {"nope": "bytes"}},
        {"stack": {"x": ["i", "nope"]}},
    ],
)
def test_an_unknown_column_is_named_with_those_there_are(options, output_format):
    with pytest.raises(OptionError, match=r"'(nope|st)'.*: expected .*'i', 'b', .*'st.a', 'st.s', 'm'\]"):
        build(output_format, **options)


@pytest.mark.parametrize(
    "given", ["bfloat16", "torch.bfloat16", "complex64", "float128", ">f4", "S3", "what", None, 7, dict]
)
def test_unknown_dtypes(given):
    with pytest.raises(OptionError, match=r"dtypes=.*'f'.*expected one of bool, int8,"):
        build(dtypes={"f": given})


@pytest.mark.parametrize("column", ["s", "bin", "st.s", "m"])
def test_dtypes_are_for_numbers(column):
    with pytest.raises(OptionError, match=f"dtypes names '{column}' of type .*: expected a column of numbers"):
        build(dtypes={column: "float32"})


@pytest.mark.parametrize("column", ["i", "l", "m"])
def test_strings_are_for_strings(column):
    with pytest.raises(OptionError, match=f"strings names '{column}'"):
        build(strings={column: "bytes"})


def test_columns_of_objects_are_known():
    assert list(build().objects) == ["m"]
    assert not build(schema=PLAIN).objects
    assert not build("arrow").objects


@pytest.mark.parametrize("type_", [pa.decimal128(19, 2), pa.list_(pa.decimal128(19, 2))])
def test_scaled_decimals_have_at_most_18_digits(type_):
    schema = pa.schema([("price", type_)])
    with pytest.raises(UnsupportedTypeError, match=r"'price' of type decimal128\(19, 2\): int64 holds 18 digits"):
        build(schema=schema, decimals="scaled")
    assert build("dict", schema=schema, decimals="scaled").keys == ("price",)


FITS = [
    ("i", 5, 5),
    ("i", 5.0, 5),
    ("i", np.int8(5), 5),
    ("i", -(2**63), -(2**63)),
    ("b", True, True),
    ("b", 1, True),
    ("f", 0.1, np.float32(0.1)),
    ("f", math.inf, math.inf),
    ("d", 3, 3),
    ("d", dt.date(1970, 1, 4), 3),
    ("ts", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), 1000),
    ("dec", decimal.Decimal("1.5"), 1.5),
    ("l", -128, -128),
    ("v", 0, 0.0),
    ("st.a", 1, 1),
]
FITS_NOT = [
    ("i", 5.5), ("i", 2**63), ("i", "5"), ("i", None), ("i", math.nan), ("i", math.inf), ("i", [1]),
    ("b", 2), ("b", "yes"), ("f", 1e39), ("f", "x"), ("f", 1j), ("d", 2**31), ("d", "soon"), ("d", dt.timedelta(1)),
    ("l", 128), ("l", [128]), ("l", ["x"]), ("l", [[1]]), ("v", [1]),
    ("s", 5), ("s", b"x"), ("bin", "x"), ("m", 1), ("m", []), ("f", 10**400),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value", "expected"), FITS)
def test_fill_values_that_fit(column, value, expected):
    converter = build(nulls=Fill({column: value}))
    plan = next(plan for plan in converter.plans if plan.key == column)
    assert plan.leaf.element.blank == expected
    assert plan.leaf.element.blank.dtype == plan.leaf.element.dtype


@pytest.mark.parametrize(("column", "value"), FITS_NOT)
def test_fill_values_that_do_not_fit(column, value):
    with pytest.raises(OptionError, match=rf"Fill\(.*\) for column '{column}'"):
        build(nulls=Fill({column: value}))


SCALED = pa.schema([("dec", pa.decimal128(10, 3))])


@pytest.mark.parametrize("value", [2, 2.0, np.int8(2), decimal.Decimal("2.000")])
def test_fill_values_of_scaled_decimals_are_values_not_integers_of_the_output(value):
    (plan,) = build(schema=SCALED, decimals="scaled", nulls=Fill({"dec": value})).plans
    assert plan.leaf.element.blank == 2000


@pytest.mark.parametrize(("value", "scaled"), [(0.1, 100), (-0.005, -5), (decimal.Decimal("1.5"), 1500)])
def test_a_fraction_fills_scaled_decimals_as_it_is_written(value, scaled):
    (plan,) = build(schema=SCALED, decimals="scaled", nulls=Fill({"dec": value})).plans
    assert plan.leaf.element.blank == scaled


@pytest.mark.parametrize("value", [0.0001, decimal.Decimal("1.2345"), 1e17, math.nan, "1.5"])
def test_scaled_decimals_are_not_filled_with_what_they_cannot_hold(value):
    with pytest.raises(OptionError, match=r"Fill\(.*expected a value that fits"):
        build(schema=SCALED, decimals="scaled", nulls=Fill({"dec": value}))


def test_a_fill_value_fits_the_dtype_asked_for():
    options = {"nulls": Fill({"i": 300})}
    assert build(**options)
    with pytest.raises(OptionError, match="expected a value that fits int8"):
        build(**options, dtypes={"i": "int8"})
    assert build(nulls=Fill({"i": 0.5}), dtypes={"i": "float32"})


def policies(**options):
    return {plan.key: plan.nulls for plan in build(schema=PLAIN, **options).plans}


def test_one_word_is_for_columns_without_a_null_of_their_own():
    own = dict.fromkeys(["f", "s", "bin", "v", "st.s"], "own")
    for word in ("error", "mask", "drop"):
        assert policies(nulls=word) == dict.fromkeys(["i", "b", "d", "ts", "l", "st.a"], word) | own
    assert policies(nulls="mask", strings="bytes")["s"] == "mask"
    assert policies(nulls="mask", dtypes={"i": "float32", "f": "int8"}) == policies(nulls="mask") | {
        "i": "own",
        "f": "mask",
    }


def test_columns_are_named_in_a_dict_or_by_a_fill_value():
    assert policies(nulls={"f": "drop"}) == policies() | {"f": "drop"}
    assert policies(nulls={"f": "error"}) == policies() | {"f": "error"}
    assert policies(nulls=Fill({"f": 0, "i": 0})) == policies() | {"f": "fill", "i": "fill"}


def test_a_value_for_all_fills_the_columns_that_can_hold_it():
    assert policies(nulls=Fill(0)) == policies() | dict.fromkeys(["i", "b", "f", "l", "v", "st.a"], "fill")
    assert policies(nulls={"*": Fill(0), "f": "drop"}) == policies(nulls=Fill(0)) | {"f": "drop"}
    assert policies(nulls=Fill("")) == policies() | dict.fromkeys(["s", "st.s"], "fill")
    assert policies(nulls=Fill(dt.date(2020, 1, 1))) == policies() | {"d": "fill"}
    assert policies(nulls={"l": Fill([1])})["l"] == "fill"


def test_patterns_and_types_are_named_columns():
    assert policies(nulls={"*": "mask"}) == policies(nulls="mask")
    assert policies(nulls={"s*": "drop"}) == policies() | dict.fromkeys(["s", "st.a", "st.s"], "drop")
    assert policies(nulls={"st.*": "drop", "*": "mask"}) == policies(nulls="mask") | {"st.a": "drop", "st.s": "drop"}
    assert policies(nulls={"int64": Fill(0), "string": "drop", "date": "mask"}) == policies() | {
        "i": "fill", "st.a": "fill", "s": "drop", "st.s": "drop", "d": "mask",
    }  # fmt: skip
    assert policies(nulls={"f*": Fill(0)})["f"] == "fill"
    assert policies(nulls=Fill({"st.*": 0, "st.s": ""})) == policies() | {"st.a": "fill", "st.s": "fill"}
    with pytest.raises(OptionError, match=r"Fill\(0\) for column 's': expected str"):
        build(schema=PLAIN, nulls={"s*": Fill(0)})


def dtypes_of(**options):
    return {key: leaf["dtype"] for key, leaf in build(schema=PLAIN, **options).report().items()}


def test_patterns_cast_numbers_and_leave_the_rest():
    cast = dict.fromkeys(["i", "b", "f", "l", "v", "st.a"], "float32")
    assert dtypes_of(dtypes={"*": "float32"}) == dtypes_of() | cast
    assert dtypes_of(dtypes={"st.*": "int8", "int64": "int16", "i": "int32"}) == dtypes_of() | {
        "st.a": "int8", "i": "int32",
    }  # fmt: skip


def test_decimals_by_column():
    schema = pa.schema([("a", pa.decimal128(9, 2)), ("b", pa.decimal128(9, 2)), ("l", pa.list_(pa.decimal128(9, 2)))])

    def kinds(decimals):
        return [leaf["dtype"] for leaf in build(schema=schema, decimals=decimals).report().values()]

    assert kinds("scaled") == kinds({"*": "scaled"}) == kinds({"decimal": "scaled"}) == ["int64"] * 3
    assert kinds({"b": "scaled"}) == ["float64", "int64", "float64"]
    assert kinds({"*": "scaled", "b": "float64"}) == ["int64", "float64", "int64"]
    with pytest.raises(OptionError, match="decimals names 'i' of type int64: expected a column of decimals"):
        build(decimals={"i": "scaled"})


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({"a.b": pa.int8(), "a": pa.struct([("b", pa.int8())])}, {}),
        ({"x": pa.int8(), "x_valid": pa.bool_()}, {"nulls": "mask"}),
        ({"x": pa.int8(), "y": pa.int8()}, {"stack": {"x": ["y"]}}),
        ({"x": pa.int8(), "y": pa.int8()}, {"stack": {"x_valid": ["x"]}, "nulls": {"x": "mask"}}),
    ],
)
def test_output_keys_are_unique(schema, options):
    with pytest.raises(OptionError, match=r"'.*' would occur twice"):
        build(schema=pa.schema(schema), **options)
    assert build("arrow", schema=pa.schema(schema), **options).keys == tuple(schema)


@pytest.mark.parametrize("sources", [[], "i", ["i", "b"], ["s"], ["v"], ["l"], ["i", "f"]])
def test_a_stack_is_of_numbers_of_one_dtype(sources):
    with pytest.raises(OptionError, match="stack="):
        build(stack={"x": sources})


def test_a_stack_takes_the_place_of_its_first_source():
    converter = build(schema=PLAIN, stack={"x": ["st.a", "i"], "y": ["f"], "i": ["ts", "i"]}, dtypes={"ts": "int64"})
    assert converter.keys == ("x", "i", "b", "y", "d", "s", "bin", "l", "v", "st.s")
    assert build(schema=PLAIN, stack={"x": ["i", "f"]}, dtypes={"i": "float32"}).keys[0] == "x"


def test_columns_whose_nulls_footers_can_prove():
    converter = build(schema=PLAIN, nulls={"b": "mask"}, strings={"bin": "bytes"})
    assert converter.null_error_columns == {"i", "d", "ts", "bin", "st.a"}
    error = converter.null_error("st.a", "part-0.parquet")
    assert str(error).startswith(
        "column 'st.a' has a null in part-0.parquet: int64 cannot hold nulls. Use nulls={'b': 'mask', 'st.a': 'mask'}"
    )


def test_the_report():
    schema = pa.schema([("dec", pa.decimal128(9, 2)), *PLAIN])
    report = build(schema=schema, decimals="scaled", nulls={"b": "mask"}, stack={"x": ["i", "st.a"]}).report()
    assert list(report) == ["dec", "x", "b", "b_valid", "f", "d", "ts", "s", "bin", "l", "v", "st.s"]
    dense = {"kind": "dense", "shape": "[B]"}
    assert report["dec"] == {"arrow": "decimal128(9, 2)", "dtype": "int64", "nulls": "error", "scale": 2} | dense
    assert report["ts"]["unit"] == "ms"
    assert report["ts"]["timezone"] == "UTC"
    assert report["d"] == {"arrow": "date32[day]", "dtype": "int32", "nulls": "error", "unit": "day"} | dense
    assert report["x"]["shape"] == "[B, 2]"
    assert report["x"]["stacked"] == ["i", "st.a"]
    assert report["b_valid"] == {"dtype": "bool"} | dense
    assert report["v"]["shape"] == "[B, 4]"
    assert (report["l"]["kind"], report["l"]["dtype"]) == ("ragged", "int8")
    assert (report["s"]["dtype"], report["bin"]["dtype"]) == ("str", "bytes")
    assert build("arrow").report()["ts"] == {"arrow": "timestamp[ms, tz=UTC]"}
