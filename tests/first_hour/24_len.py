# docs/cookbook/progress.md: len(loader)
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300)
filtered, _ = StructuredDataset.create_dataloader("data/", filters=[("f1", ">", 0.5)], batch_size=300, count_rows=True)
steps, filtered_steps = len(loader), len(filtered)
