"""Files that cannot hold a matching row are not opened; no matching row is lost."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.delta.by_hand import live
from tests.delta.reading import opened, rows
from torch_dataloader_utils import IcebergDataFileInfo

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS: dict[str, Any] = {
    "n": pa.array(range(-10, 10), pa.int32()),
    "f": [float(number) for number in range(-10, 10)],
    "s": [f"{number:02}" for number in range(20)],
    "d": [date(2024, 1, 1) + timedelta(days=number) for number in range(20)],
    "t": pa.array([START + timedelta(microseconds=999 * number) for number in range(20)], pa.timestamp("us", "UTC")),
    "c": pa.array([Decimal(number) / 4 for number in range(20)], pa.decimal128(10, 2)),
    "b": [number >= 10 for number in range(20)],
    "e": pa.array([None] * 10 + [5] * 10, pa.int64()),
    "st": [{"a": number} for number in range(20)],
    "p": pa.array([number // 5 if number < 15 else None for number in range(20)], pa.int16()),
}


@pytest.fixture(scope="module", params=["none", "name"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 rows: a file for each five, by p, which is null in the last."""
    folder = tmp_path_factory.mktemp("table")
    settings = {"delta.columnMapping.mode": request.param}
    write_deltalake(folder, pa.table(COLUMNS), partition_by=["p"], configuration=settings)
    assert len(live(folder)) == 4
    return folder


@pytest.mark.parametrize(
    ("filters", "files"),
    [
        ([("p", "==", 1)], 1),
        ([("p", "is null")], 1),
        ([("p", "in", [0, 2])], 2),
        (pc.field("p") > 0, 2),
        ([("n", ">", 6)], 1),
        ([("s", "==", "07")], 1),
        ([("d", "<", date(2024, 1, 4))], 1),
        ([("c", ">=", Decimal("4.5"))], 1),
        ([("e", "is not null")], 2),
        ([("e", "==", 5), ("p", "==", 0)], 0),
        ([[("n", "<", -8)], [("n", ">", 8)]], 2),
        ([("f", ">", 100.0)], 4),  # bounds of floats are not used
        ([("st.a", ">", 100)], 4),
    ],
    ids=str,
)
def test_the_log_rules_files_out(table: Path, filters: Any, files: int) -> None:
    _, dataset = opened(table, filters=filters)
    assert sum(item["files"] for item in dataset.partitions) == files
    every = rows(table)
    kept = pa.Table.from_pylist(every, pa.table(COLUMNS).schema)
    if isinstance(filters, pc.Expression):
        assert rows(table, filters=filters) == kept.filter(filters).to_pylist()


@settings(max_examples=20)
@given(
    st.sampled_from(["n", "f", "s", "d", "t", "c", "b", "e", "p"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.integers(0, 19),
    st.booleans(),
)
def test_no_matching_row_is_lost(table: Path, name: str, word: str, place: int, negated: bool) -> None:
    every = pa.table(COLUMNS)
    value = every[name][place]
    if not value.is_valid:
        value = pa.scalar(1, value.type)
    compare = {"==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater}
    expression = compare.get(word, pc.greater_equal)(pc.field(name), value)
    expression = ~expression if negated else expression
    expected = sorted(row["s"] for row in every.filter(expression).to_pylist())
    assert sorted(row["s"] for row in rows(table, filters=expression)) == expected
    if not negated:
        found = rows(table, filters=[(name, word, value.as_py())])
        assert sorted(row["s"] for row in found) == expected


def test_bounds_that_writers_cut_or_round_lose_no_row(tmp_path: Path) -> None:
    values = {
        "s": ["z" * 300, "z" * 299 + "\U0010ffff", "é" * 200],
        "c": [Decimal("12345678901234567.1234567891"), Decimal("-0.0000000001"), Decimal(7)],
        "t": [datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC), datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=UTC), START],
    }
    table = pa.table({**values, "c": pa.array(values["c"], pa.decimal128(38, 10))})
    for place in range(3):
        write_deltalake(tmp_path, table.slice(place, 1), mode="append")
    for name in values:
        for value in values[name]:
            for word in ("==", ">=", "<="):
                assert value in [row[name] for row in rows(tmp_path, filters=[(name, word, value)])]


def test_small_files_are_not_opened_before_they_are_read(table: Path) -> None:
    loader, dataset = opened(table, batch_size=3)
    assert len(loader) == 7
    infos = [file.info for file in dataset._source.files]
    assert [info.record_count for info in infos] == [5] * 4
    assert all(isinstance(info, IcebergDataFileInfo) for info in infos)
    assert sorted(str(info.partition["p"]) for info in infos) == ["0", "1", "2", "None"]  # type: ignore[attr-defined]
    for path in table.glob("**/*.parquet"):
        path.rename(path.with_suffix(".hidden"))
    try:
        assert len(opened(table, batch_size=3)[0]) == 7
    finally:
        for path in table.glob("**/*.hidden"):
            path.rename(path.with_suffix(".parquet"))
