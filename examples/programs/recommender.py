"""Recommender: lists of ids of any length, in the shapes that TorchRec takes, and rows that two processes share.

    torchrun --standalone --nproc_per_node=2 examples/programs/recommender.py

Makes 100,000 impressions in Parquet: what a user clicked before, the tags of an item, and whether it was
clicked. `jagged=` joins the lists into the arguments of a KeyedJaggedTensor; the embedding bag here is
torch's own, so that TorchRec is not needed. Hashing bounds the ids.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_dataloader_utils as tdu
from torch_dataloader_utils.preprocess import Hash, Keep, Preprocess

ROWS, IDS, WIDTH = 100_000, 1 << 12, 16
FEATURES = ["clicks", "tags"]
PREP = {"clicks": Hash(IDS), "tags": Hash(IDS), "label": Keep()}  # nothing to learn: no scan of the data


def make_impressions(path):
    """An item is mostly clicked if its tag is of the kind that the user clicked before."""
    rng = np.random.default_rng(0)
    likes = rng.integers(0, 8, ROWS)
    lengths = rng.integers(0, 10, ROWS)
    clicks = [rng.integers(0, 50, length) * 8 + like for like, length in zip(likes, lengths, strict=True)]
    tags = np.where(rng.random(ROWS) < 0.5, likes, rng.integers(0, 8, ROWS)) + 8 * rng.integers(0, 50, ROWS)
    clicked = (tags % 8 == likes) & (lengths > 0)
    table = {
        "clicks": pa.array(clicks, pa.list_(pa.int64())),
        "tags": pa.array([[tag] for tag in tags], pa.list_(pa.int64())),
        "label": np.where(rng.random(ROWS) < 0.02, ~clicked, clicked).astype(np.float32),
    }
    pq.write_table(pa.table(table), path, row_group_size=5_000)


class Model(torch.nn.Module):
    """Pooled embeddings of each feature, and their product."""

    def __init__(self):
        super().__init__()
        self.bags = torch.nn.EmbeddingBag(IDS * len(FEATURES), WIDTH, mode="mean", include_last_offset=True)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3 * WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, sparse):
        # With TorchRec: KeyedJaggedTensor(**sparse) into an EmbeddingBagCollection, which has a table for each key.
        lengths, keys = sparse["lengths"], len(FEATURES)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        of_key = lengths.view(keys, -1).sum(1)
        table = torch.arange(keys).repeat_interleave(of_key) * IDS
        pooled = self.bags(sparse["values"] + table, offsets).view(keys, -1, WIDTH)
        return self.layers(torch.cat([*pooled, pooled.prod(0)], dim=1)).squeeze(1)


def main():
    dist.init_process_group("gloo")  # "nccl" with GPUs
    path = Path(tempfile.gettempdir(), f"impressions-{os.environ['MASTER_PORT']}.parquet")
    if dist.get_rank() == 0:
        make_impressions(path)
    dist.barrier()

    loader = tdu.stream(
        path,
        transform=Preprocess(PREP).fit(path),
        jagged={"sparse": FEATURES},
        batch_size=512,
        shuffle=True,
        even="drop",  # equal steps on both ranks
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for epoch in range(3):
        loader.set_epoch(epoch)
        right = torch.zeros(2)
        for batch in loader:
            scores = model(batch["sparse"])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += torch.tensor([((scores > 0) == (batch["label"] > 0)).sum(), len(scores)])
        dist.all_reduce(right)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {right[0] / right[1]:.1%} of {int(right[1]):,} impressions right")
    assert right[0] / right[1] > 0.93
    dist.barrier()
    if dist.get_rank() == 0:
        path.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
