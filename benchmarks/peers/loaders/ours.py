"""This package, with default options but for strings, which are bytes and offsets."""

from pathlib import Path
from typing import Any

from torch_dataloader_utils import StructuredDataset

StructuredDataset.create_dataloader  # noqa: B018 - the last of the imports


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    options: dict[str, Any] = {"num_workers": workers, "worker_mode": "processes"} if workers else {}
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=rows, shuffle=shuffle, strings="bytes", **options
    )
    return loader
