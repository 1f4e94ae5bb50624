"""Windows by hand: lists of rows, as the documentation describes them, and files whose rows are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset, Windows

# The number of a row of the data: `x`. What stands for rows that a window lacks: None.
Window = tuple[tuple[int | None, ...], tuple[int | None, ...]]


def sequences_of(keys: Sequence[Any], times: Sequence[float], gap: Any = None) -> list[list[int]]:
    """The rows of each run, in the order of time, ties in that of the rows."""
    by_key: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        by_key.setdefault(key, []).append(row)
    runs = []
    for rows in by_key.values():
        rows.sort(key=lambda row: (times[row], row))
        run = rows[:1]
        for earlier, later in pairwise(rows):
            if gap is not None and times[later] - times[earlier] > gap:
                runs.append(run)
                run = []
            run.append(later)
        runs.append(run)
    return runs


def windows_of(runs: Sequence[Sequence[int]], windows: Windows) -> dict[int, Window]:
    """Anchor -> the rows of its past, and of its future."""
    found: dict[int, Window] = {}
    for rows in runs:
        kept = []
        before, after = windows.least
        for place in range(before - 1, len(rows) - after, windows.stride):
            at = {place + step: row for step, row in enumerate(rows, -place)}
            past = tuple(at.get(place + step) for step in range(1 - windows.length, 1))
            future = tuple(at.get(place + step) for step in range(1, windows.horizon + 1))
            kept.append((rows[place], (past, future)))
        found |= kept if windows.last is None else kept[-windows.last :]
    return found


def filled(window: Window, pad: Any) -> Window:
    """The window with what its padding stands for: the nearest row, or this number."""
    past, future = window
    real = [row for row in (*past, *future) if row is not None]
    low, high = (real[0], real[-1]) if pad == "edge" else (pad, pad)
    return (
        tuple(low if row is None else row for row in past),
        tuple(high if row is None else row for row in future),
    )


def delivered(batches: Sequence[Any], windows: Windows) -> dict[int, Window]:
    """Anchor -> the window that batches have of it, with its padding; each once."""
    found: dict[int, Window] = {}
    for batch in batches:
        real = batch.get("valid", np.ones(len(batch["x"]), bool)).tolist()
        futures = batch["x_future"].tolist() if windows.horizon else [[]] * len(real)
        for past, future, whole in zip(batch["x"].tolist(), futures, real, strict=True):
            if whole:
                assert past[-1] not in found
                found[past[-1]] = (tuple(past), tuple(future))
    return found


def write(folder: Path, keys: Sequence[Any], times: Sequence[Any], cuts: Sequence[int] = (), group: int = 5) -> str:
    """Files of these keys and times, cut at these rows, with row groups of a size; `x` numbers the rows."""
    rows = len(keys)
    table = pa.table(
        {"key": keys, "time": times, "x": np.arange(rows), "pair": pair(rows), "half": np.arange(rows) / 2}
    )
    ends = [0, *cuts, rows]
    for number, (first, last) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(first, last - first), folder / f"{number:02}.parquet", row_group_size=group)
    return str(folder)


def pair(rows: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * rows), pa.int32()), 2)


def make(path: str, windows: Windows, **options: Any) -> Any:
    """A loader of small batches, in-line unless told otherwise."""
    given: dict[str, Any] = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 4, "output_format": "numpy"}
    given |= options
    return StructuredDataset.create_dataloader(path, sequences=windows, **given)[0]
