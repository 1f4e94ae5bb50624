# docs/cookbook/notebook.md: loader.describe()
from torch_dataloader_utils import stream

loader = stream("data/", batch_size=300, num_workers=2)
html = loader.describe()._repr_html_()  # what a cell shows
rows = sum(len(batch["id"]) for batch in loader)
