# docs/cookbook/logging.md: loader.metrics()
from torch_dataloader_utils import stream

logged = []
log = logged.append  # wandb.log, say

loader = stream("data/", batch_size=300)
for step, _ in enumerate(loader):
    log({"step": step, **loader.metrics()})
