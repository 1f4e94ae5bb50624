"""The same files on any store give the same batches, byte for byte, under 2 ranks x 2 workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.fs as pafs
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch

from tests.ports import HOST
from tests.storage.servers import Store
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataLoaderUtilsError

ROWS = 120  # of a file
OPTIONS: dict[str, Any] = {
    "num_ranks": 2,
    "num_workers": 2,
    "batch_size": 16,
    "shuffle": True,
    "nulls": {"x": "mask"},
}
# The rows of text are not known when it is split.
SPLITS: dict[str, dict[str, Any]] = {
    "parquet": {"split_rows": 40},
    "orc": {"split_rows": 40},
    "csv": {"split_bytes": 2000},
}


def table(number: int) -> pa.Table:
    """Rows of the file of this number, plain types only."""
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": ids,
            "x": pa.array(ids * 0.25, mask=ids % 7 == 3),
            "flag": ids % 3 == 0,
            "name": [f"row {row} é" for row in ids],
        }
    )


def write_parquet(rows: pa.Table, path: Path) -> None:
    items = pa.array([list(range(row % 4)) for row in rows["id"].to_pylist()], pa.list_(pa.int32()))
    pq.write_table(rows.append_column("items", items), path, row_group_size=40)


def write_csv(rows: pa.Table, path: Path) -> None:
    csv.write_csv(rows, path)


def write_orc(rows: pa.Table, path: Path) -> None:
    orc.write_table(rows, path, stripe_size=1, batch_size=40)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {"parquet": write_parquet, "csv": write_csv, "orc": write_orc}


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Local files in hive folders, and the batches that they give."""

    form: str
    folder: Path
    batches: list[list[Any]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", self.batches_at(str(self.folder)))

    def batches_at(self, path: str | list[str], **options: Any) -> list[list[Any]]:
        """The batches of each rank in turn, comparable."""
        epochs = []
        for rank in range(2):
            given = {**OPTIONS, **SPLITS[self.form], **options}
            loader, _ = StructuredDataset.create_dataloader(path, rank=rank, **given)
            epochs.append([as_bytes(batch) for batch in loader])
        return epochs

    @property
    def files(self) -> list[str]:
        """Paths below the folder, in the order in which they are read."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.*"))


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], DataSet]]:
    made: dict[str, DataSet] = {}

    def get(form: str) -> DataSet:
        if form not in made:
            folder = tmp_path_factory.mktemp(form)
            for number in range(4):
                path = folder / f"day={number // 2}" / f"part-{number}.{form}"
                path.parent.mkdir(exist_ok=True)
                WRITERS[form](table(number), path)
            made[form] = DataSet(form, folder)
        return made[form]

    return get


def as_bytes(value: Any) -> Any:
    """A batch's value as type, shape and bytes."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, dict):
        return [(name, as_bytes(part)) for name, part in value.items()]
    return value


def ids_of(batches: list[list[Any]]) -> list[int]:
    return [int(row) for rank in batches for batch in rank for row in np.frombuffer(dict(batch)["id"][2], np.int64)]


def stored(store: Store, data: DataSet, done: set[tuple[int, str]] = set()) -> str:  # noqa: B006 - remembers
    """The name of the data set's folder on the store; put there at the first call."""
    if (store.port, data.form) not in done:
        store.put(data.folder, f"same-{data.form}")
        done.add((store.port, data.form))
    return f"same-{data.form}"


@pytest.mark.parametrize("form", WRITERS)
def test_local_files_give_every_row_once(form: str, data_sets: Callable[[str], DataSet]) -> None:
    data = data_sets(form)
    assert sorted(ids_of(data.batches)) == list(range(4 * ROWS))
    assert min(map(len, data.batches)) > 8  # the ranks share the work
    assert data.batches_at(str(data.folder), worker_mode="processes") == data.batches


CASES = [
    pytest.param(store, form, mode, marks=[pytest.mark.slow] * slow, id=f"{store}-{form}-{mode}")
    for store, slow in [
        ("moto_s3", False),
        ("fake_gcs", False),
        ("http_server", False),
        ("seaweed_s3", True),
        ("azurite", True),
    ]
    for form in WRITERS
    for mode in ("threads", "processes")
    if mode == "threads" or form == "parquet"
]


@pytest.mark.parametrize(("server", "form", "mode"), CASES)
def test_stores(
    server: str, form: str, mode: str, data_sets: Callable[[str], DataSet], request: pytest.FixtureRequest
) -> None:
    store, data = request.getfixturevalue(server), data_sets(form)
    name = stored(store, data)
    # A web server has no listing of folders below folders that clients agree on: the files are named.
    path = [store.url(f"{name}/{file}") for file in data.files] if server == "http_server" else store.url(name)
    assert data.batches_at(path, storage_options=store.storage_options, worker_mode=mode) == data.batches


def test_the_index_of_a_web_server_is_a_folder(http_server: Store, data_sets: Callable[[str], DataSet]) -> None:
    data = data_sets("parquet")
    url, local = http_server.url(f"{stored(http_server, data)}/day=0/"), str(data.folder / "day=0")
    assert data.batches_at(url) == data.batches_at(local)


@pytest.mark.parametrize("mode", ["thread", "process"])
@pytest.mark.parametrize("kind", ["fsspec", "pyarrow"])
def test_a_ready_filesystem(kind: str, mode: str, moto_s3: Store, data_sets: Callable[[str], DataSet]) -> None:
    data = data_sets("parquet")
    url = moto_s3.url(stored(moto_s3, data))
    if kind == "fsspec":
        filesystem = moto_s3.filesystem
    else:
        address = {"endpoint_override": f"{HOST}:{moto_s3.port}", "scheme": "http", "region": "us-east-1"}
        filesystem = pafs.S3FileSystem(access_key="any", secret_key="thing", **address)
    assert data.batches_at(url, filesystem=filesystem, worker_mode=mode) == data.batches


@pytest.mark.parametrize("form", WRITERS)
def test_memory(form: str, data_sets: Callable[[str], DataSet]) -> None:
    data = data_sets(form)
    memory = fsspec.filesystem("memory")
    for file in data.files:
        memory.pipe(f"/same-{form}/{file}", (data.folder / file).read_bytes())
    try:
        assert data.batches_at(f"memory://same-{form}") == data.batches
        # Another process has a memory of its own, where there are no files: an error, never less rows.
        with pytest.raises(DataLoaderUtilsError):
            data.batches_at(f"memory://same-{form}", worker_mode="processes")
    finally:
        memory.rm(f"/same-{form}", recursive=True)
