# docs/values.md: dtypes="float32"
import torch

from torch_dataloader_utils import stream

loader = stream("data/", columns=["f0", "f1"], dtypes="float32", stack={"x": ["f0", "f1"]}, batch_size=256)
batch = next(iter(loader))
prediction = torch.nn.Linear(2, 1)(batch["x"])
