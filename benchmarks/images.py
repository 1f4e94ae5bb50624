"""Compares decoding images here with a torch DataLoader whose workers use Pillow: `python benchmarks/images.py FOLDER`.

Both read the same JPEGs, which the script draws: ours from a Parquet file, the DataLoader from a file each.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.transforms import DecodeImages

SIDE = 224
BATCH = 64


def draw(folder: Path, count: int) -> None:
    """Smooth images of 500 by 375 pixels with some noise: each a file, and all in one Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    random, encoded = np.random.default_rng(0), []
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(smooth + random.integers(-8, 9, smooth.shape), 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(noisy).save(out, "jpeg", quality=90)
        encoded.append(out.getvalue())
        (folder / f"{number:05}.jpg").write_bytes(encoded[-1])
    pq.write_table(pa.table({"image": encoded}), folder / "images.parquet", row_group_size=2 * BATCH)


class Files(Dataset):
    """What the DataLoader's workers do: open a file, decode, resize."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        with Image.open(self.paths[row]) as image:
            pixels = np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1)


def images_per_second(batches: Iterable[torch.Tensor]) -> float:
    """Images of one epoch by its seconds, with what starting the workers takes."""
    start = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print the best of some epochs of each, in turns, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if not (given.folder / "images.parquet").exists():
        draw(given.folder, given.images)
    ours, _ = StructuredDataset.create_dataloader(
        given.folder / "images.parquet", transform=DecodeImages("image", SIDE), batch_size=BATCH
    )
    theirs = DataLoader(Files(given.folder), BATCH, num_workers=given.workers, persistent_workers=True)
    best = [0.0, 0.0]
    for _ in range(given.epochs):
        speeds = (images_per_second(batch["image"] for batch in ours), images_per_second(theirs))
        best = [max(pair) for pair in zip(best, speeds, strict=True)]
    print(f"DecodeImages, a thread per core: {best[0]:.0f} images/s")
    print(f"DataLoader, {given.workers} workers with Pillow: {best[1]:.0f} images/s; ratio {best[0] / best[1]:.2f}")


if __name__ == "__main__":
    main()
