"""What the processes of a job do: `forkrun.py RANKS jobs.py SCENARIO DATA OUT`; each rank writes OUT/rank.json."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import PlanMismatchError, StructuredDataset, Sync


def train(loader: Any, dataset: Any, epochs: int = 3) -> list[dict[str, Any]]:
    """Epochs of a model whose gradients are all-reduced: what each rank saw."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        real, repeats, steps = [], 0, 0
        for batch in loader:
            optimizer.zero_grad()
            model(batch["x"][:, None]).mean().backward()
            optimizer.step()
            mask = batch.get("valid", torch.ones(len(batch["id"]), dtype=torch.bool))
            real += batch["id"][mask].tolist()
            repeats += int((~mask).sum())
            steps += 1
        seen.append({"real": real, "repeats": repeats, "steps": steps})
    return seen


def explicit() -> dict[str, int]:
    return {"num_ranks": dist.get_world_size(), "rank": dist.get_rank()}


def even(data: str) -> dict[str, Any]:
    found = {}
    for folder in sorted(os.listdir(data)):
        for mode in ("drop", "pad"):
            loader, dataset = StructuredDataset.create_dataloader(
                f"{data}/{folder}", even=mode, batch_size=8, shuffle=True, split_rows=50, **explicit()
            )
            found[f"{folder} {mode}"] = train(loader, dataset)
    return found


def uneven_warning(data: str) -> dict[str, Any]:
    """The warning comes before the first step."""
    events: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: events.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("torch_dataloader_utils").addHandler(handler)
    loader, _ = StructuredDataset.create_dataloader(f"{data}/seven", batch_size=8)  # ranks found by themselves
    events += ["step" for _ in loader]
    return {"events": events[:3]}


def join_warning(data: str) -> dict[str, Any]:
    """Unequal steps within `Join`, and within one that is disabled: the warnings of each loop, and its rows."""
    events: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: events.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("torch_dataloader_utils").addHandler(handler)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    found: dict[str, Any] = {}
    for enable in (True, False):
        loader, _ = StructuredDataset.create_dataloader(f"{data}/seven", batch_size=8)
        ids = []
        with Join([model], enable=enable):
            for batch in loader:
                ids += batch["id"].tolist()
                if enable:
                    model(batch["x"][:, None]).mean().backward()
        found[str(enable)] = {"events": [*events], "ids": ids}
        events.clear()
    return found


def remedies(data: str) -> dict[str, Any]:
    """An uncounted filter: even='drop' is refused, and each of the three remedies trains."""
    options: dict[str, Any] = {"filters": [("x", ">", 100.0)], "batch_size": 8, "shuffle": True, "split_rows": 50}
    try:
        StructuredDataset.create_dataloader(f"{data}/seven", even="drop", **options, **explicit())
        refused = ""
    except ValueError as error:
        refused = str(error)
    found: dict[str, Any] = {"refused": refused}
    ways: dict[str, dict[str, Any]] = {
        "count_rows": {"count_rows": True, "even": "drop"},
        "steps_per_epoch": {"steps_per_epoch": 30},
        "sync": {"even": Sync(4)},
    }
    for name, way in ways.items():
        loader, dataset = StructuredDataset.create_dataloader(f"{data}/seven", **way, **options, **explicit())
        found[name] = train(loader, dataset, epochs=2)
    return found


def mismatch(make: Callable[[], Any]) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        loader, _ = make()
        next(iter(loader))
    except PlanMismatchError as error:
        return {"error": str(error), "seconds": time.monotonic() - begin}
    return {"error": None}


def mismatches(data: str) -> dict[str, Any]:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    create = StructuredDataset.create_dataloader
    seven, two = f"{data}/seven", f"{data}/two"
    return {
        "same rank": mismatch(lambda: create(seven, num_ranks=num_ranks, rank=0)),
        "other files": mismatch(lambda: create(seven if rank else two, num_ranks=num_ranks, rank=rank)),
        "other seed": mismatch(lambda: create(seven, shuffle=True, shuffle_seed=rank, num_ranks=num_ranks, rank=rank)),
        "other size": mismatch(lambda: create(seven, num_ranks=num_ranks + 1, rank=rank)),
        "other epoch": mismatch(lambda: _at_epoch(create(seven), rank)),
        "all well": mismatch(lambda: create(seven, num_ranks=num_ranks, rank=rank)),
        # Only rank 0 reads its own validation data: it asks nobody.
        "alone": mismatch(lambda: create(seven, num_ranks=1, rank=0)) if rank == 0 else None,
    }


def _at_epoch(made: Any, epoch: int) -> Any:
    made[1].set_epoch(epoch)
    return made


def missing(data: str) -> dict[str, Any]:
    """The last rank never begins the pass: the others are told who is missing."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(6)
        return {"error": None}
    return mismatch(lambda: StructuredDataset.create_dataloader(f"{data}/seven", timeout=2.0, **explicit()))


def main() -> None:
    scenario, data, out = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = globals()[scenario](data)
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    if scenario != "missing":
        dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
