"""The four loops of the page "Distributed Data Loading", as it writes them: tests replace what they do not have."""

DDP = """
import torch.distributed as dist
from torch_dataloader_utils import StructuredDataset

dist.init_process_group(backend="nccl")

loader, dataset = StructuredDataset.create_dataloader(
    path="s3://bucket/training-data/",
    format="parquet",
    num_workers=4,
    batch_size=1024,
    shuffle=True,
    shuffle_seed=42,
    num_ranks=dist.get_world_size(),   # e.g. 8 for 8-GPU job
    rank=dist.get_rank(),              # 0–7
)

for epoch in range(num_epochs):
    dataset.set_epoch(epoch)           # must be called in main process
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch["feature_a"], batch["label"])
        loss.backward()
        optimizer.step()
"""
ACCELERATE = """
from accelerate import Accelerator
from torch_dataloader_utils import StructuredDataset

accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)

loader, dataset = StructuredDataset.create_dataloader(
    path="s3://bucket/training-data/",
    format="parquet",
    num_workers=4,
    batch_size=1024,
    shuffle=True,
    num_ranks=accelerator.num_processes,
    rank=accelerator.process_index,    # global rank — NOT local_process_index
)

# accelerator.prepare() is optional here — adds gradient sync wrappers
# but does NOT re-shard data (this library already handles that)
loader = accelerator.prepare(loader)

for epoch in range(num_epochs):
    dataset.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch["feature_a"], batch["label"])
        accelerator.backward(loss)
        optimizer.step()
"""
HOROVOD = """
import horovod.torch as hvd
from torch_dataloader_utils import StructuredDataset

hvd.init()
torch.cuda.set_device(hvd.local_rank())

loader, dataset = StructuredDataset.create_dataloader(
    path="s3://bucket/training-data/",
    format="parquet",
    num_workers=4,
    batch_size=1024,
    shuffle=True,
    num_ranks=hvd.size(),
    rank=hvd.rank(),      # global rank
)

optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(num_epochs):
    dataset.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch["feature_a"], batch["label"])
        loss.backward()
        optimizer.step()
"""
ICEBERG = """
import pyarrow.compute as pc
import torch.distributed as dist
from torch_dataloader_utils import IcebergDataset

dist.init_process_group(backend="nccl")

loader, dataset = IcebergDataset.create_dataloader(
    table="my_db.events",
    catalog_config={
        "type": "glue",
        "region_name": "us-east-1",
    },
    num_workers=4,
    batch_size=1024,
    shuffle=True,
    filters=pc.field("region_id") >= 5,
    num_ranks=dist.get_world_size(),
    rank=dist.get_rank(),
)

for epoch in range(num_epochs):
    dataset.set_epoch(epoch)
    for batch in loader:
        ...
"""
