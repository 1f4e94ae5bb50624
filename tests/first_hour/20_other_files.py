# docs/formats.md: README.md
from torch_dataloader_utils import Files, stream

loader = stream(Files("with-readme/", format="parquet"))
ids = [row for batch in loader for row in batch["id"].tolist()]
