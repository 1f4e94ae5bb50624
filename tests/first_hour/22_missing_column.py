# docs/options.md: a missing column is null
import logging

from torch_dataloader_utils import stream

logging.getLogger("torch_dataloader_utils").setLevel(logging.INFO)
loader = stream("missing-column/")
values = [value for batch in loader for value in batch["x"].tolist()]
