"""The data that the first hour's scripts read, as their user would have it."""

from __future__ import annotations

import io
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pyiceberg.catalog import load_catalog

ROWS = 4_000  # in `data/`, in four files
DAYS = 40
WORDS = ("a red house", "a house", "red", "unseen words of a text")
CATALOG = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}


def write_folder() -> None:
    """Write all of it into the current directory."""
    _data()
    _files()
    _odd_folders()
    _table()


def rows_of(start: int, stop: int) -> pa.Table:
    """Rows `[start, stop)` of the data: 100 a day, the label alternates, `f1` is a half or less in every second one."""
    ids = range(start, stop)
    columns = {
        "id": ids,
        "f0": [row / ROWS for row in ids],
        "f1": [(row % 4) / 4 for row in ids],
        "label": [row % 2 for row in ids],
        "l_discount": pa.array([Decimal(row % 11) / 100 for row in ids], pa.decimal128(15, 2)),
        "day": [date(2024, 1, 1) + timedelta(row * DAYS // ROWS) for row in ids],
        "text": [WORDS[row % 4] for row in ids],
    }
    return pa.table(columns)


def _write(table: dict[str, object] | pa.Table, path: str, **options: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)


def _data() -> None:
    for part in range(4):
        _write(rows_of(part * 1000, part * 1000 + 1000), f"data/part-{part}.parquet")
    for month in (1, 2, 3):
        _write({"delay": range(50)}, f"flights/month={month}/part.parquet")


def _files() -> None:
    _write({"id": range(2000), "label": [row // 1000 for row in range(2000)]}, "sorted.parquet")
    _write({"id": range(2000), "label": [int(row % 100 == 0) for row in range(2000)]}, "rare.parquet")
    _write({"id": range(400)}, "one-row-group.parquet")
    _write({"items": pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int64()))}, "lists.parquet")
    _write({"age": [20, None, 40]}, "nulls.parquet")
    _write({"at": pa.array([datetime(2024, 1, 31, hour) for hour in (0, 13, 23)], pa.timestamp("us"))}, "times.parquet")
    _write({"image": [_png(number) for number in range(10)], "label": range(10)}, "images.parquet")


def _png(number: int) -> bytes:
    """An image of 8 by 8 pixels of one colour, which the number says."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 10 * number, 255)).save(out, "png")
    return out.getvalue()


def _odd_folders() -> None:
    _write({"id": range(10)}, "with-readme/part-0.parquet")
    Path("with-readme/README.md").write_text("# About these data\n")
    Path("with-readme/part-0.parquet.crc").write_bytes(b"crc\0")
    _write({"x": [1, 2]}, "int-and-float/a.parquet")
    _write({"x": [0.5, 1.5]}, "int-and-float/b.parquet")
    _write({"id": [1, 2], "x": [0.5, 1.5]}, "missing-column/a.parquet")
    _write({"id": [3, 4]}, "missing-column/b.parquet")


def _table() -> None:
    catalog = load_catalog("default", **CATALOG)
    catalog.create_namespace("demo")
    table = catalog.create_table("demo.points", schema=pa.schema({"id": pa.int64()}))
    for start in (0, 100):
        table.append(pa.table({"id": range(start, start + 100)}))
    catalog.close()
