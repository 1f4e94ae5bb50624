"""What the processes of a job do with meshes: `forkrun.py RANKS mesh_jobs.py SCENARIO DATA OUT`."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from torch_dataloader_utils import DataLoaderUtilsError, Mesh, StructuredDataset


def made(data: str, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(data, **{"split_rows": 20, "batch_size": 8, "timeout": 30, **options})


def read(data: str, **options: Any) -> dict[str, Any]:
    """This process's rank, and the rows of two epochs."""
    loader, dataset = made(data, shuffle=True, **options)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append([int(row) for batch in loader for row in batch["id"]])
    return {"rank": dataset.world.rank, "num_ranks": dataset.world.num_ranks, "epochs": epochs}


def failure(act: Callable[[], Any]) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        act()
    except DataLoaderUtilsError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}
    return {"error": None}


def meshes(data: str) -> dict[str, Any]:
    """Every shape that four processes can have, and what is refused."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    pipeline = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("pp", "dp", "tp"))
    context = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("dp_replicate", "cp", "dp_shard"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("model", "data"))
    bare = init_device_mesh("cpu", (4,))
    rank = dist.get_rank()
    counted = {"filters": [("id", "<", 100)], "count_rows": True, "even": "drop"}
    return {
        "dp x tp": read(data, ranks=mesh),
        "pp x dp x tp": read(data, ranks=pipeline),
        "dp x cp": read(data, ranks=context),
        "hybrid": read(data, ranks=hybrid),
        "one dimension": read(data, ranks=bare),
        "slice": read(data, ranks=mesh["dp"]),
        "slice of three": read(data, ranks=pipeline["pp", "dp"]),
        "named": read(data, ranks=Mesh(other, dims=["data"])),
        "all alike": read(data, ranks=Mesh(mesh["tp"], dims=())),
        "group": read(data, ranks=mesh.get_group("dp")),
        "numbers": read(data, ranks=mesh, num_ranks=2, rank=mesh.get_local_rank("dp")),
        "sync": read(data, ranks=mesh, even="sync", filters=[("id", "<", 100)]),
        "counted": read(data, ranks=pipeline, **counted),
        "counted in a slice": read(data, ranks=mesh["dp"], **counted),
        "manifest": read(data, ranks=pipeline, manifest=f"{data}_manifest.parquet"),
        "no dp": failure(lambda: made(data, ranks=other)),
        "unknown": failure(lambda: made(data, ranks=Mesh(mesh, dims=("data",)))),
        "other size": failure(lambda: made(data, ranks=mesh, num_ranks=4, rank=rank)),
        "peers differ": failure(lambda: next(iter(made(data, ranks=mesh, batch_size=8 + rank % 2)[0]))),
        "another rank": failure(lambda: made(data, ranks=mesh, num_ranks=2, rank=1 - mesh.get_local_rank("dp"))),
        "local rank": failure(lambda: next(iter(made(data, num_ranks=4, rank=rank % 2)[0]))),
        "no mesh": failure(lambda: next(iter(made(data, num_ranks=2, rank=rank // 2)[0]))),
        "sent away": failure(lambda: pickle.dumps(made(data, ranks=mesh)[1])),
    }


def flattened(data: str) -> dict[str, Any]:
    """The meshes of torchtitan and NeMo, with the dimensions that they flatten, of four processes."""
    mesh = init_device_mesh("cpu", (1, 1, 2, 2, 1), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    data_parallel = mesh["dp_replicate", "dp_shard"]._flatten("dp")
    joined = mesh["dp_replicate", "dp_shard", "cp"]._flatten("dp_cp")
    sharded = mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    replicated = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard_cp"))
    experts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard_mod_ep", "dp_shard_in_ep"))
    dense = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "fsdp"))
    batches = init_device_mesh("cpu", (1, 2, 2, 1), mesh_dim_names=("pp", "batch", "cp", "tp"))
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dpo", "data"))
    return {
        "whole": read(data, ranks=mesh),
        "dp": read(data, ranks=data_parallel),
        "experts": read(data, ranks=experts),
        "said to differ": read(data, ranks=Mesh(joined, dims=("dp_cp",))),
        "sharded": read(data, ranks=Mesh(dense, dims=("dp_replicate", "fsdp"))),
        "replicated": read(data, ranks=Mesh(dense, dims=("dp_replicate",))),
        "batch": read(data, ranks=Mesh(batches, dims=("batch",))),
        "dp_cp": failure(lambda: made(data, ranks=joined)),
        "dp_shard_cp": failure(lambda: made(data, ranks=sharded)),
        "both": failure(lambda: made(data, ranks=replicated)),
        "fsdp": failure(lambda: made(data, ranks=dense)),
        "no dp": failure(lambda: made(data, ranks=batches)),
        "dpo": failure(lambda: made(data, ranks=other)),
    }


def partial(data: str) -> dict[str, Any]:
    """A mesh of the first two of three processes; the third reads by itself, and a peer that stays away is named."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (3,))  # all take part in making groups
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return {
            "rows": read(data, num_ranks=1, rank=0),
            "outside": failure(lambda: made(data, ranks=group)),
            "late": time.sleep(4),
        }
    return {
        "rows": read(data, ranks=group),
        "late": failure(lambda: next(iter(made(data, ranks=mesh, timeout=1.5)[0]))),
    }


def detected(data: str) -> dict[str, Any]:
    """num_ranks forgotten under torchrun: before and after torch.distributed is initialised."""
    before = made(data)[1].world
    rank = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
    early, _ = made(data)
    steps = len(early)  # a use: nothing tells of other ranks yet
    os.environ.update(rank)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {
        "before": [before.rank, before.num_ranks, before.source],
        "early": {"steps": steps, **failure(lambda: next(iter(early)))},
        "plain": read(data),
        "source": made(data)[1].world.source,
    }
    os.environ["RANK"] = str(1 - dist.get_rank())
    world = made(data)[1].world
    found["outranking"] = [world.rank, world.num_ranks, world.source]
    for name in rank:
        del os.environ[name]
    # Worker processes of torch's own loader, which inherit nothing: they are of this rank.
    _, dataset = made(data)
    workers = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    found["workers"] = [int(row) for batch in workers for row in batch["id"]]
    _, dataset = made(data, ranks=init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp")))
    workers = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    found["workers of a mesh"] = [int(row) for batch in workers for row in batch["id"]]
    return found


def accelerated(data: str) -> dict[str, Any]:
    """Ranks from an Accelerator, from its state, and from one with tensor parallelism."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    found = {"given": read(data, ranks=accelerator), "state": read(data)}
    found["source"] = made(data, ranks=accelerator)[1].world.source
    found["other size"] = failure(lambda: made(data, ranks=accelerator, num_ranks=4, rank=0))
    # What Accelerator(parallelism_config=ParallelismConfig(tp_size=2)) does, which needs transformers.
    accelerator.state.device_mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    found["tensor parallel"] = read(data, ranks=accelerator)
    return found


def main() -> None:
    scenario, data, out = sys.argv[1:]
    if scenario in ("meshes", "flattened"):
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = globals()[scenario](data)
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    if scenario == "partial":
        time.sleep(3)  # rank 0 keeps the store in which the others look who is missing
    else:
        dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
