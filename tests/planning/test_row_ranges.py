"""`rows_of`: which rows a step holds, without reading: the same rows that the batches hold."""

import collections
import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.helpers import data_files, delivered, groups, make_plan, real_rows, row_ids, settings_of
from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.rank_plan import places_after, rows_of_step


def ids(plan: Plan, epoch: int, rank: int, step: int, laps: bool = False) -> list[tuple[tuple[str, int], bool]]:
    found = rows_of_step(lambda lap: plan.rank(epoch, rank, lap), step, laps=laps)
    assert all(part.start < part.stop for part in found)
    return [((part.path, row), not part.pad) for part in found for row in range(part.start, part.stop)]


@given(groups, settings_of(buffers=True, last_batch=["partial", "drop"]), st.integers(0, 2))
def test_rows_of_every_step(sizes: list[list[int]], setting: tuple[int, dict[str, object]], epoch: int) -> None:
    ranks, keywords = setting
    assume(keywords["last_batch"] == "partial" or keywords["even"] in ("none", "drop"))
    try:
        plan = make_plan(data_files(sizes), ranks, split_rows=8, **keywords)
    except (ShardingError, EmptyDatasetError):
        assume(False)
    for rank in range(ranks):
        batches = delivered(plan, epoch, rank)
        for step, batch in enumerate(batches):
            found = ids(plan, epoch, rank, step)
            assert {row for row in found if row[1]} == {row for row in batch if row[1]}
            assert {row for row, _ in found} == {row for row, _ in batch}
        with pytest.raises(IndexError, match=f"rank {rank} has no such step"):
            ids(plan, epoch, rank, len(batches))


@given(groups, st.integers(1, 3), st.integers(1, 4), st.integers(1, 7), st.booleans())
def test_laps(sizes: list[list[int]], ranks: int, workers: int, batch: int, windows: bool) -> None:
    """Shards that begin again: places of a simulation, batch for batch."""
    plan = make_plan(
        data_files(sizes), ranks, split_rows=8, num_shards=workers, batch_size=batch, shuffle=True,
        buffer_rows=6 if windows else None, steps_per_epoch=12,
    )  # fmt: skip
    rank = ranks - 1

    def stream(worker: int):
        for lap in itertools.count():
            rows = row_ids(plan.rank(0, rank, lap).shards[worker])
            if lap and not rows:
                return
            yield from ((lap, row) for row in rows)

    streams = [collections.deque(itertools.islice(stream(worker), 20 * batch)) for worker in range(workers)]
    batches: list[list[tuple[str, int]]] = []
    for lap in range(20 * batch):
        while len(batches) < 12 and any(rows and rows[0][0] == lap for rows in streams):
            begun = [rows for rows in streams if rows and rows[0][0] == lap]
            batches += [[rows.popleft()[1] for _ in range(min(batch, len(rows)))] for rows in begun]
    for step, rows in enumerate(batches[:12]):
        found = rows_of_step(lambda lap: replace(plan.rank(0, rank, lap), steps=12), step, laps=True)
        assert {(part.path, row) for part in found for row in range(part.start, part.stop)} == set(rows)
    places, _ = places_after(lambda lap: plan.rank(0, rank, lap), 0, laps=True)
    assert all(rows == 0 for _, rows in places)


def test_real_rows_of_a_plan_are_told_once() -> None:
    plan = make_plan(data_files([[10, 10], [5]]), 2, shuffle=True, buffer_rows=7, open_splits=2, batch_size=4)
    for rank in range(2):
        steps = range(len(delivered(plan, 0, rank)))
        told = [row for step in steps for row, _ in ids(plan, 0, rank, step)]
        assert sorted(told) == sorted(real_rows(delivered(plan, 0, rank)))
