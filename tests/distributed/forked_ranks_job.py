"""Ranks that are forked from a process that has used their loader: `forked_ranks_job.py FOLDER OUT PORTS`.

OUT is JSON: for each case, what each rank found.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from torch_dataloader_utils import Processes, StructuredDataset, combine

RANKS = 2
WORKERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 2},
    "forks": {"num_workers": 2, "worker_mode": Processes(context="fork")},
}


def after_three_steps(loader: Any) -> None:
    """Load the state of a pass that took three steps."""
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    loader.load_state_dict(loader.state_dict())


def in_epoch_three(loader: Any) -> None:
    len(loader)
    loader.set_epoch(3)


# What the parent does before; what it returns is held.
PEEKS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda loader: None,
    "len": len,
    "a batch": lambda loader: next(iter(loader)) and None,
    "a pass under way": lambda loader: (batches := iter(loader), next(batches)),
    "a whole pass": list,
    "the plan": lambda loader: loader.dataset.plan(),
    "its description": lambda loader: (str(loader.dataset.describe()), len(loader)),
    "its state": lambda loader: (len(loader), loader.state_dict()),
    "a state loaded": after_three_steps,
    "an epoch set": in_epoch_three,
}


def as_rank(rank: int, loader: Any, iterator: Any, how: str, port: int, out: str) -> None:
    signal.alarm(60)
    if how == "environment":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    else:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    try:
        steps = len(loader)
        rows = [row for batch in (iterator or loader) for row in batch["id"].tolist()]
        found = {"len": steps, "rows": rows, "epoch": loader.dataset.state_dict()["epoch"]}
    except Exception as error:  # noqa: BLE001 - compared by the test
        found = {"error": repr(error)}
    Path(out, str(rank)).write_text(json.dumps(found))
    if how == "group":
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)


def ranks_of(loader: Any, how: str, port: int, iterator: Any = None) -> list[dict[str, Any]]:
    """What forked ranks find."""
    with tempfile.TemporaryDirectory() as out:
        given = (loader, iterator, how, port, out)
        torch.multiprocessing.start_processes(as_rank, given, nprocs=RANKS, start_method="fork")
        return [json.loads(Path(out, str(rank)).read_text()) for rank in range(RANKS)]


def main() -> None:
    folder, out, *given = sys.argv[1:]
    ports = map(int, given)
    found: dict[str, Any] = {}
    for workers, options in WORKERS.items():
        for (peek, look), how in itertools.product(PEEKS.items(), ("environment", "group")):
            loader, dataset = StructuredDataset.create_dataloader(folder, batch_size=10, shuffle=True, **options)
            kept = look(loader)
            found[f"{peek}, {how}, {workers}"] = ranks_of(loader, how, next(ports))
            del kept
            dataset.close()
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=10)
    len(loader)
    found["an iterator"] = ranks_of(loader, "environment", next(ports), iter(loader))
    mixed = combine([StructuredDataset.create_dataloader(folder)[1]], batch_size=10)
    len(mixed)
    found["a combination"] = ranks_of(mixed, "environment", next(ports))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
    main()
