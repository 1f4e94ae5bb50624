# docs/distributed.md: even="pad"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import stream

dist.init_process_group(backend="gloo")
loader = stream("data/", batch_size=300, shuffle=True, even="pad")
model, seen = DistributedDataParallel(torch.nn.Linear(1, 1).double()), []
for batch in loader:
    error = (model(batch["f0"][:, None])[:, 0] - batch["label"]) ** 2
    (error * batch["valid"]).sum().backward()
    seen += batch["id"][batch["valid"]].tolist()
steps = len(loader)
