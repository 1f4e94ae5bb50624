from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.errors import DataLoaderUtilsError, SchemaMismatchError
from torch_dataloader_utils.iceberg.data_files.fields import FileField, file_fields
from torch_dataloader_utils.iceberg.data_files.files import IcebergTable
from torch_dataloader_utils.iceberg.data_files.projection import Projection

from .by_hand import field, read_rows, write

FORMS = ["parquet", "orc", "avro"]


def project(array: pa.Array, found: pa.Field, wanted: pa.Field, **known: Any) -> pa.Array:
    """The array of the file's field as the table's field."""
    (source,) = file_fields(pa.schema([found]), None, "f")
    projected = Projection("f", known.get("constants", {}), known.get("defaults", {})).of(source, wanted)(array)
    projected.validate(full=True)
    assert projected.type == wanted.type
    return projected


def evolved(path: Path, form: str, old: pa.Table, new: Sequence[pa.Field], **more: Any) -> list[dict[str, Any]]:
    table = IcebergTable(pa.schema(new), **{k: more.pop(k) for k in ("defaults", "name_mapping") if k in more})
    rows: list[dict[str, Any]] = read_rows(write(old, path, form), table, form, **more).to_pylist()
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_found_by_id_whatever_their_names(tmp_path: Path, form: str) -> None:
    schema = pa.schema([field(i, n, pa.int64()) for i, n in enumerate(["kept", "renamed", "dropped", "a", "A"], 1)])
    old = pa.table([pa.array([10 * i, None]) for i in range(5)], schema=schema)
    names = {5: "a", 2: "new_name", 6: "dropped", 1: "kept", 4: "A"}
    new = [field(number, name, pa.int64()) for number, name in names.items()]
    first, second = evolved(tmp_path / "f", form, old, new)
    assert list(first.items()) == [("a", 40), ("new_name", 10), ("dropped", None), ("kept", 0), ("A", 30)]
    assert set(second.values()) == {None}


@pytest.mark.parametrize("form", FORMS)
def test_missing_columns_are_constant_default_or_null(tmp_path: Path, form: str) -> None:
    old = pa.table([pa.array([1, 2])], schema=pa.schema([field(1, "a", pa.int64())]))
    deep = pa.struct([field(6, "x", pa.int32(), False), field(7, "y", pa.string())])
    new = [
        field(2, "constant", pa.int32(), False),
        field(3, "default", pa.decimal128(9, 2), False),
        field(4, "null", pa.list_(field(8, "element", pa.int32()))),
        field(5, "required", deep, False),
        field(9, "optional", deep),
        field(10, "null_constant", pa.int64()),
        field(11, "day", pa.date32()),
    ]
    known = {"constants": ((2, 5), (10, None), (6, 7)), "defaults": {3: Decimal("1.50"), 2: 6, 10: 3}}
    rows = evolved(
        tmp_path / "f", form, old, new, **{**known, "constants": (*known["constants"], (11, date(2020, 1, 1)))}
    )
    row = {"constant": 5, "default": Decimal("1.50"), "null": None, "required": {"x": 7, "y": None}}
    assert rows == [{**row, "optional": None, "null_constant": None, "day": date(2020, 1, 1)}] * 2


@pytest.mark.parametrize("form", FORMS)
def test_unknown_types_within_others_are_nulls(tmp_path: Path, form: str) -> None:
    old = pa.table(
        [pa.array([{"a": 1}, None]), pa.array([[None], []])],
        schema=pa.schema(
            [
                field(1, "s", pa.struct([field(2, "a", pa.int64())])),
                field(3, "l", pa.list_(field(4, "element", pa.int64()))),
            ]
        ),
    )
    new = [
        field(1, "s", pa.struct([field(5, "u", pa.null()), field(2, "a", pa.int64())])),
        field(6, "l", pa.list_(field(7, "element", pa.null()))),
    ]
    assert evolved(tmp_path / "f", form, old, new) == [{"s": {"u": None, "a": 1}, "l": None}, {"s": None, "l": None}]


def test_a_required_column_without_value_is_an_error_that_names_it(tmp_path: Path) -> None:
    old = pa.table([pa.array([1])], schema=pa.schema([field(1, "a", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match=r"'needed' \(field id 2\).*requires"):
        evolved(tmp_path / "f", "parquet", old, [field(2, "needed", pa.int64(), False)])


PROMOTIONS = [
    (pa.array([1, None, -(2**31)], pa.int32()), pa.int64()),
    (pa.array([1.5, None], pa.float32()), pa.float64()),
    (pa.array([Decimal("1.50"), None], pa.decimal128(4, 2)), pa.decimal128(38, 2)),
    (pa.array([date(1969, 12, 31), None]), pa.timestamp("us")),
    (pa.array([date(2020, 1, 1), None]), pa.timestamp("ns")),
    (pa.array([5, None], pa.int64()), pa.time64("us")),
    (pa.array([b"abc", None]), pa.binary(3)),
    (pa.array([b"abc", None], pa.binary(3)), pa.binary()),
    (pa.array(["é", None]), pa.large_string()),
    (pa.array(["é", None], pa.large_string()), pa.string()),
    (pa.array([b"abc", None]), pa.string()),
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
    (pa.array([1, None], pa.int8()), pa.int32()),
    (pa.array([1, None], pa.uint32()), pa.int64()),
    (pa.nulls(3), pa.int64()),
    (pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([2**62], pa.int64()).view(pa.timestamp("us", "+00:00")), pa.timestamp("us", "UTC")),
]


@pytest.mark.parametrize(("array", "kind"), PROMOTIONS, ids=lambda x: str(getattr(x, "type", x)))
def test_promotions_keep_values(array: pa.Array, kind: pa.DataType) -> None:
    projected = project(array, field(1, "a", array.type), field(1, "a", kind))
    expected = array.cast(kind)
    assert projected.equals(expected)
    sliced = project(array[1:], field(1, "a", array.type), field(1, "a", kind))
    assert sliced.equals(expected[1:])


def test_timestamps_lose_what_is_finer_than_the_table_towards_the_past() -> None:
    array = pa.array([1500, -1500, -1, None, 2000], pa.int64()).view(pa.timestamp("ns", "UTC"))
    projected = project(array, field(1, "a", array.type), field(1, "a", pa.timestamp("us", "UTC")))
    assert projected.view(pa.int64()).to_pylist() == [1, -2, -1, None, 2]


def test_uuids_are_their_bytes(tmp_path: Path) -> None:
    if not hasattr(pa, "uuid"):
        pytest.skip("this pyarrow has no uuid type")
    array = pa.array([b"0123456789abcdef", None], pa.uuid())
    assert project(array, field(1, "u", pa.uuid()), field(1, "u", pa.binary(16))).to_pylist()[0] == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.string()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.decimal128(9, 2), pa.decimal128(8, 2)),
        (pa.string(), pa.int64()),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.int32(), pa.list_(field(2, "element", pa.int32()))),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.struct([field(2, "x", pa.string())]), pa.struct([field(2, "x", pa.int32())])),
    ],
)
def test_types_that_do_not_fit_are_errors_when_the_file_is_opened(found: pa.DataType, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"f: column .* cannot be read as"):
        project(pa.nulls(1, found), field(1, "old", found), field(1, "new", kind))


def test_values_of_another_size_than_a_fixed_type_name_the_file(tmp_path: Path) -> None:
    old = pa.table([pa.array([b"abcd"])], schema=pa.schema([field(1, "a", pa.binary())]))
    with pytest.raises(DataLoaderUtilsError, match="wrong_size"):
        evolved(tmp_path / "wrong_size", "parquet", old, [field(1, "a", pa.binary(3))])


# ------------------------------------------------------------------------------------------------------------ nested

OLD_STRUCT = pa.struct([field(11, "x", pa.int32()), field(12, "gone", pa.string()), field(13, "y", pa.float32())])
NEW_STRUCT = pa.struct([field(13, "z", pa.float64()), field(14, "added", pa.string()), field(11, "x", pa.int64())])
STRUCTS = [{"x": 1, "gone": "g", "y": 1.5}, None, {"x": None, "gone": None, "y": None}, {"x": 4, "gone": "", "y": 0.5}]
NEW_STRUCTS = [
    {"z": 1.5, "added": None, "x": 1},
    None,
    {"z": None, "added": None, "x": None},
    {"z": 0.5, "added": None, "x": 4},
]
LISTS, NEW_LISTS = ([structs[:2], None, [], structs[2:]] for structs in (STRUCTS, NEW_STRUCTS))
MAPS, NEW_MAPS = (
    [[(1, structs[0]), (2, structs[1])], None, [], [(3, structs[2]), (4, structs[3])]]
    for structs in (STRUCTS, NEW_STRUCTS)
)
NESTED = [
    (STRUCTS, OLD_STRUCT, NEW_STRUCTS, NEW_STRUCT),
    (LISTS, pa.list_(field(2, "element", OLD_STRUCT)), NEW_LISTS, pa.list_(field(2, "element", NEW_STRUCT))),
    (
        MAPS,
        pa.map_(field(2, "key", pa.int32(), False), field(3, "value", OLD_STRUCT)),
        NEW_MAPS,
        pa.map_(field(2, "key", pa.int64(), False), field(3, "value", NEW_STRUCT)),
    ),
    (
        [{"in": structs} for structs in LISTS[:3]] + [None],
        pa.struct([field(4, "in", pa.list_(field(2, "element", OLD_STRUCT)))]),
        [{"out": structs} for structs in NEW_LISTS[:3]] + [None],
        pa.struct([field(4, "out", pa.list_(field(2, "element", NEW_STRUCT)))]),
    ),
]


@pytest.mark.parametrize(("old", "old_kind", "new", "kind"), NESTED, ids=["struct", "list", "map", "struct of list"])
@pytest.mark.parametrize("form", FORMS)
def test_nested_fields_evolve_and_nulls_stay(
    tmp_path: Path, form: str, old: list[Any], old_kind: pa.DataType, new: list[Any], kind: pa.DataType
) -> None:
    table = pa.table([pa.array(old, old_kind)], schema=pa.schema([field(1, "c", old_kind)]))
    assert [row["c"] for row in evolved(tmp_path / "f", form, table, [field(1, "c", kind)])] == new


@pytest.mark.parametrize(("old", "old_kind", "new", "kind"), NESTED, ids=["struct", "list", "map", "struct of list"])
def test_slices_of_nested_arrays_are_projected(
    old: list[Any], old_kind: pa.DataType, new: list[Any], kind: pa.DataType
) -> None:
    array = pa.array(old, old_kind)
    for first in range(5):
        for last in range(first, 5):
            projected = project(array[first:last], field(1, "c", old_kind), field(1, "c", kind))
            assert projected.to_pylist() == new[first:last]
            assert projected.null_count == sum(value is None for value in new[first:last])


def test_lists_of_every_layout_become_lists() -> None:
    wanted = field(1, "l", pa.list_(field(2, "element", pa.int64())))
    values = [[1, 2], None, [3, 4]]
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)):
        array = pa.array(values, kind)
        assert project(array, field(1, "l", kind), wanted).to_pylist() == values
        assert project(array[1:], field(1, "l", kind), wanted).to_pylist() == values[1:]


def test_defaults_and_constants_within_structs_stay_beside_real_nulls() -> None:
    kind = pa.struct([field(11, "x", pa.int32()), field(15, "d", pa.string(), False), field(16, "c", pa.int64())])
    array = pa.array(STRUCTS, OLD_STRUCT)
    known = {"defaults": {15: "d", 16: 1}, "constants": {16: 2}}
    projected = project(array, field(1, "s", OLD_STRUCT), field(1, "s", kind), **known)
    assert projected.to_pylist() == [None if row is None else {"x": row["x"], "d": "d", "c": 2} for row in STRUCTS]


def test_a_struct_without_any_of_its_fields_keeps_its_nulls() -> None:
    for kind in (pa.struct([field(20, "new", pa.int32())]), pa.struct([])):
        array = pa.array(STRUCTS, OLD_STRUCT)
        for piece, expected in ((array, STRUCTS), (array[1:3], STRUCTS[1:3])):
            projected = project(piece, field(1, "s", OLD_STRUCT), field(1, "s", kind)).to_pylist()
            assert [row is None for row in projected] == [row is None for row in expected]


def test_buffers_of_unchanged_values_are_not_copied() -> None:
    old = pa.list_(field(2, "element", pa.struct([field(3, "x", pa.int64()), field(4, "y", pa.int64())])))
    new = pa.list_(field(2, "element", pa.struct([field(4, "z", pa.int64())])))
    array = pa.array([[{"x": 1, "y": 2}], [{"x": 3, "y": 4}]], old)
    projected = project(array, field(1, "l", old), field(1, "l", new))
    assert projected.values.field(0).buffers()[1].address == array.values.field(1).buffers()[1].address


# ------------------------------------------------------------------------------------------------------ name mapping

MAPPING = [
    {"field-id": 1, "names": ["id", "old_id"]},
    {
        "field-id": 2,
        "names": ["points"],
        "fields": [
            {
                "field-id": 3,
                "names": ["element"],
                "fields": [{"field-id": 4, "names": ["x"]}, {"field-id": 5, "names": ["y", "why"]}],
            }
        ],
    },
    {
        "field-id": 6,
        "names": ["m"],
        "fields": [{"field-id": 7, "names": ["key"]}, {"field-id": 8, "names": ["value"]}],
    },
]
MAPPED = [
    field(1, "id", pa.int64()),
    field(
        2, "points", pa.list_(field(3, "element", pa.struct([field(5, "why", pa.int32()), field(4, "x", pa.int32())])))
    ),
    field(6, "m", pa.map_(field(7, "key", pa.string(), False), field(8, "value", pa.int64()))),
    field(9, "unmapped", pa.int64()),
]


@pytest.mark.parametrize("form", FORMS)
def test_files_without_ids_are_read_by_the_name_mapping(tmp_path: Path, form: str) -> None:
    old = pa.table(
        {
            "unmapped": [1],
            "old_id": [2],
            "points": pa.array([[{"x": 3, "y": 4}, None]], pa.list_(pa.struct({"x": pa.int32(), "y": pa.int32()}))),
            "m": pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int32())),
        }
    )
    row = {"id": 2, "points": [{"why": 4, "x": 3}, None], "m": [("k", 5)], "unmapped": None}
    assert evolved(tmp_path / "f", form, old, MAPPED, name_mapping=MAPPING) == [row]


def test_an_empty_mapping_makes_nulls(tmp_path: Path) -> None:
    old = pa.table({"id": [1]})
    assert evolved(tmp_path / "f", "parquet", old, MAPPED[:1], name_mapping=[]) == [{"id": None}]
    with pytest.raises(SchemaMismatchError, match="'id'"):
        evolved(tmp_path / "f", "parquet", old, [field(1, "id", pa.int64(), False)], name_mapping=[])


WITHOUT_IDS = pa.table(
    {
        "first": [1],
        "p": pa.array([[{"a": 2, "b": 3}, None]], pa.list_(pa.struct({"a": pa.int32(), "b": pa.int32()}))),
        "third": [4],
        "x": [5],
    }
)
NAMED = [
    field(3, "x", pa.int64()),
    field(1, "first", pa.int64()),
    field(2, "p", pa.list_(field(5, "element", pa.struct([field(6, "b", pa.int64()), field(7, "c", pa.int64())])))),
    field(9, "later", pa.int64()),
]


def test_parquet_files_without_ids_and_mapping_are_read_by_position(tmp_path: Path) -> None:
    row = {"x": 4, "first": 1, "p": [{"b": 2, "c": 3}, None], "later": None}
    assert evolved(tmp_path / "f", "parquet", WITHOUT_IDS, NAMED) == [row]


@pytest.mark.parametrize("form", ["orc", "avro"])
def test_other_files_without_ids_and_mapping_are_read_by_the_tables_names(tmp_path: Path, form: str) -> None:
    row = {"x": 5, "first": 1, "p": [{"b": 3, "c": None}, None], "later": None}
    assert evolved(tmp_path / "f", form, WITHOUT_IDS, NAMED) == [row]


def test_a_position_of_another_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"'first' is int64 in the file.*string, the type of 'name'"):
        evolved(tmp_path / "f", "parquet", WITHOUT_IDS, [field(1, "name", pa.string())])


def test_a_mapping_is_not_used_where_a_field_has_an_id(tmp_path: Path) -> None:
    schema = pa.schema([field(1, "a", pa.int64()), pa.field("id", pa.int64())])
    old = pa.table([pa.array([1]), pa.array([2])], schema=schema)
    assert evolved(tmp_path / "f", "parquet", old, MAPPED[:1], name_mapping=MAPPING) == [{"id": 1}]


def test_ids_of_list_and_map_children_follow_their_place_not_their_names() -> None:
    kind = pa.map_(
        pa.field("k", pa.string(), False, {"iceberg.id": "7"}), pa.field("v", pa.int64(), True, {"iceberg.id": "8"})
    )
    (found,) = file_fields(pa.schema([pa.field("m", kind, True, {"iceberg.id": "6"})]), None, "f")
    assert [(child.id, child.name) for child in found.children] == [(7, "key"), (8, "value")]
    assert isinstance(found, FileField)


# ------------------------------------------------------------------------------------------------- what formats store


def test_orc_stores_times_as_numbers_and_timestamps_as_nanoseconds(tmp_path: Path) -> None:
    stamps = pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999), None])
    columns = {
        field(1, "t", pa.int64()): pa.array([86_399_999_999, None]),
        field(2, "ts", pa.timestamp("us")): stamps,
        field(3, "tz", pa.timestamp("us", "UTC")): stamps.cast(pa.timestamp("us", "UTC")),
        field(4, "u", pa.binary()): pa.array([b"0123456789abcdef", None]),
    }
    old = pa.table(list(columns.values()), schema=pa.schema(list(columns)))
    kinds = [pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.binary(16)]
    new = [field(number, f"new{number}", kind) for number, kind in enumerate(kinds, 1)]
    rows = evolved(tmp_path / "f", "orc", old, new)
    assert rows[0]["new2"] == stamps[0].as_py()
    assert rows[0]["new3"] == stamps[0].as_py().replace(tzinfo=timezone.utc)  # noqa: UP017
    assert (rows[0]["new1"].isoformat(), rows[0]["new4"]) == ("23:59:59.999999", b"0123456789abcdef")
    assert set(rows[1].values()) == {None}


def test_columns_as_parquet_has_them_are_returned_as_they_are(tmp_path: Path) -> None:
    schema = pa.schema([field(1, "a", pa.int64()), field(2, "s", pa.string())])
    path = write(pa.table([pa.array([1, None]), pa.array(["x", None])], schema=schema), tmp_path / "f")
    found = read_rows(path, IcebergTable(schema))
    assert found.equals(pq.read_table(path))
    assert found["a"].chunk(0).buffers()[1].is_mutable
