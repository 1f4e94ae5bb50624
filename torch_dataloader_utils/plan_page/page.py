"""Builds the plan page: one HTML file with its style, scripts and data, which needs nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.plan_page.planner_scripts import planner_script
from torch_dataloader_utils.planning.plan_table import common_folder
from torch_dataloader_utils.printing import shortened, shown

# Columns of numbers made short for a page: runs of equal numbers, and differences instead of sums.

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


SCRIPTS = (
    "page_data.js",
    "page_state.js",
    "page_words.js",
    "page_colours.js",
    "page_controls.js",
    "page_map_layout.js",
    "page_map.js",
    "page_map_input.js",
    "page_steps.js",
    "page_shuffle.js",
    "page_rotation.js",
    "page_call.js",
    "page.js",
)
_NAME_WIDTH = 72
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def page_of(data: Mapping[str, Any]) -> str:
    """The plan page of a dataset, as HTML.

    Args:
        data: from `data.page_data`.
    """
    parts = {
        "title": escape(f"Plan of {name_of(data)}"),
        "style": _asset("page.css"),
        "data": _json(packed(data)),
        "scripts": "\n".join([planner_script(), *map(_asset, SCRIPTS)]),
    }
    return _PLACE.sub(lambda place: parts[place[1]], _asset("template.html"))


def write_page(path: str | os.PathLike[str], html: str, call: str = "plan_page", example: str = "plan.html") -> Path:
    """Write a page, replacing the file if it exists. Returns the path.

    Args:
        path: of the file.
        html: the page.
        call: which writes it, for errors.
        example: of a name, likewise.

    Raises:
        OptionError: the path is a folder, lies in a folder that does not exist, or cannot be written.
    """
    try:
        place = Path(path)
        _check_place(place, call, example)
        place.write_text(html, encoding="utf-8")
    except OptionError:
        raise
    except Exception as error:  # of the disk, or because this is no path
        raise OptionError(
            f"{call}({shown(path)}): it cannot be written: {type(error).__name__}. Pass the path of a file, such as "
            f"{example}."
        ) from error
    return place


def _check_place(place: Path, call: str, example: str) -> None:
    if place.is_dir():
        raise OptionError(f"{call}({str(place)!r}): this is a folder: pass a file in it, such as {example}.")
    if not place.parent.is_dir():
        raise OptionError(f"{call}({str(place)!r}): there is no folder {str(place.parent)!r}: create it first.")


def name_of(data: Mapping[str, Any]) -> str:
    """The dataset's name for people: its path or table, or else the folder of its files."""
    value = data["call"]["target"].get("value")
    text = value if isinstance(value, str) else common_folder([path for path, _ in data["files"]])
    return shortened(text.rstrip("/"), _NAME_WIDTH) or "several datasets"


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _json(values: Mapping[str, Any]) -> str:
    """JSON that HTML cannot take for the end of a script."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False, sort_keys=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
