"""Programs of documentation pages that need a framework: blocks that begin with ```py, run where it is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCS = Path(__file__).parents[2] / "docs"


def program(page: str, folder: Path) -> Path:
    """The blocks of a page as one program, in a folder with the data that pages read: 40,000 rows in `data/`."""
    (folder / "data").mkdir()
    for number in range(4):
        ids = range(number * 10_000, (number + 1) * 10_000)
        table = {"id": ids, "feature_a": [row % 7 / 7 for row in ids], "label": [float(row % 2) for row in ids]}
        schema = pa.schema({"id": pa.int64(), "feature_a": pa.float64(), "label": pa.float64()})
        pq.write_table(pa.table(table, schema), folder / "data" / f"part-{number}.parquet")
    path = folder / "program.py"
    path.write_text("\n".join(programs(page)))
    return path


def programs(page: str) -> list[str]:
    """The blocks of a page, each a program of its own; the first writes what the others read."""
    blocks: list[str] = re.findall(r"^```py\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, page
    return blocks
