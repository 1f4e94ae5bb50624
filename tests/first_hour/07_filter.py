# docs/filters.md: ">=", "0.05")
from torch_dataloader_utils import stream

loader = stream("data/", filters=[("l_discount", ">=", "0.05"), ("day", "<", "2024-01-11"), ("f1", ">", 0.5)])
ids = [row for batch in loader for row in batch["id"].tolist()]
