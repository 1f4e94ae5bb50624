"""Ranks of which some fail alone, and go on with another loader: `forkrun.py RANKS again_jobs.py SCENARIO DATA OUT`.

Each rank writes OUT/rank.json: what came of each try, the rows of its pass or the error. With barriers, a rank that
failed waits for the others before it tries again, as a job does whose ranks tell each other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_dataloader_utils import StructuredDataset, Sync

LIMIT = 2.0  # the timeout of each loader

create = StructuredDataset.create_dataloader
Tries = list[Mapping[int, Callable[[str], Any]]]  # of each try, what other ranks than those that do it well do


def well(data: str, **options: Any) -> Any:
    loader, _ = create(data, **{"batch_size": 8, "timeout": LIMIT, **options})
    return loader


def fails_at(row: int) -> Callable[[Any], Any]:
    """A transform that fails on this rank."""

    def transform(rows: Any) -> Any:
        if row in rows.column("id").to_pylist():
            raise RuntimeError("a row that this rank cannot read")
        return rows

    return transform


def wrong_row(data: str, **options: Any) -> Any:
    return well(data, transform=fails_at(350), **options)


def wrong_path(data: str, **options: Any) -> Any:
    return well(f"{data}/missing", **options)


def wrong_option(data: str, **options: Any) -> Any:
    return well(data, **{**options, "batch_size": -1})


def wrong_column(data: str, **options: Any) -> Any:
    return well(data, **{**options, "columns": ["none"]})


SCENARIOS: dict[str, tuple[dict[str, Any], Tries]] = {
    "path": ({}, [{1: wrong_path}, {}, {}]),
    "option": ({}, [{1: wrong_option}, {}, {}]),
    "counted": ({"count_rows": True}, [{1: wrong_path}, {}, {}]),
    "counted_column": ({"count_rows": True}, [{1: wrong_column}, {}, {}]),
    "rank_0": ({"count_rows": True}, [{0: wrong_path}, {}, {}]),
    "in_turn": ({}, [{1: wrong_path}, {0: wrong_path}, {2: wrong_option}, {1: wrong_path, 2: wrong_path}, {}, {}]),
    "often": ({"count_rows": True}, [{1: wrong_path}, {1: wrong_option}, {1: wrong_path}, {}, {}]),
    "skip": ({"on_error": "skip"}, [{1: wrong_path}, {}, {}]),
    "row": ({}, [{1: wrong_row}, {}, {}]),
    "row_in_sync": ({"even": Sync(4)}, [{1: wrong_row}, {}, {}]),
    "row_in_sync_of_both": ({"even": Sync(4)}, [{1: wrong_row, 0: wrong_row}, {}]),
    "path_in_sync": ({"even": "sync"}, [{1: wrong_path}, {}]),
    "all": ({}, [{0: wrong_path, 1: wrong_path}, {}, {}]),
}


def tried(make: Callable[[], Any]) -> dict[str, Any]:
    """The rows of a loader's pass, or the error, and the seconds that it took."""
    begin = time.monotonic()
    try:
        rows, error = [row for batch in make() for row in batch["id"].tolist()], None
    except Exception as raised:  # noqa: BLE001 - compared by the test
        rows, error = [], f"{type(raised).__name__}: {raised}"
    return {"error": error, "rows": rows, "seconds": time.monotonic() - begin}


def main() -> None:
    scenario, data, out = sys.argv[1:]
    dist.init_process_group("gloo")
    options, tries = SCENARIOS[scenario]
    found = []
    for failing in tries:
        make = failing.get(dist.get_rank(), well)
        found.append(tried(lambda make=make: make(data, **options)))  # type: ignore[misc]
        dist.barrier()
    (Path(out) / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
