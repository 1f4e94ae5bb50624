# docs/iceberg.md: snapshot_id
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import Iceberg, stream

config = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
loader = stream(Iceberg("demo.points", catalog=config))
rows_now = sum(len(batch["id"]) for batch in loader)

catalog = load_catalog("default", **config)
first = catalog.load_table("demo.points").snapshots()[0].snapshot_id
catalog.close()
loader = stream(Iceberg("demo.points", catalog=config, snapshot_id=first))
rows_then = sum(len(batch["id"]) for batch in loader)
