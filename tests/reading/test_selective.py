"""What leaves out rows is decoded first, all else only of the rows that are left: the same batches, with less work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Sample, stream
from torch_dataloader_utils.formats.parquet import ParquetReader
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.reading import task_reader

ROWS, FILES, GROUP = 700, 2, 300  # rows of each file


def table_of(file: int) -> pa.Table:
    rng = np.random.default_rng(file)
    ids = np.arange(ROWS) + file * ROWS

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=rng.random(ROWS) < 0.2)

    return pa.table(
        {
            "id": ids,
            "even": some(rng.integers(0, 50, ROWS) * 2),
            "f": rng.standard_normal(ROWS).astype(np.float32),
            "flag": some(rng.random(ROWS) < 0.5),
            "text": pa.array([None if row % 9 == 0 else f"{row}" * (row % 5) for row in ids]),
            "word": pa.array([f"word {row % 4}" for row in ids]),
            "tags": pa.array([[int(row), 1][: row % 3] for row in ids]),
            "point": pa.array([{"x": int(row) % 90, "y": row / 2} for row in ids]),
            "label": pa.array(ids % 3),
        }
    )


@pytest.fixture(params=["any", "few"], autouse=True)
def decoded_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which live rows are decoded alone."""
    if request.param == "any":
        monkeypatch.setattr(task_reader, "_MOST", 1)
        monkeypatch.setattr(task_reader, "_APART", 0)
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("selective")
    for file in range(FILES):
        (path / f"day={file}").mkdir()
        pq.write_table(table_of(file), path / f"day={file}" / "f.parquet", row_group_size=GROUP, data_page_size=600)
    return path


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> MemoryFileSystem:
    """The same files in a store: there all columns are read in one call."""
    store = MemoryFileSystem()
    for path in folder.rglob("*.parquet"):
        store.pipe(f"/data/{path.relative_to(folder)}", path.read_bytes())
    return store


def delivered(source: str, **options: Any) -> list[Any]:
    loader = stream(source, num_ranks=options.pop("ranks", 1), rank=0, batch_size=64, **options)
    loader.set_epoch(1)
    batches = list(loader)
    if options["output_format"] == "arrow":
        return [(batch.schema, batch.to_pylist()) for batch in batches]
    return [{key: (values.dtype, values.tolist()) for key, values in batch.items()} for batch in batches]


FILTERS: dict[str, Any] = {
    "none": [("even", "==", 7)],
    "few": [("id", "in", [5, 6, 7, 299, 300, 650, 1399])],
    "some": [("even", "<", 12)],
    "most": [("id", ">", 3)],
    "of a struct": pc.field("point", "x") == 17,
    "of a folder": pc.or_kleene(pc.field("day") == 1, pc.field("id") < 3),
    "no filter": None,
}
FLAT = ["id", "f", "even", "flag"]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "columns": {"columns": ["point.y", "f", "tags"]},
    "the filter's columns": {"columns": ["id", "even"]},
    "dropped nulls": {"nulls": {"flag": "drop", "text": "drop"}, "columns": [*FLAT, "text"]},
    "dropped nulls of all columns": {"nulls": "drop", "columns": FLAT},
    "a subset by key": {"fraction": Sample(0.5, by="id")},
    "a subset by place": {"fraction": Sample(0.3)},
    "weights": {"class_weights": {"label": {0: 0.3, 1: 2.4}}},
    "shuffled": {"shuffle": True, "shuffle_buffer_size": 500},
    "counted": {"count_rows": True, "ranks": 3, "sharding": "strided"},
    "counted, shuffled": {"count_rows": True, "shuffle": True, "ranks": 2, "nulls": {"flag": "drop"}},
    "split": {"split_rows": 70, "num_workers": 0},
    "transformed": {"transform": lambda batch: batch.select(["id", "f"]), "columns": ["id", "f", "text"]},
}


@pytest.mark.parametrize("engine", ["auto", "pyarrow"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILTERS)
def test_batches_are_those_of_rows_that_are_read_whole(
    folder: Path, elsewhere: MemoryFileSystem, name: str, way: str, engine: str
) -> None:
    options = {"output_format": "arrow", "filters": FILTERS[name], **WAYS[way]}
    expected = delivered("memory://data", filesystem=elsewhere, **options)
    assert delivered(str(folder), format_options={"engine": engine}, **options) == expected
    if name in ("few", "some", "most") and way not in ("weights", "dropped nulls of all columns"):
        assert expected


def test_converted_batches_are_those_of_rows_that_are_read_whole(folder: Path, elsewhere: MemoryFileSystem) -> None:
    columns = ["id", "f", "flag", "word", "text"]
    for name, filters in FILTERS.items():
        for more in ({"strings": "codes"}, {"strings": "codes", "nulls": "mask", "dtypes": "float32"}):
            options = {"output_format": "numpy", "filters": filters, "columns": columns, "nulls": "drop", **more}
            expected = delivered("memory://data", filesystem=elsewhere, **options)
            assert delivered(str(folder), **options) == expected
            assert expected or name == "none"


def test_processes_deliver_the_same_rows(folder: Path) -> None:
    options = {
        "output_format": "numpy",
        "filters": FILTERS["few"],
        "columns": ["id", "f", "flag"],
        "num_workers": 2,
        "nulls": "mask",
    }
    assert delivered(str(folder), worker_mode="processes", **options) == delivered(str(folder), **options) != []


@given(
    low=st.integers(0, FILES * ROWS),
    length=st.sampled_from([0, 1, 2, 64, 300, 900]),
    other=st.integers(-1, 100),
    drop=st.booleans(),
    columns=st.lists(st.sampled_from([*FLAT, "text", "tags", "label"]), min_size=1, unique=True),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_those_that_pass(
    folder: Path, low: int, length: int, other: int, drop: bool, columns: list[str]
) -> None:
    chosen = ((pc.field("id") >= low) & (pc.field("id") < low + length)) | (pc.field("even") == other)
    dropped = [name for name in ("even", "flag") if drop and name in columns]
    options: dict[str, Any] = {"nulls": dict.fromkeys(dropped, "drop")} if dropped else {}
    loader = stream(str(folder), filters=chosen, columns=columns, output_format="arrow", **options)
    rows = pa.concat_tables(table_of(file) for file in range(FILES)).filter(chosen).select(columns)
    expected = [row for row in rows.to_pylist() if all(row[name] is not None for name in dropped)]
    assert [row for batch in loader for row in batch.to_pylist()] == expected


def stored(folder: Path, *names: str) -> int:
    """The stored bytes of these columns, of all files."""
    total = 0
    for path in folder.rglob("*.parquet"):
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            for leaf in range(metadata.num_columns):
                column = metadata.row_group(group).column(leaf)
                total += column.total_compressed_size * (column.path_in_schema.partition(".")[0] in names)
    return total


def bytes_read(folder: Path, engine: str, **options: Any) -> tuple[float, float]:
    loader = stream(str(folder), format_options={"engine": engine}, output_format="arrow", **options)
    list(loader)
    found = loader.metrics(total=True)
    return found["bytes_decoded"], found["bytes_by_pyarrow"]


@pytest.mark.parametrize("engine", ["auto", "pyarrow"])
def test_if_no_row_is_left_no_other_column_is_read(folder: Path, engine: str) -> None:
    here = engine == "auto" and pages_library() is not None
    filters = [("even", "==", 7)]
    for options, names in (
        ({}, ["even"]),
        ({"columns": ["tags", "f"]}, ["even"]),
        ({"nulls": {"flag": "drop"}, "columns": ["flag", "text"]}, ["even", "flag"]),
        ({"fraction": Sample(0.5, by="label")}, ["even", "label"]),
    ):
        expected = stored(folder, *names)
        found = bytes_read(folder, engine, filters=filters, **options)
        assert found == ((expected, 0) if here else (0, expected))


def test_scattered_rows_are_not_decoded_alone_if_they_are_many(tmp_path: Path, decoded_alone: str) -> None:
    pq.write_table(pa.table({"id": np.arange(20_000), "c": np.arange(20_000)}), tmp_path / "f.parquet")
    asked: list[int] = []
    read_rows = ParquetReader.read_rows

    def noted(self: Any, numbers: Any, columns: Any, rows: Any) -> Any:
        asked.append(len(rows))
        return read_rows(self, numbers, columns, rows)

    third = pc.field("id") - pc.field("id") / 3 * 3 == 0
    for filters, rows, few in (
        (third, 6667, False),
        ([("id", "in", list(range(0, 20_000, 20)))], 1000, False),
        ([("id", "in", list(range(0, 20_000, 400)))], 50, True),
        ([("id", "<", 4000)], 4000, True),
        ([("id", ">", 5000)], 14_999, False),
        ([("id", ">=", 0)], None, False),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ParquetReader, "read_rows", noted)
            batches = list(stream(str(tmp_path), filters=filters, output_format="arrow"))
        assert asked == ([rows] if rows and (few or decoded_alone == "any") else [])
        assert sum(map(len, batches)) == rows or rows is None
        asked.clear()


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
def test_pages_without_a_row_that_is_left_are_not_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = pa.table({"id": np.arange(60_000), **{f"c{n}": rng.standard_normal(60_000) for n in range(20)}})
    pq.write_table(table, tmp_path / "f.parquet", use_dictionary=False, data_page_size=20_000)
    whole = stored(tmp_path, *table.column_names)
    for filters in ([("id", "in", [2])], [("id", ">", 30_000), ("id", "<", 31_000)]):
        decoded, by_pyarrow = bytes_read(tmp_path, "auto", filters=filters)
        assert stored(tmp_path, "id") < decoded < whole / 5
        assert by_pyarrow == 0
