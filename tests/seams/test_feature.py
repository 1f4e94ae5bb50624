"""A feature of one's own, in one file outside the package: every n-th row, by the values of a column."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import CheckpointMismatchError
from torch_dataloader_utils.api.files import opened
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.features import FEATURES, with_features
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options import Options, parse_call
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.sources.source import Source

ROWS, N = 100, 3


@dataclass
class Multiples:
    """Chooses the rows whose value is a multiple of `n`."""

    columns: tuple[str, ...]
    n: int

    def mask(self, table: pa.Table) -> pa.Array:
        values = table.column(self.columns[0]).combine_chunks()
        return pc.equal(values, pc.multiply(pc.divide(values, self.n), self.n))


@dataclass(frozen=True)
class Thinned(Feature):
    """What plugs in."""

    column: str
    n: int

    def chosen(self, manifest: FileManifest, options: Options) -> Multiples:
        return Multiples((self.column,), self.n)

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        return replace(source, subset=f"multiples of {self.n}")


def thinned(options: Options) -> Thinned:
    return Thinned("id", N)


def loader_of(folder: Path, **keywords: Any) -> StructuredLoader[Any, Any]:
    source, options = parse_call("files", str(folder), {"batch_size": 4, "shuffle": True, **keywords})
    options = with_features(options, (*FEATURES, thinned))
    return StructuredLoader(opened(source, options), options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in range(2):
        ids = pa.array(range(part * ROWS // 2, (part + 1) * ROWS // 2))
        pq.write_table(pa.table({"id": ids, "x": ids}), tmp_path / f"{part}.parquet", row_group_size=20)
    return tmp_path


def ids(batches: Sequence[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"count_rows": True, "even": "pad"},
        {"num_workers": 0},
        {"num_workers": 2, "worker_mode": "processes"},
        {"fraction": 0.5},
        {"class_weights": {"x": {3: 2.0}}},
    ],
)
def test_its_rows_are_delivered_once_and_resume(folder: Path, keywords: dict[str, Any]) -> None:
    found: list[int] = []
    for rank in range(2):
        loader = loader_of(folder, num_ranks=2, rank=rank, **keywords)
        batches = list(loader)
        found += [row for batch in batches for row in batch["id"][batch.get("valid", batch["id"] >= 0)].tolist()]
        resumed = loader_of(folder, num_ranks=2, rank=rank, **keywords)
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator)
        resumed.load_state_dict(loader.state_dict())
        assert ids(list(resumed)) == ids(batches[1:])
        loader.close()
        resumed.close()
    expected = [row for row in range(0, ROWS, N) for _ in range(1 + (row == 3 and "class_weights" in keywords))]
    assert sorted(found) == expected if "fraction" not in keywords else set(found) < set(expected)


def test_descriptions_tell_of_it_and_states_compare_it(folder: Path) -> None:
    loader = loader_of(folder)
    assert "multiples of 3" in repr(loader.describe())
    source, options = parse_call("files", str(folder), {"batch_size": 4, "shuffle": True})
    options = with_features(options)
    other: StructuredLoader[Any, Any] = StructuredLoader(opened(source, options), options)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(CheckpointMismatchError, match="subset"):
        other.load_state_dict(loader.state_dict())
