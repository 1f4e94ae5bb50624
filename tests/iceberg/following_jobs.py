"""What ranks of a job that follows a table do: `forkrun.py RANKS following_jobs.py SCENARIO CONFIG OUT`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch.distributed as dist
from pyiceberg.catalog import load_catalog
from service_jobs import main  # beside this script

from torch_dataloader_utils import Follow, IcebergDataset


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
        found["taken"].append(real(itertools.islice(loader, len(found["taken"]))))
        state = loader.state_dict()
        if dist.get_rank() == 0 and len(found["taken"]) == 3:
            (out / "state.json").write_text(json.dumps(state))
        rest = list(opened(config, state))
        found["rest"].append(real(rest))
    return found


def continues(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """The rest of the pass whose state `restarts` left."""
    return {"rest": real(opened(config, json.loads((out / "state.json").read_text())))}


if __name__ == "__main__":
    main(globals())
