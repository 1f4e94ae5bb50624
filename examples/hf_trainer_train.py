"""Train with the Trainer of Hugging Face transformers, started by torchrun; run again, it goes on from its checkpoint.

torchrun --standalone --nproc_per_node=2 examples/hf_trainer_train.py
"""

from pathlib import Path

import torch
from common import FLIGHTS, Model, log_rows, loss_of
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from torch_dataloader_utils import stream
from torch_dataloader_utils.integrations.transformers import TrainerMixin


class FlightsTrainer(TrainerMixin, Trainer):
    """The batches are ready: no collator comes into it, and columns are chosen by the loader."""

    def compute_loss(self, model, inputs, **_):
        log_rows(int(self.state.epoch), inputs)
        return loss_of(model, inputs)


torch.manual_seed(0)
folder = Path("checkpoints")
last = get_last_checkpoint(folder) if folder.exists() else None
args = TrainingArguments(folder, num_train_epochs=2, learning_rate=3e-3, save_steps=20, logging_steps=20, report_to=[])
loader = stream(**FLIGHTS, even="pad")
trainer = FlightsTrainer(Model(), args, train_dataset=loader)
trainer.train(resume_from_checkpoint=last)
trainer.end()
