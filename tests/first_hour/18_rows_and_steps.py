# docs/cookbook/progress.md: dataset.describe()
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300, num_ranks=3, rank=0)
print(dataset.describe())
ranks = [(plan.rows, plan.steps) for plan in (dataset.plan(0, rank) for rank in range(3))]
