"""What ranks of a job that follows a table do: `forkrun.py RANKS following_jobs.py SCENARIO CONFIG OUT`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch.distributed as dist
from pyiceberg.catalog import load_catalog

from tests.following.folders import add
from tests.iceberg.service_jobs import main
from torch_dataloader_utils import Files, Follow, IcebergDataset, stream
from torch_dataloader_utils.errors import FileChangedError


def opened(config: Mapping[str, str], state: Any = None) -> Any:
    """A loader that follows, and reads older rows beside the appended ones; at a state, as after a restart."""
    options = {"follow": Follow(wait=0, replay=0.5), "shuffle": True, "even": "pad", "batch_size": 5}
    loader, _ = IcebergDataset.create_dataloader("ns.t", catalog_config=config, **options)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def real(batches: Iterable[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"][batch["valid"]].tolist()]


def restarts(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """The pass of rows that rank 1 appends, restarted at every step; the state after two steps is left in a file."""
    loader = opened(config)
    first, before = real(loader), loader.state_dict()
    if dist.get_rank() == 1:
        load_catalog(**config).load_table("ns.t").append(pa.table({"id": range(100, 140), "x": [0] * 40}))
    dist.barrier()
    found: dict[str, Any] = {"first": first, "taken": [], "rest": []}
    rest: list[Any] = [before]
    while rest:  # as many batches on all ranks, perhaps without a real row
        loader = opened(config, before)
        found["taken"].append(real(islice(loader, len(found["taken"]))))
        state = loader.state_dict()
        if dist.get_rank() == 0 and len(found["taken"]) == 3:
            (out / "state.json").write_text(json.dumps(state))
        rest = list(opened(config, state))
        found["rest"].append(real(rest))
    return found


def continues(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """The rest of the pass whose state `restarts` left."""
    return {"rest": real(opened(config, json.loads((out / "state.json").read_text())))}


def follow(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """Passes that follow a table to which rank 1 appends: before the second and third, and while the fourth waits."""
    loader, _ = IcebergDataset.create_dataloader(
        "ns.t", catalog_config=config, batch_size=8, even="pad", follow=Follow(0.2)
    )
    table = load_catalog(**config).load_table("ns.t")
    found = []
    for appends, seconds in ((0, 0), (1, 0), (2, 0), (1, 0.5)):
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(seconds)
            for _ in range(appends):
                size = table.scan().to_arrow().num_rows
                table.append(pa.table({"id": range(size, size + 10), "x": [0] * 10}))
        if not seconds:
            dist.barrier()
        batches = list(loader)
        found.append({"ids": real(batches), "steps": len(batches)})
    return {"epochs": found}


def follow_evenly(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """Passes of padded steps that follow tables to which rank 0 appends, each resumed half-way by a new loader."""
    catalog, rank = load_catalog(**config), dist.get_rank()
    found = []
    for number, workers, replay in ((0, 0, 0.0), (1, 2, 0.0), (2, 2, 0.5)):
        name, first, passes = f"ns.evenly_{number}", 0, []
        if rank == 0:
            catalog.create_table(name, schema=pa.schema([("id", pa.int64())]))
        dist.barrier()
        state = None
        for appended in (0, 40, 0, 1, 5, 0, 30):
            if rank == 0 and appended:
                catalog.load_table(name).append(pa.table({"id": range(first, first + appended)}))
            first += appended
            dist.barrier()
            batches: list[Any] = []
            for most in (2, None):
                loader, dataset = IcebergDataset.create_dataloader(
                    name, catalog_config=config, batch_size=4, even="pad", follow=Follow(wait=0, replay=replay),
                    num_workers=workers, shuffle=True
                )  # fmt: skip
                if state is not None:
                    loader.load_state_dict(state)
                batches += islice(loader, most)
                state = loader.state_dict()
                if len(batches) < 2:
                    break
                if appended == 30 and most:
                    (out / f"{number}.state").write_text(json.dumps(state))
                dataset.close()
            passes.append([batch["id"][batch["valid"]].tolist() for batch in batches])
        found.append(passes)
    return {"tables": found}


def follow_folder(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """Passes of a folder to which rank 1 adds files: before each, while the third waits; then it changes one.

    Only rank 0 looks: the others would see another folder.
    """
    rank, first, data = dist.get_rank(), 0, out / "data"

    def added(rows: int) -> None:
        nonlocal first
        if rank == 1:
            add(data, f"h={first}/a.parquet", range(first, first + rows))
        first += rows

    later = threading.Timer(0.1, added, (25,))
    if rank == 1:
        later.start()
    path = data if rank == 0 else out / "elsewhere" / ".." / "data"  # what the others call it does not matter
    (out / "elsewhere").mkdir(exist_ok=True)
    data.mkdir(exist_ok=True)
    follow = Follow(poll=0.1, wait=5, settle=0)  # the loader waits for its first file
    loader = stream(Files(str(path), follow=follow), even="pad", batch_size=4, shuffle=True)
    first, found = 25, [real(loader)]
    for rows, seconds in ((10, 0.0), (3, 0.4)):
        dist.barrier()
        if seconds and rank == 1:
            threading.Timer(seconds, added, (rows,)).start()
        elif not seconds:
            added(rows)
            dist.barrier()
        found.append(real(loader))
    dist.barrier()
    if rank == 1:
        add(data, "h=0/a.parquet", range(5))
    dist.barrier()
    try:
        next(iter(loader))
    except FileChangedError as error:
        return {"passes": found, "error": str(error)}
    return {"passes": found, "error": ""}


if __name__ == "__main__":
    main(globals())
