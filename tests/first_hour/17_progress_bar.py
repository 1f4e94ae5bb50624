# docs/cookbook/progress.md: show_progress=True
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300, shuffle=True, show_progress=True)
for epoch in range(2):
    dataset.set_epoch(epoch)
    for _ in loader:
        ...
