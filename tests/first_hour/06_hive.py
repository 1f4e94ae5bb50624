# docs/quickstart.md: month=1
from torch_dataloader_utils import stream

loader = stream("flights/", filters=[("month", "=", 2)])
months = {month for batch in loader for month in batch["month"].tolist()}
