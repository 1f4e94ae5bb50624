"""Row-shuffle windows: which rows are drawn together, and which tasks decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import data_file, data_files, groups, make_plan
from torch_dataloader_utils.model import DataFile, Piece, Rows, Task, Window, split_of, split_pieces
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.planning.tasks import SegmentTable, make_tasks
from torch_dataloader_utils.planning.windows import ShuffleWindow, windowed
from torch_dataloader_utils.seeding import window_key

Row = tuple[str, int]


def pieces_of(files: Sequence[DataFile], split_rows: int | None = None) -> list[Piece]:
    splits = make_splits(TargetSizeSplitStrategy(split_rows=split_rows), files)
    return [Piece(split, split.row_range, order) for order, split in enumerate(splits)]


def windows_of(
    files: Sequence[DataFile], pieces: Sequence[Piece], n: int | None, k: int | str | None, *, exact: bool = True,
    **options: Any,
) -> tuple[list[Piece], tuple[Task, ...]]:  # fmt: skip
    layouts = {file.info.key: file.layout for file in files}
    options = PlanOptions(buffer_rows=n, open_splits=k, **options)
    (made,) = windowed((tuple(pieces),), SegmentTable(layouts), options, ("window",), exact=exact)
    return list(made), make_tasks(made, SegmentTable(layouts))


def rows_in(pieces: Sequence[Piece]) -> list[Row]:
    """The rows of splits that the pieces hold, before windows are permuted."""
    return [
        (split_of(piece).file.path, int(row))
        for piece in split_pieces(pieces)
        for row in (() if piece.rows is None else piece.rows.numbers())
    ]


def segments_in(files: Sequence[DataFile], pieces: Sequence[Piece]) -> set[tuple[str, int]]:
    """The segments in which the rows of pieces lie."""
    starts = {file.info.path: file.layout.plan_starts() for file in files}
    return {
        (path, max(i for i, start in enumerate(starts[path][:-1]) if start <= row)) for path, row in rows_in(pieces)
    }


def reference(files: Sequence[DataFile], pieces: Sequence[Piece], n: int, k: int) -> list[list[list[Row]]]:
    """The rule, row by row: the windows of each set."""
    starts = {file.info.path: file.layout.plan_starts() for file in files}
    queues = []
    for piece in pieces:  # each piece as the lists of its rows in each segment
        path, numbers = split_of(piece).file.path, piece.rows.numbers().tolist()
        spans = zip(starts[path], starts[path][1:], strict=False)
        queues.append([[(path, row) for row in numbers if a <= row < b] for a, b in spans])
    queues = [[segment for segment in queue if segment] for queue in queues]
    waiting, opened, sets = [queue for queue in queues if queue], [], []
    while waiting or opened:
        while waiting and len(opened) < k:
            opened.append(waiting.pop(0))
        runs = []
        for queue in opened:
            run = queue.pop(0)
            while queue and len(run) < n // k:
                run = run + queue.pop(0)
            runs.append(run)
        opened = [queue for queue in opened if queue]
        q = -(-sum(map(len, runs)) // n)
        windows = [[row for r in runs for row in r[j * len(r) // q : (j + 1) * len(r) // q]] for j in range(q)]
        sets.append([window for window in windows if window])
    return sets


@st.composite
def narrowed(draw: st.DrawFn, pieces: list[Piece]) -> list[Piece]:
    """The pieces, some cut, some with gaps."""
    found = []
    for piece in pieces:
        first = draw(st.integers(0, len(piece) - 1))
        piece = piece.cut(first, draw(st.integers(first + 1, len(piece))))
        turns = draw(st.sampled_from([1, 1, 2, 3]))
        rows = piece.rows.at(Rows(0, len(piece), turns, 1, 0) if turns > 1 else Rows(0, len(piece)))
        found.append(replace(piece, rows=rows[0]))
    return found


@given(groups, st.integers(1, 12), st.integers(1, 30), st.integers(1, 5), st.data())
def test_windows_follow_the_rule(sizes: Any, split_rows: int, n: int, k: int, data: st.DataObject) -> None:
    files = data_files(sizes)
    pieces = data.draw(narrowed(pieces_of(files, split_rows)))
    made, tasks = windows_of(files, pieces, n, k)
    assert sorted(rows_in(made)) == sorted(rows_in(pieces))
    sets = reference(files, pieces, n, k)
    assert [rows_in([piece]) for piece in made] == [window for windows in sets for window in windows]
    assert [piece.source.task for piece in made] == [number for number, windows in enumerate(sets) for _ in windows]
    assert [piece.source.key for piece in made] == [window_key(42, "window", 0, number) for number in range(len(made))]
    for piece in made:
        assert piece.rows == Rows(0, piece.source.row_count)
        assert len(piece) == len(rows_in([piece]))
        assert piece.order == -1
    # A task is a set: each is decoded once, and no segment is decoded for two, except where a piece was cut inside it.
    assert [list(task.pieces) for task in tasks] == [
        [piece for piece in made if piece.source.task == number] for number in range(len(sets))
    ]
    own = [segments_in(files, task.pieces) for task in tasks]
    shared = {segment for piece in pieces for other in pieces if piece is not other
              for segment in segments_in(files, [piece]) & segments_in(files, [other])}  # fmt: skip
    for number, segments in enumerate(own):
        assert all(not (segments & other) - shared for other in own[:number])
        rows = {(file.info.path, i): s.rows for file in files for i, s in enumerate(file.layout.segments)}
        assert tasks[number].size_bytes == sum(10 * rows[segment] for segment in segments)
        assert tasks[number].rows == len(rows_in(tasks[number].pieces))


@given(groups, st.integers(1, 30), st.integers(1, 5))
def test_a_window_has_about_n_rows(sizes: Any, n: int, k: int) -> None:
    """At most n, and a row more for each run that was not cut evenly."""
    files = data_files(sizes)
    made, _ = windows_of(files, pieces_of(files), n, k)
    assert all(len(piece) <= n + k for piece in made)


def test_runs_are_whole_segments_of_the_open_splits() -> None:
    files = data_files([[4] * 5, [4] * 2, [4] * 3])
    made, tasks = windows_of(files, pieces_of(files), 12, 2)
    assert [sorted(segments_in(files, task.pieces)) for task in tasks] == [
        [("000.parquet", 0), ("000.parquet", 1), ("001.parquet", 0), ("001.parquet", 1)],
        [("000.parquet", 2), ("000.parquet", 3), ("002.parquet", 0), ("002.parquet", 1)],
        [("000.parquet", 4), ("002.parquet", 2)],
    ]
    # 16 rows are two windows, each with half of each run.
    assert rows_in(made[:1]) == [*(("000.parquet", i) for i in range(4)), *(("001.parquet", i) for i in range(4))]
    assert [len(piece) for piece in made] == [8, 8, 8, 8, 8]


def test_where_counts_are_unknown_a_run_is_a_segment_and_a_set_a_window() -> None:
    files = [data_file("a", [None] * 3), data_file("b", [None])]
    made, tasks = windows_of(files, pieces_of(files), 5, 2, exact=False)
    assert [[split_of(part).segments for part in piece.source.pieces] for piece in made] == [
        [(0, 1), (0, 1)],
        [(1, 2)],
        [(2, 3)],
    ]
    assert {(piece.rows, piece.source.row_count) for piece in made} == {(None, None)}
    assert [(task.rows, task.size_bytes) for task in tasks] == [(None, 200), (None, 100), (None, 100)]


def test_where_rows_may_be_filtered_windows_are_cut_by_physical_rows() -> None:
    files = data_files([[6, 6], [6]])
    made, tasks = windows_of(files, pieces_of(files), 6, 2, exact=False)
    assert [len(rows_in([piece])) for piece in made] == [6, 6, 6]
    assert {(piece.rows, piece.source.row_count) for piece in made} == {(None, None)}
    assert [len(task.pieces) for task in tasks] == [2, 1]


def test_begun_windows_come_first_and_padding_last() -> None:
    files = data_files([[4, 4], [4]])
    pieces = pieces_of(files)
    begun = Piece(Window((pieces[1],), 7, 4, index=9), Rows(1, 4), -1)
    other = Piece(Window((pieces[1].cut(0, 2),), 7, 2, index=10), Rows(1, 2), -1)
    pads = [replace(begun, rows=Rows(1, 3), pad=True), replace(pieces[0].cut(0, 1), pad=True)]
    made, tasks = windows_of(files, [begun, pieces[0], other, *pads], 100, 2)
    assert made[:2] == [begun, other]
    assert rows_in(made[2:3]) == rows_in(pieces[:1])
    assert made[3:] == pads
    assert [(task.pieces, task.rows, task.size_bytes, task.pad) for task in tasks] == [
        ((begun,), 3, 40, False),
        ((other,), 1, 40, False),
        ((made[2],), 8, 80, False),
        ((pads[0],), 2, 40, True),
        ((pads[1],), 1, 40, True),
    ]


def test_pieces_of_one_begun_window_are_one_task() -> None:
    files = data_files([[4], [4]])
    window = Window(tuple(pieces_of(files)), 7, 8, index=9)
    pieces = [Piece(window, Rows(1, 3), -1), Piece(window, Rows(5, 8), -1)]
    _, (task,) = windows_of(files, pieces, 100, 2)
    assert (task.pieces, task.rows, task.size_bytes) == (tuple(pieces), 5, 80)


def windows_by_bytes(
    files: Sequence[DataFile], size: int, k: int | str | None = None, **options: Any
) -> list[list[Row]]:
    """The rows of each window, before they are permuted."""
    made, _ = windows_of(files, pieces_of(files, **options), None, k, window_bytes=size)
    return [rows_in([piece]) for piece in made]


def files_of(rows: Sequence[Row]) -> list[str]:
    return sorted({path for path, _ in rows})


def test_what_fits_is_one_window() -> None:
    files = data_files([[4, 4], [4], [2]])
    (window,) = windows_by_bytes(files, 140)
    assert sorted(window) == sorted(rows_in(pieces_of(files)))


def test_a_window_is_the_next_whole_splits_that_fit() -> None:
    files = data_files([[4], [2, 2], [4], [8], [1], [1]])
    windows = windows_by_bytes(files, 80)
    assert [files_of(window) for window in windows] == [
        ["000.parquet", "001.parquet"],
        ["002.parquet", "003.parquet"],  # two, though they do not fit
        ["004.parquet", "005.parquet"],
    ]


def test_of_two_splits_that_do_not_fit_windows_are_runs_of_segments() -> None:
    files = data_files([[2] * 6, [2] * 4])
    windows = windows_by_bytes(files, 80)
    assert [len(window) for window in windows] == [8, 8, 4]
    assert [files_of(window) for window in windows] == [["000.parquet", "001.parquet"]] * 2 + [["000.parquet"]]


def test_all_opens_every_split_and_takes_a_share_of_each() -> None:
    files = data_files([[2] * 4, [2] * 4, [2] * 4, [2] * 4])
    windows = windows_by_bytes(files, 160, "all")
    assert [len(window) for window in windows] == [16, 16]
    assert all(len(files_of(window)) == 4 for window in windows)
    # A segment of each is more than fits: it is decoded together, and cut into windows with rows of all.
    windows = windows_by_bytes(files, 40, "all")
    assert [len(window) for window in windows] == [4] * 8
    assert all(len(files_of(window)) == 4 for window in windows)


def test_all_of_uneven_splits_that_fit_is_one_window() -> None:
    (window,) = windows_by_bytes(data_files([[1, 1], [1]]), 30, "all")
    assert len(window) == 3


def test_all_takes_of_each_split_in_proportion_to_its_size() -> None:
    files = data_files([[2] * 4, [2] * 12])
    windows = windows_by_bytes(files, 80, "all")
    assert [sum(name == "000.parquet" for name, _ in window) for window in windows] == [2] * 4
    assert [len(window) for window in windows] == [8] * 4


@given(groups, st.integers(1, 300), st.none() | st.integers(1, 5) | st.just("all"), st.integers(1, 12))
def test_windows_by_bytes_hold_every_row_once(sizes: Any, size: int, k: int | str | None, split_rows: int) -> None:
    files = data_files(sizes)
    pieces = pieces_of(files, split_rows)
    windows = windows_by_bytes(files, size, k, split_rows=split_rows)
    assert sorted(row for window in windows for row in window) == sorted(rows_in(pieces))
    if sum(len(piece) * 10 for piece in pieces) <= size and k in (None, "all"):
        assert len(windows) == 1
    if k is None:
        most = max(segment.rows * 10 for file in files for segment in file.layout.segments)
        assert all(len(window) * 10 <= max(size, 2 * most) for window in windows)
        # Two splits at least, until only one is left.
        piece_of = {row: number for number, piece in enumerate(pieces) for row in rows_in([piece])}
        splits = [{piece_of[row] for row in window} for window in windows]
        alone = [len(numbers) == 1 for numbers in splits]
        assert alone == sorted(alone)
        assert len(set().union(*(numbers for numbers in splits if len(numbers) == 1))) <= 1


def test_workers_share_the_bytes_of_a_rank() -> None:
    files = data_files([[4]] * 8)
    layouts = {file.info.key: file.layout for file in files}
    shards = tuple(tuple(pieces_of(files)[worker::2]) for worker in range(2))
    options = PlanOptions(window_bytes=160, num_shards=2)
    made = windowed(shards, SegmentTable(layouts), options, ("window",), exact=True)
    assert [[len(piece) for piece in shard] for shard in made] == [[8, 8], [8, 8]]


def test_windows_by_bytes_need_no_row_counts() -> None:
    files = [data_file("a", [None] * 3), data_file("b", [None])]
    made, tasks = windows_of(files, pieces_of(files), None, None, exact=False, window_bytes=400)
    assert [(piece.rows, len(piece.source.pieces)) for piece in made] == [(None, 2)]
    assert [task.size_bytes for task in tasks] == [400]


def test_a_plan_says_how_many_splits_and_rows_a_window_has() -> None:
    files = data_files([[4]] * 9)
    plan = make_plan(files, 1, batch_size=4, window_bytes=120).rank(0, 0)
    assert plan.window == ShuffleWindow(rows=12, splits=3, of_splits=9, windows=3)
    assert plan.window.variance_ratio(plan.batch_rows) == pytest.approx(1 + 4 / 3 * (1 - 3 / 9))
    assert make_plan(files, 1, batch_size=4).rank(0, 0).window is None
    joint = make_plan(files, 1, batch_size=4, window_bytes=240, canonical_ranks=2).rank(0, 0)
    assert joint.window == ShuffleWindow(
        rows=24, splits=6, of_splits=10, windows=2
    )  # a split is cut between the two ranks


def test_a_batch_draws_from_a_window_of_one_worker() -> None:
    files = data_files([[4]] * 6)
    plan = make_plan(files, 1, batch_size=4, num_shards=3, window_bytes=2**20).rank(0, 0)
    assert plan.window == ShuffleWindow(rows=8, splits=2, of_splits=6, windows=3)
    assert make_plan(files, 1, num_shards=3, window_bytes=2**20).rank(0, 0).window == ShuffleWindow(24, 6, 6)
    # A worker gets 2 rows of another's split, and mixes these two hardly.
    plan = make_plan(data_files([[6], [10]]), 1, batch_size=4, num_shards=2, window_bytes=2**20).rank(0, 0)
    assert sorted(len(piece.source.pieces) for shard in plan.shards for piece in shard) == [1, 2]
    assert plan.window == ShuffleWindow(rows=4, splits=1, of_splits=2, windows=2)
