"""A Trainer of several processes: `trainer_job.py <what> <data> <folder for what was found>`."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.transformers import TrainerMixin

WHAT, DATA, OUT = sys.argv[1:]
RANK = int(os.environ["RANK"])


class Model(torch.nn.Module):
    """Gives a loss, and notes which rows it is trained on."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.epoch = lambda: 0

    def forward(self, id, odd):
        if self.training:
            with Path(OUT, f"rows-{RANK}").open("a") as file:
                file.write(json.dumps([int(self.epoch()), id.tolist()]) + "\n")
        loss = (self.linear(odd[:, None].float()) ** 2).mean()
        return {"loss": loss, "logits": id}


class StructuredTrainer(TrainerMixin, Trainer):
    """Trains on loaders."""


class Kill(TrainerCallback):
    """Kills rank 1 after a step: one and a half epochs are trained then."""

    def on_step_end(self, args, state, control, **_):
        if WHAT == "killed" and state.global_step == 11 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def make(**options):
    return StructuredDataset.create_dataloader(DATA, **{"batch_size": 40, "shuffle": True, "even": "pad", **options})


def arguments(**settings):
    return TrainingArguments(
        f"{OUT}/checkpoints",
        **{
            "num_train_epochs": 2,
            "gradient_accumulation_steps": 2,
            "save_steps": 4,
            "label_names": ["odd"],
            **settings,
        },
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )


def train(settings, options, resume):
    model, (loader, _) = Model(), make(**options)
    trainer = StructuredTrainer(model, arguments(**settings), train_dataset=loader, callbacks=[Kill()])
    model.epoch = lambda: trainer.state.epoch
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def error_of(function):
    try:
        function()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def misused():
    """What is said to Trainers that would meet other rows."""
    dataset = make()[1]
    once = arguments(max_steps=2)
    undispatched = arguments(max_steps=2, accelerator_config={"dispatch_batches": False})

    def trained(trainer, args, given):
        return error_of(lambda: trainer(Model(), args, train_dataset=given).train())

    return {
        "dataset": trained(Trainer, once, dataset),
        "dataset, shards": trained(Trainer, undispatched, dataset),
        "evaluation": error_of(lambda: Trainer(Model(), once).evaluate(dataset)),
        "dataset, mixin": trained(StructuredTrainer, once, dataset),
        "uneven": trained(StructuredTrainer, once, make(even="none")[0]),
        "uncounted": trained(StructuredTrainer, once, make(even="sync", filters=[("odd", "=", 1)])[0]),
        "other batches": error_of(lambda: train({}, {"batch_size": 20}, True)),
        "other accumulation": error_of(lambda: train({"gradient_accumulation_steps": 1}, {}, True)),
        "other rows": error_of(lambda: train({}, {"shuffle_seed": 7}, True)),
    }


if WHAT == "misused":
    Path(OUT, f"errors-{RANK}.json").write_text(json.dumps(misused()))
else:
    trainer = train({}, {}, WHAT == "resumed")
    if WHAT == "resumed":
        met = []
        trainer.compute_metrics = lambda said: met.extend(said.predictions.tolist()) or {}
        figures = trainer.evaluate(make(even="pad")[0])
        Path(OUT, f"evaluated-{RANK}.json").write_text(
            json.dumps([met, figures["eval_loss"], trainer.num_examples(trainer.get_train_dataloader())])
        )
os._exit(0)
