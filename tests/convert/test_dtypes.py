"""What `dtypes=` asks for: one word for all floats, or columns, stacks and types by name."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import ConvertOptions

SCHEMA = pa.schema(
    {
        "f16": pa.float16(),
        "f32": pa.float32(),
        "f64": pa.float64(),
        "price": pa.decimal128(9, 2),
        "i": pa.int64(),
        "small": pa.int8(),
        "flag": pa.bool_(),
        "ts": pa.timestamp("us"),
        "s": pa.string(),
        "vector": pa.list_(pa.float64(), 2),
        "tensor": pa.fixed_shape_tensor(pa.float64(), [2, 2]),
        "items": pa.list_(pa.float64()),
        "when": pa.list_(pa.timestamp("s")),
        "st": pa.struct([("f", pa.float64()), ("i", pa.int64())]),
        "m": pa.map_(pa.string(), pa.float64()),
    }
)
AS_THEY_ARE = {
    "f16": "float16", "f32": "float32", "f64": "float64", "price": "float64", "i": "int64", "small": "int8",
    "flag": "bool", "ts": "int64", "s": "str", "vector": "float64", "tensor": "float64", "items": "float64",
    "when": "int64", "st.f": "float64", "st.i": "int64", "m": "object",
}  # fmt: skip
FLOATS = [key for key, dtype in AS_THEY_ARE.items() if dtype.startswith("float")]
DOUBLES = [key for key, dtype in AS_THEY_ARE.items() if dtype == "float64"]


def dtypes(schema=SCHEMA, **options):
    converter = build_converter(schema, ConvertOptions(**options), "torch")
    return {key: report["dtype"] for key, report in converter.report().items()}


@pytest.mark.parametrize("word", ["float32", "torch.float32", torch.float32, np.float32, np.dtype("float32")])
def test_one_dtype_is_for_all_floats_decimals_and_nested_ones_among_them(word):
    assert dtypes(dtypes=word) == AS_THEY_ARE | dict.fromkeys(FLOATS, "float32")


def test_scaled_decimals_are_whole_numbers():
    assert dtypes(dtypes="float32", decimals="scaled")["price"] == "int64"


@pytest.mark.parametrize("name", ["float64", "torch.float64", torch.float64, np.float64, np.dtype("float64")])
def test_a_type_stands_for_the_columns_that_have_it_in_a_batch(name):
    assert dtypes(dtypes={name: "float32"}) == AS_THEY_ARE | dict.fromkeys(DOUBLES, "float32")


def test_dates_and_times_are_no_numbers():
    cast = dtypes(dtypes={"int64": "float32"})
    assert cast == AS_THEY_ARE | dict.fromkeys(["i", "st.i"], "float32")
    assert dtypes(dtypes={"ts": "float64"}) == AS_THEY_ARE | {"ts": "float64"}


def test_columns_win_over_types_in_any_order():
    expected = AS_THEY_ARE | dict.fromkeys(DOUBLES, "float32") | {"f64": "float16", "price": "float64", "i": "int8"}
    asked = {"f64": "float16", "float64": "float32", "price": "float64", "i": "int8"}
    assert dtypes(dtypes=asked) == expected
    assert dtypes(dtypes=dict(reversed(asked.items()))) == expected


def test_a_column_called_like_a_type_is_the_column():
    schema = pa.schema({"float64": pa.int8(), "x": pa.float64()})
    assert dtypes(schema, dtypes={"float64": "float32"}) == {"float64": "float32", "x": "float64"}
    assert dtypes(schema, dtypes={torch.float64: "float32"}) == {"float64": "int8", "x": "float32"}


def test_a_type_that_no_column_has_changes_nothing():
    assert dtypes(dtypes={"uint32": "int64"}) == AS_THEY_ARE
    assert dtypes(pa.schema({"i": pa.int64()}), dtypes="float32") == {"i": "int64"}


def test_a_stack_is_cast_by_its_name_and_a_column_by_its_own():
    options = {"stack": {"x": ["i", "small", "f32"]}, "nulls": {"i": "mask"}}
    assert dtypes(**options, dtypes={"x": "float32"})["x"] == "float32"
    assert dtypes(stack={"x": ["f64", "price", "f16"]}, dtypes="float32")["x"] == "float32"
    assert dtypes(**options, dtypes={"x": "float32", "float32": "float64"})["x"] == "float32"
    with pytest.raises(OptionError, match=r"unequal dtypes .*'i': 'int8'.* such as by dtypes=\{'x': 'float32'\}"):
        dtypes(**options, dtypes={"x": "float32", "i": "int8"})


def test_a_stack_called_like_a_column_is_cast_by_its_columns():
    assert dtypes(stack={"i": ["i", "small"]}, dtypes={"i": "int16", "small": "int16"})["i"] == "int16"


def test_columns_cast_to_floats_hold_nulls():
    schema = pa.schema({"i": pa.int64(), "f": pa.float64()})
    plans = build_converter(schema, ConvertOptions(dtypes={"int64": "float32", "f": "int8"}), "torch").plans
    assert [plan.nulls for plan in plans] == ["own", "error"]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"f46": "float32"}, r"dtypes names 'f46' \(did you mean 'f64'"),
        ({"flaot64": "float32"}, r"dtypes names 'flaot64' \(did you mean 'float64'.* or a type, such as 'float64'"),
        ({"double": "float32"}, r"dtypes names 'double': expected one of the columns .* or a type"),
        ({3: "float32"}, r"dtypes=\{3: \.\.\.\}: expected one of bool, .*, or a column"),
        ({"f64": "flaot32"}, r"dtypes=\{'f64': 'flaot32'\}: expected one of bool, int8"),
        ("flaot32", r"dtypes='flaot32': expected one of bool, .*, or a dict of column or type -> dtype"),
        (torch.bfloat16, r"dtypes=torch.bfloat16: expected one of bool"),
        ("int8", r"dtypes='int8': one dtype is for all columns of floats.*dtypes=\{'column': 'int8'\}"),
        (["float32"], r"dtypes=\['float32'\]: expected one of"),
        (32, "dtypes=32: expected one of"),
    ],
)
def test_what_is_no_dtype_column_or_type_is_an_error(given, message, output_format):
    with pytest.raises(OptionError, match=message):
        build_converter(SCHEMA, ConvertOptions(dtypes=given), output_format)
