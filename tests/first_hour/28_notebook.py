# docs/cookbook/notebook.md: dataset.describe()
from torch_dataloader_utils import StructuredDataset

loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=300, num_workers=2)
html = dataset.describe()._repr_html_()  # what a cell shows
rows = sum(len(batch["id"]) for batch in loader)
