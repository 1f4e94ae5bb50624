# docs/lightning.md: trainer.fit(Model(), train, val
import lightning
import torch

from torch_dataloader_utils import stream


class Model(lightning.LightningModule):
    def training_step(self, batch, _):
        return self.weight * batch["f0"].mean()

    def configure_optimizers(self):
        self.weight = torch.nn.Parameter(torch.ones(()))
        return torch.optim.SGD([self.weight], lr=0.1)


loader = stream("data/", batch_size=300, shuffle=True, even="drop")
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False)
trainer.fit(Model(), loader)
steps = trainer.global_step
