"""Train with Horovod, which has its own launcher and no torch.distributed. To build it: scripts/build_horovod.sh.

horovodrun -np 2 python examples/horovod_train.py
"""

import horovod.torch as hvd
import torch
from common import FLIGHTS, Model, log_rows, loss_of

from torch_dataloader_utils import stream


def main():
    hvd.init()

    loader = stream(
        **FLIGHTS,
        even="pad",  # as many steps on each rank: Horovod waits for ever for a rank that has finished
        num_ranks=hvd.size(),
        rank=hvd.rank(),  # the global rank, never the local one
    )

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            log_rows(epoch, batch)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: {len(loader)} steps, loss of the last {loss.item():.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
