"""One run of a job that is killed and restarted: `forkrun.py RANKS elastic_job.py DATA OUT RUN EPOCHS SETTINGS`.

Each rank appends the row ids of each batch to OUT/run-RUN-rank.jsonl. Every few steps rank 0 saves the state to
OUT/state.json, with the steps of this run that it covers. A restarted job begins at the last state, with any number of
ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_dataloader_utils import StructuredDataset

SAVE_EVERY = 3  # steps


def main(data: str, out: str, run: int, epochs: int, settings: dict[str, Any]) -> None:
    """Train on, from the last state, until so many epochs are done."""
    dist.init_process_group("gloo")
    Path(out, f"run-{run}-{dist.get_rank()}.pid").write_text(str(os.getpid()))
    dist.barrier()
    loader, _ = StructuredDataset.create_dataloader(
        data, num_ranks=dist.get_world_size(), rank=dist.get_rank(), shuffle=True, even="pad", **settings
    )
    saved = Path(out, "state.json")
    step = 0
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text())["loader"])
    with Path(out, f"run-{run}-{dist.get_rank()}.jsonl").open("w") as log:
        while (epoch := loader.state_dict()["epoch"]) < epochs:
            for batch in loader:
                line = {"epoch": epoch, "step": step, "ids": batch["id"][batch["valid"]].tolist()}
                log.write(json.dumps(line) + "\n")
                log.flush()
                step += 1
                time.sleep(0.01)
                dist.barrier()
                if step % SAVE_EVERY == 0:
                    save(loader, saved, run, step)
            save(loader, saved, run, step)
    dist.barrier()
    os._exit(0)


def save(loader: Any, path: Path, run: int, step: int) -> None:
    """Rank 0 writes the state, whole or not at all; the others wait, so that none runs ahead of it."""
    if dist.get_rank() == 0:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"run": run, "steps": step, "loader": loader.state_dict()}))
        new.rename(path)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
