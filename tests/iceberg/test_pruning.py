"""Pruning by filters loses no file with a row that matches, and leaves out what it can."""

import json
import random
import uuid
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, NestedField, StructType, TimestampType

from tests.iceberg.helpers import ARROW, DAY, MICROS, NAN, SCHEMA, F, append_files, data_file, names_of
from torch_dataloader_utils.filters.sql import table_filter
from torch_dataloader_utils.iceberg.pruning import Pruning
from torch_dataloader_utils.iceberg.schema import table_schema
from torch_dataloader_utils.iceberg.tables import IcebergRead, plan_table

# Values as Iceberg has them: days, microseconds.
VALUES = {
    "i": [None, -5, 0, 1, 2, 3, 7],
    "l": [None, -(2**63), -5, 0, 1, 5, 2**63 - 1],
    "f": [None, NAN, -1.5, -0.0, 0.0, 1.5, float("inf"), float("-inf"), 1.2300000190734863],  # 1.23 as a float32
    "x": [None, NAN, -1.5, 0.0, 0.5, 1.0, float("-inf")],
    "s": [None, "", "a", "ab", "abc", "b", "é", "\U0001f600"],
    "b": [None, True, False],
    "d": [None, -1, 0, DAY, DAY + 1, DAY + 400],
    "t": [None, -1, 0, MICROS, MICROS + 1, MICROS + 10**12],
    "z": [None, -1, 0, MICROS, MICROS + 1, MICROS + 10**12],
    "n": [None, Decimal("-1.50"), Decimal("0.00"), Decimal("1.10"), Decimal("99.99")],
    "y": [None, b"", b"a", b"ab", b"\xff"],
    "c": [None, 0, 1, 3_600_000_000],
    "w": [None, b"aa", b"ab", b"\xff\xff"],
    "u": [None, uuid.UUID(int=1), uuid.UUID(int=2**127)],
    "k": [None, 1, 2],
}
WHEN = datetime(2024, 1, 1)
# Each is tried as it is and negated; alone, and joined to others.
LEAVES = [
    F("i") == 1,
    F("i") != 1,
    F("i") < 2,
    F("i") >= 2.0,
    pc.scalar(2) > F("i"),
    F("i") + 1 > 2,
    F("i").cast(pa.int64()) > 2,
    F("i").isin([1, 7]),
    F("i").isin([1, None]),
    F("i").isin([]),
    F("t").isin([f"{WHEN:%Y-%m-%d}"]),
    F("i").is_null(),
    F("i").is_valid(),
    F("i") == pa.scalar(None, pa.int32()),
    F("l") > F("i"),
    F("l") <= -5,
    F("l").isin(list(range(300))),
    F("f") < 1.0,
    F("f") > 0.1,
    F("f") == 0.0,
    F("f").isin([0.0, NAN]),
    F("f") == float("inf"),
    F("f") <= float("-inf"),
    F("f") > 1e300,
    F("f") > 1.23,
    F("f") == pa.scalar(1.23, pa.float32()),
    pc.is_nan(F("f")),
    F("x") >= 0.5,
    F("x") == NAN,
    F("x") <= 1,
    F("x").is_null(nan_is_null=True),
    F("x").is_null() | pc.is_nan(F("x")),
    F("s") == "ab",
    F("s") > "ab",
    F("s") < "é",
    pc.starts_with(F("s"), "ab"),
    pc.starts_with(F("s"), "A", ignore_case=True),
    pc.match_like(F("s"), "a%"),
    pc.utf8_length(F("s")) == 1,
    F("s").isin(["a", "é"]),
    F("b"),
    F("b") == False,  # noqa: E712
    F("d") == date(2024, 1, 1),
    F("d") > date(1969, 12, 31),
    pc.year(F("d")) == 2024,
    F("t") >= WHEN,
    F("t") < pa.scalar(1, pa.timestamp("us")),
    F("t") == pa.scalar(WHEN, pa.timestamp("ms")),
    F("z") > WHEN.replace(tzinfo=UTC),
    F("n") == pa.scalar(Decimal("1.10"), pa.decimal128(9, 2)),
    F("n") > Decimal("0.5"),
    F("y") >= b"ab",
    F("c") < clock(0, 0, 1),
    F("w") > pa.scalar(b"aa", pa.binary(2)),
    F("u") == pa.scalar(uuid.UUID(int=1).bytes, pa.binary(16)),
    F("st", "k") > 1,
    F("st", "k").is_null(),
    F("st").is_null(),
    pc.coalesce(F("i"), pc.scalar(pa.scalar(1, pa.int32()))) == 1,
    pc.xor(F("b"), F("i") == 1),
    pc.scalar(True),
    pc.scalar(False),
]
# The same for what pyiceberg's expressions, SQL text and tuples can say.
PREDICATES = [
    ice.EqualTo("i", 1),
    ice.NotEqualTo("i", 1),
    ice.LessThan("i", 2.5),
    ice.GreaterThan("i", 3_000_000_000),
    ice.In("i", [1, 7]),
    ice.NotIn("i", [1, 7]),
    ice.IsNull("i"),
    ice.NotNull("i"),
    ice.LessThanOrEqual("l", -5),
    ice.In("l", list(range(300))),
    ice.LessThan("f", 1.0),
    ice.GreaterThan("f", 0.1),
    ice.EqualTo("f", 0.0),
    ice.In("f", [0.0, 1.5]),
    ice.EqualTo("f", float("inf")),
    ice.LessThanOrEqual("f", float("-inf")),
    ice.GreaterThan("f", 1e300),
    ice.EqualTo("f", 1.23),
    ice.IsNaN("f"),
    ice.NotNaN("x"),
    ice.GreaterThanOrEqual("x", 0.5),
    ice.LessThanOrEqual("x", 1),
    ice.NotEqualTo("x", 1.0),
    ice.EqualTo("s", "ab"),
    ice.GreaterThan("s", "ab"),
    ice.LessThan("s", "é"),
    ice.StartsWith("s", "ab"),
    ice.NotStartsWith("s", "a"),
    ice.In("s", ["a", "é"]),
    ice.EqualTo("b", False),
    ice.EqualTo("d", "2024-01-01"),
    ice.GreaterThan("d", date(1969, 12, 31)),
    ice.GreaterThanOrEqual("t", WHEN),
    ice.LessThan("t", "1970-01-01T00:00:00.000001"),
    ice.GreaterThan("z", WHEN.replace(tzinfo=UTC)),
    ice.EqualTo("n", Decimal("1.10")),
    ice.GreaterThan("n", 0.5),
    ice.GreaterThanOrEqual("y", b"ab"),
    ice.LessThan("c", clock(0, 0, 1)),
    ice.GreaterThan("w", b"aa"),
    ice.EqualTo("w", b"aaa"),
    ice.EqualTo("u", uuid.UUID(int=1)),
    ice.GreaterThan("st.k", 1),
    ice.IsNull("st.k"),
    ice.NotNull("st.k"),
]
TUPLES = [
    [("i", "==", 1), ("s", ">", "a")],
    [("f", "in", [0.0, NAN])],
    [("i", "in", [])],
    [("i", "not in", [])],
    [("i", "not in", [1, None])],
    [[("n", ">", "0.50"), ("b", "=", True)], [("x", "is null")]],
    [[("l", "in", list(range(300)))], [("t", "=", WHEN)]],
]
SPECS = {
    "none": [],
    "numbers": [(2, BucketTransform(3)), (1, IdentityTransform()), (2, TruncateTransform(4))],
    "floats": [(3, IdentityTransform()), (4, IdentityTransform())],
    "text": [(5, TruncateTransform(2)), (6, IdentityTransform()), (11, TruncateTransform(1))],
    "times": [(7, YearTransform()), (8, DayTransform()), (9, HourTransform()), (12, BucketTransform(2))],
    "others": [(10, IdentityTransform()), (7, MonthTransform()), (14, IdentityTransform()), (13, IdentityTransform())],
    "void": [(10, TruncateTransform(100)), (1, VoidTransform()), (16, IdentityTransform()), (14, BucketTransform(2))],
}
ROWS = 120


def random_rows(seed):
    draw = random.Random(seed)
    return [{name: draw.choice(values) for name, values in VALUES.items()} for _ in range(ROWS)]


def arrow_rows(rows):
    """The rows as Arrow has them."""

    def column(field):
        cells = [row["k"] if field.name == "st" else row[field.name] for row in rows]
        if field.name == "st":
            inner = pa.array(cells, pa.int64())
            return pa.StructArray.from_arrays(
                [inner], fields=list(field.type), mask=pa.array([k is None for k in cells])
            )
        return pa.array([cell.bytes if isinstance(cell, uuid.UUID) else cell for cell in cells], field.type)

    return pa.table([column(field) for field in ARROW], schema=ARROW)


def files_of(rows, spec, draw):
    """File name -> (partition, places of its rows): one partition each, and some partitions have two files."""
    found = defaultdict(list)
    for place, row in enumerate(rows):
        values = []
        for field in spec.fields:
            source = SCHEMA.find_field(field.source_id)
            cell = row[source.name]
            values.append(None if cell is None else field.transform.transform(source.field_type)(cell))
        found[(draw.randrange(3 if values else 40), *map(repr, values))].append((place, values))
    return {f"f{i}": (group[0][1], [place for place, _ in group]) for i, group in enumerate(found.values())}


@pytest.fixture
def planned_table(catalog, request):
    """A table of random rows in many files; the rows of each file; and the rows."""
    fields = [
        PartitionField(source, 1000 + i, transform, f"p{i}")
        for i, (source, transform) in enumerate(SPECS[request.param])
    ]
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=PartitionSpec(*fields))
    draw = random.Random(request.param)
    rows = random_rows(request.param)
    spec = table.spec()
    found = files_of(rows, spec, draw)
    columns = [name for name in VALUES if name not in ("k", "u")]
    files = [
        data_file(
            table,
            name,
            {c: [rows[i][c] for i in places] for c in columns} | {"st.k": [rows[i]["k"] for i in places]},
            values,
        )
        for name, (values, places) in found.items()
    ]
    append_files(table, files)
    return table, {name: set(places) for name, (_, places) in found.items()}, arrow_rows(rows)


def kept_and_needed(table, places, rows, filters):
    plan = plan_table(table, IcebergRead(filters=filters))
    matching = rows.append_column("place", pa.array(range(len(rows)))).filter(plan.row_filter)["place"].to_pylist()
    return set(names_of(plan)), {name for name, inside in places.items() if inside & set(matching)}


# Every second filter, the other ones for the next table; at night all of them.
in_halves = pytest.mark.parametrize(
    ("planned_table", "half"),
    [
        pytest.param(name, half, marks=[pytest.mark.nightly] if (place + half) % 2 else [])
        for place, name in enumerate(SPECS)
        for half in (0, 1)
    ],
    indirect=["planned_table"],
)


@in_halves
def test_pruning_loses_no_row_that_pyarrow_keeps(planned_table, half):
    table, places, rows = planned_table
    draw = random.Random(5)
    joined = [
        draw.choice([a & b, a | b, ~(a & b), ~(a | b), a & ~b]) for a, b in (draw.sample(LEAVES, 2) for _ in range(40))
    ]
    pruned = 0
    for expression in [*LEAVES, *(~leaf for leaf in LEAVES), *joined][half::2]:
        kept, needed = kept_and_needed(table, places, rows, expression)
        assert needed <= kept, f"{expression} loses {needed - kept}"
        pruned += len(places) - len(kept)
    assert 2 * pruned > 15 * len(places)  # of about 75 filters: it is no empty promise


@in_halves
def test_pruning_by_predicates_loses_no_row(planned_table, half):
    table, places, rows = planned_table
    draw = random.Random(6)
    joined = [
        draw.choice([ice.And(a, b), ice.Or(a, b), ice.Not(ice.And(a, b)), ice.Not(ice.Or(a, b)), ice.And(a, ~b)])
        for a, b in (draw.sample(PREDICATES, 2) for _ in range(40))
    ]
    pruned = 0
    for filters in [*PREDICATES, *(ice.Not(leaf) for leaf in PREDICATES), *joined, *TUPLES][half::2]:
        kept, needed = kept_and_needed(table, places, rows, filters)
        assert needed <= kept, f"{filters} loses {needed - kept}"
        pruned += len(places) - len(kept)
    assert pruned > 10 * len(places)


@pytest.mark.parametrize("planned_table", ["numbers", "text", "times"], indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "i = 1",
        "i <> 1",
        "i in (1, 7) or s = 'ab'",
        "not (i = 2 and b = true)",
        "s like 'a%'",
        "t >= '2024-01-01T00:00:00'",
        "x is nan",
    ],
)
def test_files_are_those_of_pyiceberg(planned_table, text):
    table, _, _ = planned_table
    ours = names_of(plan_table(table, IcebergRead(filters=text)))
    theirs = [task.file.file_path.rpartition("/")[2].partition(".")[0] for task in table.scan(text).plan_files()]
    assert sorted(ours) == sorted(theirs)


EXACT = [  # bounds of files of one row say exactly whether it matches
    F("i") == 1, F("i") < 2, F("i").isin([1, 7]), F("l") <= -5, F("x") >= 0.5, F("s") == "ab", F("s") > "ab", F("b"),
    F("d") == date(2024, 1, 1), F("t") >= WHEN, F("z") > WHEN.replace(tzinfo=UTC), F("y") >= b"ab", F("i").is_null(),
    F("c") < clock(0, 0, 1), F("n") == pa.scalar(Decimal("1.10"), pa.decimal128(9, 2)), F("st", "k") > 1,
    ~(F("i") < 2), ~(F("s") > "ab"), F("w") > pa.scalar(b"aa", pa.binary(2)), (F("i") == 1) | (F("s") == "b"),
    F("i").is_valid(), ~(F("x") < 0.5), (F("l") > F("i")), pc.year(F("d")) == 2024, pc.starts_with(F("s"), "ab"),
    "i = 1", "i < 2", "i in (1, 7)", "l <= -5", [("l", "in", list(range(300)))], "f = 0.0", "x >= 0.5", "s = 'ab'",
    "s > 'ab'", "s like 'ab%'", "b = true", "d = '2024-01-01'", "t >= '2024-01-01T00:00:00'", [("y", ">=", b"ab")],
    "z > '2024-01-01T00:00:00+00:00'", "c < '00:00:01'", "i is null", "n = 1.1", "st.k > 1", "not i < 2",
    "not s > 'ab'", [("w", ">", b"aa")], "i = 1 or s = 'b'", "x is nan", "i is not null", "not x < 0.5",
]  # fmt: skip


def test_what_can_be_pruned_is(catalog):
    table = catalog.create_table("ns.t", SCHEMA)
    rows = [row for row in random_rows(1) if row["s"] != "" and row["y"] != b""]  # pyiceberg 0.11 knows no empty bounds
    columns = [name for name in VALUES if name not in ("k", "u")]
    append_files(
        table,
        [
            data_file(table, f"f{i:03}", {c: [row[c]] for c in columns} | {"st.k": [row["k"]]})
            for i, row in enumerate(rows)
        ],
    )
    places = {f"f{i:03}": {i} for i in range(len(rows))}
    for expression in EXACT:
        kept, needed = kept_and_needed(table, places, arrow_rows(rows), expression)
        assert kept == needed, f"{expression}"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("d") >= date(2024, 1, 1), ["b0", "b1", "new"]),
        (pc.year(F("d")) >= 2024, ["b0", "b1", "new"]),
        (F("x") > 0.5, ["b1", "new", "old"]),
    ],
)
def test_a_pyarrow_expression_prunes_by_bounds_and_by_partitions_of_columns(catalog, expression, expected):
    spec = PartitionSpec(PartitionField(7, 1000, IdentityTransform(), "d"))
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=spec)
    days = {"old": DAY - 1, "new": DAY}
    without_bounds = [data_file(table, name, {"s": [None]}, (day,)) for name, day in days.items()]
    with_bounds = [data_file(table, f"b{x}", {"x": [x, x / 2]}, (DAY + x,)) for x in (0, 1)]
    append_files(table, [*without_bounds, *with_bounds, data_file(table, "null", {"x": [None]}, (None,))])
    assert sorted(names_of(plan_table(table, IcebergRead(filters=expression)))) == expected


@pytest.mark.parametrize(("least", "most"), [(NAN, 1.0), (-1.0, NAN), (NAN, NAN)])
def test_bounds_that_are_nan_prune_nothing(catalog, least, most):
    table = catalog.create_table("ns.t", SCHEMA)
    file = data_file(table, "f", {"x": [0.0, 1.0]})
    file.lower_bounds[4], file.upper_bounds[4] = (to_bytes(SCHEMA.find_type(4), end) for end in (least, most))
    append_files(table, [file])
    for filters in (F("x") == 0.5, ~(F("x") > 0.5), F("x").isin([0.5])):
        assert names_of(plan_table(table, IcebergRead(filters=filters))) == ["f"]


@pytest.mark.parametrize("name", ["x", "i"])
def test_what_is_compared_with_nan_prunes_nothing(catalog, name):
    table = catalog.create_table("ns.t", SCHEMA)
    append_files(table, [data_file(table, "f", {name: [0, 1]})])
    for filters in (~(F(name).cast(pa.float64()) < NAN), ~(F(name).cast(pa.float64()) >= NAN)):
        assert names_of(plan_table(table, IcebergRead(filters=filters))) == ["f"]


def test_nulls_of_structs_are_found_among_nans_that_are_counted_without_them(catalog):
    schema = Schema(NestedField(1, "st", StructType(NestedField(2, "x", DoubleType(), required=False)), required=False))
    table = catalog.create_table("ns.t", schema)
    append_files(table, [data_file(table, "f", {"st.x": [NAN]})])
    assert names_of(plan_table(table, IcebergRead(filters=F("st", "x").is_null()))) == ["f"]


def test_bounds_of_a_narrower_type_than_the_columns_prune_nothing(catalog):
    table = catalog.create_table("ns.t", SCHEMA)
    file = data_file(table, "f", {"l": [1, 2]})
    file.lower_bounds[2], file.upper_bounds[2] = (to_bytes(IntegerType(), end) for end in (1, 2))
    append_files(table, [file])
    for filters in (F("l") == 2, [("l", "=", 2)]):
        assert names_of(plan_table(table, IcebergRead(filters=filters))) == ["f"]


# --------------------------------------------------------------------------------------------------- odd transforms


def test_an_unknown_transform_prunes_nothing(catalog, tmp_path):
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "of_the_future"), PartitionField(2, 1001, IdentityTransform(), "l")
    )
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=spec)
    append_files(table, [data_file(table, f"f{i}", {"s": [None]}, (i, i)) for i in range(3)])
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    metadata["partition-specs"][0]["fields"][0]["transform"] = "interleave[7]"
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    plan = plan_table(path, IcebergRead(filters=(F("i") == 1) & (F("l") > 0)))
    assert names_of(plan) == ["f1", "f2"]
    assert [one["partition"] for one in plan.partitions] == [{"of_the_future": i, "l": i} for i in (1, 2)]


UNITS = {"hour": 3600, "day": 86_400}


def of_old(name, micros):
    """The value of a time's partition by writers of old, which rounded towards 1970."""
    if name in UNITS:
        return int(micros / (UNITS[name] * 10**6))
    moment = datetime(1970, 1, 1) + timedelta(microseconds=micros)
    months = (moment.year - 1970) * 12 + moment.month - 1
    begun = (moment - datetime(moment.year, moment.month, 1)) > timedelta(0)
    months += micros < 0 and begun
    return months if name == "month" else int(months / 12)


TIMES = {"year": YearTransform(), "month": MonthTransform(), "day": DayTransform(), "hour": HourTransform()}


@pytest.mark.parametrize("name", TIMES)
@given(
    micros=st.integers(-3 * 366 * 86_400 * 10**6, 10**13),
    away=st.sampled_from([0, 1, -1, 3600 * 10**6, -86_400 * 10**6]),
    comparison=st.sampled_from(["==", "<", "<=", ">", ">=", "in"]),
)
def test_rows_before_1970_are_found_in_the_partitions_of_old_writers(name, micros, away, comparison):
    schema = Schema(NestedField(1, "t", TimestampType()))
    arrow = table_schema(schema, {}, None, ())
    row = pa.array([micros], pa.timestamp("us"))
    literal = pa.array([micros + away], pa.timestamp("us"))[0]
    value = list(pa.array([0, micros + away], pa.timestamp("us"))) if comparison == "in" else literal
    found = table_filter([("t", comparison, value)], arrow, schema)
    pruning = Pruning(
        [found],
        schema,
        {0: PartitionSpec(PartitionField(1, 1000, TIMES[name], "p"))},
    )
    if pa.table([row], names=["t"]).filter(found.rows).num_rows:
        for value in {of_old(name, micros), TIMES[name].transform(TimestampType())(micros)}:
            file = DataFile.from_args(partition=Record(value), record_count=1)
            summary = PartitionFieldSummary(False, False, *[to_bytes(IntegerType(), value)] * 2)
            listed = ManifestFile.from_args(partition_spec_id=0, partitions=[summary])
            assert pruning.file(file, 0)
            assert pruning.manifest(listed)


def test_partitions_from_1970_on_are_pruned_as_ever(catalog):
    spec = PartitionSpec(PartitionField(8, 1000, DayTransform(), "day"))
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=spec)
    append_files(table, [data_file(table, f"f{day}", {"s": [None]}, (day,)) for day in range(-3, 3)])

    def kept(word, moment):
        return names_of(plan_table(table, IcebergRead(filters=[("t", word, moment)])))

    noon = datetime(1970, 1, 1, 12)
    assert kept("=", noon) == ["f0"]
    assert kept("<=", noon) == ["f-1", "f-2", "f-3", "f0"]
    assert kept(">", noon) == ["f0", "f1", "f2"]
    assert kept("=", noon - timedelta(days=1)) == ["f-1", "f0"]
    assert kept("<=", noon - timedelta(days=2)) == ["f-1", "f-2", "f-3"]
