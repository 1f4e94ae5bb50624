# docs/quickstart.md: shuffle=True
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("sorted.parquet", batch_size=100, shuffle=True)
epochs = []
for epoch in range(2):
    dataset.set_epoch(epoch)
    epochs.append([(batch["id"].tolist(), batch["label"].double().mean().item()) for batch in loader])
