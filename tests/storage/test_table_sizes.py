"""A size in a table's manifest is a hint: rows are the table's, whatever sizes its manifests tell of its files."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.iceberg.by_hand import equality_file, field, positions_file, vector_file, write
from tests.iceberg.conftest import HERE, QUESTIONS, TABLES
from tests.iceberg.relocate import latest_metadata, relocate
from tests.iceberg.test_spark_rows import METADATA, as_text, choice, layouts, rows_of
from tests.storage.proxy import Faults, faulty
from tests.storage.servers import Store
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import FileChangedError, FileReadError
from torch_dataloader_utils.iceberg.data_files.cache import _cache_of
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.iceberg.tables import IcebergRead, plan_table
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.retries import _retrying

SCHEMA = pa.schema([field(1, "a", pa.int64()), field(2, "s", pa.string())])
TABLE = IcebergTable(SCHEMA, keys={1: SCHEMA.field("a")})
ROWS = pa.table([pa.array(range(40)), pa.array([f"{i:03d}" for i in range(40)])], schema=SCHEMA)
FORMATS = ["parquet", "orc", "avro"]
COUNTER = itertools.count()


@pytest.fixture(autouse=True)
def nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError(f"a request is tried again after {seconds} s")

    monkeypatch.setattr(_retrying(), "sleep", refuse)


# ---------------------------------------------------------------------------------------------------- Spark's tables


def lie(folder: Path, size_of: Callable[[int], int | None]) -> None:
    """Let all manifests in a folder tell other sizes of their files, or none: `told` of the true ones."""
    for path in folder.rglob("*.avro"):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
            schema, records = reader.writer_schema, list(reader)
        for record in records:
            if "data_file" in record:
                allow_none(schema)
                record["data_file"]["file_size_in_bytes"] = size_of(record["data_file"]["file_size_in_bytes"])
        with path.open("wb") as file:
            fastavro.writer(file, schema, records, metadata=header)


def allow_none(schema: Any) -> None:
    """Let manifests of this schema tell no size."""
    [record] = [field["type"] for field in schema["fields"] if field["name"] == "data_file"]
    [size] = [field for field in record["fields"] if field["name"] == "file_size_in_bytes"]
    size["type"] = ["null", "long"]


def some_other(size: int) -> int | None:
    """Any size but the true one: none, too small, a little too large, far too large."""
    return random.Random(size).choice([None, -1, 0, 1, size // 2, size - 1, size + 1, size + 9, size * 3, 2**40])


def put_tables(
    folder: Path, root: str, size_of: Callable[[int], int | None], put: Callable[[Path], None], *names: str
) -> None:
    """Copy some of Spark's tables to `root`, by way of a folder, with other sizes in their manifests."""
    for name in names:
        relocate(latest_metadata(HERE / "db" / name), HERE, folder, new=root)
    lie(folder, size_of)
    put(folder)


def metadata_of(root: str, table: str) -> str:
    return f"{root}/{latest_metadata(HERE / 'db' / table).relative_to(HERE)}"


@dataclass(frozen=True)
class Root:
    """A place that has all of Spark's tables, and what its client needs."""

    url: str
    options: dict[str, Any]


@pytest.fixture(scope="module", params=["local", "memory", "moto_s3", "fake_gcs", "azurite", "http_server"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    folder = tmp_path_factory.mktemp("wrong")
    if request.param == "local":
        put_tables(folder, str(folder), some_other, lambda _: None, *TABLES)
        return Root(str(folder), {})
    if request.param == "memory":
        memory = fsspec.filesystem("memory")
        put_tables(folder, "memory://wrong", some_other, lambda _: memory.put(str(folder), "/wrong", True), *TABLES)
        return Root("memory://wrong", {})
    store: Store = request.getfixturevalue(request.param)
    put_tables(folder, store.url("wrong"), some_other, lambda _: store.put(folder, "wrong"), *TABLES)
    return Root(store.url("wrong"), dict(store.storage_options))


def test_rows_are_sparks_whatever_sizes_the_manifests_tell(root: Root) -> None:
    for question in QUESTIONS:
        if root.url.startswith("http:") and question.table == "partitions":
            continue  # names with percent signs, which are no URLs
        names = question.rows.column_names
        read = IcebergRead(
            snapshot=choice(question),
            filters=question.parameters.get("row_filter"),
            metadata_columns=tuple(name for name in METADATA if name in names),
            storage_options=root.options,
        )
        plan = plan_table(metadata_of(root.url, question.table), read)
        parts = [rows_of(plan, file, layout) for file, layout in layouts(plan)]
        result = pa.concat_tables([plan.table.schema.empty_table(), *parts])
        assert as_text(result.select(names)) == as_text(question.rows), question


@pytest.mark.parametrize("split_bytes", [1, "128MiB"])  # footers read to plan, and by the workers alone
def test_worker_processes_read_files_of_other_sizes(moto_s3: Store, tmp_path: Path, split_bytes: int | str) -> None:
    root = moto_s3.url(f"processes-{split_bytes}")
    put_tables(tmp_path, root, some_other, lambda folder: moto_s3.put(folder, root.rpartition("/")[2]), "eq_v3_dv")
    loader, _ = IcebergDataset.create_dataloader(
        metadata_of(root, "eq_v3_dv"),
        storage_options=moto_s3.storage_options,
        split_bytes=split_bytes,
        num_workers=2,
        worker_mode="processes",
        output_format="arrow",
        num_ranks=1,
        rank=0,
    )
    [expected] = [question.rows for question in QUESTIONS if (question.table, question.name) == ("eq_v3_dv", "head")]
    result = pa.Table.from_batches(list(loader))
    assert as_text(result.select(expected.column_names)) == as_text(expected)


# ---------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("by_path", [False, True])
def test_a_wrong_size_costs_one_inquiry_and_a_right_one_none(moto_s3: Store, tmp_path: Path, by_path: bool) -> None:
    asked = {}
    with faulty(moto_s3, tmp_path) as proxy:
        # pyarrow's client has no such option: s3fs reads the files then.
        options = {**proxy.store.storage_options, **({"requester_pays": True} if by_path else {})}
        for size_of in (int, some_other):
            name = f"asked-{size_of.__name__}-{by_path}"
            root, names = moto_s3.url(name), ("v2_mor_rowgroups", "files_orc", "eq_v3_dv")
            put_tables(tmp_path / name, root, size_of, lambda folder, name=name: moto_s3.put(folder, name), *names)  # type: ignore[misc]
            proxy.inject(Faults())
            for table in names:
                plan = plan_table(metadata_of(root, table), IcebergRead(storage_options=options))
                for planned, layout in layouts(plan):
                    rows_of(plan, planned, layout)
            heads = {path.rpartition("/")[2]: count for path, count in proxy.counts().heads.items() if "/data/" in path}
            asked[size_of] = heads
    # Once to read, and by pyarrow to plan; a vector is read once.
    assert len(asked[int]) == 13
    assert asked[int] == {name: 1 if by_path or name.endswith("puffin") else 2 for name in asked[int]}
    assert asked[some_other] == {name: n + (not name.endswith("puffin")) for name, n in asked[int].items()}


# -------------------------------------------------------------------------------------------------------- file by file


@dataclass(frozen=True)
class Kept:
    """A file on a store, and how many bytes it has."""

    storage: Storage
    path: str
    size: int


def kept(file: Path, store: str = "memory") -> Kept:
    """A local file, or its copy in memory."""
    data = file.read_bytes()
    if store == "local":
        return Kept(Storage(), str(file), len(data))
    url = f"memory://{file}"
    fsspec.filesystem("memory").pipe(url, data)
    return Kept(*open_storage(url), len(data))


def rewrite(kept: Kept, data: bytes) -> None:
    fsspec.filesystem("file" if kept.storage.local else "memory").pipe(kept.path, data)


def rows_left(storage: Storage, info: DataFileInfo, layout: FileLayout) -> list[int]:
    reader = IcebergOpener(TABLE).open(info, layout, storage, {}, SCHEMA)
    try:
        [column] = reader.read([segment.number for segment in layout.segments], ["a"])
        reader.confirm()
    finally:
        reader.close()
    result: list[int] = column.to_pylist()
    return result


def deleting(kind: str, folder: Path, data_path: str, rows: list[int], form: str = "parquet") -> DeleteFile:
    """A delete file of its own name: what is made of one is kept under its path."""
    path = folder / f"{kind} {next(COUNTER)}"
    if kind == "positions":
        return replace(positions_file(path, {data_path: rows}, form), record_count=len(rows))
    if kind == "equality":
        keys = pa.table([pa.array(rows, pa.int64())], schema=pa.schema([SCHEMA.field("a")]))
        return replace(equality_file(path, keys, form), record_count=len(rows))
    return replace(vector_file(path, rows, b"" if kind == "bare" else b"PFA1"), record_count=len(rows))


KINDS = ["positions", "equality", "vector", "bare"]


@given(
    data=st.data(),
    form=st.sampled_from(FORMATS),
    kind=st.sampled_from(KINDS),
    store=st.sampled_from(["local", "memory"]),
)
def test_any_size_of_any_file_is_but_a_hint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, form: str, kind: str, store: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hints"
    folder.mkdir(exist_ok=True)

    def hint(size: int) -> int:
        near = st.integers(max(size - 20, 0), size + 20)
        return data.draw(near | st.integers(0, 3 * size) | st.sampled_from([0, 1, 2**31, 2**62]))

    file = kept(write(ROWS, folder / f"data.{form}", form, 7), store)
    delete = deleting(kind, folder, file.path, [3, 30], form)
    placed = kept(Path(delete.path), store)
    delete = replace(delete, path=placed.path, size=hint(placed.size))
    info = DataFileInfo(file.path, hint(file.size), 40)
    planned = IcebergFile(form, file.path, 40, deletes=(delete,))
    expected = [row for row in range(40) if row not in (3, 30)]
    assert rows_left(file.storage, info, iceberg_layout(info, planned, file.storage)) == expected
    if kind == "equality":  # others are always read to plan
        assert rows_left(file.storage, info, whole_file(planned, 0)) == expected


def elsewhere(layout: FileLayout) -> FileLayout:
    """The layout in a process that has read nothing yet."""
    _cache_of.cache_clear()
    result: FileLayout = pickle.loads(pickle.dumps(layout))
    return result


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("changed", ["data", "positions", "vector", "bare"])
@pytest.mark.parametrize("wrong", [-100, 5])
def test_a_file_that_changes_after_it_was_read_to_plan_is_an_error(
    tmp_path: Path, store: str, changed: str, wrong: int
) -> None:
    file = kept(write(ROWS, tmp_path / "data", segment_rows=7), store)
    delete = deleting("positions" if changed == "data" else changed, tmp_path, file.path, [3])
    placed = kept(Path(delete.path), store)
    delete = replace(delete, path=placed.path, size=placed.size + wrong)
    planned = IcebergFile("parquet", file.path, 40, deletes=(delete,))
    info = DataFileInfo(file.path, file.size + wrong, 40)
    layout = elsewhere(iceberg_layout(info, planned, file.storage))
    assert len(rows_left(file.storage, info, layout)) == 39
    other = file if changed == "data" else placed
    rewrite(other, (Path(other.path) if store == "local" else tmp_path / Path(other.path).name).read_bytes() + b"more")
    with pytest.raises(FileChangedError, match=f"was {other.size} bytes and is now {other.size + 4} bytes") as caught:
        rows_left(file.storage, info, elsewhere(layout))
    assert other.path in str(caught.value)


@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_was_cut_is_an_error_that_tells_both_sizes(tmp_path: Path, store: str, form: str) -> None:
    file = kept(write(ROWS, tmp_path / "data", form, 7), store)
    left = file.size - 20
    rewrite(file, (tmp_path / "data").read_bytes()[:left])
    for planned in (IcebergFile(form, file.path, 40), IcebergFile(form, file.path, -1)):
        for size in (file.size, 0, 2 * file.size):
            info = DataFileInfo(file.path, size, 40)
            with pytest.raises(FileReadError, match=f"It has {left} bytes, but .* metadata says {size}") as caught:
                iceberg_layout(info, planned, file.storage)
            assert file.path in str(caught.value)
            assert not isinstance(caught.value, FileChangedError)
            with pytest.raises(FileReadError, match=f"It has {left} bytes"):
                rows_left(file.storage, info, whole_file(planned, 0))


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_other_rows_than_the_manifest_counts_are_an_error_with_both_numbers(
    tmp_path: Path, kind: str, wrong: int
) -> None:
    path = write(ROWS, tmp_path / "data", segment_rows=7)
    info = DataFileInfo(str(path), 1, 40)
    for planned in (IcebergFile("parquet", str(path), 40 + wrong), IcebergFile("parquet", str(path), 40)):
        delete = deleting(kind, tmp_path, str(path), [3, 30])
        if planned.record_count == 40:
            delete = replace(delete, record_count=2 + wrong)
        named, counts = (delete.path, (2, 2 + wrong)) if planned.record_count == 40 else (str(path), (40, 40 + wrong))
        with pytest.raises(FileReadError, match="has {} rows.* metadata says {}:".format(*counts)) as caught:
            rows_left(Storage(), info, iceberg_layout(info, replace(planned, deletes=(delete,)), Storage()))
        assert named in str(caught.value)
