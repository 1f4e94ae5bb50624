# docs/values.md: "padded"
from torch_dataloader_utils import StructuredDataset

ragged, _ = StructuredDataset.create_dataloader("lists.parquet", batch_size=3)
padded, _ = StructuredDataset.create_dataloader("lists.parquet", lists="padded", batch_size=3)
values, offsets = next(iter(ragged))["items"].values()
matrix, lengths = next(iter(padded))["items"].values()
