"""Train with Accelerate.

accelerate launch --num_processes 2 examples/accelerate_train.py
Without GPUs: ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node=2 examples/accelerate_train.py
"""

import torch
import torch.distributed.nn  # imported later, it would keep the process group
from accelerate import Accelerator
from common import FLIGHTS, Model, log_rows, loss_of

from torch_dataloader_utils import stream

accelerator = Accelerator(gradient_accumulation_steps=2)
loader = stream(**FLIGHTS, even="pad")

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
# The loader stays as it is, and delivers to accelerator.device from now on.
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    loader.set_epoch(epoch)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log_rows(epoch, batch)
    accelerator.print(f"epoch {epoch}: {len(loader)} batches, loss of the last {loss.item():.3f}")

accelerator.wait_for_everyone()
model, optimizer, loss = accelerator.free_memory(model, optimizer, loss)  # before the process group, which they hold
accelerator.end_training()
