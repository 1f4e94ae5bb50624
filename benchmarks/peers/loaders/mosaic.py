"""MosaicML Streaming: its own format, and its own dataset; written by row, so only a part of the table is."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

ROWS = 100_000
_KINDS = {"int64": "int64", "int32": "int32", "int8": "int8", "float": "float32", "string": "str"}


def prepare(folder: Path, target: Path) -> None:
    file = next(iter(sorted(folder.glob("*.parquet"))))
    schema = pq.read_schema(file)
    columns = {field.name: _KINDS.get(str(field.type), "ndarray") for field in schema}
    with MDSWriter(out=str(target), columns=columns) as writer:
        for row in islice(_rows(file), ROWS):
            writer.write(
                {key: np.asarray(row[key]) if kind == "ndarray" else row[key] for key, kind in columns.items()}
            )


def _rows(file: Path):
    for batch in pq.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    data = StreamingDataset(local=str(folder), batch_size=rows, shuffle=shuffle)
    collate = list if folder.name == "text" else None  # default_collate refuses lists of different lengths
    return DataLoader(data, batch_size=rows, num_workers=workers, collate_fn=collate)
