"""follow=True and replay= in a job of several ranks: each pass survives a restart at every step, on other ranks too."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from tests import forkrun
from tests.iceberg.test_advance import config_of
from tests.iceberg.test_advance import table as table


def run(ranks: int, scenario: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank of a job found."""
    script = str(Path(__file__).parent / "following_jobs.py")
    arguments = [*forkrun.command(ranks), script, scenario, json.dumps(config_of(folder)), str(folder)]
    subprocess.run(arguments, check=True, timeout=180)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
def test_a_followed_pass_restarts_at_every_step_and_on_other_ranks(table: Table, tmp_path: Path) -> None:
    del table
    of_each = run(3, "restarts", tmp_path)
    assert sorted(row for one in of_each for row in one["first"]) == list(range(100))
    passes = [
        Counter(row for one in of_each for row in one["taken"][step] + one["rest"][step])
        for step in range(len(of_each[0]["rest"]))
    ]
    assert len(passes) > 3
    assert all(each == passes[0] for each in passes)
    assert set(passes[0].values()) == {1}
    assert passes[0].keys() >= set(range(100, 140))
    assert 40 < passes[0].total() < 80  # about 20 of the older rows
    fewer = run(2, "continues", tmp_path)
    seen = [row for one in of_each for row in one["taken"][2]] + [row for one in fewer for row in one["rest"]]
    assert Counter(seen) == passes[0]


@pytest.mark.slow
def test_all_ranks_read_the_files_that_rank_0_finds(table: Table, tmp_path: Path) -> None:
    del table
    of_each = run(2, "follow_folder", tmp_path)
    for number, (first, last) in enumerate(((0, 25), (25, 35), (35, 38))):
        assert sorted(row for one in of_each for row in one["passes"][number]) == list(range(first, last))
    assert all("h=0/a.parquet in" in one["error"] for one in of_each)
    assert of_each[1]["error"].startswith("on rank 0: ")
