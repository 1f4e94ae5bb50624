"""A rank that fails alone does not keep later loaders of its process group from working."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.distributed.again_jobs import LIMIT, SCENARIOS
from tests.distributed.launching import launch

ROWS = 600
PATIENCE = 10 * LIMIT


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("data")
    for number in range(6):
        ids = range(number * 100, number * 100 + 100)
        pq.write_table(pa.table({"id": ids}), root / f"{number}.parquet", row_group_size=20)
    return str(root)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_loaders_work_after_ranks_failed_alone(data: str, tmp_path: Path, scenario: str) -> None:
    """What failed is told on the rank itself; the others learn that it did not come, within the timeout."""
    _, tries = SCENARIOS[scenario]
    num_ranks = 3 if scenario == "in_turn" else 2
    ranks = launch(scenario, data, tmp_path, num_ranks, "again_jobs.py")
    for number, failing in enumerate(tries):
        found = [rank[number] for rank in ranks]
        for rank in failing:
            assert not found[rank]["error"].startswith("PlanMismatchError"), found[rank]
        if not failing:
            assert [each["error"] for each in found] == [None] * num_ranks
            assert sorted(row for each in found for row in each["rows"]) == list(range(ROWS))
        assert all(each["seconds"] < PATIENCE for each in found)


@pytest.mark.slow
def test_a_failure_in_a_pass_in_step_is_told_at_once(data: str, tmp_path: Path) -> None:
    """Without that, the others would wait in a collective that is never finished, and no later one would be."""
    ranks = launch("row_in_sync", data, tmp_path, 2, "again_jobs.py")
    assert ranks[1][0]["error"] == "RuntimeError: a row that this rank cannot read"
    assert ranks[0][0]["error"].startswith("WorkerError: another rank failed in this pass")
    assert ranks[0][0]["seconds"] < LIMIT
