# docs/values.md: nulls={"age": "mask"}
from torch_dataloader_utils import stream

loader = stream("nulls.parquet", nulls={"age": "mask"})
batch = next(iter(loader))
mean = batch["age"][batch["age_valid"]].double().mean().item()
