"""Prints the bytes of the states of one pass, one line for each step: to be run in processes of their own."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from torch_dataloader_utils import Processes, StructuredDataset


def options_of(case: str) -> dict[str, Any]:
    """The options of a case; sets, whose order is another one in each process, among them."""
    cities = [("city", "in", {"Rome", "Oslo", "Lima", "Bonn", "Kyiv"}), ("id", "in", set(range(0, 400, 3)))]
    return {
        "known": {},
        "counted": {"filters": cities, "count_rows": True},
        "unknown": {"filters": cities, "nulls": {"score": "drop", "id": "error"}},
        "windows": {"shuffle": True, "shuffle_buffer_size": 9},
        "laps": {"steps_per_epoch": 30},
        "auto": {"sharding": "auto", "num_ranks": 3, "rank": 1},
        "codes": {"strings": "codes", "even": "pad", "num_ranks": 2, "rank": 0},
    }[case]


def _tell(case: str, step: int | str, loader: Any) -> None:
    sys.stdout.write(f"{case} {step} {json.dumps(loader.state_dict())}\n")


def main(folder: str, driver: str, cases: str) -> None:
    """Print the states of all cases."""
    mode: dict[str, Any] = {"num_workers": 2}
    if driver == "in-line":
        mode = {"num_workers": 0}
    elif driver == "pool":
        mode = {}
    elif driver != "threads":
        mode |= {"worker_mode": Processes(context=driver)}
    for case in cases.split(","):
        given = {"num_ranks": 1, "rank": 0, "batch_size": 4, "split_rows": 10, **mode, **options_of(case)}
        loader, dataset = StructuredDataset.create_dataloader(folder, **given)
        iterator = iter(loader)
        for step in itertools.count():
            _tell(case, step, loader)
            if next(iterator, None) is None:
                break
        loader.load_state_dict(dataset.state_dict())
        _tell(case, "loaded", loader)
        dataset.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
