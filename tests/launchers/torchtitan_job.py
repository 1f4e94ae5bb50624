"""torchtitan's own CheckpointManager and a data loader, by 1 or 2 ranks: `torchtitan_job.py WHAT DATA OUT`."""

import json
import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from torch_dataloader_utils.integrations.torchtitan import PackedDataLoader
from torch_dataloader_utils.options import PackOptions

PackOptions.documents, PackOptions.sequences = 10, 2  # windows of few documents, so that there are several
LENGTH, BATCH, TAKEN = 24, 2, 3
KINDS = {
    "best fit": {"even": "sync", "split_rows": 4, "shuffle_buffer_size": 8},
    "wrap": {"pack": {"method": "wrap"}, "even": "drop", "split_rows": 48, "shuffle_buffer_size": 4},
    "wrap, all": {"pack": {"method": "wrap"}, "even": "pad", "split_rows": 48, "shuffle_buffer_size": 4},
}


def build(data, kind, ranks=None, rank=None, **config):
    return PackedDataLoader.Config(
        dataset_path=data,
        options={"shuffle": True, "num_workers": 0, "columns": ["input_ids"], **KINDS[kind]},
        **config,
    ).build(
        dp_world_size=dist.get_world_size() if ranks is None else ranks,
        dp_rank=dist.get_rank() if rank is None else rank,
        tokenizer=None,
        seq_len=LENGTH,
        local_batch_size=BATCH,
        snapshot_every_n_steps=1,
    )


class Trained:
    """What torchtitan's Trainer saves of itself."""

    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


def checkpointer(dataloader, folder):
    model = torch.nn.Linear(2, 2)
    optimizers = default_adamw(lr=1e-3).build(model_parts=[model])
    return CheckpointManager.Config(enable=True, interval=TAKEN, last_save_model_only=False).build(
        dataloader=dataloader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=LRSchedulersContainer.Config(warmup_steps=1).build(optimizers=optimizers, training_steps=10),
        states={"train_state": Trained()},
        sd_adapter=None,
        base_folder=folder,
    )


def plain(batches):
    return [[given["input"].tolist(), given["positions"].tolist(), labels.tolist()] for given, labels in batches]


def saved(data, out, kind):
    """The first batches, a checkpoint, and what the same loader delivers after it."""
    loader = build(data, kind, infinite=False)
    batches = iter(loader)
    first = plain(islice(batches, TAKEN))
    checkpointer(loader, f"{out}/{kind}").save(TAKEN)
    return {"first": first, "rest": plain(batches)}


def loaded(data, out, kind):
    """What a new loader delivers after the checkpoint, which another number of ranks may have saved."""
    loader = build(data, kind, infinite=False)
    assert checkpointer(loader, f"{out}/{kind}").load(step=TAKEN)
    return {"rest": plain(loader)}


def shared(data, out, kind):
    """Two processes of one rank, as tensor-parallel ones are: the batches of each, and those after a checkpoint."""
    loader = build(data, kind, ranks=1, rank=0, infinite=False)
    batches = iter(loader)
    first = plain(islice(batches, TAKEN))
    checkpointer(loader, f"{out}/{kind}").save(TAKEN)
    resumed = build(data, kind, ranks=1, rank=0, infinite=False)
    rest = plain(batches)
    assert checkpointer(resumed, f"{out}/{kind}").load(step=TAKEN)
    return {"first": first, "rest": rest, "resumed": plain(resumed)}


if __name__ == "__main__":
    what, data, out = sys.argv[1:]
    dist.init_process_group("gloo")
    doing = {"saved": saved, "loaded": loaded, "shared": shared}[what]
    found = {kind: doing(data, out, kind) for kind in KINDS}
    Path(out, f"{what}-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)
