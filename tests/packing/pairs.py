"""Files of pairs of documents, whose sides differ in length, and the pairs that batches hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.packing.helpers import LENGTH, Document
from torch_dataloader_utils import Pack

Lengths = tuple[int, int]
Pair = tuple[Document, Document]
TOGETHER = Pack(LENGTH, together=True)


def pairs(lengths: Iterable[Lengths], most: int | None = None) -> list[Pair]:
    """Token k of side s of pair i is 1000 * i + 500 * s + k; each side has at most `most`."""
    return [
        (tuple(range(1000 * i, 1000 * i + a))[:most], tuple(range(1000 * i + 500, 1000 * i + 500 + b))[:most])
        for i, (a, b) in enumerate(lengths)
    ]


def write_pairs(folder: Path, lengths: Sequence[Lengths]) -> str:
    """Two Parquet files of these pairs; labels are the negative tokens."""
    made = pairs(lengths)
    for number in range(2):
        columns: dict[str, Any] = {}
        for side, name in enumerate(("chosen", "rejected")):
            tokens = [pair[side] for pair in made[number::2]]
            columns[f"{name}_input_ids"] = pa.array(tokens, pa.list_(pa.int32()))
            columns[f"{name}_labels"] = pa.array([[-each for each in row] for row in tokens], pa.list_(pa.int64()))
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=6)
    return str(folder)


def held_pairs(batch: Any) -> list[Pair]:
    """The pairs of a batch, cut by each side's `document_ids`; all other keys are checked against these."""
    arrays = {key: np.asarray(value) for key, value in batch.items()}
    chosen, rejected = (_side(arrays, prefix) for prefix in ("chosen_", "rejected_"))
    assert chosen.keys() == rejected.keys()  # the same sequence and number
    real = arrays.get("valid", np.ones(len(arrays["chosen_input_ids"]), bool))
    return [(chosen[place], rejected[place]) for place in chosen if real[place[0]]]


def _side(batch: dict[str, Any], prefix: str) -> dict[tuple[int, int], Document]:
    """The documents of a side by (sequence, number in it)."""
    names = ("input_ids", "labels", "document_ids", "position_ids")
    ids, labels, numbers, positions = (batch[prefix + name] for name in names)
    found: dict[tuple[int, int], Document] = {}
    runs: list[int] = []
    for row in range(len(ids)):
        for number in range(numbers[row].max() + 1):
            places = np.flatnonzero(numbers[row] == number)
            assert places.tolist() == list(range(places[0], places[0] + len(places)))
            assert positions[row, places].tolist() == list(range(len(places)))
            assert labels[row, places].tolist() == [-100, *(-ids[row, places[1:]]).tolist()]
            found[row, number] = tuple(ids[row, places].tolist())
            runs.append(len(places))
        pads = numbers[row] == -1
        assert (labels[row, pads] == -100).all()
        runs += [int(pads.sum())] * bool(pads.any())
    assert batch[prefix + "cu_seqlens"].tolist() == np.cumsum([0, *runs]).tolist()
    assert batch[prefix + "max_seqlen"] == max(runs)
    return found
