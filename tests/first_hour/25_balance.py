# docs/cookbook/imbalance.md: rows_per_epoch=
from torch_dataloader_utils import StructuredDataset, combine

classes = [
    StructuredDataset.create_dataloader("rare.parquet", filters=[("label", "=", label)], count_rows=True)[1]
    for label in (0, 1)
]
loader, dataset = combine(classes, weights=[1, 1], rows_per_epoch=2_000, batch_size=100, shuffle=True)
shares = [batch["label"].double().mean().item() for batch in loader]
