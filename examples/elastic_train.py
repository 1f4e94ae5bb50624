"""Train on as many machines as there are: torchrun starts all processes again when one is lost or comes back.

torchrun --standalone --nproc_per_node=2 examples/elastic_train.py

or on each of one to four machines, with checkpoint.pt on a disk that they share (why the variable: docs/elastic.md):

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes=1:4 --nproc_per_node=1 --max_restarts=9 \
    --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 examples/elastic_train.py
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, it would keep the process group
from common import FLIGHTS, Model, log_rows, loss_of
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import stream

PATH = "checkpoint.pt"


def save(**parts):
    if dist.get_rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, PATH + ".new")
        os.replace(PATH + ".new", PATH)  # whole, or as it was
    dist.barrier()


def main():
    dist.init_process_group("gloo")  # "nccl" with GPUs
    loader = stream(**FLIGHTS, even="pad")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    if os.path.exists(PATH):
        saved = torch.load(PATH)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(
            saved["loader"]
        )  # of any number of ranks: what none of them delivered is dealt out again

    step = 0
    for epoch in range(loader.state_dict()["epoch"], 2):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            log_rows(epoch, batch)
            step += 1
            if step % 10 == 0:
                save(model=model.module, optimizer=optimizer, loader=loader)
    save(model=model.module, optimizer=optimizer, loader=loader)

    del model  # before the process group, which it holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
