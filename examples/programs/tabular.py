"""Tabular: predict the fare of a ride, with preprocessing that is the same in training and for one row.

    python examples/programs/tabular.py

Makes 100,000 rides in Parquet, keeps a tenth of them for validation, fits means and vocabularies on the rest
in one scan, trains, and then answers a request of one row with the model and the saved preprocessing. Takes
some seconds.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import torch_dataloader_utils as tdu
from torch_dataloader_utils.preprocess import Categorize, Clip, Impute, Keep, Preprocess, Standardize

ZONES = np.array(["airport", "centre", "harbour", "hills", "station"])
NUMBERS = ["distance", "passengers", "hour"]
SIDES = tdu.Subsets({"train": 0.9, "validation": 0.1})


def make_rides(path, rows=100_000):
    """Fares of rides between zones: 3 and 2 per km, twice as much from the airport. A tenth have no distance."""
    rng = np.random.default_rng(0)
    distance, zone = rng.gamma(2, 3, rows), rng.integers(0, len(ZONES), rows)
    fare = (3 + 2 * distance) * np.where(zone == 0, 2, 1) + rng.normal(0, 1, rows)
    rides = {
        "distance": pa.array(distance, mask=rng.random(rows) < 0.1),
        "passengers": rng.integers(1, 5, rows),
        "hour": rng.integers(0, 24, rows),
        "zone": ZONES[zone],
        "fare": fare.astype(np.float32),
    }
    pq.write_table(pa.table(rides), path, row_group_size=10_000)


class Model(torch.nn.Module):
    """From numbers and a zone to a fare, of shape [rows]."""

    def __init__(self, zones):
        super().__init__()
        self.zone = torch.nn.Embedding(zones, 4)
        numbers = len(NUMBERS) + 1  # and whether the distance is missing
        self.layers = torch.nn.Sequential(torch.nn.Linear(numbers + 4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, batch):
        missing = batch["distance_missing"].float().unsqueeze(1)
        return self.layers(torch.cat([batch["x"], missing, self.zone(batch["zone"])], dim=1)).squeeze(1)


def main(folder):
    make_rides(folder / "rides.parquet")
    loader = tdu.stream(folder / "rides.parquet", subset=SIDES["train"], batch_size=1024, shuffle=True)

    prep = Preprocess(
        {
            "distance": [Impute("median", indicator=True), Clip(0, 100), Standardize()],
            "passengers": Standardize(),
            "hour": Standardize(),
            "zone": Categorize(),
            "fare": Keep(),
        }
    ).fit(loader)
    prep.save(folder / "prep.json")

    training = loader.replace(transform=prep, dtypes="float32", stack={"x": NUMBERS})
    validation = training.replace(subset=SIDES["validation"], shuffle=False)
    torch.manual_seed(0)
    model = Model(prep.sizes()["zone"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        training.set_epoch(epoch)
        for batch in training:
            loss = ((model(batch) - batch["fare"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors = torch.cat([(model(batch) - batch["fare"]).abs() for batch in validation])
        print(f"epoch {epoch}: off by {errors.mean():.2f} in {len(errors):,} rides of validation")

    # A service: no loader, no files, the same numbers.
    prep = Preprocess.load(folder / "prep.json")
    ride = prep({"distance": 5.0, "passengers": 2, "hour": 9, "zone": "airport"})
    request = {name: torch.as_tensor(np.asarray(ride[name])).reshape(1) for name in ("distance_missing", "zone")}
    request["x"] = torch.tensor([[float(ride[name]) for name in NUMBERS]])
    fare = model(request).item()
    print(f"5 km from the airport: {fare:.2f}, which costs 26")
    assert abs(fare - 26) < 3


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
