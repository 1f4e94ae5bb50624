"""What an elastic agent starts: `torchrun ... elastic_job.py DATA OUT`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_dataloader_utils import StructuredDataset

SAVE_EVERY = 4  # steps


def main(data: str, out: Path) -> None:
    """Go through two epochs, from the last state on."""
    dist.init_process_group("gloo")
    loader, dataset = StructuredDataset.create_dataloader(
        data, shuffle=True, batch_size=8, split_rows=40, num_workers=2, even="pad"
    )
    saved = out / "state.json"
    step = 0
    if saved.exists():
        state = json.loads(saved.read_text())
        loader.load_state_dict(state["loader"])
        step = state["step"]
    with (out / f"run-{run_number(out)}-{os.getpid()}.jsonl").open("w") as log:
        for epoch in range(loader.state_dict()["epoch"], 2):
            dataset.set_epoch(epoch)
            for batch in loader:
                line = {"epoch": epoch, "step": step, "ids": batch["id"][batch["valid"]].tolist()}
                log.write(json.dumps(line) + "\n")
                log.flush()
                step += 1
                time.sleep(0.05)
                dist.barrier()
                if step % SAVE_EVERY == 0:
                    save(loader, saved, step)
    save(loader, saved, step)
    os._exit(0)


def run_number(out: Path) -> int:
    """How many worlds were there before this one; notes how large this one is."""
    found = [len(list(out.glob("world-*")))]
    if dist.get_rank() == 0:
        (out / f"world-{found[0]}").write_text(str(dist.get_world_size()))
    dist.broadcast_object_list(found, src=0)
    return found[0]


def save(loader: Any, path: Path, step: int) -> None:
    """Rank 0 writes the state, whole or not at all; the others wait."""
    if dist.get_rank() == 0:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"step": step, "loader": loader.state_dict()}))
        new.rename(path)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
