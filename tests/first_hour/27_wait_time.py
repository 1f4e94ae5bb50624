# docs/cookbook/logging.md: dataset.on_event(
from torch_dataloader_utils import BlockEvent, StructuredDataset

waited, logged = [], []
log = logged.append  # wandb.log, say


def note(event):
    if isinstance(event, BlockEvent):
        waited.append(event.queue_empty)


loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300)
dataset.on_event(note)
for step, _ in enumerate(loader):
    log({"step": step, "seconds waited": sum(waited)})
