# docs/sharding.md: "contiguous"
from torch_dataloader_utils import stream

# One row group, four ranks: a warning says that three of them get nothing, and what to do.
loader = stream("one-row-group.parquet", num_ranks=4, rank=0)
before = [loader.plan(0, rank).rows for rank in range(4)]
loader = stream("one-row-group.parquet", num_ranks=4, rank=0, sharding="contiguous")
after = [loader.plan(0, rank).rows for rank in range(4)]
