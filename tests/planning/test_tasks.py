"""Tasks: a shard's pieces cut at segment borders, each segment decoded once, small ones together."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import chunk_files, data_file, data_files, groups, make_plan, row_ids, settings_of
from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, Rows, Segment, Split, Task
from torch_dataloader_utils.planning import tasks as tasks_module
from torch_dataloader_utils.planning.tasks import TASK_BYTES, TASK_ROWS, SegmentTable, make_tasks

MIB = 2**20


def segments_read(task: Task, layouts: dict[FileKey, FileLayout]) -> list[tuple[str, int]]:
    """The segments in which the rows of a task lie, each once."""
    found = set()
    for path, row in row_ids(task.pieces):
        starts = layouts[0, path].plan_starts()
        found |= {(path, i) for i in range(len(starts) - 1) if starts[i] <= row < starts[i + 1]}
    return sorted(found)


@given(groups, st.integers(1, 20), settings_of(), st.integers(0, 3), st.integers(1, 12), st.integers(1, 20))
def test_tasks_tile_a_shard_and_read_whole_segments_once(sizes, split_rows, settings, epoch, limit, size_limit) -> None:
    ranks, options = settings
    try:
        plan = make_plan(data_files(sizes), ranks, split_rows=split_rows, **options)
    except (ShardingError, EmptyDatasetError):
        return
    layouts = plan.layouts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks_module, "TASK_ROWS", limit)
        patch.setattr(tasks_module, "TASK_BYTES", 10 * size_limit)
        shards = [(plan.rank(epoch, r), w) for r in range(ranks) for w in range(plan.options.num_shards)]
        made = [(rank.shards[w], rank.tasks(w)) for rank, w in shards]
    for pieces, tasks in made:
        assert [row for task in tasks for row in row_ids(task.pieces)] == row_ids(pieces)
        assert [p.pad for t in tasks for p in t.pieces for _ in range(len(p))] == [
            p.pad for p in pieces for _ in range(len(p))
        ]
        assert [p.order for t in tasks for p in t.pieces for _ in range(len(p))] == [
            p.order for p in pieces for _ in range(len(p))
        ]
        for task in tasks:
            read = segments_read(task, layouts)
            rows = sum(layouts[0, path].segments[i].rows for path, i in read)
            assert task.rows == sum(map(len, task.pieces)) > 0
            assert task.size_bytes == 10 * rows
            assert {p.pad for p in task.pieces} == {task.pad}
            assert len({p.source.file.path for p in task.pieces}) == 1
            assert len(read) == 1 or (rows <= limit and rows <= size_limit)
        # No segment is read twice in a row: what lies together is decoded together.
        for a, b in itertools.pairwise(tasks):
            if a.pad == b.pad and a.pieces[0].source.file.path == b.pieces[0].source.file.path:
                assert not set(segments_read(a, layouts)) & set(segments_read(b, layouts))


@given(groups, settings_of(even=["none", "drop"], sharding=["interleave", "contiguous", "strided"]), st.integers(0, 3))
def test_no_segment_is_decoded_twice_in_a_shard_of_whole_splits_in_order(sizes, settings, epoch) -> None:
    ranks, options = settings
    try:
        plan = make_plan(data_files(sizes), ranks, split_rows=6, **options | {"shuffle": False})
    except (ShardingError, EmptyDatasetError):
        return
    for rank in range(ranks):
        for worker in range(plan.options.num_shards):
            read = [s for task in plan.rank(epoch, rank).tasks(worker) for s in segments_read(task, plan.layouts)]
            assert len(read) == len(set(read))


def layout_of(rows: Sequence[int], size: int) -> tuple[DataFile, dict[FileKey, FileLayout]]:
    segments, at = [], 0
    for i, n in enumerate(rows):
        segments.append(Segment(i, at, n, size))
        at += n
    file = DataFile(chunk_files(at)[0].info, FileLayout(tuple(segments)))
    return file, {file.info.key: file.layout}


def whole(file: DataFile) -> Piece:
    total = file.layout.plan_starts()[-1]
    return Piece(Split(file.info, Rows(0, total)), Rows(0, total))


def test_small_segments_share_a_task_and_large_ones_stand_alone() -> None:
    assert (TASK_ROWS, TASK_BYTES) == (65_536, 16 * MIB)
    file, layouts = layout_of([25_000, 30_000, 20_000, 500_000, 10, 20], MIB)
    assert [task.rows for task in make_tasks([whole(file)], SegmentTable(layouts))] == [55_000, 20_000, 500_000, 30]
    file, layouts = layout_of([10] * 5, 7 * MIB)
    assert [(task.rows, task.size_bytes) for task in make_tasks([whole(file)], SegmentTable(layouts))] == [
        (20, 14 * MIB),
        (20, 14 * MIB),
        (10, 7 * MIB),
    ]


def test_a_piece_within_a_task_is_not_rebuilt() -> None:
    file, layouts = layout_of([10, 10], MIB)
    piece = whole(file)
    (task,) = make_tasks([piece], SegmentTable(layouts))
    assert task.pieces[0] is piece


def test_padding_that_repeats_rows_is_decoded_once() -> None:
    plan = make_plan([data_file("a", [3])], even="pad", batch_size=100)
    real, pad = plan.rank(0, 0).tasks(0)
    assert (real.rows, real.pad, pad.rows, pad.pad) == (3, False, 97, True)
    assert pad.size_bytes == real.size_bytes == 30


def test_a_task_counts_the_whole_segments_that_it_reads() -> None:
    plan = make_plan(chunk_files(1000), 4, sharding="strided")
    (task,) = plan.rank(0, 1).tasks(0)
    assert (task.rows, task.size_bytes) == (250, 10_000)


def test_segments_without_rows_for_a_rank_are_not_read() -> None:
    file, layouts = layout_of([4, 4, 4], 7)
    piece = Piece(Split(file.info, Rows(0, 12)), Rows(0, 12, 10, 1, 0))  # rows 0 and 10
    (task,) = make_tasks([piece], SegmentTable(layouts))
    assert (task.rows, task.size_bytes) == (2, 14)


def test_segments_without_live_rows_are_not_read() -> None:
    file = data_file("a", [4, 4, 4], live=[2, 0, 3])
    (task,) = make_plan([file]).rank(0, 0).tasks(0)
    assert (task.rows, task.size_bytes) == (5, 80)


def test_unknown_counts_are_packed_by_bytes_into_narrower_splits() -> None:
    segments = tuple(Segment(i, 0, None, 7 * MIB) for i in range(5))
    file = DataFile(data_file("a.csv", [None]).info, FileLayout(segments))
    split = Split(file.info, None, (1, 5), 28 * MIB, index=3)
    tasks = make_tasks([Piece(split, None, order=9)], SegmentTable({file.info.key: file.layout}))
    assert [(task.rows, task.size_bytes) for task in tasks] == [(None, 14 * MIB)] * 2
    assert [
        [(p.source.segments, p.source.index, p.source.size_bytes, p.rows, p.order) for p in t.pieces] for t in tasks
    ] == [
        [((1, 3), 3, 14 * MIB, None, 9)],
        [((3, 5), 3, 14 * MIB, None, 9)],
    ]
