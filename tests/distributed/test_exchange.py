"""What the first rank does for all: its result, or its error, reaches every rank.

This file is also what the ranks run: `torchrun ... test_exchange.py FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank, sharers_among
from torch_dataloader_utils.errors import FileReadError, WorkerError


def raising(error: Exception) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


def asked(make: Callable[[], Any], num_ranks: int | None = None) -> Any:
    try:
        return from_first_rank(make, sharers_among(num_ranks), "share it")
    except (FileReadError, ConnectionError, WorkerError) as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    found = {
        "value": asked(lambda: {"from": rank}),
        "ours": asked(raising(FileReadError("damaged"))),
        "foreign": asked(raising(ConnectionError("no route"))),
        "alone": asked(lambda: {"from": rank}, num_ranks=1),
        "none": asked(lambda: None),
    }
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


def test_a_process_alone_asks_nobody() -> None:
    assert from_first_rank(lambda: 7, Sharers(), "share it") == 7
    with pytest.raises(FileReadError, match=r"^damaged$"):
        from_first_rank(raising(FileReadError("damaged")), sharers_among(4), "share it")


@pytest.mark.slow
def test_results_and_errors_of_the_first_rank_reach_all(tmp_path: Path) -> None:
    from tests.distributed.launching import run_ranks  # the ranks, which run this file, cannot import it

    first, second = run_ranks(Path(__file__), [str(tmp_path)], tmp_path, 2)
    assert first["value"] == second["value"] == {"from": 0}
    assert first["none"] is second["none"] is None
    assert (first["ours"], second["ours"]) == ("FileReadError: damaged", "FileReadError: on rank 0: damaged")
    assert first["foreign"] == "ConnectionError: no route"
    assert second["foreign"] == "WorkerError: on rank 0: ConnectionError: no route"
    assert (first["alone"], second["alone"]) == ({"from": 0}, {"from": 1})


if __name__ == "__main__":
    main()
