"""What the launchers' examples share: which batches, a small model, its loss, and a log of the rows that were met.

The flights are those of flights/make_data.py: `python examples/flights/make_data.py` (or `make demo`) comes first.
"""

import os
from pathlib import Path

import torch
from flights.places import FILES

NUMBERS = ["distance", "hour", "minute", "day"]
SCALES = torch.tensor([1000.0, 24.0, 60.0, 31.0])

# Options of stream; those that concern the ranks stand in the examples.
FLIGHTS = {
    "source": FILES,
    "columns": ["row_id", *NUMBERS, "arr_delay"],
    "dtypes": dict.fromkeys([*NUMBERS, "arr_delay"], torch.float32),
    "stack": {"x": NUMBERS},
    "nulls": {"arr_delay": "mask"},  # flights that never arrived have none: adds the bool tensor arr_delay_valid
    "split_bytes": "256KiB",  # small splits, so that this small table gives each rank many
    "batch_size": 1024,
    "shuffle": True,
}


class Model(torch.nn.Module):
    """From what is known before a flight to its arrival delay in hours, of shape [rows, 1]."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(len(NUMBERS), 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, x):
        return self.layers(x / SCALES.to(x.device))


def loss_of(model, batch):
    """The mean squared error in hours squared, over the flights that arrived."""
    counts = batch["arr_delay_valid"] & batch.get("valid", True)  # repeats of even="pad" are not `valid`
    errors = model(batch["x"]).squeeze(1) - batch["arr_delay"] / 60
    return (errors[counts] ** 2).mean()


def log_rows(epoch, batch):
    """Append the ids of the rows to a file of this process and epoch, if ROW_LOG names a folder: what tests look at."""
    if folder := os.environ.get("ROW_LOG"):
        ids = batch["row_id"][batch["valid"]] if "valid" in batch else batch["row_id"]
        with Path(folder, f"epoch-{epoch}-process-{os.getpid()}").open("ab") as file:
            file.write(ids.cpu().numpy().tobytes())
