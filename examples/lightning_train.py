"""Train with Lightning, which starts the second process itself; started again, it goes on from the last checkpoint.

python examples/lightning_train.py
"""

import lightning as L
import torch
from common import FLIGHTS, Model, log_rows, loss_of
from lightning.pytorch.callbacks import ModelCheckpoint

from torch_dataloader_utils import stream


class Flights(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, _):
        log_rows(self.current_epoch, batch)
        return loss_of(self.model, batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# num_ranks and rank are those of the process group that the trainer starts later.
loader = stream(**FLIGHTS, even="pad")

torch.manual_seed(0)
checkpoints = ModelCheckpoint("checkpoints", every_n_train_steps=5, save_last=True)
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, callbacks=[checkpoints], logger=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Flights(), loader, ckpt_path="last")  # the epoch, and where in it, are part of the checkpoint
