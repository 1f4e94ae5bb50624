# docs/cookbook/images.md: Transform(f, format="numpy")
import io

import numpy as np
from PIL import Image

from torch_dataloader_utils import Transform, stream


def decode(rows):
    pixels = np.empty((len(rows["image"]), 8, 8, 3), np.uint8)
    for row, encoded in enumerate(rows["image"]):
        pixels[row] = Image.open(io.BytesIO(encoded)).convert("RGB")
    return {"image": pixels, "label": rows["label"]}


loader = stream("images.parquet", transform=Transform(decode, format="numpy"), batch_size=4)
images = next(iter(loader))["image"].permute(0, 3, 1, 2).float() / 255
