"""The rest of an epoch whose row counts are unknown: from the ranks' cursors, each row exactly once."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.helpers import RowId, all_rows, data_file, data_files, groups, make_plan, phase, settings_of
from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, ShardingError
from torch_dataloader_utils.model import Piece, RankCursor, Window, WorkerCursor
from torch_dataloader_utils.planning.phases import Phase, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.seeding import derive_key, window_order

Keep = Callable[[RowId], bool]


def keeping(salt: int, tenths: int) -> Keep:
    return lambda row: derive_key("keep", salt, *row) % 10 < tenths


def live_rows(piece: Piece, keep: Keep, rows_of_segment: int = 0) -> list[RowId]:
    """The rows that a reader would deliver of a piece."""
    source = piece.source
    if not isinstance(source, Window):
        if piece.rows is not None:
            found = [(source.file.path, int(row)) for row in piece.rows.numbers()]
        else:  # segments of unknown length: rows are (segment, place)
            found = [(source.file.path, 100 * n + i) for n in range(*source.segments) for i in range(rows_of_segment)]
        return [row for row in found if keep(row)]
    rows = [row for part in source.pieces for row in live_rows(part, keep, rows_of_segment)]
    if source.key is not None:
        rows = [rows[place] for place in window_order(len(rows), source.key)]
    return rows if piece.rows is None else [rows[place] for place in piece.rows.numbers()]


def reading(plan: RankPlan, keep: Keep, rows_of_segment: int = 0) -> Iterator[tuple[list[RowId], RankCursor]]:
    """The batches of a rank, and how far it has come after each: what the delivery does, in plain lists."""
    shards = [
        [
            [row for piece in task.pieces for row in live_rows(piece, keep, rows_of_segment)]
            for task in plan.tasks(worker)
        ]
        for worker in range(len(plan.shards))
    ]
    done = [0] * len(shards)
    turn = 0
    while any(count < sum(map(len, blocks)) for count, blocks in zip(done, shards, strict=True)):
        worker, turn = turn % len(shards), turn + 1
        rows = [row for block in shards[worker] for row in block]
        batch = rows[done[worker] : done[worker] + plan.batch_rows]
        if not batch:
            continue
        done[worker] += len(batch)
        cursors = tuple(cursor_at(blocks, count) for blocks, count in zip(shards, done, strict=True))
        yield batch, RankCursor(turn % len(shards), cursors)


def cursor_at(blocks: list[list[RowId]], rows: int) -> WorkerCursor:
    for task, block in enumerate(blocks):
        if rows < len(block):
            return WorkerCursor(task, rows, len(block))
        rows -= len(block)
    return WorkerCursor(len(blocks))


def plan_or_none(files: list, ranks: int, options: dict[str, object]) -> Plan | None:
    try:
        return make_plan(files, ranks, split_rows=8, exact=False, **options)
    except (ShardingError, EmptyDatasetError):
        return None


@given(
    groups,
    st.lists(settings_of(even=["none"], buffers=True), min_size=2, max_size=4),
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(2, 10),
    st.data(),
)
def test_every_live_row_once(
    sizes: list[list[int]],
    chain: list[tuple[int, dict[str, object]]],
    epoch: int,
    salt: int,
    tenths: int,
    data: st.DataObject,
) -> None:
    files, keep = data_files(sizes), keeping(salt, tenths)
    seen: Counter = Counter()
    past: list[Phase] = []
    first = None
    for number, (ranks, keywords) in enumerate(chain):
        fresh = plan_or_none(files, ranks, keywords)
        assume(fresh is not None and fresh.options.total_shards is None)
        first = first or fresh
        options = replace(fresh.options, shuffle=first.options.shuffle, seed=first.options.seed)
        plan = plan_of_rest(replace(first, options=options, num_ranks=ranks), epoch, past)
        cursors = []
        for rank in range(ranks):
            batches = list(reading(plan.rank(epoch, rank), keep))
            count = len(batches) if number == len(chain) - 1 else data.draw(st.integers(0, len(batches)))
            seen.update(row for batch, _ in batches[:count] for row in batch)
            cursors.append(batches[count - 1][1] if count else None)
        past.append(phase(options, ranks, tuple(cursors)))
    assert seen == Counter(row for row in all_rows(files) if keep(row))


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(1, 3), st.data())
def test_segments_of_unknown_length(ranks: int, then: int, windows: bool, workers: int, data: st.DataObject) -> None:
    """Text files: not even physical rows are known, so splits are never cut by rows."""
    files = [data_file(f"{i}.csv", [None] * n) for i, n in enumerate((3, 1, 4, 2))]
    options = PlanOptions(batch_size=3, num_shards=workers, shuffle=True, buffer_rows=5 if windows else None)
    keep = keeping(1, 8)
    plan = replace(make_plan(files, ranks, exact=False), options=options)
    seen: Counter = Counter()
    cursors = []
    for rank in range(ranks):
        batches = list(reading(plan.rank(0, rank), keep, 4))
        count = data.draw(st.integers(0, len(batches)))
        seen.update(row for batch, _ in batches[:count] for row in batch)
        cursors.append(batches[count - 1][1] if count else None)
    rest = plan_of_rest(replace(plan, num_ranks=then), 0, [phase(options, ranks, tuple(cursors))])
    for rank in range(then):
        seen.update(row for batch, _ in reading(rest.rank(0, rank), keep, 4) for row in batch)
    every = [(f.info.path, 100 * n + i) for f in files for n in range(len(f.layout.segments)) for i in range(4)]
    assert seen == Counter(row for row in every if keep(row))


def test_rows_of_needs_counts() -> None:
    from torch_dataloader_utils.planning.rank_plan import rows_of_step

    plan = make_plan(data_files([[4]]), exact=False)
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        rows_of_step(lambda lap: plan.rank(0, 0, lap), 0)
