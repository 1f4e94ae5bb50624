# docs/cookbook/mixing.md: stop="all"
from torch_dataloader_utils import combine

parts = {"large": "data/part-[012].parquet", "small": "data/part-3.parquet"}
half = {"weights": {"large": 1, "small": 1}, "batch_size": 256, "last_batch": "drop", "shuffle": True}
loader = combine(parts, stop="all", columns=["id", "f0"], **half)
from_small = [int((batch["id"] >= 3000).sum()) for batch in loader]
