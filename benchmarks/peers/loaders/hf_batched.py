"""Hugging Face datasets, streaming, batched by the dataset itself."""

import logging
from pathlib import Path

import datasets
from torch.utils.data import DataLoader

logging.getLogger("datasets").setLevel(logging.ERROR)
BUFFER = 10_000  # rows of the shuffle buffer


def stream(folder: Path, shuffle: bool):
    files = sorted(map(str, folder.glob("*.parquet")))
    data = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return data.shuffle(seed=0, buffer_size=BUFFER) if shuffle else data


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    data = stream(folder, shuffle).with_format("torch")
    return DataLoader(data.batch(rows), batch_size=None, num_workers=workers)
