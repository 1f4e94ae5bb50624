"""A job of several processes under Accelerate: `accelerate_job.py <what> <data> <folder for what was found>`."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from torch_dataloader_utils import StructuredDataset

WHAT, DATA, OUT = sys.argv[1:]


def make(**options):
    return StructuredDataset.create_dataloader(DATA, **{"batch_size": 40, "shuffle": True, "even": "pad", **options})


def stateful():
    return Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))


def ids(batches):
    """The real rows of each batch."""
    return [batch["id"][batch["valid"]].tolist() if "valid" in batch else batch["id"].tolist() for batch in batches]


def error_of(function):
    try:
        function()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def every_way():
    """Each way to put a loader under Accelerate, two epochs of it, and the misuses."""
    accelerator = Accelerator(gradient_accumulation_steps=4)
    found = {"snippet": snippet(accelerator)}

    def epochs(loader, dataset, *numbers):
        return [(dataset.set_epoch(epoch), ids(loader))[1] for epoch in numbers]

    loader, dataset = make()
    assert accelerator.prepare(loader) is loader
    assert accelerator.prepare(loader) is loader
    found["twice"] = epochs(loader, dataset, 0, 5)
    loader, dataset = make(ranks=accelerator)
    found["given"] = epochs(accelerator.prepare(loader), dataset, 0, 5)
    found["plain"] = epochs(*make(), 0, 5)

    dataset.set_epoch(5)
    found["skipped"] = ids(accelerator.skip_first_batches(loader, 7))
    synced = []
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    for _ in loader:
        with accelerator.accumulate(model):
            synced.append(accelerator.sync_gradients)
    found["synced"] = synced
    for name, options in {"saved": {}, "saved unknown": {"filters": [("odd", "=", 1)], "even": "sync"}}.items():
        found[name] = saved(options, Path(OUT, name))
    return {**found, "errors": misused(accelerator)}  # last: Accelerators share what they are made with


def snippet(accelerator):
    """The loop of the reference documentation."""
    loader, dataset = StructuredDataset.create_dataloader(
        path=DATA,
        format="parquet",
        num_workers=4,
        batch_size=100,
        shuffle=True,
        num_ranks=accelerator.num_processes,
        rank=accelerator.process_index,
    )
    loader = accelerator.prepare(loader)
    met = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        met.append(ids(loader))
    return met


def saved(options, folder):
    """What is left after a save in step 5, by load_state in a new loader; and whether all ranks say the same state."""
    accelerator = stateful()
    loader, dataset = make(**options)
    loader = accelerator.prepare(loader)
    dataset.set_epoch(3)
    batches = iter(loader)
    first = ids(next(batches) for _ in range(5))
    accelerator.save_state(str(folder))
    state = json.dumps(loader.state_dict())
    rest = ids(batches)

    accelerator.free_memory()
    loader, dataset = make(**options)
    loader = accelerator.prepare(loader)
    accelerator.wait_for_everyone()
    accelerator.load_state(str(folder))
    dataset.set_epoch(3)
    return {"first": first, "rest": rest, "resumed": ids(loader), "state": state}


def misused(accelerator):
    """What is said to wrappers of Accelerate around the dataset."""
    _, dataset = make()
    shards = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    split = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    return [
        error_of(lambda: next(iter(accelerator.prepare(DataLoader(dataset, batch_size=None))))),
        error_of(lambda: next(iter(shards.prepare(DataLoader(dataset, batch_size=8))))),
        error_of(lambda: make(ranks=split)),
    ]


def training(killed):
    """Two epochs, saved every 5 steps and begun where they were saved; rank 1 dies in step 23."""
    accelerator = stateful()
    loader, dataset = make()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    folder, step = Path(OUT, "checkpoint"), 0
    if folder.exists():
        accelerator.load_state(str(folder))
        step = int(Path(folder, "step").read_text())
    log = Path(OUT, f"rows-{accelerator.process_index}")
    for epoch in range(loader.state_dict()["epoch"], 2):
        dataset.set_epoch(epoch)
        for batch in loader:
            accelerator.backward(model(batch["odd"][:, None].float()).sum())
            optimizer.step()
            step += 1
            with log.open("a") as file:
                file.write(json.dumps([epoch, step, *ids([batch])]) + "\n")
            if step % 5 == 0:
                accelerator.save_state(str(folder))
                Path(folder, "step").write_text(str(step))
                accelerator.wait_for_everyone()
            if killed and step == 23 and accelerator.process_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)


if WHAT == "every way":
    Path(OUT, f"found-{os.environ['RANK']}.json").write_text(json.dumps(every_way()))
else:
    training(WHAT == "killed")
os._exit(0)
