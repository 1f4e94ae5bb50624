"""A filter on partition columns alone keeps whole files or leaves them out: counts are known, the rows the same."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from torch_dataloader_utils import DeltaDataset, IcebergDataset, StructuredDataset
from torch_dataloader_utils.errors import CountsRequiredError, NullValueError

NUMBERS = (0, 1, None)
WORDS = ("x", "y z", None)
ROWS = 7  # of each partition
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS * len(NUMBERS) * len(WORDS)), pa.int64()),
        "p": pa.array([p for p, _ in product(NUMBERS, WORDS) for _ in range(ROWS)], pa.int64()),
        "q": pa.array([q for _, q in product(NUMBERS, WORDS) for _ in range(ROWS)], pa.string()),
    }
)
Make = Callable[..., Any]


def hive(folder: Path) -> Make:
    partitioning = ds.partitioning(pa.schema([("p", pa.int64()), ("q", pa.string())]), flavor="hive")
    ds.write_dataset(TABLE, folder, format="parquet", partitioning=partitioning)
    return lambda **options: StructuredDataset.create_dataloader(folder, **options)


def delta(folder: Path) -> Make:
    write_deltalake(folder, TABLE, partition_by=["p", "q"])
    return lambda **options: DeltaDataset.create_dataloader(folder, **options)


def iceberg(folder: Path) -> Make:
    folder.mkdir()
    config = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = SqlCatalog("test", **config)
    catalog.create_namespace("ns")
    kinds = {"id": LongType(), "p": LongType(), "q": StringType()}
    schema = Schema(*(NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), 1)))
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "p"), PartitionField(3, 1001, IdentityTransform(), "q")
    )
    catalog.create_table("ns.t", schema, partition_spec=spec).append(TABLE)
    catalog.close()
    return lambda **options: IcebergDataset.create_dataloader(
        "ns.t", catalog_config={"name": "test", **config}, **options
    )


@pytest.fixture(scope="module", params=[hive, delta, iceberg])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Creates a loader over nine partitions of seven rows."""
    return request.param(tmp_path_factory.mktemp("data") / "t")


def kept(keep: Callable[[Any, Any], bool]) -> list[int]:
    return [row["id"] for row in TABLE.to_pylist() if keep(row["p"], row["q"])]


FILTERS: list[tuple[Any, Callable[[Any, Any], bool]]] = [
    ([("p", "==", 1)], lambda p, q: p == 1),
    ([("p", "!=", 1)], lambda p, q: p == 0),
    ([("p", "is null")], lambda p, q: p is None),
    ([("p", "<=", 1), ("q", "in", ["x", "other"])], lambda p, q: p is not None and q == "x"),
    ([[("p", "==", 0)], [("q", "is not null"), ("q", "!=", "x")]], lambda p, q: p == 0 or q == "y z"),
    ("p = 1 or not (q = 'x')", lambda p, q: p == 1 or q == "y z"),
    ("not (p > 0 and q = 'x') and p is not null", lambda p, q: p == 0 or (p == 1 and q == "y z")),
    (~pc.field("p").isin([1]), lambda p, q: p != 1),
    ((pc.field("p") + 1 == 2) | pc.starts_with(pc.field("q"), "y"), lambda p, q: p == 1 or q == "y z"),
    ([("q", "==", "none")], lambda p, q: False),
]


@pytest.mark.parametrize(("filters", "keep"), FILTERS, ids=lambda value: str(value) if not callable(value) else "")
@pytest.mark.parametrize("shuffle", [False, True])
def test_counts_are_known_and_the_rows_are_those_of_a_filter_of_rows(
    make: Make, filters: Any, keep: Any, shuffle: bool
) -> None:
    expected = kept(keep)
    options = {"filters": filters, "batch_size": 4, "shuffle": shuffle, "num_workers": 0}
    loader, dataset = make(columns=["id"], **options, num_ranks=1, rank=0)
    assert dataset.plan().rows == len(expected)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == expected
    with_columns, _ = make(**options, num_ranks=1, rank=0, nulls="mask", strings="list")
    found = [tuple(row) for batch in with_columns for row in zip(batch["id"].tolist(), batch["q"], strict=True)]
    assert sorted(found) == [(row, TABLE["q"][row].as_py()) for row in expected]


def test_ranks_take_equal_steps(make: Make) -> None:
    options = {"filters": [("p", "==", 1)], "columns": ["id"], "num_ranks": 2, "batch_size": 4, "num_workers": 0}
    for even, steps in (("drop", 2), ("pad", 3)):
        loaders = [make(even=even, rank=rank, **options)[0] for rank in range(2)]
        assert [len(loader) for loader in loaders] == [len(list(loader)) for loader in loaders] == [steps, steps]


def test_a_resume_of_other_ranks_has_the_rest(make: Make) -> None:
    options = {"filters": "p = 1", "columns": ["id"], "batch_size": 3, "shuffle": True, "num_workers": 0}
    taken: list[int] = []
    for rank in range(2):
        loader, _ = make(num_ranks=2, rank=rank, **options)
        taking = iter(loader)
        taken += next(taking)["id"].tolist()
        state = loader.state_dict()
    other, _ = make(num_ranks=1, rank=0, **options)
    other.load_state_dict(state)
    rest = [row for batch in other for row in batch["id"].tolist()]
    assert sorted(taken + rest) == kept(lambda p, q: p == 1)


def test_a_filter_that_looks_at_rows_still_counts_nothing(make: Make) -> None:
    for filters in ([("p", "==", 1), ("id", ">", 3)], [[("p", "==", 1)], [("id", ">", 3)]]):
        with pytest.raises(CountsRequiredError):
            make(filters=filters, columns=["id"], even="drop", num_ranks=2, rank=0, batch_size=4)


def test_nulls_of_files_that_are_kept_are_an_error_at_once(tmp_path: Path) -> None:
    for p, rows in ((0, [1, 2]), (1, [1, None])):
        (tmp_path / f"p={p}").mkdir()
        pq.write_table(pa.table({"x": pa.array(rows, pa.int64())}), tmp_path / f"p={p}" / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, filters=[("p", "==", 0)], columns=["x"])
    assert [batch["x"].tolist() for batch in loader] == [[1, 2]]
    with pytest.raises(NullValueError):
        StructuredDataset.create_dataloader(tmp_path, filters=[("p", "==", 1)], columns=["x"])


def test_an_iceberg_table_whose_old_files_have_other_partitions_filters_rows(tmp_path: Path) -> None:
    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = SqlCatalog("test", **config)
    catalog.create_namespace("ns")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", LongType()))
    table = catalog.create_table("ns.t", schema)
    table.append(pa.table({"id": [0, 1], "p": [0, 1]}))
    with table.update_spec() as change:
        change.add_field("p", IdentityTransform())
    table.append(pa.table({"id": [2, 3], "p": [0, 1]}))
    catalog.close()
    loader, dataset = IcebergDataset.create_dataloader(
        "ns.t", catalog_config={"name": "test", **config}, filters="p = 1"
    )
    assert dataset.plan().rows is None
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == [1, 3]
