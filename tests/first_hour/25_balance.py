# docs/cookbook/imbalance.md: steps_per_epoch
import torch

from torch_dataloader_utils import StructuredDataset

loaders = [
    StructuredDataset.create_dataloader(
        "rare.parquet", filters=[("label", "=", label)], batch_size=50, steps_per_epoch=20, shuffle=True
    )[0]
    for label in (0, 1)
]
shares = []
for parts in zip(*loaders, strict=True):
    batch = {key: torch.cat([part[key] for part in parts]) for key in ("id", "label")}
    shares.append(batch["label"].double().mean().item())
