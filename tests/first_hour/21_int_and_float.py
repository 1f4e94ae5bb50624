# docs/options.md: ints and floats widen
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("int-and-float/")
values = [value for batch in loader for value in batch["x"].tolist()]
