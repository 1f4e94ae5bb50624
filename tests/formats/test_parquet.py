import datetime
import functools
import math
import operator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.filters.arrow import as_expression
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.schemas.columns import conform
from torch_dataloader_utils.storage import Storage

from .contract import FormatContract

# pyarrow 17 can neither write views, nor read null fixed-size lists, nor prune by uint64.
MODERN = int(pa.__version__.split(".")[0]) >= 21

FORM = format_named("parquet")


class TestParquetContract(FormatContract):
    form = FORM

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        pq.write_table(table, path, row_group_size=segment_rows)


def layout_of(path: Path):
    return FORM.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), {})


def reader_of(path: Path, **options):
    layout, schema = layout_of(path)
    return FORM.open(DataFileInfo(str(path), 0), layout, Storage(), options, schema)


def test_row_groups_without_rows_are_no_segments(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "f", pa.schema({"a": pa.int64()})) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_table(pa.table({"a": pa.array(values, pa.int64())}))
    layout, _ = layout_of(tmp_path / "f")
    rows = [segment.rows for segment in layout.segments]
    assert rows == [2, 1]
    reader = reader_of(tmp_path / "f")
    assert [reader.read([s.number], ["a"])[0].to_pylist() for s in layout.segments] == [[1, 2], [3]]
    reader.close()


@pytest.mark.parametrize(
    ("array", "width"),
    [
        (pa.array([1] * 50, pa.int16()), 2),
        (pa.array([True] * 50), 1),
        (pa.array([Decimal("1.5")] * 50), 16),
        (pa.array([[1.0, 2.0, 3.0]] * 50, pa.list_(pa.float32(), 3)), 12),
        (
            pa.array(
                [{"x": 1, "y": {"z": 2.0}}] * 50, pa.struct({"x": pa.int8(), "y": pa.struct({"z": pa.float64()})})
            ),
            9,
        ),
        (pa.array([datetime.datetime(2024, 1, 1)] * 50), 8),
        (pa.nulls(50), 0),
        (pa.array(["a"] * 50), 16),
        (pa.array([[1]] * 50, pa.list_(pa.int64())), 16),
        (pa.array(["a"] * 50).dictionary_encode(), 16),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_estimated_bytes_are_rows_times_width_or_at_least_16_a_row(tmp_path: Path, array: pa.Array, width: int) -> None:
    pq.write_table(pa.table({"a": array, "b": pa.array([0] * 50, pa.int32())}), tmp_path / "f", row_group_size=20)
    assert [segment.size_bytes for segment in layout_of(tmp_path / "f")[0].segments] == [
        20 * (width + 4),
        20 * (width + 4),
        10 * (width + 4),
    ]


def test_estimated_bytes_of_long_strings_are_those_stored(tmp_path: Path) -> None:
    texts = [f"{i:04}" * 101 for i in range(50)]
    nested = [{"s": text, "i": 1} for text in texts]
    pq.write_table(pa.table({"i": range(50), "st": nested}), tmp_path / "f", use_dictionary=False)
    (segment,) = layout_of(tmp_path / "f")[0].segments
    assert 50 * (404 + 16) <= segment.size_bytes <= 50 * (404 + 16) * 1.1


def test_names_with_dots_do_not_mix_with_fields_of_structs(tmp_path: Path) -> None:
    table = pa.table({"x.y": [1, 2], "x": [{"y": 3, "z": 4}, {"y": 5, "z": 6}], "y": [7, 8], "x.y.z": [9, 9]})
    pq.write_table(table, tmp_path / "f")
    reader = reader_of(tmp_path / "f")
    for name in table.column_names:
        assert reader.read([0], [name])[0].to_pylist() == table[name].to_pylist()
    reader.close()


def test_types_are_as_the_file_says(tmp_path: Path) -> None:
    kinds = [
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.timestamp("ms", "UTC"),
        pa.float16(),
        pa.uint64(),
        *([pa.list_(pa.float32(), 2)] if MODERN else []),
        pa.map_(pa.string(), pa.int32()),
        *([pa.uuid()] if hasattr(pa, "uuid") else []),  # since pyarrow 18
    ]
    table = pa.table({str(i): pa.nulls(3, kind) for i, kind in enumerate(kinds)})
    pq.write_table(table, tmp_path / "f")
    _, schema = layout_of(tmp_path / "f")
    assert schema.types == kinds
    reader = reader_of(tmp_path / "f")
    assert [array.type for array in reader.read([0], table.column_names)] == kinds
    reader.close()


def corrupt_page(path: Path) -> None:
    """Change one byte of the second row group's values of column a."""
    chunk = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 0xFF
    path.write_bytes(content)


def test_a_wrong_page_checksum_is_an_error_that_names_file_row_group_and_column(tmp_path: Path) -> None:
    path = tmp_path / "f"
    table = pa.table({"aa": np.arange(100), "b": np.arange(100)})
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=50, **options)
    corrupt_page(path)
    reader = reader_of(path)
    assert reader.read([0], ["aa"])[0].to_pylist() == list(range(50))
    with pytest.raises(FileReadError, match=r"f, row group 1, column aa: cannot be read: .*") as caught:
        reader.read([0, 1], ["b", "aa"])
    assert isinstance(caught.value.__cause__, OSError)
    reader.close()
    trusting = reader_of(path, page_checksums=False)
    assert trusting.read([1], ["aa"])[0].to_pylist() != list(range(50, 100))
    trusting.close()


def test_format_options_are_checked() -> None:
    assert checked_options(FORM, {"page_checksums": False}) == {"page_checksums": False, "engine": "auto"}
    with pytest.raises(OptionError, match="parquet takes page_checksums"):
        checked_options(FORM, {"page_checksum": False})
    with pytest.raises(OptionError, match="expected a bool"):
        checked_options(FORM, {"page_checksums": 1})
    with pytest.raises(OptionError, match="'engine': 'duckdb'}: expected 'auto' or 'pyarrow'"):
        checked_options(FORM, {"engine": "duckdb"})
    with pytest.raises(OptionError, match="'avro': expected one of 'parquet'"):
        format_named("avro")


def test_null_columns_are_those_that_statistics_prove(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": [1, 2, None, 4],
            "b": [1, 2, 3, 4],
            "s": pa.array([{"x": 1}, None, {"x": 2}, {"x": 3}], pa.struct({"x": pa.int64()})),
            "l": [[], [1], [2], [3]],
        }
    )
    pq.write_table(table, tmp_path / "f", row_group_size=2)
    layout, _ = layout_of(tmp_path / "f")
    assert FORM.null_columns(layout) == {"a", "s.x"}
    pq.write_table(table, tmp_path / "f", write_statistics=False)
    assert FORM.null_columns(layout_of(tmp_path / "f")[0]) == frozenset()


# ---------------------------------------------------------------------------------------------------------- pruning


def kept(path: Path, expression: pc.Expression, schema: pa.Schema, constants: dict | None = None) -> list[int]:
    layout, file_schema = layout_of(path)
    pruned = FORM.pruner(expression, schema)(layout, file_schema, constants or {})
    return [segment.number for segment in pruned.segments]


def test_pruning_leaves_row_groups_in_question(tmp_path: Path) -> None:
    table = pa.table({"a": range(100), "s": [{"x": i} for i in range(100)], "n": [None] * 50 + [1] * 50})
    path = tmp_path / "f"
    pq.write_table(table, path, row_group_size=10)
    field, schema = pc.field, table.schema
    assert kept(path, field("a") < 25, schema) == [0, 1, 2]
    assert kept(path, field("s", "x") >= 85, schema) == [8, 9]
    assert kept(path, field("n").is_null() & (field("a") > 30), schema) == [3, 4]
    assert kept(path, field("a") + 1 < 5, schema) == list(range(10))
    assert kept(path, field("a") > 1000, schema) == []


@pytest.mark.parametrize("column", ["i", "d"])
def test_what_is_compared_with_nan_prunes_nothing(tmp_path: Path, column: str) -> None:
    table = pa.table({"i": range(10), "d": [number / 2 for number in range(10)]})
    pq.write_table(table, tmp_path / "f")
    expression = ~(pc.field(column).cast(pa.float64()) < math.nan)
    assert table.filter(expression).num_rows == 10
    assert kept(tmp_path / "f", expression, table.schema) == [0]


def test_a_list_of_text_that_arrow_casts_only_where_it_reads_prunes_nothing(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array(range(4), pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "f", row_group_size=2)
    expression = pc.field("at").isin(["1970-01-01"])
    assert table.filter(expression).num_rows == 1
    assert kept(tmp_path / "f", expression, table.schema) == [0, 1]


def test_pruning_knows_constants_and_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(pa.table({"a": range(100)}), path, row_group_size=10)
    schema = pa.schema({"a": pa.int64(), "p": pa.string(), "gone": pa.float64()})
    field, every = pc.field, list(range(10))
    assert kept(path, (field("p") == "x") & (field("a") > 85), schema, {"p": "x"}) == [8, 9]
    assert kept(path, (field("p") == "x") & (field("a") > 85), schema, {"p": "y"}) == []
    assert kept(path, field("p").is_null(), schema, {"p": None}) == every
    assert kept(path, field("p") != "x", schema, {"p": None}) == []
    assert kept(path, field("gone") > 1, schema, {"p": "x"}) == []
    assert kept(path, field("gone").is_null() & (field("a") < 5), schema, {"p": "x"}) == [0]
    # The path's value takes precedence over a column of that name in the file.
    assert kept(path, field("a") == 500, schema, {"a": 500}) == every


NAN = math.nan
FLOATS = st.sampled_from([NAN, 1.0, 2.0])
ROWS = st.lists(
    st.tuples(st.none() | FLOATS, st.none() | FLOATS, st.none() | st.integers(-2, 2)), min_size=1, max_size=8
)


@st.composite
def predicates(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(["f", "g", "i"]))
    value = draw(st.integers(-2, 2)) if name == "i" else draw(FLOATS)
    field = pc.field(name)
    made = draw(
        st.sampled_from(
            [
                field == value,
                field != value,
                field < value,
                field >= value,
                field.isin([value]),
                field.is_null(),
                field.is_null(nan_is_null=True),
                field.is_valid(),
            ]
        )
    )
    return ~made if draw(st.booleans()) else made


EXPRESSIONS = st.recursive(
    predicates(),
    lambda inner: (
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]) | st.tuples(inner, inner).map(lambda p: p[0] | p[1])
    ),
    max_leaves=4,
)


@given(rows=ROWS, expression=EXPRESSIONS, wide=st.booleans(), per_group=st.integers(1, 3))
def test_pruning_loses_no_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list, expression: pc.Expression, wide: bool, per_group: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "pruned"
    in_file = pa.schema({"f": pa.float32(), "g": pa.float64(), "i": pa.int16()})
    schema = pa.schema({"f": pa.float64(), "g": pa.float64(), "i": pa.int64()}) if wide else in_file
    columns = list(zip(*rows, strict=True))
    table = pa.table(
        [pa.array(values, kind) for values, kind in zip(columns, in_file.types, strict=True)], schema=in_file
    )
    pq.write_table(table, path, row_group_size=per_group)
    full = pa.table(
        [conform(c, len(rows), kind) for c, kind in zip(table.columns, schema.types, strict=True)], schema=schema
    )
    numbered = full.append_column("row", pa.array(range(len(rows)))).filter(expression)
    needed = {row // per_group for row in numbered["row"].to_pylist()}
    assert needed <= set(kept(path, expression, schema))


@pytest.mark.parametrize(
    ("in_file", "resolved", "filters", "expected"),
    [
        (pa.timestamp("ms"), pa.timestamp("us"), ("a", ">", "1970-01-01T00:00:00.049500"), [5, 6, 7, 8, 9]),
        (pa.date32(), pa.date32(), ("a", ">=", datetime.date(1970, 3, 22)), [8, 9]),
        (pa.int32(), pa.int64(), ("a", ">", 2**40), []),
        (pa.int32(), pa.float64(), ("a", ">", 79.5), [8, 9]),
        (pa.decimal128(21, 2), pa.decimal128(25, 4), ("a", "<", Decimal("9.5")), [0]),
        *([(pa.uint64(), pa.uint64(), ("a", "in", [3, 55, 2**63]), [0, 5])] if MODERN else []),
        (pa.int64(), pa.string(), ("a", ">", "95"), list(range(10))),  # another order: nothing is known
        (pa.string(), pa.string(), ("a", ">=", "95"), [9]),
        (pa.string(), pa.large_string(), ("a", ">=", "95"), [9]),
        (
            pa.dictionary(pa.int32(), pa.string()),
            pa.string(),
            ("a", ">=", "95"),
            list(range(10)),
        ),  # pyarrow has none here
        *([(pa.string_view(), pa.large_string(), ("a", ">=", "95"), [9])] if MODERN else []),
    ],
    ids=str,
)
def test_pruning_where_the_file_has_another_type(
    tmp_path: Path, in_file: pa.DataType, resolved: pa.DataType, filters: tuple, expected: list[int]
) -> None:
    numbers = pa.array(range(100), pa.int32() if pa.types.is_date32(in_file) else pa.int64())
    stringy = pa.types.is_dictionary(in_file) or "string" in str(in_file)
    values = pa.array([f"{i:02}" for i in range(100)]).cast(in_file) if stringy else numbers.cast(in_file)
    pq.write_table(pa.table({"a": values}), tmp_path / "f", row_group_size=10)
    schema = pa.schema({"a": resolved})
    assert kept(tmp_path / "f", as_expression([filters], schema), schema) == expected


def test_pruning_keeps_nans_that_match_though_statistics_leave_them_out(tmp_path: Path) -> None:
    path = tmp_path / "f"
    table = pa.table(
        {"f": [5.0, NAN, 5.0, 5.0], "s": [{"g": 1.0}, {"g": NAN}, {"g": 1.0}, {"g": 1.0}], "i": [1, 1, 2, 2]}
    )
    pq.write_table(table, path, row_group_size=2)
    f, g, i = pc.field("f"), pc.field("s", "g"), pc.field("i")
    assert kept(path, f != 5, table.schema) == [0, 1]
    assert kept(path, (f != 5) & (i == 1), table.schema) == [0]
    assert kept(path, ~(f > 1) & (i == 1), table.schema) == [0]
    assert kept(path, f > 5, table.schema) == []
    assert 0 in kept(path, ~(g > 0), table.schema)
    assert kept(path, (f != 5) & (g != 1) & (i == 1), table.schema) == [0]


ZEROS = [0.0, -0.0]
ONE = pc.scalar(1.0)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("value", ZEROS)
def test_pruning_keeps_zeros_of_either_sign(tmp_path: Path, kind: pa.DataType, value: float) -> None:
    path, i = tmp_path / "f", pc.field("i")
    # Arrow has no `is_in` for float16.
    x, y = (pc.field(*names).cast(pa.float64()) for names in (["x"], ["s", "x"]))
    floats = pa.array([value, None, 7.0, NAN, value, 0.0, 1.0, 2.0]).cast(kind)
    structs = pa.StructArray.from_arrays([floats], ["x"])
    table = pa.table({"x": floats, "s": structs, "s.x": pa.array([9.0] * 8), "i": range(8)})
    pq.write_table(table, path, row_group_size=2)
    inverse = [pc.divide(ONE, field) for field in (x, y)]
    same = [value]
    expressions = [
        x.isin(same),
        y.isin(same),
        ~x.isin(same),
        *(inverse[0] > 0, inverse[1] < 0),
        (inverse[0] > 0) & (inverse[1] < 0) | (i == 7),
        (inverse[0] > 0) & (inverse[1] > 0),
        x.isin(same) & (i < 2),
    ]
    for expression in expressions:
        needed = {row // 2 for row in table.filter(expression)["i"].to_pylist()}
        assert needed <= set(kept(path, expression, table.schema))
    if kind != pa.float16():  # which Arrow does not compare
        assert kept(path, pc.field("x") > pa.scalar(5.0, kind), table.schema) == [1]
        assert kept(path, pc.field("x").isin(pa.array([1.5], kind)), table.schema) == [3]


def test_pruning_gives_up_on_a_filter_that_keeps_nans_of_many_columns(tmp_path: Path) -> None:
    table = pa.table({f"f{i}": [1.0, 2.0] for i in range(6)})
    pq.write_table(table, tmp_path / "f", row_group_size=1)
    every = functools.reduce(operator.and_, (pc.field(name) != 1 for name in table.column_names))
    assert kept(tmp_path / "f", every, table.schema) == [0, 1]
    few = functools.reduce(operator.and_, (pc.field(name) > 1 for name in table.column_names))
    assert kept(tmp_path / "f", few, table.schema) == [1]


def test_pruning_reads_no_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(pa.table({"a": range(100)}), path, row_group_size=10)
    layout, schema = layout_of(path)
    path.unlink()
    pruned = FORM.pruner(pc.field("a") < 5, schema)(layout, schema, {})
    assert [segment.number for segment in pruned.segments] == [0]


def test_only_the_footers_parsed_last_are_kept_parsed(tmp_path):
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "x.parquet")
    sink = pa.BufferOutputStream()
    pq.read_metadata(tmp_path / "x.parquet").write_metadata_file(sink)
    footers = [Footer(sink.getvalue().to_pybytes(), {}) for _ in range(200)]
    for _ in range(2):
        assert [footer.metadata.num_rows for footer in footers] == [10] * 200
        assert [footer._parsed is not None for footer in footers] == [False] * 136 + [True] * 64
    held = footers[-1].metadata
    assert footers[-1].metadata is held
