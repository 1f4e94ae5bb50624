# docs/options.md: "f*"
from torch_dataloader_utils import stream

loader = stream("data/", columns=["f*", "label"])
batch = next(iter(loader))
