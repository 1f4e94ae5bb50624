"""What ranks of a job do: `forkrun.py RANKS service_jobs.py SCENARIO CONFIG OUT`; each writes OUT/rank.json."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch.distributed as dist
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import DataLoaderUtilsError, IcebergDataset


def epochs(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """The ids of two shuffled epochs, and how many steps each had."""
    loader, dataset = IcebergDataset.create_dataloader(
        "ns.points", catalog_config=config, batch_size=100, shuffle=True, split_bytes="8KiB", even="pad"
    )
    found = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = list(loader)
        real = [row for batch in batches for row in batch["id"][batch["valid"]].tolist()]
        found.append({"ids": real, "steps": len(batches)})
    return {"epochs": found, "rows": dataset.plan().rows}


def killed(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """What a pass raises whose server goes half-way, and after how many seconds."""
    loader, _ = IcebergDataset.create_dataloader(
        "ns.points", catalog_config=config, batch_size=500, num_workers=1, prefetch_bytes="1MiB"
    )
    passing = iter(loader)
    rows = len(next(passing)["id"])
    (out / f"{dist.get_rank()}.begun").touch()
    while not (out / "gone").exists():
        time.sleep(0.05)
    begin = time.monotonic()
    try:
        for batch in passing:
            rows += len(batch["id"])
    except DataLoaderUtilsError as error:
        message = f"{type(error).__name__}: {error}"
        return {"error": message, "rows": rows, "seconds": time.monotonic() - begin}
    return {"error": None, "rows": rows, "seconds": time.monotonic() - begin}


def advance(config: Mapping[str, str], out: Path) -> dict[str, Any]:
    """Three epochs of a table to which rank 1 appends before each asks for the newest rows; then it is dropped."""
    loader, dataset = IcebergDataset.create_dataloader("ns.t", catalog_config=config, batch_size=8, even="pad")
    table = load_catalog(**config).load_table("ns.t")
    found = []
    for epoch in range(3):
        dist.barrier()
        if dist.get_rank() == 1:
            first = 100 + 10 * epoch
            table.append(pa.table({"id": range(first, first + 10), "x": [0] * 10}))
        newer = dataset.advance()
        batches = list(loader)
        real = [row for batch in batches for row in batch["id"][batch["valid"]].tolist()]
        found.append({"ids": real, "steps": len(batches), "snapshot": str(dataset.snapshot), "newer": newer})
    if dist.get_rank() == 0:
        table.catalog.drop_table("ns.t")
    try:
        dataset.advance()
    except DataLoaderUtilsError as error:
        return {"epochs": found, "error": type(error).__name__}
    return {"epochs": found, "error": None}


def main(scenarios: Mapping[str, Any]) -> None:
    """Run the scenario that the command line names, and write what it found."""
    scenario, config, folder = sys.argv[1:]
    out = Path(folder)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = scenarios[scenario](json.loads(config), out)
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main(globals())
