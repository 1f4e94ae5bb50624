# docs/options.md: "f*"
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", columns=["f*", "label"])
batch = next(iter(loader))
