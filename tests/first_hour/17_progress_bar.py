# docs/cookbook/progress.md: show_progress=True
from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300, shuffle=True, show_progress=True)
for epoch in range(2):
    loader.set_epoch(epoch)
    for _ in loader:
        ...
