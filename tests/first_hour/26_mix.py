# docs/cookbook/mixing.md: steps_per_epoch
import torch

from torch_dataloader_utils import StructuredDataset

options = {"columns": ["id", "f0"], "batch_size": 128, "steps_per_epoch": 25, "shuffle": True}
large, _ = StructuredDataset.create_dataloader("data/part-[012].parquet", **options)
small, _ = StructuredDataset.create_dataloader("data/part-3.parquet", **options)
from_small = []
for halves in zip(large, small, strict=True):
    batch = {key: torch.cat([half[key] for half in halves]) for key in options["columns"]}
    from_small.append(int((batch["id"] >= 3000).sum()))
