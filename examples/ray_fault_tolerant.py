"""Train with Ray Train while a worker is lost: Ray starts new ones, which go on from the last checkpoint.

python examples/ray_fault_tolerant.py
"""

import os
import signal
import tempfile
from pathlib import Path

import ray.train
import torch
from common import FLIGHTS, Model, log_rows, loss_of
from ray.train.torch import TorchTrainer, get_device, prepare_model

from torch_dataloader_utils import stream


def train(config):
    loader, model = config["loader"], prepare_model(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    checkpoint = ray.train.get_checkpoint()  # that of the workers before these, if there were any
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # on every rank

    step = 0
    for epoch in range(loader.state_dict()["epoch"], 2):
        loader.set_epoch(epoch)
        for batch in loader:
            batch = {name: values.to(get_device()) for name, values in batch.items()}
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            log_rows(epoch, batch)
            step += 1
            if step % 10 == 0:
                save(epoch, step, model, optimizer, loader)
            if not checkpoint and step == 14 and ray.train.get_context().get_world_rank() == 1:
                ray.train.get_all_reported_checkpoints()  # waits until the driver has noted what was saved
                os.kill(os.getpid(), signal.SIGKILL)  # as a machine is lost


def save(epoch, step, model, optimizer, loader):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    with tempfile.TemporaryDirectory() as folder:
        first = ray.train.get_context().get_world_rank() == 0  # what the loader says is the same on all ranks
        if first:
            torch.save(state, Path(folder, "state.pt"))
        given = ray.train.Checkpoint.from_directory(folder) if first else None
        ray.train.report({"epoch": epoch, "step": step}, checkpoint=given)  # on every rank


if __name__ == "__main__":
    loader = stream(**FLIGHTS, even="pad")
    with tempfile.TemporaryDirectory() as storage:  # with several machines: a place that all of them reach
        result = TorchTrainer(
            train,
            train_loop_config={"loader": loader},
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
            run_config=ray.train.RunConfig(
                storage_path=storage, failure_config=ray.train.FailureConfig(max_failures=1)
            ),
        ).fit()
        print("trained to the end, by way of", result.checkpoint)
