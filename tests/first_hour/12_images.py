# docs/cookbook/images.md: transform=decode
import io

import numpy as np
import pyarrow as pa
from PIL import Image

from torch_dataloader_utils import StructuredDataset


def decode(rows: pa.RecordBatch) -> pa.RecordBatch:
    images = [np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in rows["image"].to_pylist()]
    pixels = pa.FixedSizeListArray.from_arrays(np.ravel(images).astype("uint8"), 8 * 8 * 3)
    return pa.record_batch({"image": pixels, "label": rows["label"]})


loader, _ = StructuredDataset.create_dataloader("images.parquet", transform=decode, batch_size=4)
batch = next(iter(loader))
images = batch["image"].view(-1, 8, 8, 3).permute(0, 3, 1, 2).float() / 255
