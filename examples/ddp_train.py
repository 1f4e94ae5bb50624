"""Train with DistributedDataParallel, started by torchrun.

torchrun --standalone --nproc_per_node=2 examples/ddp_train.py
"""

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, it would keep the process group
from common import FLIGHTS, Model, log_rows, loss_of
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import stream


def main():
    dist.init_process_group("gloo")  # "nccl" with GPUs

    # num_ranks and rank are those of the process group.
    loader = stream(**FLIGHTS, even="pad")

    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            log_rows(epoch, batch)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(loader)} steps, loss of the last {loss.item():.3f}")

    dist.barrier()
    del model  # before the process group, which it holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
