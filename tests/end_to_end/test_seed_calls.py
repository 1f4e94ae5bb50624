"""The calls of the five documents that the package began with, as they write them; what is not ours is a stub."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
import torch
import torch.distributed
from omegaconf import OmegaConf
from pyiceberg.catalog import CatalogType
from pyiceberg.catalog.sql import SqlCatalog
from torch.utils.data import Dataset, Subset

from tests.distributed_page import ACCELERATE, DDP, HOROVOD, ICEBERG
from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import Rotate, StructuredDataset, combine
from torch_dataloader_utils.iterables import (
    distribute_shards,
    merge_gen_kwargs,
    number_of_shards,
    shuffle_gen_kwargs,
    split_gen_kwargs,
    streaming_shard,
)

ROWS = 4096


def module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """A stub of a module that is not installed, with these names."""
    made = types.ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(monkeypatch, parent)
        setattr(sys.modules[parent], child, made)


# ------------------------------------------------------------------------------------------- Distributed Data Loading


class Model(torch.nn.Module):
    """A model that notes what it is given: a loss of the page's two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, feature: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        self.seen += feature.tolist()
        return ((feature.float() * self.weight - label) ** 2).mean()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the page reads from a bucket: eight files."""
    place = tmp_path_factory.mktemp("training-data")
    for number in range(8):
        rows = range(number * 512, number * 512 + 512)
        pq.write_table(pa.table({"feature_a": rows, "label": [row % 2 for row in rows]}), place / f"{number}.parquet")
    return str(place)


def trained(text: str, folder: str) -> Model:
    """The model after the page's loop over two epochs, in this process."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope = {"torch": torch, "num_epochs": 2, "model": model, "optimizer": optimizer}
    exec(text.replace("s3://bucket/training-data/", folder), scope)
    scope["dataset"].close()
    return model


def ranks(monkeypatch: pytest.MonkeyPatch, rank: int, num_ranks: int) -> None:
    """What the page asks of torch.distributed."""
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend: None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: num_ranks)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)


def test_distributed_page_pytorch_ddp(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for rank in range(2):
        ranks(monkeypatch, rank, 2)
        seen.append(trained(DDP, folder).seen)
    for epoch in range(2):
        half = slice(epoch * ROWS // 2, (epoch + 1) * ROWS // 2)
        assert sorted(seen[0][half] + seen[1][half]) == list(range(ROWS))
    assert seen[0][: ROWS // 2] != sorted(seen[0][: ROWS // 2])


def test_distributed_page_accelerate(folder: str) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    seen = trained(ACCELERATE, folder).seen
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])


def test_distributed_page_horovod(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    seen = []
    for rank in range(2):
        module(
            monkeypatch,
            "horovod.torch",
            init=lambda: None,
            size=lambda: 2,
            rank=lambda rank=rank: rank,
            local_rank=lambda: 0,
            is_initialized=lambda: False,
            DistributedOptimizer=lambda optimizer, named_parameters: optimizer,
        )
        seen += trained(HOROVOD, folder).seen
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])


@pytest.fixture
def glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A catalog that answers in the place of Glue, with the page's table."""
    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("glue", **sql_config(tmp_path))
    catalog.create_namespace("my_db")
    rows = pa.table({"region_id": [row % 10 for row in range(400)], "id": range(400)})
    catalog.create_table("my_db.events", schema=rows.schema).append(rows)
    asked: list[Any] = []
    monkeypatch.setitem(
        pyiceberg.catalog.AVAILABLE_CATALOGS, CatalogType.GLUE, lambda name, given: asked.append(given) or catalog
    )
    yield
    assert asked[0]["region_name"] == "us-east-1"
    catalog.close()


@pytest.mark.usefixtures("glue")
def test_distributed_page_iceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    for rank in range(2):
        ranks(monkeypatch, rank, 2)
        scope: dict[str, Any] = {"num_epochs": 1}
        exec(
            ICEBERG.replace("        ...\n", "        found.extend(batch['id'].tolist())\n"),
            {**scope, "found": found},
        )
    assert sorted(found) == [row for row in range(400) if row % 10 >= 5]


# ------------------------------------------------------------------------------------------ ESPnet3, Dataset Sharding


@pytest.fixture
def espnet3(monkeypatch: pytest.MonkeyPatch) -> type:
    """The page's dataset, of ESPnet3's base class and functions of a recipe."""
    module(monkeypatch, "espnet3.components.data.dataset", ShardedDataset=type("ShardedDataset", (Dataset,), {}))
    from espnet3.components.data.dataset import ShardedDataset

    def load_manifest(data_dir: str, split: str) -> list[dict[str, Any]]:
        return [{"path": f"{data_dir}/{split}/{i}.flac", "transcript": f"row {i}", "number": i} for i in range(64)]

    def load_audio(path: str) -> torch.Tensor:
        return torch.full((3,), float(Path(path).stem))

    class MyASRDataset(ShardedDataset):
        def __init__(
            self,
            data_dir: str,
            split: str,
            total_shards: int = 8,
            dist_world_size: int = 4,
        ):
            self.samples = load_manifest(data_dir, split)
            self.total_shards = total_shards
            self.dist_world_size = dist_world_size

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, idx: int) -> dict:
            item = self.samples[idx]
            return {
                "speech": load_audio(item["path"]),
                "text": item["transcript"],
            }

        def shard(self, shard_idx: int) -> Dataset:
            n = len(self.samples)
            shard_size = n // self.total_shards
            start = shard_idx * shard_size
            return Subset(self, list(range(start, start + shard_size)))

    return MyASRDataset


def texts(loader: Any) -> list[str]:
    return [text for batch in loader for text in batch["text"]]


def test_espnet3_dataset_rotates_as_its_builder_does(espnet3: type) -> None:
    for rank in range(4):
        dataset = espnet3("dump", "train")
        loader = combine([dataset], num_ranks=4, rank=rank, batch_size=3)
        for epoch in range(3):
            loader.set_epoch(epoch)
            shard = dataset.shard((epoch * 4 + rank) % 8)
            assert texts(loader) == [shard[i]["text"] for i in range(len(shard))]


YAML = """
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  recipe_dir: ${recipe_dir}
  train:
    - data_src: egs3.my_recipe.asr.dataset.builder
      data_src_args:
        split: train
        total_shards: ${dataloader.train.total_shards}
        dist_world_size: ${dataloader.train.dist_world_size}
dataloader:
  train:
    total_shards: TOTAL
    dist_world_size: RANKS
recipe_dir: egs3
"""


@pytest.mark.parametrize(("total", "num_ranks"), [(16, 16), (8, 4), (1, 1)])
def test_espnet3_yaml_gives_dataset_and_loader_one_number(espnet3: type, total: int, num_ranks: int) -> None:
    """What `DataOrganizer` makes of the section `dataset`, and our loader of both."""
    config: Any = OmegaConf.create(YAML.replace("TOTAL", str(total)).replace("RANKS", str(num_ranks)))
    epochs = total // num_ranks
    found: list[str] = []
    for rank in range(num_ranks):
        datasets = [espnet3("dump", **entry.data_src_args) for entry in config.dataset.train]
        given = {"sharding": Rotate(config.dataloader.train.total_shards)} if total > 1 else {}
        loader = combine(datasets, num_ranks=num_ranks, rank=rank, **given)
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            found += texts(loader)
    assert sorted(found) == sorted(f"row {i}" for i in range(64))


def test_espnet3_ten_shards_for_eight_ranks_are_a_runtime_error(espnet3: type) -> None:
    with pytest.raises(RuntimeError, match="total_shards=10 of dataset 0 must be divisible by num_ranks=8"):
        combine([espnet3("dump", "train", total_shards=10, dist_world_size=8)], num_ranks=8, rank=0)


# -------------------------------------------------------------------------------- Hugging Face datasets, issue 8253

datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")

AS_METHOD = """
dataset = dataset.streaming_shard(
    num_shards=world_size,
    index=rank,
)
"""
AS_FUNCTION = """
dataset = datasets.streaming_shard(
    dataset,
    num_shards=world_size,
    index=rank,
)
"""
BY_BATCHES = """
dataset = dataset.streaming_shard(
    num_shards=world_size,
    index=rank,
    batch_size=batch_size,
    split_batches=False,
    drop_last=False,
)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AS_METHOD, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (AS_FUNCTION, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (BY_BATCHES, [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
    ids=["method", "function", "batches"],
)
def test_issue_8253_shards_before_the_map(
    text: str, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our function, at both places that the issue proposes for it."""
    monkeypatch.setattr(datasets.IterableDataset, "streaming_shard", streaming_shard, raising=False)
    monkeypatch.setattr(datasets, "streaming_shard", streaming_shard, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(8)))
    found = []
    for rank in range(2):
        tokenized: list[int] = []

        def tokenize_fn(row: dict[str, Any], tokenized: list[int] = tokenized) -> dict[str, Any]:
            tokenized.append(row["number"])
            return {"input_ids": [row["number"]]}

        scope = {"datasets": datasets, "world_size": 2, "rank": rank, "batch_size": 2}
        scope["dataset"] = datasets.load_dataset("json", data_files=str(file), streaming=True, split="train")
        exec(text, scope)
        dataset: Any = scope["dataset"]
        dataset = dataset.map(tokenize_fn)
        dataset = dataset.map(lambda row: {"labels": row["input_ids"]})
        dataset = dataset.filter(lambda row: row["number"] >= 0)
        found.append([row["labels"][0] for row in dataset])
        assert tokenized == found[-1]  # each rank only what it consumes
    assert found == expected


# ------------------------------------------------------------------------ Hugging Face datasets, the sharding utilities


def test_sharding_utilities_of_the_page() -> None:
    gen_kwargs = {
        "filepaths": ["shard_0.jsonl", "shard_1.jsonl", "shard_2.jsonl", "shard_3.jsonl"],
        "split": "train",  # non-list value shared across all workers
    }
    per_worker = split_gen_kwargs(gen_kwargs, max_num_jobs=2)
    assert per_worker[0] == {"filepaths": ["shard_0.jsonl", "shard_1.jsonl"], "split": "train"}
    assert per_worker[1] == {"filepaths": ["shard_2.jsonl", "shard_3.jsonl"], "split": "train"}
    assert merge_gen_kwargs(per_worker) == gen_kwargs
    assert number_of_shards(gen_kwargs) == 4
    assert distribute_shards(10, max_num_jobs=3) == [range(4), range(4, 7), range(7, 10)]
    assert distribute_shards(2, max_num_jobs=4) == [range(1), range(1, 2)]
    with pytest.raises(RuntimeError):
        number_of_shards({"filepaths": ["a", "b"], "metadata": ["a"]})


def test_sharding_utilities_shuffle_aligned_lists() -> None:
    rng = np.random.default_rng(42)
    gen_kwargs = {
        "filepaths": ["a.jsonl", "b.jsonl", "c.jsonl"],
        "metadata": ["meta_a", "meta_b", "meta_c"],  # same length, stays aligned
        "split": "train",
    }
    shuffled = shuffle_gen_kwargs(rng, gen_kwargs)
    assert shuffled["split"] == "train"
    assert sorted(shuffled["filepaths"]) == gen_kwargs["filepaths"]
    assert [f"meta_{path[0]}" for path in shuffled["filepaths"]] == shuffled["metadata"]
    theirs = datasets.utils.sharding._shuffle_gen_kwargs(np.random.default_rng(42), gen_kwargs)
    assert shuffled == theirs


# ------------------------------------------------------------------------------------------------- DALI, sharding


def size_of(id: int, epoch_num: int, dataset_size: int, num_shards: int) -> int:
    """The page's second formula."""
    shard = (id + epoch_num) % num_shards
    return (shard + 1) * dataset_size // num_shards - shard * dataset_size // num_shards


def sizes(folder: str, epoch: int, **given: Any) -> list[list[int]]:
    """The rows of each batch of three ranks."""
    found = []
    for rank in range(3):
        loader, dataset = StructuredDataset.create_dataloader(
            folder, batch_size=1365, columns=["label"], num_ranks=3, rank=rank, **given
        )
        dataset.set_epoch(epoch)
        steps = len(loader)
        found.append([len(batch["label"]) for batch in loader])
        assert len(found[-1]) == steps
    return found


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_dali_shards_advance_with_the_epoch(folder: str, epoch: int) -> None:
    """4,096 rows in 3 shards: 1,365, 1,365 and 1,366."""
    expected = [size_of(rank, epoch, ROWS, 3) for rank in range(3)]
    assert [sum(batches) for batches in sizes(folder, epoch, sharding="rotate")] == expected
    _, dataset = StructuredDataset.create_dataloader(folder, sharding="rotate", num_ranks=3, rank=0)
    assert [dataset.shard_size(rank, epoch) for rank in range(3)] == expected
    stick = sizes(folder, epoch, sharding=Rotate(stick_to_shard=True))
    assert [sum(batches) for batches in stick] == [size_of(rank, 0, ROWS, 3) for rank in range(3)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"last_batch": "partial"}, [[1365], [1365], [1365, 1]]),
        ({"last_batch": "drop"}, [[1365], [1365], [1365]]),
        ({"last_batch": "pad"}, [[1365], [1365], [1365, 1365]]),
        ({"last_batch": "wrap"}, [[1365], [1365], [1365, 1365]]),
        ({"even": "pad"}, [[1365, 1365]] * 3),  # pad_last_batch, which gives all pipelines as many batches
    ],
    ids=["PARTIAL", "DROP", "FILL by repeats", "FILL by the next shard", "pad_last_batch"],
)
def test_dali_last_batch_policies(folder: str, given: dict[str, Any], expected: list[list[int]]) -> None:
    assert sizes(folder, 0, sharding="rotate", **given) == expected
