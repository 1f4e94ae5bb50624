# docs/options.md: a missing column is null
import logging

from torch_dataloader_utils import StructuredDataset

logging.getLogger("torch_dataloader_utils").setLevel(logging.INFO)
loader, dataset = StructuredDataset.create_dataloader("missing-column/")
values = [value for batch in loader for value in batch["x"].tolist()]
