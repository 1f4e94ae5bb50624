"""Train with Spark's TorchDistributor, here in local mode with two processes. Needs Java 17 or newer.

python examples/spark_train.py
"""

import common
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, it would keep the process group
from common import FLIGHTS, Model, log_rows, loss_of
from pyspark import cloudpickle
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import stream


def train(options):
    dist.init_process_group("gloo")  # "nccl" with GPUs
    # num_ranks and rank are those of the process group.
    loader = stream(**options, even="pad")
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
    dist.barrier()
    del model  # before the process group, which it holds
    dist.destroy_process_group()
    return len(loader), loss.item()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(common)  # a module that the processes cannot import: it travels with `train`
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    # A function, not the path of a script: Spark does not notice that a script has failed.
    steps, loss = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, FLIGHTS)
    print(f"{steps} steps an epoch, loss of the last {loss:.3f}")
    spark.stop()
