# docs/values.md: "padded"
from torch_dataloader_utils import stream

ragged = stream("lists.parquet", batch_size=3)
padded = stream("lists.parquet", lists="padded", batch_size=3)
values, offsets = next(iter(ragged))["items"].values()
matrix, lengths = next(iter(padded))["items"].values()
