"""Train with Ray Train: the driver starts the workers, here two on CPUs.

python examples/ray_train.py
"""

import ray.train
import torch
from common import FLIGHTS, Model, log_rows, loss_of
from ray.train.torch import TorchTrainer, get_device, prepare_model

from torch_dataloader_utils import stream


def train(config):
    # num_ranks and rank are those of the worker's process group. Not through prepare_data_loader: what it returns has
    # no set_epoch.
    loader = config["loader"]
    torch.manual_seed(0)
    model = prepare_model(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            batch = {name: values.to(get_device()) for name, values in batch.items()}
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            log_rows(epoch, batch)
        ray.train.report({"epoch": epoch, "steps": len(loader), "loss": loss.item()})


if __name__ == "__main__":
    # The driver lists the files and reads their footers, once: what the workers get is the finished list.
    loader = stream(**FLIGHTS, even="pad")
    scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
    TorchTrainer(train, train_loop_config={"loader": loader}, scaling_config=scaling).fit()
