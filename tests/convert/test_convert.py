"""The converter against Python: random values, nulls, slices, chunks; who owns the memory; stacks and casts."""

import decimal
import itertools
import math
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.convert.rows import rows_of
from torch_dataloader_utils.convert.converter import build_converter, compact
from torch_dataloader_utils.errors import NullValueError, OptionError, SchemaMismatchError
from torch_dataloader_utils.options import ConvertOptions

D = decimal.Decimal


def convert(table, owned=False, **options):
    return build_converter(table.schema, ConvertOptions(**options), "torch").convert(table, owned, "the file")


def digits(n):
    return st.integers(-(10**n) + 1, 10**n - 1)


INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
# name -> (Arrow type, values, what a null becomes under nulls="mask", whether it is masked)
KINDS = {
    "int32": (pa.int32(), INT32, 0, True),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1), 0, True),
    "bool": (pa.bool_(), st.booleans(), False, True),
    "float32": (pa.float32(), FLOAT32, math.nan, False),
    "date32": (pa.date32(), st.integers(-1000, 20000), 0, True),
    "timestamp": (pa.timestamp("ns"), st.integers(-(2**63), 2**63 - 1), 0, True),
    "time32": (pa.time32("s"), st.integers(0, 86399), 0, True),
    "decimal": (pa.decimal128(38, 4), digits(38).map(lambda i: D(i).scaleb(-4, decimal.Context(40))), math.nan, False),
    "string": (pa.string(), st.text(max_size=20), None, False),
    "binary": (pa.large_binary(), st.binary(max_size=20), None, False),
    "string_view": (pa.string_view(), st.text(max_size=20), None, False),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), st.sampled_from("abc"), None, False),
    "fixed_size_binary": (pa.binary(3), st.binary(min_size=3, max_size=3), None, False),
    "list": (pa.list_(pa.int32()), st.lists(INT32, max_size=4), [], True),
    "large_list of bool": (pa.large_list(pa.bool_()), st.lists(st.booleans(), max_size=9), [], True),
    "list_view": (pa.list_view(pa.int32()), st.lists(INT32, max_size=4), [], True),
    "ints[3]": (pa.list_(pa.int32(), 3), st.lists(INT32, min_size=3, max_size=3), [0, 0, 0], True),
    "floats[2]": (pa.list_(pa.float32(), 2), st.lists(FLOAT32, min_size=2, max_size=2), [math.nan] * 2, False),
    "bools[5]": (pa.list_(pa.bool_(), 5), st.lists(st.booleans(), min_size=5, max_size=5), [False] * 5, True),
    "map": (pa.map_(pa.string(), pa.int8()), st.lists(st.tuples(st.text(), st.just(1)), max_size=2), None, False),
}  # fmt: skip


@st.composite
def chunked(draw, type_, values, nulls=True):
    """Rows, and the same as a chunked array of slices of longer arrays (with other values and nulls around them)."""
    item = st.none() | values if nulls else values
    junk = st.lists(st.none() | values, max_size=9)
    rows, chunks = [], []
    for _ in range(draw(st.integers(0, 3))):
        before, part, after = draw(junk), draw(st.lists(item, max_size=12)), draw(junk)
        chunks.append(pa.array([*before, *part, *after], type_).slice(len(before), len(part)))
        rows += part
    return rows, pa.chunked_array(chunks, type_)


def same(found, expected):
    np.testing.assert_equal(found, expected)  # NaN equals NaN, inside lists too


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_slices_and_chunks_read_as_python_does(name, data):
    type_, values, blank, masked = KINDS[name]
    rows, array = data.draw(chunked(type_, values))
    found = convert(pa.table({"x": array}), owned=data.draw(st.booleans()), nulls="mask")
    same(rows_of(found["x"]), [blank if row is None else float(row) if isinstance(row, D) else row for row in rows])
    assert ("x_valid" in found) == masked
    if masked:
        assert rows_of(found["x_valid"]) == [row is not None for row in rows]


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind[3]])
@settings(max_examples=25)
@given(data=st.data())
def test_the_first_null_is_named_or_the_rows_are_dropped(name, data):
    type_, values, _, _ = KINDS[name]
    rows, array = data.draw(chunked(type_, values))
    table = pa.table({"x": array})
    converter = build_converter(table.schema, ConvertOptions(nulls="drop"), "torch")
    mask = converter.null_mask(table)
    if None in rows:
        with pytest.raises(NullValueError, match=f"'x' .* the file, at row {rows.index(None)} of the {len(rows)} rows"):
            convert(table)
        assert mask.to_pylist() == [row is not None for row in rows]
    else:
        assert mask is None
        assert rows_of(convert(table)["x"]) == rows


@given(data=st.data())
def test_structs_of_slices_with_nulls_at_every_level(data):
    type_ = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
    inner = st.fixed_dictionaries({"c": st.none() | st.text(max_size=3)})
    values = st.fixed_dictionaries({"a": st.none() | INT32, "b": st.none() | inner})
    rows, array = data.draw(chunked(type_, values))
    found = convert(pa.table({"x": array}), nulls="mask")
    a = [None if row is None else row["a"] for row in rows]
    assert rows_of(found["x.a"]) == [v or 0 for v in a]
    assert rows_of(found["x.a_valid"]) == [v is not None for v in a]
    assert rows_of(found["x.b.c"]) == [row and row["b"] and row["b"]["c"] for row in rows]


@given(precision=st.integers(1, 76), data=st.data())
def test_decimals_are_correctly_rounded(precision, data):
    scale = data.draw(st.integers(-5, precision))
    type_ = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    context = decimal.Context(100)
    numbers = data.draw(st.lists(digits(precision), min_size=1, max_size=20))
    values = [D(number).scaleb(-scale, context) for number in numbers]
    try:
        array = pa.array(values, type_)
    except pa.ArrowInvalid:
        assume(False)  # pyarrow cannot build some decimals that the type can hold
    found = convert(pa.table({"x": array}))["x"].array
    assert found.tolist() == [float(value) for value in values]  # Python rounds a Decimal correctly


def test_what_lies_under_null_lists_is_not_read():
    offsets, mask = pa.array([0, 2, 5, 6], pa.int32()), pa.array([False, True, False])
    array = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4, 5, 6]), mask=mask)
    found = convert(pa.table({"x": array}), nulls="mask")
    assert rows_of(found["x"]) == [[1, 2], [], [6]]
    assert rows_of(convert(pa.table({"x": array.slice(1)}), nulls="mask")["x"]) == [[], [6]]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 300, 4, 5, 6]), 2, mask=mask)
    found = convert(pa.table({"x": vectors}), nulls="mask", dtypes={"x": "int8"})
    assert rows_of(found["x"]) == [[1, 2], [0, 0], [5, 6]]
    assert rows_of(found["x_valid"]) == [True, False, True]


def test_rows_are_null_by_themselves_or_by_an_element():
    mask = pa.array([False, True, False, False])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, None, 6, 7, 8]), 2, mask=mask)
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6, 8], pa.int32()), vectors.values, mask=mask)
    for array in (vectors, lists):
        table = pa.table({"x": array})
        assert rows_of(convert(table, nulls="mask")["x_valid"]) == [True, False, False, True]
        converter = build_converter(table.schema, ConvertOptions(nulls="drop"), "torch")
        assert converter.null_mask(table).to_pylist() == [True, False, False, True]


def test_what_lies_under_null_strings_is_not_read():
    bitmap = pa.py_buffer(bytes([0b101]))
    buffers = [bitmap, pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(b"abcd")]
    table = pa.table({"x": pa.Array.from_buffers(pa.string(), 3, buffers)})
    assert rows_of(convert(table)["x"]) == ["a", None, "d"]
    found = convert(table, strings="bytes", nulls="mask")["x"]
    assert [bytes(row) for row in rows_of(found)] == [b"a", b"", b"d"]


def parquet(table):
    """The table as decoded from Parquet: in memory that nobody else has."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return pq.read_table(sink.getvalue())


def address(array):
    return array.__array_interface__["data"][0]


PLAIN = {
    "i": pa.array(range(100)),
    "f": pa.array([None, *map(float, range(99))], pa.float32()),
    "v": pa.array([[float(i), 1.0] for i in range(100)], pa.list_(pa.float32(), 2)),
    "l": pa.array([list(range(i % 3)) for i in range(100)]),
    "s": pa.array([str(i) for i in range(100)]),
}


def data_addresses(table):
    return [[b.address for b in table[name].chunk(0).buffers() if b is not None] for name in table.column_names]


def test_owned_memory_is_handed_out_without_a_copy():
    table = parquet(pa.table(PLAIN))
    found = convert(table, owned=True, strings="bytes")
    for column, buffers in zip(found.values(), data_addresses(table), strict=True):
        assert address(column.parts()[1][0]) in buffers
        assert column.parts()[1][0].flags.carray
    all_but_first = frozenset(itertools.chain(*data_addresses(table)[1:]))
    listed = convert(table, owned=all_but_first, strings="bytes")
    shared = [np.shares_memory(found[key].parts()[1][0], listed[key].parts()[1][0]) for key in found]
    assert shared == [False, True, True, True, True]


@pytest.mark.parametrize("owned", [False, frozenset()])
def test_memory_that_is_not_owned_is_copied_and_never_written_to(owned):
    table = parquet(pa.table(PLAIN))
    before = table.to_pylist()
    for column in convert(table, owned=owned, strings="bytes").values():
        values = column.parts()[1][0]
        assert values.flags.writeable
        values.fill(7)
    assert table.to_pylist() == before


def test_read_only_memory_is_copied():
    table = pa.table({"x": pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])})
    found = convert(table, owned=True)["x"].array
    found += 1
    assert table["x"].to_pylist() == [0, 0]


def test_columns_of_one_buffer_do_not_alias():
    table = parquet(pa.table({"a": [1.0, 2.0, 3.0], "other": [4.0, 5.0, 6.0]}))
    data = table["a"].chunk(0).buffers()[1]
    holes = pa.Array.from_buffers(pa.float64(), 3, [pa.py_buffer(bytes([0b101])), data])
    overlap = pa.Array.from_buffers(pa.float64(), 2, [None, data.slice(8)])
    table = pa.table(
        {"a": table["a"], "holes": holes, "b": pa.chunked_array([overlap, [9.0]]), "other": table["other"]}
    )
    found = convert(table, owned=True)
    same(
        [rows_of(c) for c in found.values()], [[1.0, 2.0, 3.0], [1.0, math.nan, 3.0], [2.0, 3.0, 9.0], [4.0, 5.0, 6.0]]
    )
    arrays = [column.array for column in found.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert address(arrays[3]) == table["other"].chunk(0).buffers()[1].address


def test_a_null_written_over_is_not_seen_through_an_overlap():
    data = parquet(pa.table({"a": [1.0, 2.0, 3.0]}))["a"].chunk(0).buffers()[1]
    holes = pa.Array.from_buffers(pa.float64(), 3, [pa.py_buffer(bytes([0b101])), data])
    table = pa.table({"holes": holes.slice(0, 2), "b": pa.Array.from_buffers(pa.float64(), 2, [None, data.slice(8)])})
    same([rows_of(c) for c in convert(table, owned=True).values()], [[1.0, math.nan], [2.0, 3.0]])


def test_unaligned_memory_is_copied():
    data = pa.py_buffer(np.zeros(33, np.uint8)[1:])
    assert data.is_mutable
    table = pa.table({"x": pa.Array.from_buffers(pa.int64(), 4, [None, data])})
    assert convert(table, owned=True)["x"].array.flags.aligned


def test_a_slice_of_owned_memory_stays_inside_its_rows():
    table = parquet(pa.table({"x": [1.0, 2.0, None, 4.0]}))
    found = convert(table.slice(1, 2), owned=True)["x"].array
    found.fill(0)
    assert table["x"].to_pylist() == [1.0, 0.0, None, 4.0]


CASTS = [
    ("float32", [1, None, 3], [1.0, math.nan, 3.0]),
    (np.float64, [1, None], [1.0, math.nan]),
    (np.dtype("int8"), [1, -128], [1, -128]),
    ("uint8", [True, False], [1, 0]),
    ("int32", [1.9, -1.9], [1, -1]),
    ("bool", [0, 2], [False, True]),
    ("float16", [1e6, 0.5], [math.inf, 0.5]),
    ("float32", [[1, 2], [3]], [[1.0, 2.0], [3.0]]),
    ("int64", [D("1.50")], [1]),
]


@pytest.mark.parametrize(("dtype", "rows", "expected"), CASTS)
def test_dtypes_cast(dtype, rows, expected):
    found = convert(pa.table({"x": pa.array(rows)}), owned=True, dtypes={"x": dtype})["x"]
    values = found.parts()[1][0]
    assert values.dtype == np.dtype(dtype)
    assert values.flags.carray
    same(rows_of(found), expected)


def test_torch_dtypes_are_known_by_name():
    torch = pytest.importorskip("torch")
    for name in ("float32", "float16", "int64", "uint8", "bool"):
        found = convert(pa.table({"x": [0, 1]}), dtypes={"x": getattr(torch, name)})
        assert found["x"].array.dtype == name


@pytest.mark.parametrize(("dtype", "rows"), [("int8", [1, 128]), ("uint64", [0, -1]), ("int64", [1.0, math.nan]),
                                             ("int64", [2.0**63]), ("int32", [math.inf])])  # fmt: skip
def test_values_that_do_not_fit_are_refused(dtype, rows):
    with pytest.raises(OptionError, match=rf"'x' .* the file, which do not fit {dtype}"):
        convert(pa.table({"x": rows}), dtypes={"x": dtype})


def test_what_lies_under_nulls_need_not_fit():
    data = pa.py_buffer(np.array([1, 10**6, 3]))
    table = pa.table({"x": pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(bytes([0b101])), data])})
    assert rows_of(convert(table, dtypes={"x": "int8"}, nulls="mask")["x"]) == [1, 0, 3]


def test_stack():
    table = parquet(pa.table({"y": [0, 1], "f1": [1.0, 2.0], "s": ["a", "b"], "f0": [3.0, None], "g": [5, 6]}))
    options = {"stack": {"x": ["f0", "f1"], "g": ["g", "y"]}}
    found = convert(table, owned=True, **options)
    assert list(found) == ["g", "x", "s"]
    same(found["x"].array.tolist(), [[3.0, 1.0], [math.nan, 2.0]])
    assert found["g"].array.tolist() == [[5, 0], [6, 1]]
    assert found["x"].array.flags.carray


def test_the_stack_of_masked_columns_keeps_their_masks():
    found = convert(pa.table({"a": [1, None], "b": [3, 4]}), stack={"x": ["a", "b"]}, nulls={"a": "mask"})
    assert list(found) == ["x", "a_valid"]
    assert found["x"].array.tolist() == [[1, 3], [0, 4]]
    assert rows_of(found["a_valid"]) == [True, False]


def test_a_table_of_another_type_is_refused():
    converter = build_converter(pa.schema([("x", pa.int64())]), ConvertOptions(), "torch")
    with pytest.raises(SchemaMismatchError, match="'x' of the file is of type int32"):
        converter.convert(pa.table({"x": pa.array([1], pa.int32())}), True, "the file")


def test_the_null_mask_before_a_transform():
    schema = pa.schema([("x", pa.int32()), ("s.a", pa.int64()), ("made", pa.int64())])
    converter = build_converter(schema, ConvertOptions(nulls="drop"), "torch")
    table = pa.table({"x": [1, None, 3, 4], "s": [{"a": 1}, {"a": 2}, None, {"a": 4}]})
    assert converter.null_mask(table).to_pylist() == [True, False, False, True]
    assert converter.drop_columns == ("x", "s.a", "made")


def test_the_converter_travels():
    table = pa.table({**PLAIN, "u": pa.array([b"x" * 16] * 100, pa.binary(16))})
    converter = build_converter(table.schema, ConvertOptions(stack={"x": ["i"]}, strings={"s": "bytes"}), "torch")
    again = pickle.loads(pickle.dumps(converter))
    assert again.keys == converter.keys == ("x", "f", "v", "l", "s", "u")
    one, two = (c.convert(table, False, "the file") for c in (converter, again))
    for key in one:
        same(rows_of(one[key]), rows_of(two[key]))
    assert again.report() == converter.report()


def test_compact_cuts_slices_and_joins_chunks():
    table = pa.table({"s": ["x" * 100] * 1000, "i": range(1000), "b": [True] * 1000})
    batch = compact(pa.concat_tables([table.slice(10, 3), table.slice(20, 2)]))
    assert batch.to_pydict() == table.slice(0, 3).to_pydict() | {
        "i": [10, 11, 12, 20, 21],
        "s": ["x" * 100] * 5,
        "b": [True] * 5,
    }
    assert batch.get_total_buffer_size() < 5 * 110 + 200
    assert compact(table.slice(1, 5)).get_total_buffer_size() < 5 * 110 + 200
    assert compact(table.slice(0, 5)).get_total_buffer_size() < 5 * 110 + 200
    assert compact(table.slice(0, 0)).num_rows == 0
    assert compact(table.schema.empty_table()).schema == table.schema


def test_compact_leaves_whole_columns_where_they_are():
    table = parquet(pa.table(PLAIN))
    assert data_addresses(pa.Table.from_batches([compact(table)])) == data_addresses(table)


def test_compact_joins_dictionaries():
    chunks = [pc.dictionary_encode(pa.array(["a", "b"])), pc.dictionary_encode(pa.array(["b", "c"]))]
    assert compact(pa.table({"x": pa.chunked_array(chunks)})).to_pydict() == {"x": ["a", "b", "b", "c"]}
