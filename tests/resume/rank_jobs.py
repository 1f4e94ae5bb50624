"""What the ranks of a torchrun job do with states: `torchrun ... rank_jobs.py DATA OUT`; each writes OUT/rank.json."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch.distributed as dist

from torch_dataloader_utils import PlanMismatchError, StructuredDataset, Sync

KEPT = (
    pc.field("id") - pc.field("id") / 3 * 3 != 0
)  # no statistics can prune it: row counts are known only after reading


def make(data: str, ranks: int | None = None, rank: int | None = None, **options: Any) -> Any:
    ranks = dist.get_world_size() if ranks is None else ranks
    rank = dist.get_rank() if rank is None else rank
    given = {"batch_size": 4, "shuffle": True, "split_rows": 8} | options
    return StructuredDataset.create_dataloader(data, num_ranks=ranks, rank=rank, **given)[0]


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


def gathered(data: str) -> dict[str, Any]:
    """Unknown counts: rank r takes 2 + r batches; the state of all ranks is loaded by one."""
    loader = make(data, filters=KEPT)
    taken = ids(itertools.islice(loader, 2 + dist.get_rank()))
    state = json.loads(json.dumps(loader.state_dict(all_ranks=True)))
    alone = make(data, 1, 0, filters=KEPT)
    alone.load_state_dict(state)
    return {"taken": taken, "rest": ids(alone), "state": state}


def in_step(data: str) -> dict[str, Any]:
    """even="sync": all ranks stop together, also after a resume in the middle of a phase of agreement."""
    whole = ids(make(data, filters=KEPT, even=Sync(4)))
    loader = make(data, filters=KEPT, even=Sync(4))
    first = ids(itertools.islice(loader, 3))
    state = loader.state_dict()
    resumed = make(data, filters=KEPT, even=Sync(4))
    resumed.load_state_dict(state)
    return {"whole": whole, "resumed": first + ids(resumed)}


def other_places(data: str) -> dict[str, Any]:
    """Ranks that are told other places of one epoch: an error on each, before the first batch."""
    loader = make(data)
    for _ in itertools.islice(loader, 1 + dist.get_rank()):
        pass
    resumed = make(data)
    resumed.load_state_dict(loader.state_dict())
    try:
        next(iter(resumed))
    except PlanMismatchError as error:
        return {"error": str(error)}
    return {"error": ""}


def main(data: str, out: str) -> None:
    """Write what each job found."""
    dist.init_process_group("gloo")
    found = {job.__name__: job(data) for job in (gathered, in_step, other_places)}
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
