"""Small files, loaders over them, and their batches as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset

# Integer division: no statistics can prune it.
KEPT = pc.field("id") - pc.field("id") / 3 * 3 != 0

# Row groups of each file.
LAYOUT = ((5, 2, 7), (4, 4), (9,), (1, 3, 3))


def write_files(folder: Path, layout: Sequence[Sequence[int]] = LAYOUT) -> str:
    """Files of row groups of these sizes, with an `id` that counts through them, and a text."""
    at = 0
    for number, groups in enumerate(layout):
        rows = np.arange(at, at + sum(groups))
        table = pa.table({"id": rows, "name": [f"row {row}" for row in rows]})
        with pq.ParquetWriter(folder / f"part-{number}.parquet", table.schema) as writer:
            for size in groups:
                writer.write_table(table.slice(0, size))
                table = table.slice(size)
        at += sum(groups)
    return str(folder)


def make(path: str, **options: Any) -> Any:
    """A loader of tiny batches, in-line unless told otherwise."""
    given = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 3, "split_rows": 6} | options
    return StructuredDataset.create_dataloader(path, **given)[0]


def plain(batch: Any) -> Any:
    """A batch as comparable values."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return batch.tolist() if hasattr(batch, "tolist") else batch


def batches(loader: Any) -> list[Any]:
    """A whole pass."""
    return [plain(batch) for batch in loader]


def through_json(state: Any) -> Any:
    """The state as it comes back from a file."""
    return json.loads(json.dumps(state))


def pass_with_states(loader: Any) -> tuple[list[Any], list[Any]]:
    """A pass, and the states before its first batch and after each."""
    states = [through_json(loader.state_dict())]
    found = []
    for batch in loader:
        found.append(plain(batch))
        states.append(through_json(loader.state_dict()))
    return found, states
