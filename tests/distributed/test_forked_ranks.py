"""Ranks forked from a process that has used their loader share its rows, as ranks that are spawned do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.distributed.forked_ranks_job import PEEKS, WORKERS
from tests.ports import free_ports

JOB = Path(__file__).with_name("forked_ranks_job.py")
ROWS = 400
PORTS = 64
CASES = [f"{peek}, {how}, {workers}" for workers in WORKERS for peek in PEEKS for how in ("environment", "group")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("data")
    for first in range(0, ROWS, 100):
        pq.write_table(pa.table({"id": range(first, first + 100)}), folder / f"{first}.parquet", row_group_size=10)
    out = tmp_path_factory.mktemp("out") / "found"
    command = [sys.executable, JOB, folder, out, *map(str, free_ports(PORTS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, "a combination"])
def test_forked_ranks_share_the_rows(found: dict[str, list[dict[str, Any]]], case: str) -> None:
    ranks = found[case]
    assert not [rank["error"] for rank in ranks if "error" in rank]
    rows = [row for rank in ranks for row in rank["rows"]]
    left = ROWS - 30 * case.startswith("a state loaded")
    assert (len(rows), len(set(rows))) == (left, left)
    assert {rank["len"] for rank in ranks} == {20 if left == ROWS else ranks[0]["len"]}
    epoch = 3 if "an epoch set" in case else 1 if "a whole pass" in case else 0
    assert {rank["epoch"] for rank in ranks} == {epoch + 1}


@pytest.mark.slow
def test_forked_ranks_do_not_use_the_iterator_of_their_parent(found: dict[str, list[dict[str, Any]]]) -> None:
    assert all(
        rank["error"].startswith("StaleIteratorError('this iterator was made before") for rank in found["an iterator"]
    )
