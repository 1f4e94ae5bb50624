# docs/cookbook/progress.md: tqdm(loader
from tqdm.auto import tqdm

from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300, shuffle=True)
bar = tqdm(loader, desc="epoch 0")
for batch in bar:
    bar.set_postfix(rows=len(batch["id"]))
