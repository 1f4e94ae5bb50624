"""Partition values and bounds are what the manifest has, bit for bit, in every type; and what follows from them."""

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import product
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.iceberg.by_hand import equality_file, field
from tests.iceberg.helpers import append_files, data_file
from tests.iceberg.test_manifests import avro, optional, required, without_ids
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.filters.sql import table_filter
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile
from torch_dataloader_utils.iceberg.data_files.projection import Projection
from torch_dataloader_utils.iceberg.file_scan import Partitions
from torch_dataloader_utils.iceberg.manifests import Entry, Manifest, read_manifest
from torch_dataloader_utils.iceberg.pruning import Pruning
from torch_dataloader_utils.iceberg.schema import arrow_field

# --------------------------------------------------------------------------------------------------------- every type


@dataclass(frozen=True)
class Kind:
    """A primitive type.

    Attributes:
        iceberg: as schemas have it.
        avro: as manifests have it.
        values: as manifests have them: days, microseconds, bytes.
        exact: whether a filter by equality leaves the files with this value alone.
    """

    iceberg: IcebergType
    avro: Any
    values: st.SearchStrategy[Any]
    exact: bool = True


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
INFINITY = float("inf")
EXACT = Context(prec=36)
DAY_MICROS = 86_400_000_000
KINDS = {
    "boolean": Kind(BooleanType(), "boolean", st.booleans()),
    "int": Kind(IntegerType(), "int", INTS),
    "long": Kind(LongType(), "long", LONGS),
    "float": Kind(FloatType(), "float", st.floats(width=32)),
    "double": Kind(DoubleType(), "double", st.floats() | st.sampled_from([1.23, 1.2300000001, 0.1, 1e300, 5e-324])),
    "decimal": Kind(
        DecimalType(36, 23),
        logical("fixed", "decimal", name="decimal_36_23", size=16, precision=36, scale=23),
        st.integers(1 - 10**36, 10**36 - 1).map(lambda digits: Decimal(digits).scaleb(-23, EXACT)),
    ),
    "date": Kind(DateType(), logical("int", "date"), INTS),
    "time": Kind(TimeType(), logical("long", "time-micros"), st.integers(0, DAY_MICROS - 1)),
    "timestamp": Kind(TimestampType(), logical("long", "timestamp-micros", **{"adjust-to-utc": False}), LONGS),
    "timestamptz": Kind(TimestamptzType(), logical("long", "timestamp-micros", **{"adjust-to-utc": True}), LONGS),
    "timestamp_ns": Kind(
        TimestampNanoType(), logical("long", "timestamp-nanos", **{"adjust-to-utc": False}), LONGS, exact=False
    ),
    "timestamptz_ns": Kind(
        TimestamptzNanoType(), logical("long", "timestamp-nanos", **{"adjust-to-utc": True}), LONGS, exact=False
    ),
    "string": Kind(StringType(), "string", st.text()),
    "binary": Kind(BinaryType(), "bytes", st.binary()),
    "fixed": Kind(FixedType(3), {"type": "fixed", "name": "fixed_3", "size": 3}, st.binary(min_size=3, max_size=3)),
    "uuid": Kind(
        UUIDType(), logical("fixed", "uuid", name="uuid_fixed", size=16), st.uuids().map(lambda one: one.bytes), False
    ),
}
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
WITHOUT_IDS = Manifest("/t/m", 0, False, 1, 1, None, ManifestFile.from_args(_table_format_version=3))


def bound(name: str, number: int, ids: tuple[int, int]) -> dict[str, Any]:
    """A field of bounds: a map with numbers as keys, as Avro can only spell it as a list of pairs."""
    pair = {
        "type": "record",
        "name": f"k{ids[0]}_v{ids[1]}",
        "fields": [required("key", "int", ids[0]), required("value", "bytes", ids[1])],
    }
    return optional(name, {"type": "array", "items": pair, "logicalType": "map"}, number)


def manifest_of(kind: Kind, values: Sequence[Any], ids: bool = True) -> list[Entry]:
    """What is read of a manifest of a file for each value, which is its partition and its only value."""
    file = [
        required("content", "int", 134),
        required("file_path", "string", 100),
        required("file_format", "string", 101),
        required("partition", {"type": "record", "name": "r102", "fields": [optional("p", kind.avro, 1000)]}, 102),
        required("record_count", "long", 103),
        required("file_size_in_bytes", "long", 104),
        bound("lower_bounds", 125, (126, 127)),
        bound("upper_bounds", 128, (129, 130)),
    ]
    schema = {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            required("status", "int", 0),
            optional("snapshot_id", "long", 1),
            optional("sequence_number", "long", 3),
            required("data_file", {"type": "record", "name": "r2", "fields": file}, 2),
        ],
    }
    records = [
        {
            "status": 1,
            "data_file": {
                "content": 0,
                "file_path": f"/t/{place}.parquet",
                "file_format": "PARQUET",
                "partition": {"p": value},
                "record_count": 1,
                "file_size_in_bytes": 1,
                **dict.fromkeys(("lower_bounds", "upper_bounds"), bounds_of(kind, value)),
            },
        }
        for place, value in enumerate(values)
    ]
    return list(read_manifest(avro(schema if ids else without_ids(schema), records), WITHOUT_IDS))


def bounds_of(kind: Kind, value: Any) -> list[dict[str, Any]] | None:
    if value is None or value != value:
        return None
    return [{"key": 1, "value": value if isinstance(value, bytes) else to_bytes(kind.iceberg, value)}]


def bits(array: pa.Array) -> tuple[Any, ...]:
    """What tells a value from all others of its type: its bytes, one for all NaNs."""
    if array.null_count:
        return (None,)
    if pa.types.is_floating(array.type) and array[0].as_py() != array[0].as_py():
        return ("nan",)
    if pa.types.is_boolean(array.type):
        return (array[0].as_py(),)
    data = array.buffers()[-1]
    width = None if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else array.type.bit_width // 8
    return (b"" if data is None else data.to_pybytes()[:width],)


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_an_absent_partition_column_has_the_bits_of_the_manifest(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    values = data.draw(st.lists(st.none() | kind.values, min_size=1, max_size=6))
    column = NestedField(1, "p", kind.iceberg)
    partitions = Partitions({0: SPEC}, Schema(column))
    entries = manifest_of(kind, values)
    wanted = [bits(pa.array([value], arrow_field(column).type)) for value in values]
    places = [partitions.place(entry) for entry in entries]
    found = []
    for place, entry in zip(places, entries, strict=True):
        constants = dict(partitions.of(place, entry).constants)
        found.append(bits(Projection("f", constants, {}).absent(arrow_field(column))(1)))
    assert found == wanted
    # One partition for equal values, which is what deletes of a partition go by.
    assert [places.index(place) for place in places] == [wanted.index(value) for value in wanted]


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_pruning_by_partition_values_and_by_bounds_is_exact(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    comparable = kind.values.filter(lambda one: one == one and one not in ("", b""))  # pyiceberg 0.11: no empty bounds
    values = data.draw(st.lists(comparable, min_size=1, max_size=6))
    schema = Schema(NestedField(1, "p", kind.iceberg))
    arrow = pa.schema([arrow_field(item) for item in schema.fields])
    entries = manifest_of(kind, values)
    array = pa.array(values, arrow.field(0).type)
    for value, scalar in zip(values, array, strict=True):
        forms = [table_filter(filters, arrow, schema) for filters in (pc.field("p") == scalar, [("p", "=", scalar)])]
        matching = pc.equal(array, scalar).to_pylist()
        for filtered, spec in product(forms, (SPEC, PartitionSpec())):  # by partition values, and by bounds alone
            pruning = Pruning([filtered], schema, {0: spec})
            kept = [pruning.file(entry.file, 0) for entry in entries]
            assert all(kept[place] for place, matches in enumerate(matching) if matches)
            if kind.exact and value not in (INFINITY, -INFINITY):
                assert kept == matching


@given(st.lists(st.none() | KINDS["double"].values, min_size=1))
def test_doubles_of_manifests_without_field_ids(values: list[float | None]) -> None:
    def packed(one: float | None) -> bytes | None:
        return None if one is None else struct.pack("<d", one) if one == one else b"nan"

    entries = manifest_of(KINDS["double"], values, ids=False)
    assert [packed(entry.file.partition[0]) for entry in entries] == [packed(one) for one in values]


# ------------------------------------------------------------------------------------------------- tables with doubles

VALUES = [1.23, 1.2300000001, 0.1, -0.0, 0.0, INFINITY, 1e300, float("nan")]


@pytest.fixture
def doubles(catalog: Catalog) -> Table:
    """A table "ns.t" with a file for each of `VALUES`, the rows' ids 0 to 2 in each; the column "p" is in no file."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", DoubleType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("ns.t", schema, partition_spec=spec)
    rows = pa.table([pa.array(range(3), pa.int64())], schema=pa.schema([field(1, "id", pa.int64())]))
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True)
    files = []
    for place, value in enumerate(VALUES):
        pq.write_table(rows, folder / f"{place}.parquet")
        size = (folder / f"{place}.parquet").stat().st_size
        files.append(data_file(table, str(place), {"id": [0, 1, 2]}, (value,), size))
    append_files(table, files)
    return table


def rows_of(table: Any, **options: Any) -> list[tuple[int, bytes]]:
    """The rows, with the bits of their doubles."""
    loader, _ = IcebergDataset.create_dataloader(table, output_format="arrow", num_ranks=1, rank=0, **options)
    rows = [row for batch in loader for row in batch.to_pylist()]
    return sorted((row["id"], struct.pack("<d", row["p"])) for row in rows)


def expected(*values: float, ids: Sequence[int] = range(3)) -> list[tuple[int, bytes]]:
    return sorted((number, struct.pack("<d", value)) for value in values for number in ids)


def test_a_partition_column_of_doubles_that_is_in_no_file(doubles: Table) -> None:
    assert rows_of(doubles) == expected(*VALUES)


@pytest.mark.parametrize(
    ("filters", "values"),
    [
        ("p = 1.23", [1.23]),
        ("p in (1.23, 7.5)", [1.23]),
        ("p <= 1.23 and p > 0.1", [1.23]),
        ("p > 1.23 and p < 2", [1.2300000001]),
        ("p <= 0.1", [0.1, -0.0, 0.0]),
        ([("p", ">", 1e299)], [1e300, INFINITY]),
        ([("p", "==", 1e300)], [1e300]),
        (pc.field("p") == 0.1, [0.1]),
    ],
)
def test_filters_on_a_partition_column_of_doubles(doubles: Table, filters: Any, values: list[float]) -> None:
    assert rows_of(doubles, filters=filters) == expected(*values)


@pytest.mark.parametrize("place", range(len(VALUES)))
def test_an_equality_delete_of_a_partition_of_doubles_deletes_in_it_alone(
    doubles: Table, place: int, tmp_path: Path
) -> None:
    keys = pa.table([pa.array([1], pa.int64())], schema=pa.schema([field(1, "id", pa.int64())]))
    add_equality_delete(doubles, place, equality_file(tmp_path / "deletes.parquet", keys))
    others = [value for i, value in enumerate(VALUES) if i != place]
    assert rows_of(doubles) == sorted(expected(*others) + expected(VALUES[place], ids=[0, 2]))


def add_equality_delete(table: Table, place: int, delete: DeleteFile) -> None:
    """List a delete file for the partition of `VALUES[place]` in the table's current snapshot."""
    listed = Path(table.current_snapshot().manifest_list.removeprefix("file://"))
    lists = fastavro.reader(io.BytesIO(listed.read_bytes()))
    schema, (added,) = lists.writer_schema, list(lists)
    entries = fastavro.reader(io.BytesIO(Path(added["manifest_path"].removeprefix("file://")).read_bytes()))
    (entry,) = [one for one in entries if one["data_file"]["file_path"].endswith(f"/{place}.parquet")]
    entry["sequence_number"] = added["sequence_number"] + 1
    entry["data_file"] |= {
        "content": 2,
        "file_path": f"file://{delete.path}",
        "file_size_in_bytes": delete.size,
        "equality_ids": [1],
        "record_count": 1,
    }
    manifest = listed.with_name("deletes-m0.avro")
    manifest.write_bytes(avro(entries.writer_schema, [entry]))
    record = added | {"content": 1, "manifest_path": f"file://{manifest}", "manifest_length": manifest.stat().st_size}
    listed.write_bytes(avro(schema, [added, record | {"sequence_number": entry["sequence_number"]}]))
