"""Ranks that do not do the same, stall, stop or die: the others raise an error that names them, within `timeout`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import forkrun
from tests.distributed.launching import launch
from torch_dataloader_utils.distributed.records import DONE, ENTERED, LATE, Record, absent, difference

ROWS = 600
PATIENCE = 30  # seconds: far more than the timeouts of the jobs, and far less than that of their process groups


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six files, of numbers and words."""
    root = tmp_path_factory.mktemp("data")
    for number in range(6):
        ids = range(number * 100, number * 100 + 100)
        table = pa.table({"id": ids, "word": [str(row % 3) for row in ids]})
        pq.write_table(table, root / f"{number}.parquet", row_group_size=20)
    return str(root)


def rows(ranks: list[Any], name: str) -> list[int]:
    return sorted(row for found in ranks for row in found[name]["rows"])


@pytest.mark.slow
def test_options_that_some_ranks_lack_are_named_on_all(data: str, tmp_path: Path) -> None:
    ranks = launch("apart", data, tmp_path, 3, "fault_jobs.py")
    words = {
        "count_rows": "count_rows is True on process(es) 0, False on process(es) 1, 2",
        "manifest": "manifest is None on process(es) 0, 2, a file on process(es) 1",
        "strings": "strings is without 'codes' on process(es) 0, 1, 'codes' on process(es) 2",
        "both": "count_rows is False on process(es) 0, 2, True on process(es) 1; manifest is",
        "sync": "even is 'sync' on process(es) 0, None on process(es) 1, 2",
        "by hand": "count_rows is True on process(es) 0, False on process(es) 1, 2",
    }
    for found in ranks:
        for name, expected in words.items():
            assert found[name]["error"].startswith("PlanMismatchError: ")
            assert expected in found[name]["error"], name
            assert found[name]["seconds"] < PATIENCE / 2
        assert "0.2.0 on process(es) 1" in found["version"]["error"]
    assert ranks[0]["alone"]["rows"] == list(range(ROWS))
    assert rows(ranks, "manifests") == list(
        range(ROWS)
    )  # paths may differ between hosts: rank 0 reads its file for all
    assert ranks[1]["option"]["error"].startswith("OptionError: batch_size=0")
    for found in (ranks[0], ranks[2]):
        assert (
            "PlanMismatchError: process(es) 1 did not create this loader within timeout=1.5 s"
            in found["option"]["error"]
        )


@pytest.mark.slow
def test_a_rank_that_comes_late_after_a_failure_of_all_does_not_skip_a_loader(data: str, tmp_path: Path) -> None:
    ranks = launch("apart_in_turn", data, tmp_path, 3, "fault_jobs.py")
    words = {
        "first": "count_rows is True on process(es) 0, False on process(es) 1, 2",
        "second": "on_error is 'raise' on process(es) 0, 1, 'skip' on process(es) 2",
        "third": "count_rows is False on process(es) 0, True on process(es) 2",  # rank 1 had not come
        "shared": "/none",
        "fourth": "count_rows is True on process(es) 0, False on process(es) 2",
    }
    for found in ranks:
        for name, expected in words.items():
            assert expected in str(found[name]["error"]), name
    assert rows(ranks, "same") == list(range(ROWS))


@pytest.mark.slow
def test_a_first_rank_whose_store_hangs_is_named(data: str, tmp_path: Path) -> None:
    found = [each["manifest"] for each in launch("stalled", data, tmp_path, 3, "fault_jobs.py")]
    stalled = "BatchTimeoutError: {}listing .*: the store did not answer within timeout="
    for rank, each in enumerate(found):  # rank 0 tells the others, unless their own time limit ends first
        late = re.search(r"PlanMismatchError: process\(es\) 0 did not share the manifest", each["error"])
        assert late or re.search(stalled.format("on rank 0: " if rank else ""), each["error"]), each
        assert each["seconds"] < PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "does"), [("stopped", "begin this pass"), ("stopped_in_sync", "compare their batches")]
)
def test_a_stopped_rank_is_named(scenario: str, does: str, data: str, tmp_path: Path) -> None:
    first, second, _ = launch(scenario, data, tmp_path, 3, "fault_jobs.py")
    for found in (first, second):
        assert f"PlanMismatchError: process(es) 2 did not {does}" in found["pass"]["error"]
        assert found["pass"]["seconds"] < PATIENCE


@pytest.mark.slow
def test_a_stopped_first_rank_that_runs_the_store_is_named(data: str, tmp_path: Path) -> None:
    """The process group's own timeout is 30 minutes."""
    _, second = launch("store_of_rank_0", data, tmp_path, 2, "fault_jobs.py")
    for name in ("pass", "again"):
        assert "the job's store does not answer: it is in process 0" in second[name]["error"]
        assert second[name]["seconds"] < PATIENCE


@pytest.mark.slow
def test_errors_of_gloo_name_the_killed_rank_in_a_note(data: str, tmp_path: Path) -> None:
    script = Path(__file__).parent / "fault_jobs.py"
    command = [*forkrun.command(3), str(script), "killed_in_sync", data, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=150, check=False)
    assert done.returncode == 1
    notes = []
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())["pass"]
        # Where gloo's own error is late, ours comes first.
        noted = "about to compare their batches. Process(es) that had not arrived: 2." in found["notes"]
        assert noted or "PlanMismatchError: process(es) 2 did not compare their batches" in found["error"]
        notes.append(noted)
        assert found["seconds"] < PATIENCE
    assert any(notes)


def record(number: int, state: str = ENTERED, does: str = "begin", **options: str) -> Record:
    return Record(number, state, does, options)


def test_absent_ranks_are_behind_or_silent() -> None:
    records = {0: record(5, LATE), 1: record(4), 2: record(5), 3: record(5, DONE), 4: record(6)}
    assert absent(records, range(6), 5) == [1, 2, 5]


def test_differences_between_steps_are_named() -> None:
    assert difference({0: record(1, even="none"), 1: record(1, even="none", more="x")}) is None
    assert "even is none on process(es) 0, 2, sync on process(es) 1" in str(
        difference({0: record(1, even="none"), 1: record(1, even="sync"), 2: record(1, even="none")})
    )
    assert "process(es) 0 'begin', process(es) 1 'create'" in str(
        difference({0: record(1), 1: record(1, does="create")})
    )
