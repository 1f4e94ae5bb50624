"""Ranks that save with torch.distributed.checkpoint: `torchrun ... checkpoint_job.py DATA OUT` writes OUT/rank.json."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from torch_dataloader_utils import CheckpointMismatchError, StructuredDataset, Sync

KEPT = pc.field("id") - pc.field("id") / 3 * 3 != 0
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unknown": {"filters": KEPT},
    "unknown, two workers": {"filters": KEPT, "num_workers": 2},
    "sync": {"filters": KEPT, "even": Sync(2)},
    "steps": {"filters": KEPT, "steps_per_epoch": 7},
}


def make(data: str, ranks: int | None = None, rank: int | None = None, **options: Any) -> Any:
    ranks = dist.get_world_size() if ranks is None else ranks
    rank = dist.get_rank() if rank is None else rank
    given = {"batch_size": 2, "shuffle": True, "split_rows": 4, "num_workers": 0} | options
    return StructuredDataset.create_dataloader(data, num_ranks=ranks, rank=rank, **given)[0]


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


def trained(model: Any, optimizer: Any) -> dict[str, Any]:
    """What is saved beside the loader."""
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def main(data: str, out: str) -> None:
    """Save in the middle of each kind's epoch, and load into new loaders."""
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 6))
    fully_shard(model, mesh=mesh)
    saved = trained(model, torch.optim.AdamW(model.parameters()))
    found: dict[str, Any] = {}
    for kind, options in KINDS.items():
        path = f"{out}/{kind}"
        loader = make(data, **options)
        iterator = iter(loader)
        taken = ids(itertools.islice(iterator, 2))
        dcp.save({**saved, "loader": loader}, checkpoint_id=path)
        resumed = make(data, **options)
        rest = ids(iterator)
        dcp.load({**saved, "loader": resumed}, checkpoint_id=path)
        found[kind] = {"taken": taken, "rest": rest, "resumed": ids(resumed)}
        found[kind]["alone"] = by_one_rank(data, path, options)
    found["unknown, gathered"] = gathered(data, f"{out}/gathered")
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def by_one_rank(data: str, path: str, options: dict[str, Any]) -> list[int] | str:
    """What a single rank reads that loads it, or the error that says what to save."""
    alone = make(data, 1, 0, **options)
    try:
        dcp.load({"loader": alone}, checkpoint_id=path)
        return ids(alone)
    except CheckpointMismatchError as error:
        return str(error)


def gathered(data: str, path: str) -> dict[str, Any]:
    """Ranks at other steps than each other; the state of all, which another number of ranks loads."""
    loader = make(data, filters=KEPT)
    iterator = iter(loader)
    taken = ids(itertools.islice(iterator, 1 + dist.get_rank()))
    dcp.save({"loader": loader.state_dict(all_ranks=True)}, checkpoint_id=path)
    rest = ids(iterator)
    values = {"loader": make(data, filters=KEPT).state_dict(all_ranks=True)}
    dcp.load(values, checkpoint_id=path)
    resumed, alone = make(data, filters=KEPT), make(data, 1, 0, filters=KEPT)
    resumed.load_state_dict(values["loader"])
    alone.load_state_dict(values["loader"])
    return {"taken": taken, "rest": rest, "resumed": ids(resumed), "alone": ids(alone)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
