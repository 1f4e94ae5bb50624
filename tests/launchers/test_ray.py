"""Ray Train with a worker that is killed: what the new workers deliver is what was missing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.launchers.conftest import EXAMPLES, Rows

pytest.importorskip("ray")

STEP = 1024  # rows of a rank
SAVED, KILLED = 10, 14  # steps before the checkpoint, and before the kill, in examples/ray_fault_tolerant.py


@pytest.mark.slow
def test_a_worker_is_killed(launch: Callable[..., Rows], expected: Callable[[int], Rows]) -> None:
    first, second = launch(sys.executable, EXAMPLES / "ray_fault_tolerant.py")
    of_epoch = [{ids.tobytes() for ids in ranks} for ranks in expected(2)]
    assert {ids.tobytes() for ids in second} == of_epoch[1]

    begun = {ids[: KILLED * STEP].tobytes(): rank for rank, ids in enumerate(expected(2)[0])}
    rest = {ids[SAVED * STEP :].tobytes(): rank for rank, ids in enumerate(expected(2)[0])}
    met = [ids.tobytes() for ids in first]
    assert sorted(begun[ids] for ids in met if ids in begun) == [0, 1], "what the first two workers did"
    assert sorted(rest[ids] for ids in met if ids in rest) == [0, 1], "what the two after them did"
    assert len(met) == 4

    covered = [ids[: SAVED * STEP] for ids in expected(2)[0]]
    rows = np.concatenate([*covered, *(ids for ids in first if ids.tobytes() in rest)])
    assert np.array_equal(np.sort(rows), np.sort(np.concatenate(expected(2)[0])))
