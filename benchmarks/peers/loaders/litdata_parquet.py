"""LitData on Parquet files, whose index is written beforehand; rows are collated by its DataLoader."""

import os
from pathlib import Path

import litdata
from litdata.streaming.item_loader import ParquetLoader


def prepare(folder: Path, target: Path) -> None:
    # Links: the index is written beside the files.
    for file in folder.glob("*.parquet"):
        os.link(file, target / file.name)
    litdata.index_parquet_dataset(str(target))


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    data = litdata.StreamingDataset(str(folder), item_loader=ParquetLoader(), shuffle=shuffle)
    collate = list if folder.name == "text" else None  # default_collate refuses lists of different lengths
    return litdata.StreamingDataLoader(data, batch_size=rows, num_workers=workers, collate_fn=collate)
