"""Tables with `on_error="skip"`: a damaged data file is left out; without a file of deletes, rows would come back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from tests.iceberg.by_hand import field, write
from tests.iceberg.conftest import HERE
from tests.iceberg.helpers import append_files
from tests.iceberg.relocate import latest_metadata, relocate
from torch_dataloader_utils import IcebergDataset, StructuredDataset, combine
from torch_dataloader_utils.errors import CheckpointMismatchError, DamagedFileError, FileReadError

TABLES = ["v2_mor_rowgroups", "eq_v3_dv", "eq_deletes", "files_orc", "v3_dv_lineage"]
PLANS = {"footers": {"split_bytes": 8}, "manifests": {}}  # small files are planned by the table's manifests alone


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def wipe_footer(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40] + b"\xff" * 40)


def wipe_pages(path: Path) -> None:
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:4] + b"\xff" * (half - 4) + data[half:])


DAMAGES: list[Callable[[Path], None]] = [cut, wipe_footer, wipe_pages]


def placed(name: str, folder: Path) -> str:
    return relocate(latest_metadata(HERE / "db" / name), HERE, folder)


def opened(table: Any, **options: Any) -> tuple[Any, IcebergDataset]:
    given = {"on_error": "skip", "num_ranks": 1, "rank": 0, "num_workers": 0, "output_format": "arrow"}
    return IcebergDataset.create_dataloader(table, **{**given, **options})


def rows(table: Any, **options: Any) -> pa.Table:
    _, dataset = opened(table, **options)
    return pa.Table.from_batches(dataset, schema=dataset.schema)


def data_path(url: str) -> Path:
    return Path(url.removeprefix("file:"))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_data_file_is_left_out_and_deletes_still_apply(tmp_path: Path, name: str, plan: str) -> None:
    options = {**PLANS[plan], "metadata_columns": ("_file",)}
    for number, damage in enumerate(DAMAGES):
        table = placed(name, tmp_path / str(number))
        whole = rows(table, on_error="raise", **options)
        file = whole["_file"][0].as_py()
        damage(data_path(file))
        _, dataset = opened(table, **options)
        assert [Path(skipped.path).name for skipped in dataset._source.skipped] == [data_path(file).name]
        found, expected = rows(table, **options), whole.filter(pc.not_equal(whole["_file"], file))
        assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["v2_mor_rowgroups", "eq_v3_dv", "eq_deletes"])
def test_a_damaged_file_of_deletes_is_an_error(tmp_path: Path, name: str, plan: str) -> None:
    table = placed(name, tmp_path / "first")
    data = {data_path(file).name for file in rows(table, metadata_columns=("_file",))["_file"].to_pylist()}
    others = [path for path in tmp_path.rglob("data/**/*.*") if path.name not in data and path.name[0] != "."]
    refused = 0
    for number, other in enumerate(others):
        folder = tmp_path / str(number)  # parsed deletes are cached by path
        table = placed(name, folder)
        path = folder / other.relative_to(tmp_path / "first")
        path.write_bytes(b"\xff" * path.stat().st_size)
        try:
            _, dataset = opened(table, **PLANS[plan])
        except FileReadError as error:
            assert path.name in str(error)  # noqa: PT017
            refused += 1
        else:
            assert dataset._source.skipped == ()  # a file of an earlier snapshot
    assert refused


@pytest.mark.parametrize("kind", ["-m0.avro", "snap-"])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, kind: str) -> None:
    table = placed("v2_cow", tmp_path)
    for path in tmp_path.rglob(f"metadata/*{kind}*"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(FileReadError, match=kind):
        opened(table)


def test_a_missing_data_file_is_an_error(tmp_path: Path) -> None:
    table = placed("v2_cow", tmp_path)
    file = rows(table, metadata_columns=("_file",))["_file"][0].as_py()
    data_path(file).unlink()
    with pytest.raises(FileReadError, match=data_path(file).name) as caught:
        opened(table)
    assert not isinstance(caught.value, DamagedFileError)


@pytest.fixture
def numbers(catalog: Catalog) -> Any:
    """Four files of ten ids each."""
    table = catalog.create_table("ns.numbers", Schema(NestedField(1, "id", LongType(), required=False)))
    for number in range(4):
        table.append(pa.table({"id": range(number * 10, number * 10 + 10)}))
    return table


def spoil(table: Any, number: int) -> str:
    """Damage the number-th file, and return its path."""
    planned = sorted(rows(table, metadata_columns=("_file",)).to_pylist(), key=lambda row: row["id"])
    path = Path(planned[number * 10]["_file"].removeprefix("file://"))
    wipe_footer(path)
    return str(path)


def test_states_metrics_and_combinations_know_what_was_left_out(numbers: Any) -> None:
    whole, _ = opened(numbers)
    path = spoil(numbers, 1)
    loader, dataset = opened(numbers, output_format="torch", batch_size=4)
    batches = iter(loader)
    begun = next(batches)["id"].tolist()
    state = loader.state_dict()
    again, _ = opened(numbers, output_format="torch", batch_size=4)
    again.load_state_dict(state)
    left = [*range(10), *range(20, 40)]
    assert begun + [i for batch in again for i in batch["id"].tolist()] == left
    assert dataset.metrics()["skipped_files"] == 1
    assert dataset.metrics()["skipped_rows"] == 10
    with pytest.raises(CheckpointMismatchError, match="skipped"):
        again.load_state_dict(whole.state_dict())
    files = Path(path).parent.parent / "other.parquet"
    write(pa.table({"id": [100]}), files)
    _, other = StructuredDataset.create_dataloader(str(files), num_ranks=1, rank=0)
    combined = combine([dataset, other], num_ranks=1, rank=0, num_workers=0)
    assert [file.path for file in combined.dataset._source.skipped] == [path]
    assert sorted(i for batch in combined for i in batch["id"].tolist()) == [*left, 100]


def test_a_new_snapshot_is_checked(numbers: Any) -> None:
    loader, dataset = opened(numbers)
    assert dataset._source.skipped == ()
    spoil(numbers, 1)
    numbers.append(pa.table({"id": range(40, 50)}))
    dataset.advance()
    assert sorted(i for batch in loader for i in batch["id"].to_pylist()) == [*range(10), *range(20, 50)]
    assert dataset.metrics()["skipped_files"] == 1


def test_equal_steps_over_what_is_left(numbers: Any) -> None:
    spoil(numbers, 2)
    loaders = [opened(numbers, num_ranks=2, rank=rank, even="drop", batch_size=4)[0] for rank in range(2)]
    assert [len(loader) for loader in loaders] == [3, 3]
    delivered = [i for loader in loaders for batch in loader for i in batch["id"].to_pylist()]
    assert len(set(delivered)) == 24
    assert set(delivered) <= {*range(20), *range(30, 40)}


@pytest.mark.parametrize("place", ["header", "block", "end"])
def test_a_damaged_avro_file_is_left_out(catalog: Catalog, tmp_path: Path, place: str) -> None:
    table = catalog.create_table("ns.avro", Schema(NestedField(1, "id", LongType(), required=False)))
    files = []
    for number in range(3):
        path = tmp_path / f"{number}.avro"
        ids = pa.table([pa.array(range(number * 10, number * 10 + 10))], schema=pa.schema([field(1, "id", pa.int64())]))
        write(ids, path, "avro", 5)
        files.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"file://{path}",
                file_format=FileFormat.AVRO,
                partition=Record(),
                record_count=10,
                file_size_in_bytes=path.stat().st_size,
                column_sizes={},
                value_counts={},
                null_value_counts={},
                nan_value_counts={},
                lower_bounds={},
                upper_bounds={},
                split_offsets=None,
                sort_order_id=None,
            )
        )
        files[-1].spec_id = 0
    append_files(table, files)
    data = (tmp_path / "1.avro").read_bytes()
    changed = {"header": b"\xff" * 20 + data[20:], "block": data[:-40] + b"\xff" * 20 + data[-20:], "end": data[:-10]}
    (tmp_path / "1.avro").write_bytes(changed[place])
    _, dataset = opened(table)
    assert [Path(file.path).name for file in dataset._source.skipped] == ["1.avro"]
    assert sorted(rows(table)["id"].to_pylist()) == [*range(10), *range(20, 30)]
