"""Hugging Face datasets, streaming, rows collated by a torch DataLoader."""

from pathlib import Path

from torch.utils.data import DataLoader

from loaders.hf_batched import stream


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    collate = None if folder.name != "text" else list  # default_collate refuses lists of different lengths
    return DataLoader(stream(folder, shuffle).with_format("torch"), rows, num_workers=workers, collate_fn=collate)
