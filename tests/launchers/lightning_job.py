"""One run of a Lightning job on two processes: `python lightning_job.py DATA OUT RUN FORM SETTINGS`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.lightning import StructuredDataModule


class Noting(lightning.LightningModule):
    """Notes what each step met."""

    def __init__(self, out: str, run: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.noted = Path(out, f"run-{run}-{os.environ.get('LOCAL_RANK', '0')}.jsonl").open("w")  # noqa: SIM115  # until the end

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        ids = batch["id"][batch["valid"]] if "valid" in batch else batch["id"]
        line = {"epoch": self.current_epoch, "step": self.global_step, "ids": ids.tolist()}
        self.noted.write(json.dumps(line) + "\n")
        self.noted.flush()
        time.sleep(0.02)
        return self.weight * batch["id"].float().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def main(data: str, out: str, run: int, form: str, settings: dict[str, Any]) -> None:
    """Train two epochs, from the last checkpoint on."""
    filters = settings.pop("odd", None) and [("odd", "=", 1)]
    loader, _ = StructuredDataset.create_dataloader(data, shuffle=True, batch_size=16, filters=filters, **settings)
    saving = ModelCheckpoint(Path(out, "checkpoints"), every_n_train_steps=4, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, callbacks=[saving], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    given = {"train_dataloaders": loader} if form == "plain" else {"datamodule": StructuredDataModule(train=loader)}
    trainer.fit(Noting(out, run), ckpt_path="last", **given)
    trainer.strategy.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5]))
