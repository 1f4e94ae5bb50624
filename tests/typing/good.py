"""A program as users write it, in which a type checker finds no error; it is checked, not run."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, assert_type

import torch
import torch.distributed as dist
from accelerate import Accelerator
from pyiceberg.catalog import load_catalog
from torch.distributed.device_mesh import init_device_mesh

from torch_dataloader_utils import (
    Batch,
    Buckets,
    Cache,
    Codes,
    DataFile,
    Files,
    Fill,
    Hive,
    Iceberg,
    IcebergDataset,
    Mesh,
    Order,
    Pack,
    Padded,
    PlanShape,
    Processes,
    RankPlan,
    Rotate,
    RowRange,
    Sample,
    Shuffle,
    SnapshotInfo,
    Split,
    Strided,
    StructuredDataset,
    StructuredLoader,
    Subsets,
    Sync,
    TableDataset,
    TableSource,
    Transform,
    World,
    combine,
    register_policy,
)

loader, dataset = StructuredDataset.create_dataloader(
    "data/",
    columns=["x", "label"],
    shuffle=True,
    even="drop",
    nulls={"x": "mask", "y": Fill(0), "f*": "drop"},
    strings=Codes({"city": ["Oslo"]}, unknown=-1),
    lists={"*": "nested", "labels": Padded(-100, multiple=8), "i*": {"kind": "padded"}},
    worker_mode="processes",
    num_workers=2,
)
assert_type(loader, StructuredLoader)
assert_type(dataset, StructuredDataset)
plan: RankPlan = dataset.plan(0)
rows: tuple[RowRange, ...] = dataset.rows_of(0, 0)
world: World = dataset.world


def train(batches: StructuredLoader, model: torch.nn.Module) -> None:
    for batch in batches:
        assert_type(batch, Batch)
        assert_type(batches.head(3), Batch)
        loss = torch.nn.functional.mse_loss(model(batch["x"].float().unsqueeze(1)), batch["label"].float())
        loss.backward()


train(loader, torch.nn.Linear(1, 1))

# The type of the batches follows from output_format and collate_fn.
arrays, _ = StructuredDataset.create_dataloader("data/", output_format="numpy", batch_size=256)
mean: float = next(iter(arrays))["x"].mean()
tables, _ = StructuredDataset.create_dataloader("data/", output_format="arrow")
num_rows: int = sum(table.num_rows for table in tables)
lists, _ = StructuredDataset.create_dataloader("data/", output_format="dict")
first: list[str] = next(iter(lists))["city"]


def rows_as(output_format: Literal["torch", "numpy"]) -> int:
    chosen, _ = StructuredDataset.create_dataloader("data/", output_format=output_format)
    return sum(len(batch["x"]) for batch in chosen)


def pairs(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch["x"], batch["label"]


collated, _ = StructuredDataset.create_dataloader("data/", collate_fn=pairs)
assert_type(collated.head(2), tuple[torch.Tensor, torch.Tensor])
for x, label in collated:
    assert_type(x, torch.Tensor)
    assert_type(label, torch.Tensor)

settings: dict[str, Any] = {"batch_size": 1024, "shuffle": True}
configured, _ = StructuredDataset.create_dataloader("data/", **settings)
for batch in configured:
    batch["x"].float()

assert_type(configured.metrics(detail=True)["data_wait_s"], float)

events, table_dataset = IcebergDataset.create_dataloader(
    "analytics.events", catalog_config={"type": "rest"}, as_of=datetime(2026, 1, 1, tzinfo=UTC), even="pad"
)
snapshot: SnapshotInfo | None = table_dataset.snapshot
IcebergDataset.create_dataloader("analytics.events", catalog_config="prod")
Iceberg("analytics.events", catalog=load_catalog("prod"))
table_dataset.advance()


def read(table: TableSource) -> tuple[StructuredLoader, TableDataset]:
    return TableDataset.create_dataloader(table, last_batch="wrap", timeout=60)


mixed = combine([dataset, table_dataset], weights=[1, 2], batch_size=256, even="drop")
assert_type(mixed, StructuredLoader)
parts = {"web": "web/", "code": {"source": Files("code/"), "columns": ["ids"]}, "more": mixed}
for arrays_of_both in combine(
    parts, weights={"web": 2, "code": 1, "more": 1}, nulls={"x": Fill(0)}, output_format="numpy"
):
    mean = arrays_of_both["x"].mean()


class OnePerFile:
    def split(self, files: Sequence[DataFile]) -> list[Split]:
        return [Split(file.info, size_bytes=sum(s.size_bytes for s in file.layout.segments)) for file in files]


def backwards(order: Order, shape: PlanShape) -> Order:
    return order.part(shape.num_ranks - 1 - shape.rank, shape.num_ranks)


register_policy("backwards", backwards)
StructuredDataset.create_dataloader("data/", split_strategy=OnePerFile(), sharding="backwards")


def rows_of(rows: dict[str, Any]) -> dict[str, Any]:
    return rows


# Values are read as frozen dataclasses.
cache, buckets = Cache(Path("cache"), max_bytes="50GiB"), Buckets(16_384, by="ids", long="drop")
assert_type(cache.replace(max_bytes=2**30), Cache)
assert_type(buckets.tokens, int)
StructuredDataset.create_dataloader("data/", cache=cache, batch_tokens=buckets, even=Sync(4))
StructuredDataset.create_dataloader("data/", cache="cache", batch_tokens=16_384, even="sync")
StructuredDataset.create_dataloader("data/", cache={"folder": "cache"}, even={"kind": "sync", "every": 4})
StructuredDataset.create_dataloader("data/", partitioning=Hive(Path("data"), schema={"day": "date32"}))
Files("data/", partitioning="hive")
Files("data/", partitioning={"kind": "hive", "root": "data/"})
StructuredDataset.create_dataloader("data/", pack=2048)
StructuredDataset.create_dataloader("data/", lists=Padded(0.5), batch_tokens=16_384)
StructuredDataset.create_dataloader("data/", pack=Pack(2048, columns=["ids"], method="wrap"))
assert_type(Pack(2048, pad={"labels": -100}).length, int)
processes = Processes(persistent=False, context="fork")
StructuredDataset.create_dataloader("data/", num_workers=2, worker_mode=processes)
StructuredDataset.create_dataloader("data/", transform=Transform(rows_of, rows="any", format="numpy"))
StructuredDataset.create_dataloader("data/", transform=[rows_of, rows_of])
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp"))
StructuredDataset.create_dataloader("data/", ranks=mesh)
StructuredDataset.create_dataloader("data/", ranks=mesh["data"])
StructuredDataset.create_dataloader("data/", ranks=Mesh(mesh, dims=["data"]))
StructuredDataset.create_dataloader("data/", ranks=mesh.get_group("data"))
StructuredDataset.create_dataloader("data/", ranks=dist.group.WORLD)
StructuredDataset.create_dataloader("data/", ranks=Accelerator())
sides = Subsets({"train": 0.8, "val": 0.2}, by="user", unit="row")
StructuredDataset.create_dataloader("data/", subset=sides["train"], fraction=Sample(0.1, seed=3), limit=8)
StructuredDataset.create_dataloader("data/", subset={"name": "val", "of": sides.shares}, fraction=0.1)
StructuredDataset.create_dataloader("data/", sharding=Rotate(8, full_rotation=True))
StructuredDataset.create_dataloader("data/", sharding=Strided("batch"))
StructuredDataset.create_dataloader("data/", sharding={"kind": "strided", "unit": "split_batch"})
StructuredDataset.create_dataloader("data/", sharding=backwards)
StructuredDataset.create_dataloader("data/", shuffle=Shuffle("all", window_bytes="1GiB"))
StructuredDataset.create_dataloader("data/", shuffle={"scope": "nearby", "window_rows": 100})
StructuredDataset.create_dataloader("data/", shuffle="nearby", shuffle_buffer_size=100)
StructuredDataset.create_dataloader("data/", shuffle="partition")
