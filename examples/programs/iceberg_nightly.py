"""Iceberg: train each night on what a table got that day, be preempted, and go on without losing or repeating a row.

    python examples/programs/iceberg_nightly.py

Makes a table, to which a day of events is appended before each run. A run trains on the new rows and a
quarter as many older ones (so that the model does not forget them), in a process of its own. In the second
night the process gets SIGTERM after some steps, saves, and another one continues. In the end each row was
trained on exactly once as a new one. Needs the extra `iceberg`.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyiceberg.catalog import load_catalog

import torch_dataloader_utils as tdu

DAYS, ROWS = 3, 20_000
CATALOG = {"name": "lake", "type": "sql", "uri": "sqlite:///lake.db", "warehouse": "warehouse"}
asked = False


def ask_to_stop(number, frame):
    global asked
    asked = True  # nothing else: the loop stops after its step


def train():
    """One night: from the checkpoint, if there is one, to the end of what is new."""
    signal.signal(signal.SIGTERM, ask_to_stop)
    events = tdu.Iceberg(
        "lake.events",
        catalog=CATALOG,
        follow=tdu.Follow(replay=0.25, wait=0),  # wait=0: a pass without new rows is empty
    )
    loader = tdu.stream(events, batch_size=500, shuffle=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = Path("checkpoint.pt")
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])

    with open("trained.txt", "a") as log:  # what a test or an auditor would ask for; a real run has its metrics
        for step, batch in enumerate(loader):
            loss = ((model(batch["x"].float()[:, None])[:, 0] - batch["y"].float()) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write("".join(f"{row}\n" for row in batch["id"].tolist()))
            if step == 20 and "--preempt" in sys.argv:
                os.kill(os.getpid(), signal.SIGTERM)  # the scheduler takes the machine back
            if asked:
                break
    torch.save({"loader": loader.state_dict(), "model": model.state_dict()}, "checkpoint.new")
    os.replace("checkpoint.new", checkpoint)  # whole, or as it was
    print(f"  {step + 1} steps, loss {loss.item():.3f}{', preempted' if asked else ''}")


def append_day(table, day):
    """Events of a day, from several writers."""
    rng = np.random.default_rng(day)
    for part in np.array_split(np.arange(day * ROWS, (day + 1) * ROWS), 4):
        x = rng.normal(0, 1, len(part))
        table.append(pa.table({"id": part, "x": x, "y": 2 * x + 1}))


def main():
    catalog = load_catalog(**CATALOG)
    catalog.create_namespace("lake")
    schema = pa.schema({"id": pa.int64(), "x": pa.float64(), "y": pa.float64()})
    table = catalog.create_table("lake.events", schema=schema)

    for day in range(DAYS):
        append_day(table, day)
        print(f"night {day}: {ROWS:,} new rows")
        for options in [["--preempt"], []] if day == 1 else [[]]:
            subprocess.run([sys.executable, Path(__file__).resolve(), "--train", *options], check=True)

    trained = np.loadtxt("trained.txt", dtype=np.int64)
    times = np.bincount(trained, minlength=DAYS * ROWS)
    newest = times[-ROWS:]  # no later night could replay these
    assert (times >= 1).all()
    assert (newest == 1).all()
    print(f"each of {DAYS * ROWS:,} rows was trained on; {int((times > 1).sum()):,} were replayed in a later night")


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            main()
