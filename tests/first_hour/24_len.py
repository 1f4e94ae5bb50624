# docs/cookbook/progress.md: len(loader)
from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300)
filtered = stream("data/", filters=[("f1", ">", 0.5)], batch_size=300, count_rows=True)
steps, filtered_steps = len(loader), len(filtered)
