"""Faults of single ranks of a job: what the others get. Three processes of torch.distributed, with gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.distributed.launching import launch
from tests.faults import rows
from tests.faults.table import Measured, fault
from torch_dataloader_utils.errors import BatchTimeoutError, PlanMismatchError

SECTION = "Ranks"
TESTS = "tests/distributed/test_faults.py"


def _survivors(folder: Path, scenario: str, entry: str, hit: int | None = None) -> Callable[[], object]:
    """A call that runs the scenario on three ranks: the last of the errors of those that are not `hit`."""

    def run() -> Any:
        out = folder / "out"
        out.mkdir()
        found = launch(scenario, str(rows.write_files(folder / "rows", 6)), out, 3, "fault_jobs.py")
        errors = [result[entry] for rank, result in enumerate(found) if rank != hit and result[entry]["error"]]
        if not errors:
            return "no error"
        kinds = {error["error"].partition(":")[0] for error in errors}
        assert len(kinds) == 1, errors
        return Measured(kinds.pop(), max(error["seconds"] for error in errors))

    return run


@fault(
    SECTION,
    "`count_rows=True` on one rank only",
    PlanMismatchError,
    f"{TESTS}::test_options_that_some_ranks_lack_are_named_on_all",
)
def options(folder: Path) -> Callable[[], object]:
    return _survivors(folder, "apart", "count_rows")


@fault(
    SECTION,
    "`manifest=` on one rank only",
    PlanMismatchError,
    f"{TESTS}::test_options_that_some_ranks_lack_are_named_on_all",
)
def manifests(folder: Path) -> Callable[[], object]:
    return _survivors(folder, "apart", "manifest")


@fault(
    SECTION,
    "Rank 0 lists files for all, and its store hangs (`timeout=1.5`)",
    BatchTimeoutError,
    f"{TESTS}::test_a_first_rank_whose_store_hangs_is_named",
)
def stalled(folder: Path) -> Callable[[], object]:
    return _survivors(folder, "stalled", "manifest", hit=0)


@fault(
    SECTION,
    "A rank is stopped before an epoch (`timeout=1.5`)",
    PlanMismatchError,
    f"{TESTS}::test_a_stopped_rank_is_named",
)
def stopped(folder: Path) -> Callable[[], object]:
    return _survivors(folder, "stopped", "pass", hit=2)


@fault(
    SECTION,
    'A rank is stopped in an epoch with `even="sync"` (`timeout=1.5`)',
    PlanMismatchError,
    f"{TESTS}::test_a_stopped_rank_is_named",
)
def stopped_in_sync(folder: Path) -> Callable[[], object]:
    return _survivors(folder, "stopped_in_sync", "pass", hit=2)
