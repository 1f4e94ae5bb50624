"""What two ranks do that update weights: `forkrun.py 2 weight_jobs.py DATA OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.gloo import end_before_them
from torch_dataloader_utils import stream
from torch_dataloader_utils.errors import DataLoaderUtilsError

# Of each rank: file codes, positions, values. Both have row 1.
UPDATES: list[tuple[Any, Any, Any]] = [([0, 0], [0, 1], [2.0, 3.0]), ([0, 1, 2], [1, 2, 19], [7.0, 7.0, 0.5])]


def error_of(call: Any, *arguments: Any, **keywords: Any) -> str:
    try:
        call(*arguments, **keywords)
    except DataLoaderUtilsError as error:
        return str(error)
    return ""


def main(data: str, out: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = stream(data, columns=["id"], batch_size=4, shuffle=True, num_workers=0)
    files, places, values = UPDATES[rank]
    loader.set_row_weights(values, rows=(files, places))
    found: dict[str, Any] = {"weights": loader.row_weights().tolist()}
    found["ids"] = [row for batch in loader for row in batch["id"].tolist()]
    found["failed"] = error_of(loader.set_row_weights, [1.0], rows=([0], [rank * 20]))
    found["after"] = loader.row_weights().tolist()
    loader = stream(data, columns=["id"], batch_size=4, num_workers=0)
    loader.set_row_weights([1.0 + rank] + [2.0] * 59)
    found["differ"] = error_of(next, iter(loader))
    (Path(out) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    end_before_them()


main(*sys.argv[1:])
