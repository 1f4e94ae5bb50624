# docs/cookbook/progress.md: loader.describe()
from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300, num_ranks=3, rank=0)
print(loader.describe())
ranks = [(plan.rows, plan.steps) for plan in (loader.plan(0, rank) for rank in range(3))]
