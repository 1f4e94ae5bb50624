"""Tables with random histories: the rows are those of pyiceberg's own scan, wherever that is right."""

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    Or,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, IcebergType, IntegerType, LongType, NestedField, StringType

from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import IcebergDataset

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")

VALUES: dict[type[IcebergType], tuple[Any, ...]] = {
    IntegerType: (-1, 0, 1, 2, 7),
    LongType: (-1, 0, 1, 2, 7),
    FloatType: (-1.5, 0.0, 0.25, 8.0, float("nan")),
    DoubleType: (-1.5, 0.0, 0.25, 8.0, float("nan")),
    StringType: ("", "a", "b", "it's"),
}
COMPARED: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # an example takes half a second: shrinking would take minutes
NAMES = ("a", "b", "c", "d")  # few: names that were dropped come again, for other columns
WIDER = {IntegerType: LongType(), FloatType: DoubleType()}


@dataclass(frozen=True)
class Leaf:
    """A comparison, or "is null" where `value` is None; `negated` leaves nulls out too."""

    kind: type[Any]
    column: str
    value: Any
    negated: bool

    @property
    def expression(self) -> BooleanExpression:
        if self.value is None:
            found: BooleanExpression = IsNull(self.column)
        else:
            found = self.kind(self.column, self.value)
        return Not(found) if self.negated else found

    def matches(self, row: dict[str, Any]) -> bool:
        value = row[self.column]
        if self.value is None:
            return (value is None) != self.negated
        return value is not None and COMPARED[self.kind](value, self.value) != self.negated


# --------------------------------------------------------------------------------------------------------- histories


class History:
    """A table of the catalog to which things are done."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        fields = [("id", LongType()), ("a", IntegerType()), ("b", FloatType()), ("c", StringType())]
        schema = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(fields, 1)))
        self.table: Table = catalog.create_table(name, schema)
        self._ids = itertools.count()

    @property
    def columns(self) -> list[NestedField]:
        """Those that change: all but "id"."""
        return [field for field in self.table.schema().fields if field.name != "id"]

    def append(self, data: st.DataObject) -> None:
        rows = data.draw(st.integers(1, 12), "rows")
        columns: dict[str, list[Any]] = {"id": [next(self._ids) for _ in range(rows)]}
        for field in self.columns:
            cells = st.none() | st.sampled_from(VALUES[type(field.field_type)])
            columns[field.name] = data.draw(st.lists(cells, min_size=rows, max_size=rows), field.name)
        self.table.append(pa.table(columns, schema=self.table.schema().as_arrow()))

    def delete(self, data: st.DataObject) -> None:
        self.table.delete(self.leaf(data).expression)

    def rename(self, data: st.DataObject) -> None:
        free = self._free()
        if self.columns and free:
            old = data.draw(st.sampled_from(self.columns), "renamed").name
            with self.table.update_schema() as change:
                change.rename_column(old, data.draw(st.sampled_from(free), "to"))

    def add(self, data: st.DataObject) -> None:
        free = self._free()
        if free:
            kind = data.draw(st.sampled_from(list(VALUES)), "type")()
            with self.table.update_schema() as change:
                change.add_column(data.draw(st.sampled_from(free), "added"), kind)

    def drop(self, data: st.DataObject) -> None:
        if self.columns:
            with self.table.update_schema() as change:
                change.delete_column(data.draw(st.sampled_from(self.columns), "dropped").name)

    def promote(self, data: st.DataObject) -> None:
        narrow = [field for field in self.columns if type(field.field_type) in WIDER]
        if narrow:
            field = data.draw(st.sampled_from(narrow), "promoted")
            with self.table.update_schema() as change:
                change.update_column(field.name, WIDER[type(field.field_type)])

    def move(self, data: st.DataObject) -> None:
        with self.table.update_schema() as change:
            change.move_first(data.draw(st.sampled_from(self.table.schema().column_names), "first"))

    def leaf(self, data: st.DataObject) -> Leaf:
        """A comparison that fits a column."""
        column = data.draw(st.sampled_from(self.table.schema().fields), "column")
        real = [value for value in VALUES[type(column.field_type)] if value == value]
        value = data.draw(st.none() | st.sampled_from(real), "value")
        return Leaf(data.draw(st.sampled_from(list(COMPARED)), "kind"), column.name, value, data.draw(st.booleans()))

    def _free(self) -> list[str]:
        return [name for name in NAMES if name not in self.table.schema().column_names]


STEPS = (
    History.append,
    History.append,
    History.delete,
    History.rename,
    History.add,
    History.drop,
    History.promote,
    History.move,
)


@pytest.fixture(scope="module")
def new_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], History]]:
    """Makes histories, each of a table of its own."""
    made = SqlCatalog("test", **sql_config(tmp_path_factory.mktemp("histories")))
    made.create_namespace("ns")
    numbers = itertools.count()
    yield lambda: History(made, f"ns.t{next(numbers)}")
    made.close()


# -------------------------------------------------------------------------------------------------------------- rows


def read_all(table: Table, ranks: int = 1, **options: Any) -> pa.Table:
    """The rows of all ranks."""
    parts = []
    for rank in range(ranks):
        loader, dataset = IcebergDataset.create_dataloader(
            table, output_format="arrow", num_ranks=ranks, rank=rank, num_workers=0, batch_size=5, **options
        )
        parts.append(pa.Table.from_batches(list(loader), dataset.schema))
    return pa.concat_tables(parts)


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as texts, sorted; a text, as NaN equals nothing."""
    return sorted(map(repr, rows))


def history(data: st.DataObject, made: History, steps: int) -> Table:
    """The table after an append and these steps."""
    made.append(data)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=steps), "steps"):
        step(made, data)
    return made.table


@given(data=st.data())
@settings(max_examples=15, phases=PHASES)
def test_rows_of_every_snapshot_are_those_of_pyiceberg(new_history: Callable[[], History], data: st.DataObject) -> None:
    table = history(data, new_history(), 8)
    options = {"ranks": data.draw(st.integers(1, 3)), "split_bytes": data.draw(st.sampled_from([8, 2**20]))}
    assert as_text(read_all(table, **options).to_pylist()) == as_text(table.scan().to_arrow().to_pylist())
    for snapshot in table.snapshots():
        number = snapshot.snapshot_id
        expected = table.scan(snapshot_id=number).to_arrow().to_pylist()
        assert as_text(read_all(table, snapshot_id=number, **options).to_pylist()) == as_text(expected)


@given(data=st.data())
@settings(max_examples=20, phases=PHASES)
def test_filtered_rows_are_those_of_pyiceberg(new_history: Callable[[], History], data: st.DataObject) -> None:
    made = new_history()
    table = history(data, made, 6)
    whole = table.scan().to_arrow().to_pylist()
    left, right = made.leaf(data), made.leaf(data)
    join, both = data.draw(st.sampled_from([(And, all), (Or, any)]), "join")
    expression = join(left.expression, right.expression)
    expected = as_text([row for row in whole if both(leaf.matches(row) for leaf in (left, right))])
    options = {"ranks": data.draw(st.integers(1, 2)), "split_bytes": data.draw(st.sampled_from([8, 2**20]))}
    assert as_text(read_all(table, filters=expression, **options).to_pylist()) == expected
    # pyiceberg keeps nulls for "!=" where a file lacks the column, and for "not <" loses NaNs of files that it prunes.
    if not left.negated and not right.negated:
        assert as_text(table.scan(row_filter=expression).to_arrow().to_pylist()) == expected


def test_filters_of_many_values(new_history: Callable[[], History]) -> None:
    made = new_history()
    schema = made.table.schema().as_arrow()
    ids = range(300)
    columns = {"id": ids, "a": [i % 7 if i % 5 else None for i in ids], "b": [i / 4 for i in ids], "c": ["x"] * 300}
    made.table.append(pa.table(columns, schema=schema))
    for filters, matches in [
        (In("a", (1, 3)), lambda i, a: a in (1, 3)),
        (Not(In("a", (1, 3))), lambda i, a: a is not None and a not in (1, 3)),
        (NotEqualTo("a", 1), lambda i, a: a is not None and a != 1),
        ("a is null and id >= 200", lambda i, a: a is None and i >= 200),
        ("not (a > 2 or id < 100)", lambda i, a: a is not None and a <= 2 and i >= 100),
        ("b between 10 and 12.5", lambda i, a: 10 <= i / 4 <= 12.5),
        ("a in (1) and not a is null", lambda i, a: a == 1),
    ]:
        found = sorted(read_all(made.table, filters=filters, columns=["id"])["id"].to_pylist())
        assert found == [i for i in ids if matches(i, columns["a"][i])], filters
        if isinstance(filters, str):  # pyiceberg keeps nulls for "not in"
            assert found == sorted(made.table.scan(row_filter=filters).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("not (b < 0.25)", [0, 10, 11]),
        ("not (b >= 0.25)", [0, 1, 11]),
        ("not (b <= 1 or id < 0)", [0, 10, 11]),
        ("not (not (b < 0.25))", [1]),
        ("b != 1", [0, 1, 10, 11]),
    ],
)
def test_not_keeps_nan(new_history: Callable[[], History], filters: str, expected: list[int]) -> None:
    """NaN is neither less than a number nor at least it; also in a file whose bounds, which leave it out, match not."""
    made = new_history()
    schema = made.table.schema().select("id", "b").as_arrow()
    for first, cells in enumerate([[float("nan"), -1.5], [8.0, float("nan")], [None, None]]):
        made.table.append(pa.table({"id": [10 * first, 10 * first + 1], "b": cells}, schema=schema))
    for split_bytes in (8, 2**20):
        found = read_all(made.table, filters=filters, split_bytes=split_bytes)
        assert sorted(found["id"].to_pylist()) == expected
