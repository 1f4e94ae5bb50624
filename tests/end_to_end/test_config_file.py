"""Every option has a plain-value form: a YAML file builds the loader, and the loader equals the Python call's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra.utils
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf

from torch_dataloader_utils import StructuredDataset, combine

YAML = """
data: ???
loader:
  _target_: torch_dataloader_utils.StructuredDataset.create_dataloader
  path: ["${data}/*.parquet"]
  columns: [id, x, y, maybe, name]
  filters: [[[id, ">=", 10], [name, "in", [a, b]]], [[id, "<", 3]]]
  batch_size: 8
  last_batch: drop
  shuffle: true
  shuffle_seed: 7
  split_rows: 20
  num_ranks: 2
  rank: 1
  num_workers: 2
  prefetch_bytes: 10MiB
  nulls: {"*": mask, maybe: {kind: fill, value: -1}}
  dtypes: {x: float64}
  stack: {xy: [x, y]}
  strings: {name: bytes}
"""


def test_hydra_builds_the_loader(tmp_path: Path) -> None:
    rows = np.arange(200)
    table = pa.table(
        {
            "id": rows,
            "x": rows.astype(np.float32),
            "y": rows.astype(np.float64),
            "maybe": pa.array([None if row % 5 == 0 else int(row) for row in rows]),
            "name": ["abc"[row % 3] for row in rows],
        }
    )
    for part in range(4):
        pq.write_table(table.slice(part * 50, 50), tmp_path / f"{part}.parquet", row_group_size=10)
    config = OmegaConf.create(YAML)
    config.data = str(tmp_path)
    plain: dict[str, Any] = OmegaConf.to_container(config.loader, resolve=True)  # type: ignore[assignment]
    del plain["_target_"]

    loader, dataset = hydra.utils.instantiate(config.loader)
    other, other_dataset = StructuredDataset.create_dataloader(**plain)
    dataset.set_epoch(3)
    other_dataset.set_epoch(3)
    batches, wanted = list(loader), list(other)
    assert len(batches) == len(wanted) > 3
    for batch, same in zip(batches, wanted, strict=True):
        assert batch["xy"].dtype == torch.float64
        assert torch.equal(batch["id"], same["id"])
        assert torch.equal(batch["name"]["values"], same["name"]["values"])
        assert all(row < 3 or (row >= 10 and row % 3 < 2) for row in batch["id"].tolist())


@pytest.mark.parametrize("convert", ["none", "partial", "object", "all"])
@pytest.mark.parametrize(
    "weights",
    [
        [[0, [9, 1]], [24, [1, 1]]],
        [[0, {"web": 9, "code": 1}], [24, {"web": 1, "code": 0}]],
        [3, 1],
        {"web": 3, "code": 1},
    ],
    ids=str,
)
def test_hydra_builds_a_combination(tmp_path: Path, convert: str, weights: Any) -> None:
    """Whatever hydra makes of lists, also of the pair that it makes of a dataset within."""
    for name in ("web", "code"):
        pq.write_table(pa.table({"id": range(40)}), tmp_path / f"{name}.parquet")
    made = {
        "_target_": "torch_dataloader_utils.StructuredDataset.create_dataloader",
        "path": f"{tmp_path}/code.parquet",
    }
    options = {"weights": weights, "rows_per_epoch": 48, "batch_size": 8, "num_ranks": 1, "rank": 0}
    datasets = {"web": [f"{tmp_path}/web.parquet"], "code": made}
    target = {"_target_": "torch_dataloader_utils.combine", "_convert_": convert}
    paths: Any = {name: tmp_path / f"{name}.parquet" for name in datasets}
    if "web" not in str(weights):  # a list of numbers belongs to a list of datasets
        loader = hydra.utils.instantiate(OmegaConf.create({**target, "datasets": [*datasets.values()], **options}))
        other = combine(list(paths.values()), **options)
    else:
        loader = hydra.utils.instantiate(OmegaConf.create({**target, "datasets": datasets, **options}))
        other = combine(paths, **options)
    assert [batch["id"].tolist() for batch in loader] == [batch["id"].tolist() for batch in other]
    plain = OmegaConf.create({**target, "datasets": list(map(str, paths.values())), "num_ranks": 1, "rank": 0})
    assert len(hydra.utils.instantiate(plain)) == 1
