# docs/sharding.md: "contiguous"
from torch_dataloader_utils import StructuredDataset

# One row group, four ranks: a warning says that three of them get nothing, and what to do.
_, dataset = StructuredDataset.create_dataloader("one-row-group.parquet", num_ranks=4, rank=0)
before = [dataset.plan(0, rank).rows for rank in range(4)]
_, dataset = StructuredDataset.create_dataloader("one-row-group.parquet", num_ranks=4, rank=0, sharding="contiguous")
after = [dataset.plan(0, rank).rows for rank in range(4)]
