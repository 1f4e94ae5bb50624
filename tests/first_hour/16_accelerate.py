# docs/accelerate.md: accelerator.prepare(model, optimizer, loader)
import torch
from accelerate import Accelerator

from torch_dataloader_utils import stream

accelerator = Accelerator(cpu=True)
loader = stream("data/", columns=["id", "f0"], batch_size=300, even="drop")
model = torch.nn.Linear(1, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
ids = []
for batch in loader:
    accelerator.backward(model(batch["f0"][:, None]).mean())
    optimizer.step()
    ids += batch["id"].tolist()
