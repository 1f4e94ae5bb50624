# docs/formats.md: README.md
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("with-readme/", format="parquet")
ids = [row for batch in loader for row in batch["id"].tolist()]
