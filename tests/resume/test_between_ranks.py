"""States in a running job: gathered from all ranks, kept in step, and compared before the first batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import run_ranks
from tests.resume.helpers import write_files

LAYOUT = ((5, 12, 7), (14, 4), (9,), (11, 13, 30), (20,), (8, 8, 8))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "data").mkdir()
    write_files(folder / "data", LAYOUT)
    job = Path(__file__).with_name("rank_jobs.py")
    return run_ranks(job, [str(folder / "data"), str(folder)], folder, 2)


def test_the_state_of_all_ranks_is_loaded_by_one(found: list[dict[str, Any]]) -> None:
    first, second = (rank["gathered"] for rank in found)
    assert first["state"] == second["state"]
    assert first["rest"] == second["rest"]
    rows = sum(map(sum, LAYOUT))
    kept = Counter(row for row in range(rows) if row % 3)
    assert Counter(first["taken"] + second["taken"] + first["rest"]) == kept
    assert len(first["taken"]) == 8
    assert len(second["taken"]) == 12


def test_ranks_stop_together_after_a_resume(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["in_step"]["resumed"] == rank["in_step"]["whole"]
    assert len(found[0]["in_step"]["whole"]) > 20


def test_other_places_are_an_error_on_every_rank(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "load the same checkpoint on every rank" in rank["other_places"]["error"]
