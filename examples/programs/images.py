"""Images: JPEGs in a column of Parquet, decoded, cropped and flipped by the reading threads.

    python examples/programs/images.py

Makes 3,000 small JPEGs of circles and squares, one of them damaged, trains a small network to tell them
apart, and counts what it read: the damaged image keeps its place, so that steps stay equal, and is False in
`batch["valid"]`. Needs the extra `images`.
"""

import io
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageDraw

import torch_dataloader_utils as tdu
from torch_dataloader_utils.transforms import DecodeImages, RandomCrop, RandomFlip

SHAPES = ["circle", "square"]


def jpeg(rng, label):
    """A circle or a square of any colour, anywhere on 48 by 48 pixels."""
    image = Image.new("RGB", (48, 48), tuple(rng.integers(0, 128, 3).tolist()))
    size, (left, top) = int(rng.integers(16, 24)), rng.integers(2, 22, 2).tolist()
    draw = ImageDraw.Draw(image)
    box, colour = (left, top, left + size, top + size), tuple(rng.integers(160, 256, 3).tolist())
    draw.ellipse(box, fill=colour) if SHAPES[label] == "circle" else draw.rectangle(box, fill=colour)
    out = io.BytesIO()
    image.save(out, "jpeg", quality=90)
    return out.getvalue()


def make_images(path, rows=3_000):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, rows)
    images = [jpeg(rng, label) for label in labels]
    images[1234] = images[1234][:100]  # cut off
    pq.write_table(pa.table({"image": images, "label": labels}), path, row_group_size=250)


def main(folder):
    make_images(folder / "images.parquet")
    augment = [DecodeImages("image", size=48), RandomCrop("image", 40), RandomFlip("image")]
    loader = tdu.stream(
        folder / "images.parquet",
        transform=tdu.Transform(augment, random=True, on_error="skip"),
        batch_size=64,
        shuffle=True,
        even="pad",
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(4):
        loader.set_epoch(epoch)
        seen, right = 0, 0
        for batch in loader:
            real = batch["valid"]
            images, labels = batch["image"][real], batch["label"][real]  # uint8 [rows, 3, 40, 40]
            scores = model(images.float() / 255)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            right += int((scores.argmax(1) == labels).sum())
        print(f"epoch {epoch}: {right / seen:.1%} of {seen:,} images right")
    assert seen == 2_999
    assert right / seen > 0.9


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
