# docs/quickstart.md: shuffle=True
from torch_dataloader_utils import stream

loader = stream("sorted.parquet", batch_size=100, shuffle=True)
epochs = []
for epoch in range(2):
    loader.set_epoch(epoch)
    epochs.append([(batch["id"].tolist(), batch["label"].double().mean().item()) for batch in loader])
