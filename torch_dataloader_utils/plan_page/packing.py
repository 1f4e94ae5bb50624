"""Columns of numbers made short for a page: runs of equal numbers, and differences instead of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from torch_dataloader_utils.planning.plan_table import common_folder

Packed = list[Any]

_LEAST_RUN = 3  # a shorter run is not worth a pair


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a page with its long columns packed; `page_data.js` unpacks them."""
    paths, counts = [path for path, _ in data["files"]], [rows for _, rows in data["files"]]
    folder = common_folder(paths)
    lists = data["splits"]
    same = lists["shuffled"] == lists["unshuffled"]
    return {
        **data,
        "files": {"folder": folder, "names": [path.removeprefix(folder) for path in paths], "rows": runs(counts)},
        "file_bytes": runs(data["file_bytes"]),
        "file_parts": runs(data["file_parts"]),
        "splits": {
            "unshuffled": _packed_splits(lists["unshuffled"]),
            "shuffled": None if same else _packed_splits(lists["shuffled"]),
        },
    }


def runs(values: Sequence[Any]) -> Packed:
    """The values, with each run of equal ones as a pair [value, length]."""
    short: Packed = []
    for value, run in groupby(values):
        length = len(list(run))
        short += [[value, length]] if length >= _LEAST_RUN else [value] * length
    return short


def _packed_splits(splits: Mapping[str, Any]) -> dict[str, Packed]:
    """A split's file as the step from the file before, its start as the rows left out before it."""
    file, start, rows = splits["file"], splits["start"], splits["rows"]
    gaps: list[int | None] = []
    for place, begin in enumerate(start):
        follows = place > 0 and file[place - 1] == file[place] and begin is not None
        before = start[place - 1] + rows[place - 1] if follows and start[place - 1] is not None else 0
        gaps.append(None if begin is None else begin - before)
    segments = [split or [] for split in splits["segments"]]
    return {
        "file": runs([after - before for before, after in pairwise([0, *file])]),
        "gap": runs(gaps),
        "rows": runs(rows),
        "nbytes": runs(splits["nbytes"]),
        "segments": runs(list(map(len, segments))),
        "segment_rows": runs([rows for split in segments for rows, _ in split]),
        "segment_bytes": runs([size for split in segments for _, size in split]),
    }
