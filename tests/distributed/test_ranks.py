"""Real ranks, with the variables of torchrun: equal steps, refusals, remedies, and the comparison of plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.distributed.launching import launch
from torch_dataloader_utils.distributed.agreement import RankReport, find_mismatch

LAYOUTS = {"seven": [400, 3, 90, 1, 250, 40, 700], "two": [300, 20]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("ranks")
    for name, sizes in LAYOUTS.items():
        (root / name).mkdir()
        at = 0
        for number, rows in enumerate(sizes):
            ids = np.arange(at, at + rows)
            at += rows
            table = pa.table({"id": ids, "x": ids.astype(np.float32)})
            pq.write_table(table, root / name / f"{number}.parquet", row_group_size=100)
    return str(root)


@pytest.mark.slow
def test_even_ranks_train_to_the_end(data: str, tmp_path: Path) -> None:
    """4 ranks, files of very unequal size (and fewer files than ranks), gradients all-reduced, 3 epochs."""
    ranks = launch("even", data, tmp_path, 4)
    for name, sizes in LAYOUTS.items():
        rows = sum(sizes)
        left_out = []
        for epoch in range(3):
            for mode in ("drop", "pad"):
                seen = [rank[f"{name} {mode}"][epoch] for rank in ranks]
                assert len({one["steps"] for one in seen}) == 1
                real = sorted(row for one in seen for row in one["real"])
                assert len(real) == len(set(real))
                if mode == "pad":
                    assert real == list(range(rows))
                else:
                    assert rows - len(real) == rows % 32 < 4 * 8
                    assert not any(one["repeats"] for one in seen)
                    left_out.append(set(range(rows)) - set(real))
        # The sweep: no row is left out twice before each was left out once.
        together = sum(map(len, left_out))
        assert len(set().union(*left_out)) == min(together, rows)


@pytest.mark.slow
def test_the_warning_of_uneven_steps_comes_before_the_first_step(data: str, tmp_path: Path) -> None:
    first, second = (found["events"] for found in launch("uneven_warning", data, tmp_path, 2))
    assert "different numbers of steps in epoch 0" in first[0]
    assert "even='drop'" in first[0]
    assert first[1] == "step"
    assert set(second) == {"step"}  # the first rank has said it for all


@pytest.mark.slow
def test_uneven_steps_within_join_are_no_warning(data: str, tmp_path: Path) -> None:
    ranks = launch("join_warning", data, tmp_path, 2)
    for found, warnings in zip(ranks, (1, 0), strict=True):
        assert not found["True"]["events"]
        assert len(found["False"]["events"]) == warnings
        assert all("different numbers of steps in epoch 0" in event for event in found["False"]["events"])
    ids = [rank["True"]["ids"] for rank in ranks]
    assert len(ids[0]) // 8 != len(ids[1]) // 8
    assert sorted(ids[0] + ids[1]) == list(range(sum(LAYOUTS["seven"])))


@pytest.mark.slow
def test_uncounted_filters_and_their_remedies(data: str, tmp_path: Path) -> None:
    ranks = launch("remedies", data, tmp_path, 2)
    wanted = list(range(101, sum(LAYOUTS["seven"])))
    for found in ranks:
        for remedy in ("count_rows=True", "steps_per_epoch=n", "even='sync'"):
            assert remedy in found["refused"]
    for name in ("count_rows", "steps_per_epoch", "sync"):
        for epoch in range(2):
            seen = [rank[name][epoch] for rank in ranks]
            assert len({one["steps"] for one in seen}) == 1
            assert seen[0]["steps"] > 10
            real = sorted(row for one in seen for row in one["real"])
            assert len(real) == len(set(real))
            assert set(real) <= set(wanted)
            if name == "count_rows":
                assert len(wanted) - len(real) == len(wanted) % 16
            if name == "steps_per_epoch":
                assert [one["steps"] for one in seen] == [30, 30]


@pytest.mark.slow
def test_ranks_that_do_not_fit_together_are_stopped(data: str, tmp_path: Path) -> None:
    ranks = launch("mismatches", data, tmp_path, 2)
    words = {
        "same rank": "rank 0 was given more than once",
        "other files": "same files",
        "other seed": "shuffle_seed",
        "other size": "num_ranks=3, 3",
        "other epoch": "epoch of ranks 0, 1 is 0, 1",
    }
    for found in ranks:
        for name, message in words.items():
            assert message in found[name]["error"]
            assert found[name]["seconds"] < 10
        assert found["all well"]["error"] is None
    assert ranks[0]["alone"]["error"] is None


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(data: str, tmp_path: Path) -> None:
    first, _, last = launch("missing", data, tmp_path, 3)
    assert "process(es) 2 did not begin this pass within timeout=2.0 s" in first["error"]
    assert first["seconds"] < 6
    assert last["error"] is None


def test_positions() -> None:
    good = [RankReport(rank, 3, 0, 7, 9) for rank in range(3)]
    assert find_mismatch(good) is None
    assert find_mismatch([good[2], good[0], good[1]]) is None  # another order of ranks than of processes is fine
    failed = RankReport(1, 3, 0, 7, 9, failed=True, position=5)
    assert "process(es) 1 could not make their plan" in str(find_mismatch([good[0], failed, good[2]]))
    elsewhere = find_mismatch([good[0], RankReport(1, 3, 0, 7, 9, position=5), good[2]])
    assert "position of ranks 0, 1, 2 is" in str(elsewhere)
    assert "load the same checkpoint on every rank" in str(elsewhere)


def test_positions_of_peers_that_share_ranks() -> None:
    """Four processes, two ranks: each rank must be that of two."""
    first, second = (RankReport(rank, 2, 0, 7, 9) for rank in range(2))
    assert find_mismatch([first, first, second, second], 2) is None
    assert find_mismatch([first, second, first, second], 2) is None
    assert "rank 1 was given to more than 2 processes" in str(find_mismatch([first, second, second, second], 2))
    assert "expected num_ranks=4" in str(find_mismatch([first, first, second, second]))
    assert "ranks=mesh" in str(find_mismatch([first, first, second, second]))
    other = RankReport(1, 2, 0, 8, 9)
    assert "same files" in str(find_mismatch([first, first, second, other], 2))
