"""Files of documents whose tokens are all different, and the documents that batches hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import Pack, StructuredDataset

Document = tuple[int, ...]

LENGTH = 16
IGNORED = -100
PACK = Pack(LENGTH, columns=["input_ids", "labels"])


def documents(lengths: Iterable[int]) -> list[Document]:
    """Documents of these lengths: token k of document i is 1000 * i + k."""
    return [tuple(range(1000 * number, 1000 * number + length)) for number, length in enumerate(lengths)]


def write_documents(folder: Path, lengths: Sequence[int], *, files: int = 3, row_group_size: int = 7) -> str:
    """Parquet files of these documents; labels are the negative tokens."""
    tokens = documents(lengths)
    cuts = [len(tokens) * i // files for i in range(files + 1)]
    for number, (first, last) in enumerate(pairwise(cuts)):
        ids = pa.array(tokens[first:last], pa.list_(pa.int32()))
        labels = pa.array([[-token for token in each] for each in tokens[first:last]], pa.list_(pa.int64()))
        table = pa.table({"input_ids": ids, "labels": labels})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group_size)
    return str(folder)


def parts_of(lengths: Iterable[int], length: int = LENGTH) -> list[Document]:
    """The documents with long ones cut into several, sorted."""
    whole = documents(lengths)
    return sorted(each[i : i + length] for each in whole for i in range(0, len(each), length))


def make(path: str, **options: Any) -> Any:
    """A loader of small packed batches, in-line unless `num_workers` is given."""
    given = {
        "num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 3, "split_rows": 12, "pack": PACK,
    } | options  # fmt: skip
    return StructuredDataset.create_dataloader(path, **given)[0]


def held(batches: Iterable[Any]) -> list[Document]:
    """The documents of these batches, each cut by `document_ids`; all other keys are checked against it."""
    return [document for batch in batches for document in _held_by_one({k: np.asarray(v) for k, v in batch.items()})]


def _held_by_one(batch: dict[str, Any]) -> list[Document]:
    found: list[Document] = []
    ends = [0]
    for row, numbers in enumerate(batch["document_ids"]):
        counts = [int((numbers == each).sum()) for each in range(numbers.max() + 1)]
        pads = int((numbers == -1).sum())
        assert numbers.tolist() == [each for each, count in enumerate(counts) for _ in range(count)] + [-1] * pads
        for first, count in zip(np.cumsum([0, *counts[:-1]]), counts, strict=True):
            found.append(tuple(batch["input_ids"][row, first : first + count].tolist()))
        used = sum(counts)
        first_or_pad = batch["position_ids"][row] == 0
        first_or_pad[used:] = True
        expected = np.where(first_or_pad, IGNORED, -batch["input_ids"][row])
        assert batch["labels"][row].tolist() == expected.tolist()
        assert (batch["input_ids"][row, used:] == 0).all()
        runs = [*counts, *([pads] if pads else [])]
        assert batch["position_ids"][row].tolist() == [i for run in runs for i in range(run)]
        ends += runs
    assert batch["cu_seqlens"].tolist() == np.cumsum(ends).tolist()
    assert batch["max_seqlen"] == max(ends)
    return found
