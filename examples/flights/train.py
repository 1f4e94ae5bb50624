"""Predict the arrival delay of a flight, trained by several processes (DistributedDataParallel on CPU).

    torchrun --standalone --nproc_per_node=2 examples/flights/train.py            from the files of make_data.py
    torchrun --standalone --nproc_per_node=2 examples/flights/train.py --table    from the table of make_table.py

Prints what each rank read in each epoch, then checks, with pyarrow's or pyiceberg's own reader, that all ranks together
met every flight exactly once. Exits with an error if they did not.
"""

import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, it would keep the process group
from places import CATALOG, FILES, TABLE
from pyiceberg.catalog import load_catalog
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import Iceberg, stream

EPOCHS = 2
FROM_TABLE = "--table" in sys.argv
NUMBERS = ["dep_delay", "miles" if FROM_TABLE else "distance", "hour", "month"]  # month: from the folders' names
SCALES = torch.tensor([60.0, 1000.0, 24.0, 12.0])
CARRIERS = pa.array(["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"])
ORIGINS = pa.array(["EWR", "JFK", "LGA"])


def encode(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Strings become small integers, in Arrow and on the loader's threads, before they become tensors."""
    for name, known in (("carrier", CARRIERS), ("origin", ORIGINS)):
        codes = pc.index_in(rows[name], value_set=known)
        rows = rows.set_column(rows.schema.get_field_index(name), name, codes)
    return rows


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.carrier = torch.nn.Embedding(len(CARRIERS), 4)
        self.origin = torch.nn.Embedding(len(ORIGINS), 2)
        width = len(NUMBERS) + 4 + 2
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, batch):
        parts = [batch["x"] / SCALES, self.carrier(batch["carrier"]), self.origin(batch["origin"])]
        return self.layers(torch.cat(parts, dim=1)).squeeze(1)


def train_epoch(loader, model, optimizer):
    """The row ids this rank met, its steps, and its mean squared error in minutes squared."""
    row_ids, losses = [], []
    for batch in loader:
        real = batch.pop("valid")
        row_ids.append(batch["row_id"][real])  # indexing by a mask copies: a view would keep its block in memory
        arrived = real & batch["arr_delay_valid"]
        flights = {name: values[arrived] for name, values in batch.items()}
        loss = ((model(flights) - flights["arr_delay"] / 60) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.cat(row_ids).numpy(), len(losses), float(np.mean(losses)) * 3600


def main():
    dist.init_process_group(backend="gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()

    loader = stream(
        Iceberg(TABLE, catalog=CATALOG) if FROM_TABLE else FILES,
        columns=["row_id", *NUMBERS, "carrier", "origin", "arr_delay"],
        transform=encode,
        dtypes=dict.fromkeys(NUMBERS, torch.float32),
        stack={"x": NUMBERS},
        nulls={"arr_delay": "mask"},  # flights that never arrived have none: adds the bool tensor arr_delay_valid
        even="pad",  # as many steps on each rank: DDP waits for ever for one that has finished. Repeats: not `valid`
        split_bytes="256KiB",  # so that this small table gives each rank many splits
        batch_size=1024,
        shuffle=True,
        num_ranks=num_ranks,
        rank=rank,
    )

    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    # What the ranks must have met, asked without this package.
    if FROM_TABLE:
        table = load_catalog(**CATALOG).load_table(TABLE).scan(selected_fields=("row_id",)).to_arrow()
    else:
        table = pyarrow.dataset.dataset(FILES, partitioning="hive").to_table(columns=["row_id"])
    expected = np.sort(table["row_id"].to_numpy())

    if rank == 0 and FROM_TABLE:
        files = sum(part["files"] for part in loader.dataset.partitions)
        print(f"{TABLE}: {files} files of snapshot {loader.dataset.snapshot.snapshot_id}")
    if rank == 0:
        print(f"{'epoch':>5} {'rank':>5} {'splits':>7} {'rows':>9} {'steps':>6} {'rows/s':>9} {'loss':>8}")
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        start = time.perf_counter()
        row_ids, steps, loss = train_epoch(loader, model, optimizer)
        rate = len(row_ids) / (time.perf_counter() - start)
        splits = loader.plan(epoch, rank).num_splits

        gathered = [None] * num_ranks
        dist.all_gather_object(gathered, (row_ids, splits, steps, rate, loss))
        if rank == 0:
            for r, (ids, splits, steps, rate, loss) in enumerate(gathered):
                print(f"{epoch:>5} {r:>5} {splits:>7} {len(ids):>9,} {steps:>6} {rate:>9,.0f} {loss:>8.1f}")
        seen = np.sort(np.concatenate([ids for ids, *_ in gathered]))
        if not np.array_equal(seen, expected):
            raise SystemExit(f"epoch {epoch}: {len(seen):,} rows were read, {len(expected):,} are in the files.")
        if rank == 0:
            print(f"epoch {epoch}: all {len(expected):,} row ids were seen exactly once over {num_ranks} ranks")

    del model  # before the process group, which it holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
