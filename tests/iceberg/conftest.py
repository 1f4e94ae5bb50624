"""The tables that Apache Spark wrote, at a place of this run; and catalogs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.iceberg.relocate import latest_metadata, relocate

HERE = Path(__file__).parent / "tables"
TABLES = sorted(path.name for path in (HERE / "db").iterdir())


@dataclass(frozen=True)
class Question:
    """What Spark was asked of a table, and its answer.

    Attributes:
        table: name of the table.
        name: of the question.
        parameters: what else was asked: "snapshot", "ref", "start" and "end", "row_filter".
    """

    table: str
    name: str
    parameters: dict[str, Any]

    @property
    def rows(self) -> pa.Table:
        """Spark's rows."""
        return pq.read_table(HERE / "expected" / self.parameters["file"])


QUESTIONS = [
    Question(table, name, parameters)
    for table, questions in json.loads((HERE / "expected" / "manifest.json").read_text()).items()
    for name, parameters in questions.items()
]


@pytest.fixture(scope="session")
def spark_tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """From the name of one of Spark's tables to the path of its metadata file."""
    root = tmp_path_factory.mktemp("spark")
    placed: dict[str, str] = {}

    def place(name: str) -> str:
        if name not in placed:
            placed[name] = relocate(latest_metadata(HERE / "db" / name), HERE, root)
        return placed[name]

    return place


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog in a SQLite file, with the namespace "ns"."""
    made = SqlCatalog("test", **sql_config(tmp_path))
    made.create_namespace("ns")
    yield made
    made.close()


def sql_config(folder: Path) -> dict[str, str]:
    """The properties of a catalog in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
