"""Evaluation by each process of a job, or by one: `evaluation_job.py <data> <folder for what was found>`."""

import json
import logging
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.accelerate import gather_for_metrics
from torch_dataloader_utils.integrations.transformers import TrainerMixin

DATA, OUT = sys.argv[1:]
RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
# 57 rows: rank 0 of 2 has 4 in the last step, rank 1 has 5. 33 rows: rank 0 has none but repeats in the last step.
SIZES = {"57": 8, "33": 16}


class Model(torch.nn.Module):
    """A loss by rows, and a logit for each."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, id, x, words=None):
        return {"loss": (self.weight * x**2).mean(), "logits": torch.stack([id.double(), x], 1)}


class Counting(Model):
    """The same loss as models of transformers have it: a sum, divided by the number of labels of all processes."""

    def forward(self, x, labels, **kwargs):
        count = kwargs.get("num_items_in_batch", len(x))
        return {"loss": (self.weight * x**2).sum() / count, "logits": torch.stack([labels.double(), x], 1)}


class StructuredTrainer(TrainerMixin, Trainer):
    """Trains and evaluates on loaders."""


class StructuredSeq2SeqTrainer(TrainerMixin, Seq2SeqTrainer):
    """Another of transformers' own."""


def make(rows, **options):
    even = "pad" if RANKS > 1 else "none"
    return StructuredDataset.create_dataloader(
        f"{DATA}/{rows}", **{"batch_size": SIZES[rows], "even": even, **options}
    )[0]


def metrics(said: EvalPrediction):
    """Of predictions, labels, inputs and losses."""
    ids, x = said.predictions[:, 0], said.predictions[:, 1]
    assert (said.label_ids == ids).all()
    assert (said.inputs == ids).all()
    assert len(said.losses) == len(ids)
    return {"ids": sorted(ids.tolist()), "mean": float(x.mean()), "loss_of_rows": float(said.losses.mean())}


def arguments(**settings):
    settings = {"label_names": ["id"], "per_device_eval_batch_size": 5, **settings}
    return TrainingArguments(f"{OUT}/trainer", **settings, use_cpu=True, report_to=[], disable_tqdm=True)


def evaluated(rows, **options):
    args = arguments(include_for_metrics=["inputs", "loss"])
    model = Model()
    model.main_input_name = "id"
    loader = make(rows, **options)
    trainer = StructuredTrainer(model, args, eval_dataset=loader, compute_metrics=metrics)
    own = trainer.gather_function
    said = trainer.evaluate()
    predicted = trainer.predict(loader).predictions
    assert trainer.gather_function is own
    found = {name: said[f"eval_{name}"] for name in ("loss", "ids", "mean", "loss_of_rows")}
    args = arguments(eval_use_gather_object=True, eval_do_concat_batches=False)
    as_objects = StructuredTrainer(Model(), args).predict(loader)
    objects = [float(row[0]) for batch in as_objects.predictions for row in batch]
    losses = [found["loss"], as_objects.metrics["test_loss"]]
    return {**found, "loss": losses, "predicted": [sorted(predicted[:, 0].tolist()), sorted(objects)]}


def trained(rows, made, model, settings, **options):
    """The weight after each step of training, and what evaluation says then."""
    settings = {"lr_scheduler_type": "constant", "learning_rate": 0.5, "optim": "sgd", "max_grad_norm": 0, **settings}
    kind = Seq2SeqTrainingArguments if made is StructuredSeq2SeqTrainer else TrainingArguments
    args = kind(
        f"{OUT}/trained", num_train_epochs=1, **settings, save_strategy="no", use_cpu=True, report_to=[],
        disable_tqdm=True, logging_steps=1, logging_nan_inf_filter=False,
    )  # fmt: skip
    loader = make(rows, even="pad", columns=["id", "x"], split_rows=5, **options)
    trainer = made(model, args, train_dataset=loader, eval_dataset=loader)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"weight": float(model.weight), "losses": losses, "eval": trainer.evaluate()["eval_loss"]}


def labelled(batch):
    return {"x": batch["x"], "labels": batch["id"], **({"valid": batch["valid"]} if "valid" in batch else {})}


def all_trained():
    own, labels = {"label_names": ["id"]}, {"label_names": ["labels"]}
    return {
        rows: {
            "Trainer": trained(rows, StructuredTrainer, Model(), own),
            "Seq2SeqTrainer": trained(rows, StructuredSeq2SeqTrainer, Model(), own),
            "counted labels": trained(rows, StructuredTrainer, Counting(), labels, collate_fn=labelled),
        }
        for rows in SIZES
    }


def gathered(accelerator, rows):
    """The metrics of a loop with Accelerate."""
    ids, words, total = [], [], 0.0
    for batch in accelerator.prepare(make(rows)):
        mask = batch.get("valid")
        twice = gather_for_metrics(accelerator, {"x": (batch["x"], [batch["x"]]), "id": batch["id"]}, mask)
        ids += twice["id"].tolist()
        total += float(twice["x"][0].sum() + twice["x"][1][0].sum())
        if mask is not None:
            words += gather_for_metrics(accelerator, batch["word"], mask)
    return {"ids": sorted(ids), "words": sorted(words), "mean": total / 2 / len(ids)}


def counted_by_accelerate(accelerator):
    """How many rows its own `gather_for_metrics` counts, and what is said to that."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("torch_dataloader_utils").addHandler(handler)
    counts = [
        sum(len(accelerator.gather_for_metrics(batch["id"])) for batch in accelerator.prepare(make(rows, even="pad")))
        for rows in ("57", "33")
    ]
    return {"counts": counts, "said": said}


def found():
    columns = ["id", "x", "words"]
    trainers = {rows: evaluated(rows, columns=columns, split_rows=5) for rows in SIZES}
    accelerator = Accelerator(cpu=True)
    loops = {rows: gathered(accelerator, rows) for rows in SIZES}
    return {"trainers": trainers, "loops": loops, "trained": all_trained(), "own": counted_by_accelerate(accelerator)}


Path(OUT, f"found-{RANKS}-{RANK}.json").write_text(json.dumps(found()))
os._exit(0)
