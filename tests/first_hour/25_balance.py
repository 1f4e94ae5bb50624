# docs/cookbook/imbalance.md: rows_per_epoch=
from torch_dataloader_utils import combine

classes = [{"source": "rare.parquet", "filters": [("label", "=", label)]} for label in (0, 1)]
options = {"count_rows": True, "batch_size": 100, "shuffle": True}
loader = combine(classes, weights=[1, 1], rows_per_epoch=2_000, **options)
shares = [batch["label"].double().mean().item() for batch in loader]
