"""Designed plans with their assignment, in vectors.json: `python -m tests.plan_page.vectors` writes them again.

They show what a planner in another language must return, and change only with the version of the plans.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.plan_page.plans import Values, cut, page_data, planned
from tests.planning.helpers import data_file, data_files
from torch_dataloader_utils.model import DataFile

PATH = Path(__file__).with_name("vectors.json")
LIMITS = (100, 30)  # bytes of a split, at 10 bytes per row
SEED = 42

COUNTED = data_files([[4, 4, 2], [7], [3, 3, 3, 1], [], [5, 6]])
UNKNOWN = [data_file(name, [None, None]) for name in ("a", "b", "c")]

_OPTIONS = {"num_ranks": 2, "num_workers": 2, "batch_size": 4, "epoch": 0}
_CASES: tuple[Values, ...] = (
    {},
    {"num_workers": None, "batch_size": 1},
    {"num_ranks": 3, "num_workers": 3, "shuffle": "splits"},
    {"num_workers": 3, "assignment": "turn"},
    {"sharding": "auto"},
    {"sharding": "auto", "num_ranks": 4, "num_workers": 4},
    {"sharding": "contiguous", "num_ranks": 3},
    {"sharding": "contiguous", "even": "drop", "shuffle": "splits", "epoch": 1},
    {"sharding": "rotate", "num_ranks": 3, "epoch": 1},
    {"sharding": "rotate", "num_ranks": 3, "epoch": 1, "stick_to_shard": True, "shuffle": "splits"},
    {"sharding": "rotate", "total_shards": 6, "epoch": 4, "shuffle": True},
    {"sharding": "rotate", "total_shards": 4, "full_rotation": True, "epoch": 2, "even": "drop", "batch_size": 1},
    {"sharding": "strided"},
    {"sharding": "strided", "unit": "batch", "even": "pad", "num_ranks": 3},
    {"sharding": "strided", "unit": "split_batch", "shuffle": "splits", "even": "drop"},
    {"even": "drop"},
    {"even": "drop", "shuffle": True, "epoch": 3, "num_ranks": 3},
    {"even": "pad", "num_ranks": 5, "batch_size": 3},
    {"even": "sync"},
    *({"last_batch": last, "num_ranks": 3} for last in ("drop", "pad", "wrap")),
    {"steps_per_epoch": 9},
    {"shuffle": True, "window_bytes": 120},
    {"shuffle": True, "window_rows": 8, "open_splits": 3},
    {"shuffle": "all", "window_bytes": 200, "num_workers": 1},
    {"shuffle": "nearby", "window_rows": 6},
    {"last_batch": "wrap", "even": "pad"},
    {"even": "drop", "batch_size": 100},
)
_UNKNOWN_CASES: tuple[Values, ...] = ({}, {"shuffle": True, "even": "sync"}, {"sharding": "strided"}, {"even": "pad"})


def vectors() -> list[Values]:
    """For each dataset: what the page's planner gets of it, and options with Python's plan for them."""
    return [_of(COUNTED, _CASES), _of(UNKNOWN, _UNKNOWN_CASES)]


def _of(files: list[DataFile], cases: tuple[Values, ...]) -> Values:
    options = [{**_OPTIONS, **case} for case in cases]
    lists = cut(files, *LIMITS)
    plans = [planned(files, lists, {**each, "shuffle_seed": SEED}) for each in options]
    pairs = [{"options": each, "plan": plan} for each, plan in zip(options, plans, strict=True)]
    return {"data": page_data(files, lists, SEED), "cases": pairs}


def written() -> str:
    """The text of vectors.json: a case per line."""
    texts = []
    for of_dataset in vectors():
        cases = ",\n".join(json.dumps(case, separators=(",", ":")) for case in of_dataset["cases"])
        texts.append(f'{{"data":{json.dumps(of_dataset["data"], separators=(",", ":"))},"cases":[\n{cases}\n]}}')
    return "[\n" + ",\n".join(texts) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(written())
