"""Train with DeepSpeed (ZeRO stage 2) and a loop of one's own.

deepspeed --num_gpus 2 examples/deepspeed_train.py                            with GPUs
DS_ACCELERATOR=cpu torchrun --nproc_per_node=2 examples/deepspeed_train.py   without
"""

import deepspeed
import torch
from common import FLIGHTS, Model, log_rows, loss_of

from torch_dataloader_utils import stream


def main():
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")

    # num_ranks and rank are those of the process group. Not as training_data=: DeepSpeed would ask for its len.
    loader = stream(**FLIGHTS, even="pad")

    torch.manual_seed(0)
    settings = {
        "train_micro_batch_size_per_gpu": FLIGHTS["batch_size"],
        "optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    model, *_ = deepspeed.initialize(model=Model(), config=settings)

    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            batch = {name: values.to(model.device) for name, values in batch.items()}
            loss = loss_of(model, batch)
            model.backward(loss)
            model.step()
            log_rows(epoch, batch)
        if model.global_rank == 0:
            print(f"epoch {epoch}: {len(loader)} steps, loss of the last {loss.item():.3f}")

    model.destroy()
    deepspeed.comm.barrier()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
