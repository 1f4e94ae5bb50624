"""Times that Spark stores as INT96: a table's are in microseconds, so that all of its years can be read."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.delta.by_hand import live, rewrite
from tests.delta.reading import rows

NANOS = 1_700_000_000_123_456_789


def test_a_tables_int96_times_are_read_in_all_years_and_rounded_down_to_microseconds(tmp_path: Path) -> None:
    far = [datetime.datetime(year, 1, 1, 0, 0, 0, 5) for year in (1, 2024, 9999)]
    write_deltalake(tmp_path, pa.table({"id": range(4), "at": pa.array([*far, None], pa.timestamp("us", "UTC"))}))
    (path,) = live(tmp_path)
    with pq.ParquetWriter(
        tmp_path / path, pa.schema({"id": pa.int64(), "at": pa.timestamp("us")}), use_deprecated_int96_timestamps=True
    ) as writer:
        writer.write_table(pa.table({"id": range(4), "at": pa.array([*far, None], pa.timestamp("us"))}))
    _without_statistics(tmp_path, path)
    expected = [*(time.replace(tzinfo=datetime.UTC) for time in far), None]
    assert [row["at"] for row in rows(tmp_path)] == expected
    table = pa.table({"id": range(4), "at": pa.array([NANOS, -1, 0, None], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / path, use_deprecated_int96_timestamps=True)
    _without_statistics(tmp_path, path)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    micros = [NANOS // 1000, -1, 0]
    assert [row["at"] for row in rows(tmp_path)] == [
        *(epoch + datetime.timedelta(microseconds=m) for m in micros),
        None,
    ]


def _without_statistics(folder: Path, path: str) -> None:
    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            line["add"].update(stats=None, size=(folder / path).stat().st_size)

    rewrite(folder, change)
