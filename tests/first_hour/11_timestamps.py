# docs/values.md: in the column's own unit
from torch_dataloader_utils import stream

loader = stream("times.parquet")
batch = next(iter(loader))
per_hour = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[loader.schema.field("at").type.unit] * 3600
hour = batch["at"] // per_hour % 24  # int64, in the column's own unit
