"""A fitted `Preprocess` as the transform of a loader."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import torch_dataloader_utils as tdu
from tests.preprocess.tables import SPEC, mixed_table
from torch_dataloader_utils.errors import CheckpointMismatchError, ColumnNotFoundError, OptionError
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.options.transform import DeclaredTransform
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    OwnTransform,
    Preprocess,
    Standardize,
)
from torch_dataloader_utils.reading.encoded import read_encoded

ROWS = 600
TABLE = mixed_table(ROWS, seed=3).append_column("row", pa.array(np.arange(ROWS)))
ALL = {**SPEC, "row": Keep()}
FLAT: dict[Any, Any] = {
    "age": [Impute("median"), Standardize()],
    "income": [Impute("mean"), Standardize()],
    "city": Categorize(),
    "user": Hash(100),
    "row": Keep(),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rows")
    for i in range(3):
        pq.write_table(TABLE.slice(i * 200, 200), folder / f"{i}.parquet", row_group_size=37)
    return str(folder)


def rows_by_number(batches: Any) -> dict[int, dict[str, Any]]:
    """The rows of Arrow batches, with NaN as text, by their number."""
    found = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["row"] for row in found}) == len(found)
    return {row["row"]: {name: str(value) for name, value in row.items()} for row in found}


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 3},
        {"shuffle": True, "shuffle_seed": 5},
        {"batch_size": 1000},
        {"columns": ["*"]},
        pytest.param({"num_workers": 2, "worker_mode": "processes"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_values_are_those_of_the_whole_table(path: str, options: dict[str, Any]) -> None:
    prep = Preprocess(ALL).fit(TABLE)
    expected = rows_by_number([prep(TABLE)])
    given = {"batch_size": 41, "output_format": "arrow", "num_ranks": 1, "rank": 0, **options}
    loader = tdu.stream(path, transform=prep, **given)
    assert rows_by_number(loader) == expected
    loader.close()


def test_tensors(path: str) -> None:
    prep = Preprocess(FLAT).fit(TABLE)
    loader = tdu.stream(path, transform=prep, batch_size=100, num_ranks=1, rank=0, stack={"dense": prep.numeric})
    first = next(iter(loader))
    loader.close()
    expected = prep(TABLE.slice(0, 100))
    assert first["dense"].shape == (100, 2)
    assert first["dense"].dtype == torch.float32
    assert (first["dense"][:, 0].numpy() == expected["age"].to_numpy()).all()
    assert prep.numeric == ["age", "income"]
    assert prep.categorical == ["city", "user"]
    sizes = prep.sizes()
    for name in prep.categorical:
        assert first[name].dtype == torch.int64
        assert int(first[name].max()) < sizes[name]
        assert (first[name].numpy() == expected[name].to_numpy()).all()


@pytest.mark.parametrize("lists", ["ragged", "padded"])
def test_lists(path: str, lists: Any) -> None:
    prep = Preprocess({"tags": Categorize(), "scores": [Impute("mean"), Standardize()], "row": Keep()}).fit(TABLE)
    loader = tdu.stream(path, transform=prep, batch_size=ROWS, num_ranks=1, rank=0, lists=lists)
    (batch,) = list(loader)
    loader.close()
    expected = prep(TABLE)["tags"].to_pylist()
    if lists == "ragged":
        tags = batch["tags"]
        ends = tags["offsets"].tolist()
        found = [tags["values"][a:b].tolist() for a, b in pairwise(ends)]
        assert found == expected
    else:
        padded = batch["tags"]["values"]
        assert [[one for one in row if one] for row in padded.tolist()] == expected


def test_a_chain_of_transforms(path: str) -> None:
    prep = Preprocess(FLAT).fit(TABLE)

    loader = tdu.stream(path, transform=[prep, doubled], num_ranks=1, rank=0, output_format="arrow", batch_size=50)
    found = rows_by_number(loader)
    loader.close()
    expected = prep(TABLE).to_pylist()
    assert {number: row["user"] for number, row in found.items()} == {
        row["row"]: str(2 * row["user"]) for row in expected
    }


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("user")
    return rows.set_column(place, "user", pa.compute.multiply(rows["user"], 2))


def test_a_later_fit_changes_no_loader(path: str) -> None:
    prep = Preprocess(FLAT).fit(TABLE)
    loader = tdu.stream(path, transform=prep, num_ranks=1, rank=0, output_format="arrow", batch_size=50)
    expected = rows_by_number([prep(TABLE)])
    prep.fit(TABLE.slice(0, 20))
    assert rows_by_number(loader) == expected
    loader.close()
    assert rows_by_number([prep(TABLE)]) != expected


def test_resuming(path: str) -> None:
    def loader(prep: Preprocess) -> Any:
        return tdu.stream(path, transform=prep, num_ranks=1, rank=0, batch_size=50, shuffle=True, shuffle_seed=1)

    prep = Preprocess(FLAT).fit(TABLE)
    first = loader(prep)
    batches = iter(first)
    begun = [next(batches)["row"].tolist() for _ in range(4)]
    state = first.state_dict()
    rest = [batch["row"].tolist() for batch in batches]
    first.close()

    again = loader(Preprocess(FLAT).fit(TABLE.slice(0, 300)).fit(path))  # another object of the same digest
    again.load_state_dict(state)
    assert [batch["row"].tolist() for batch in again] == rest
    again.close()
    assert len(begun) + len(rest) == 12

    other = Preprocess(FLAT).fit(TABLE.slice(0, 300))
    second = loader(other)
    with pytest.raises(CheckpointMismatchError) as error:
        second.load_state_dict(state)
    assert prep.digest in str(error.value)
    assert other.digest in str(error.value)
    second.load_state_dict(state, strict=False)
    second.close()


def test_errors_at_construction(path: str) -> None:
    with pytest.raises(OptionError, match="not fitted"):
        tdu.stream(path, transform=Preprocess(FLAT))
    prep = Preprocess({"x": Standardize(), "y": Standardize(), "row": Keep()}).fit(
        pa.table({"x": [1.0], "y": [2.0], "row": [1]})
    )
    with pytest.raises(ColumnNotFoundError, match="'x', 'y'"):
        tdu.stream(path, transform=prep)


def test_a_kept_column_may_be_absent(path: str) -> None:
    prep = Preprocess({"age": Bucketize([40]), "label_of_training": Keep()}).fit(
        TABLE.append_column("label_of_training", TABLE["label"])
    )
    loader = tdu.stream(path, transform=prep, num_ranks=1, rank=0)
    assert list(next(iter(loader))) == ["age"]
    loader.close()


# Columns of which ids are made are read as dictionaries.


def written(folder: Path, make: Callable[[int], list[Any]], groups: int, type: pa.DataType) -> str:
    """A file of row groups, each with its own dictionary."""
    schema = pa.schema([("x", type), ("y", pa.string())])
    with pq.ParquetWriter(folder / "x.parquet", schema) as writer:
        for group in range(groups):
            values = make(group)
            writer.write_table(pa.table({"x": pa.array(values, type), "y": ["q"] * len(values)}, schema=schema))
    return str(folder)


@pytest.mark.parametrize("batch_size", [7, 64, 1000])
@pytest.mark.parametrize("type", [pa.string(), pa.binary(), pa.large_string()], ids=str)
def test_dictionaries_of_row_groups(tmp_path: Path, batch_size: int, type: pa.DataType) -> None:
    def make(group: int) -> list[Any]:
        texts = [f"g{group}", "shared", None, "", *(f"{group}-{i}" for i in range(30))]
        return [text.encode() if text is not None and pa.types.is_binary(type) else text for text in texts * 2]

    path = written(tmp_path, make, 5, type)
    table = pq.read_table(path)
    spec = {"x": {"c": Categorize(min_count=3), "h": Hash(1000)}, ("x", "y"): Cross(Categorize())}
    prep = Preprocess(spec).fit(path)
    assert prep.digest == Preprocess(spec).fit(table).digest
    for options in ({"num_workers": 0}, {"num_workers": 2}, {"filters": [("y", "=", "q")]}):
        loader = tdu.stream(
            path, transform=prep, batch_size=batch_size, num_ranks=1, rank=0, output_format="arrow", **options
        )
        assert pa.Table.from_batches(list(loader)).to_pydict() == prep(table).to_pydict()
        loader.close()


def test_dictionaries_larger_than_blocks(tmp_path: Path) -> None:
    path = written(tmp_path, lambda group: [f"{group}-{i}" for i in range(5000)], 2, pa.string())
    prep = Preprocess({"x": {"c": Categorize(), "h": Hash(1 << 20)}}).fit(path)
    loader = tdu.stream(path, transform=prep, batch_size=11, num_ranks=1, rank=0, output_format="arrow")
    found = [batch for batch, _ in zip(loader, range(600), strict=False)]
    loader.close()
    expected = prep(pq.read_table(path)).slice(0, 11 * len(found))
    assert pa.Table.from_batches(found).slice(0, len(expected)).to_pydict() == expected.to_pydict()


def test_which_columns_are_dictionaries(path: str) -> None:
    def encoded(spec: Any, **options: Any) -> frozenset[str]:
        loader = tdu.stream(path, transform=Preprocess(spec).fit(TABLE), num_ranks=1, rank=0, **options)
        scan = loader.dataset._known_passes.source.scan
        loader.close()
        return read_encoded(scan, None).encoded

    assert encoded({"city": Categorize(), "country": Hash(9), "user": Hash(9)}) == {"city", "country"}
    assert encoded({("city", "country"): Cross(Hash(9))}) == {"city", "country"}
    assert encoded({"city": {"a": Categorize(), "b": Keep()}}) == frozenset()
    assert encoded({"city": Categorize()}, filters=[("city", "!=", "Oslo")]) == frozenset()


class Doubled(DeclaredTransform):
    """Makes two columns, of which one is declared to be new memory."""

    def __init__(self) -> None:
        self.memory: list[np.ndarray] = []

    reads = ("user",)
    mark = "doubled"
    made = ("new",)

    def __call__(self, rows: Any) -> Any:
        new, kept = np.asarray(rows["user"]) * 2, np.asarray(rows["user"]) * 2
        self.memory += [new, kept]
        return pa.record_batch({"new": as_arrow(new), "kept": as_arrow(kept), "user": rows["user"]})


def test_batches_are_views_of_new_memory_alone(path: str) -> None:
    doubled = Doubled()
    loader = tdu.stream(path, transform=doubled, batch_size=50, num_workers=0, output_format="numpy")
    batches = list(loader)
    assert doubled.memory
    for name, views in (("new", True), ("kept", False)):
        assert {any(np.shares_memory(batch[name], own) for own in doubled.memory) for batch in batches} == {views}
        assert np.concatenate([batch[name] for batch in batches]).tolist() == [2 * n for n in TABLE["user"].to_pylist()]
    assert all((batch["new"] == 2 * batch["user"]).all() for batch in batches)


def test_what_is_declared_to_be_new_memory() -> None:
    spec = {
        "age": {"scaled": Standardize(), "bucket": [Impute("mean", indicator=True), Bucketize([30])], "kept": Keep()},
        "hour": {"filled": Impute(0, indicator=True), "parts": Impute("median"), "id": Categorize(), "own": Same()},
        "when": DateParts("hour", "day"),
        "tags": Hash(9),
    }
    made = ["scaled", "bucket", "bucket_missing", "parts", "id", "when_hour", "when_day", "tags"]
    assert Preprocess(spec).fit(TABLE).frozen().made == made


class Same(OwnTransform):
    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        return values

    def output(self, type: pa.DataType) -> pa.DataType:
        return type


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_is_overwritten_changes_no_other(path: str, workers: int) -> None:
    spec = {
        "age": {"a": Standardize(), "b": Standardize(), "kept": Keep(), "filled": Impute(0.0), "same": Same()},
        "user": {"id": Categorize(), "again": Categorize(), "hash": Hash(50)},
        "row": Keep(),
    }
    prep = Preprocess(spec).fit(TABLE)
    loader = tdu.stream(path, transform=prep, batch_size=64, num_workers=workers, dtypes={"hash": "int32"})
    wanted = [{name: values.clone() for name, values in batch.items()} for batch in loader]
    for batch, expected in zip(loader, wanted, strict=True):
        for name in list(batch):
            assert torch.equal(batch[name].nan_to_num(-1.0), expected[name].nan_to_num(-1.0)), name
            batch[name].fill_(77)
