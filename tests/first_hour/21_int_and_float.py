# docs/options.md: ints and floats widen
from torch_dataloader_utils import stream

loader = stream("int-and-float/")
values = [value for batch in loader for value in batch["x"].tolist()]
