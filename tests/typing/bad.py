"""What a type checker finds: each line that ends with "error" and a part of its message; it is checked, not run."""

import torch_dataloader_utils
from torch_dataloader_utils import (
    Buckets,
    Files,
    Hive,
    IcebergDataset,
    Pack,
    Padded,
    Rotate,
    Shuffle,
    Strided,
    StructuredDataset,
    Subsets,
    Sync,
    TableSource,
    combine,
)

thing = torch_dataloader_utils.no_such_thing  # error: "no_such_thing" is not a known attribute

StructuredDataset.create_dataloader("data/", even="dorp")  # error: Literal['sync']
StructuredDataset.create_dataloader("data/", shufle=True)  # error: No parameter named "shufle"
StructuredDataset.create_dataloader("data/", drop_last=True)  # error: No parameter named "drop_last"
StructuredDataset.create_dataloader("data/", "parquet", 1024)  # error: Expected 2 positional arguments
StructuredDataset.create_dataloader()  # error: Argument missing for parameter "path"
StructuredDataset.create_dataloader("data/", batch_size="1024")  # error: "int"
StructuredDataset.create_dataloader("data/", output_format="nump")  # error: Literal['numpy']
StructuredDataset.create_dataloader("data/", nulls="ignore")  # error: Literal['mask']
StructuredDataset.create_dataloader("data/", snapshot_id=5)  # error: No parameter named "snapshot_id"
IcebergDataset.create_dataloader("a.b", manifest="files.arrow")  # error: No parameter named "manifest"
IcebergDataset.create_dataloader("a.b", worker_mode="proces")  # error: Literal['threads']
Buckets(16, long="dorp")  # error: Literal['single']
Buckets(16, "ids")  # error: Expected 1 positional argument
Subsets({"train": 1}, unit="rows")  # error: Literal['segment']
StructuredDataset.create_dataloader("data/", subset="train")  # error: SubsetLike | None
Pack(2048, method="wraps")  # error: Literal['wrap']
StructuredDataset.create_dataloader("data/", lists="pad")  # error: Literal['padded']
Padded(0, 8)  # error: Expected 1 positional argument
Pack(2048, ["ids"])  # error: Expected 1 positional argument
StructuredDataset.create_dataloader("data/", ranks=4)  # error: "Literal[4]" is not assignable
Sync(evry=4)  # error: No parameter named "evry"
Sync().every = 4  # error: Attribute "every" is read-only
Hive("data/", {"day": "date32"})  # error: Expected 1 positional argument
Files("data/", partitioning="hives")  # error: Literal['hive']
Strided("rows")  # error: Literal['row']
Rotate(8, full=True)  # error: No parameter named "full"
Shuffle("row")  # error: Literal['rows']
combine([], format="csv")  # error: No parameter named "format"
combine([], nulls="ignore")  # error: Literal['mask']

loader, _ = StructuredDataset.create_dataloader("data/")
for batch in loader:
    batch["x"].flaot()  # error: Cannot access attribute "flaot" for class "Tensor"


def policy(source: TableSource) -> None:
    source.newst()  # error: Cannot access attribute "newst" for class "TableSource"


def names() -> object:
    from torch_dataloader_utils import NoSuchThing  # error: "NoSuchThing" is unknown import symbol

    return NoSuchThing
