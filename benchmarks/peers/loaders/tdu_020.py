"""The package that had this name before."""

from pathlib import Path

from torch_dataloader_utils.dataset import StructuredDataset


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    loader, _ = StructuredDataset.create_dataloader(
        path=str(folder), format="parquet", batch_size=rows, num_workers=workers, shuffle=shuffle
    )
    return loader
