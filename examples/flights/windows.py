"""Windows over the flights of each aircraft: from its last eight departures, the delay of the next.

    python examples/flights/make_data.py      first
    python examples/flights/windows.py

The files are in the order of time, so the flights of an aircraft lie apart: a copy sorted by tail number is written
once, into examples/flights/data/sorted. An aircraft that stands for more than three days begins another run.
"""

import time

import pyarrow.compute as pc
import torch
from places import DATA, FILES

from torch_dataloader_utils import Subsets, Windows, stream

windows = Windows(
    8, order="time_hour", by="tailnum", horizon=1, gap="3d",
    sort=DATA / "sorted", static=["carrier"], future=["dep_delay"],
)  # fmt: skip
sides = Subsets({"train": 0.8, "val": 0.2}, by="tailnum")
began = time.perf_counter()
train = stream(
    FILES,
    columns=["tailnum", "carrier", "time_hour", "dep_delay", "distance"],
    filters=pc.field("tailnum").is_valid() & pc.field("dep_delay").is_valid(),
    sequences=windows,
    subset=sides["train"],
    batch_size=512,
    shuffle=True,
    dtypes={"dep_delay": "float32", "distance": "float32"},
)
val = train.replace(subset=sides["val"], shuffle=False)
print(f"{len(train):,} and {len(val):,} batches, known after {time.perf_counter() - began:.1f} s")

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)


def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    past = torch.cat([batch["dep_delay"] / 30, batch["distance"] / 1000], dim=1)
    return torch.nn.functional.l1_loss(model(past), batch["dep_delay_future"] / 30)


for batch in train:
    assert (batch["time_hour"].diff(dim=1) >= 0).all()
    optimizer.zero_grad()
    loss_of(batch).backward()
    optimizer.step()
with torch.no_grad():
    losses = [(loss_of(batch), len(batch["dep_delay"])) for batch in val]
mean = sum(float(loss) * rows for loss, rows in losses) / sum(rows for _, rows in losses)
print(f"mean error of the next delay: {mean * 30:.1f} minutes over {sum(rows for _, rows in losses):,} windows")
