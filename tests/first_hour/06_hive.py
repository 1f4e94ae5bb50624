# docs/quickstart.md: month=1
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("flights/", filters=[("month", "=", 2)])
months = {month for batch in loader for month in batch["month"].tolist()}
