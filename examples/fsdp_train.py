"""Train with FSDP2 (fully_shard): each process holds a part of the weights, and reads a part of the rows.

torchrun --standalone --nproc_per_node=2 examples/fsdp_train.py
"""

import torch
import torch.distributed as dist
from common import FLIGHTS, Model, log_rows, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_dataloader_utils import stream


def main():
    dist.init_process_group("gloo")  # "nccl" with GPUs
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))  # "cuda" with GPUs

    loader = stream(
        **FLIGHTS,
        even="pad",  # as many steps on each rank: each step gathers weights from all
        ranks=mesh,  # ranks of one place in "dp" would read the same rows
    )

    torch.manual_seed(0)
    model = fully_shard(Model(), mesh=mesh["dp"])
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
