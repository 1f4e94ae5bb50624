# docs/cookbook/mixing.md: stop="all"
from torch_dataloader_utils import StructuredDataset, combine

_, large = StructuredDataset.create_dataloader("data/part-[012].parquet", columns=["id", "f0"])
_, small = StructuredDataset.create_dataloader("data/part-3.parquet", columns=["id", "f0"])
half = {"weights": {"large": 1, "small": 1}, "batch_size": 256, "last_batch": "drop", "shuffle": True}
loader, _ = combine({"large": large, "small": small}, stop="all", **half)
from_small = [int((batch["id"] >= 3000).sum()) for batch in loader]
