# docs/cookbook/progress.md: plan.table()
from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300, num_ranks=4, rank=0)
plan = loader.plan(0, 3)
print(plan)
table = plan.table()
