"""Moving rows: the transfer between lists, whole batches for workers, and who delivers last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.helpers import chunk_files, data_file, make_plan, numbers, rank_rows, row_ids
from torch_dataloader_utils import Rotate
from torch_dataloader_utils.errors import EmptyDatasetError
from torch_dataloader_utils.model import DataFileInfo, Piece, Rows, Split
from torch_dataloader_utils.planning.even import even_targets, padding, take, transfers
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.workers import last_to_deliver, lpt, whole_batch_targets, worker_shards

FILE = DataFileInfo("a", 1)


def piece(start: int, stop: int, order: int = 0) -> Piece:
    return Piece(Split(FILE, Rows(start, stop), index=order), Rows(start, stop), order)


@st.composite
def counts_and_targets(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9))
    total = sum(counts)
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=len(counts) - 1, max_size=len(counts) - 1)))
    return counts, [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


@given(counts_and_targets())
def test_transfers_move_each_row_once_with_few_cuts(both: tuple[list[int], list[int]]) -> None:
    counts, targets = both
    parts = [transfers(np.array(counts), np.array(targets), i) for i in range(len(counts))]
    lists = [[(number, row) for number, a, b in moved for row in range(a, b)] for moved in parts]
    assert [len(rows) for rows in lists] == targets
    assert sorted(row for rows in lists for row in rows) == [(i, row) for i, n in enumerate(counts) for row in range(n)]
    assert sum(map(len, parts)) <= sum(1 for n in counts if n) + len(counts) - 1
    # Each keeps a prefix; the pooled tails are dealt in order.
    for i, rows in enumerate(lists):
        kept = min(counts[i], targets[i])
        assert rows[:kept] == [(i, row) for row in range(kept)]
    pooled = [row for i, rows in enumerate(lists) for row in rows[min(counts[i], targets[i]) :]]
    assert pooled == sorted(pooled)


def test_transfers_by_example() -> None:
    counts, targets = np.array([9, 1, 6, 0]), np.array([4, 4, 4, 4])
    assert [transfers(counts, targets, i) for i in range(4)] == [
        [(0, 0, 4)],
        [(1, 0, 1), (0, 4, 7)],
        [(2, 0, 4)],
        [(0, 7, 9), (2, 4, 6)],
    ]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 12))
def test_whole_batch_targets(loads: list[int], size: int) -> None:
    targets = whole_batch_targets(loads, size)
    assert sum(targets) == sum(loads)
    assert sum(1 for rows in targets if rows % size) <= 1
    assert max(abs(a - b) for a, b in zip(targets, loads, strict=True)) < 2 * size
    batches = [-(-rows // size) for rows in targets]
    turns = [(k, w) for k in range(max(batches)) for w in range(len(loads)) if k < batches[w]]
    lengths = [min(size, targets[w] - k * size) for k, w in turns]
    assert all(length == size for length in lengths[:-1])
    if turns:
        assert last_to_deliver(targets, size) == turns[-1][1]


def test_lpt_gives_the_largest_to_the_least_loaded() -> None:
    assert lpt([7, 5, 4, 3, 1], 2) == [0, 1, 1, 0, 1]
    assert lpt([2, 2, 2, 2], 2) == [0, 1, 0, 1]
    assert lpt([], 3) == []


def test_workers_keep_the_plan_order() -> None:
    """LPT decides who, not when."""
    pieces = [piece(0, 1, 0), piece(1, 8, 1), piece(8, 11, 2), piece(11, 15, 3)]
    shards = worker_shards(pieces, PlanOptions(num_shards=2), 1, exact=False)
    assert [[p.order for p in shard] for shard in shards] == [[0, 1], [2, 3]]
    by_turn = worker_shards(pieces, PlanOptions(num_shards=2, assignment="turn"), 1, exact=False)
    assert [[p.order for p in shard] for shard in by_turn] == [[0, 2], [1, 3]]


def test_workers_balance_bytes_where_rows_are_unknown() -> None:
    pieces = [Piece(Split(FILE, None, (i, i + 1), size, i), None, i) for i, size in enumerate((10, 70, 30, 40))]
    shards = worker_shards(pieces, PlanOptions(num_shards=2), 4, exact=False)
    assert [[p.order for p in shard] for shard in shards] == [[0, 1], [2, 3]]


def test_workers_hold_whole_batches_and_padding_goes_to_the_last() -> None:
    # Rank 0 holds C0 and half of C2; 15 rows and one of padding make 4 steps, of which worker 0 delivers the last.
    plan = make_plan(chunk_files(10, 10, 10), 2, num_shards=2, batch_size=4, even="pad")
    rank = plan.rank(0, 0)
    assert [[(p.source.file.path, len(p), p.pad) for p in shard] for shard in rank.shards] == [
        [("C0", 10, False), ("C2", 1, False), ("C0", 1, True)],
        [("C2", 4, False)],
    ]
    assert (rank.steps, rank.rows) == (4, 15)


def test_take_reads_no_further_than_needed() -> None:
    def endless():
        at = 0
        while True:
            yield piece(at, at + 3)
            at += 3

    assert row_ids(take(endless(), 2, 8)) == [("a", i) for i in range(2, 8)]
    whole = piece(0, 3)
    assert take([whole], 0, 3)[0] is whole


def test_padding_repeats_the_first_rows_in_turns() -> None:
    pads = padding([piece(0, 2), piece(10, 13)], 12)
    assert [row for _, row in row_ids(pads)] == [0, 1, 10, 11, 12, 0, 1, 10, 11, 12, 0, 1]
    assert all(p.pad for p in pads)


def test_pad_repeats_the_epochs_first_rows_on_a_rank_without_a_row() -> None:
    plan = make_plan(chunk_files(2, 1), 4, even="pad", batch_size=4, sharding="strided")
    assert plan.rows(0) == [1, 1, 1, 0]
    (pieces,) = plan.rank(0, 3).shards
    assert all(p.pad for p in pieces)
    assert row_ids(pieces) == [("C0", 0), ("C0", 1), ("C1", 0), ("C0", 0)]
    assert plan.rank(0, 3).steps == 1


def test_wrap_takes_the_next_ranks_first_rows() -> None:
    plan = make_plan(chunk_files(5, 4, 1), 3, last_batch="wrap", batch_size=4, sharding="interleave")
    assert [row_ids(plan.rank(0, rank).shards[0])[-4:] for rank in (0, 2)] == [
        [("C0", 4), ("C1", 0), ("C1", 1), ("C1", 2)],
        [("C2", 0), ("C0", 0), ("C0", 1), ("C0", 2)],
    ]
    assert plan.steps(0) == [2, 1, 1]


@pytest.mark.parametrize(
    ("rows", "ranks", "batch", "even", "steps", "counts"),
    [
        # N = 103, R = 4, B = 8: drop q = floor(103 / 32) * 8 = 24; pad ceil(103 / 32) = 4 steps.
        (103, 4, 8, "drop", 3, [24, 24, 24, 24]),
        (103, 4, 8, "pad", 4, [25, 26, 26, 26]),
        (96, 4, 8, "drop", 3, [24, 24, 24, 24]),
        (96, 4, 8, "pad", 3, [24, 24, 24, 24]),
        (3, 2, 8, "pad", 1, [1, 2]),
    ],
)
@pytest.mark.parametrize("sharding", ["interleave", "contiguous", "rotate"])
def test_table_of_even_steps(rows, ranks, batch, even, steps, counts, sharding) -> None:
    plan = make_plan(chunk_files(*[1] * rows), ranks, even=even, batch_size=batch, sharding=sharding)
    assert plan.steps(0) == [steps] * ranks
    assert plan.rows(0) == counts
    assert len(row_ids(plan.left_out(0))) == (rows - sum(counts) if even == "drop" else 0)


@pytest.mark.parametrize(("files", "ranks", "share_lost"), [(64, 64, 0.3), (1000, 256, 0.3)])
def test_moving_rows_loses_little_where_stopping_with_the_first_loses_much(files, ranks, share_lost) -> None:
    rows = [2000 + 1900 * (i * 7919 % 97) // 97 * 2 for i in range(files)]
    batch = 4
    free = make_plan(chunk_files(*rows), ranks, batch_size=batch)
    stopped = min(free.rows(0)) // batch * batch * ranks
    assert 1 - stopped / sum(rows) > share_lost
    even = make_plan(chunk_files(*rows), ranks, batch_size=batch, even="drop")
    assert len(row_ids(even.left_out(0))) / sum(rows) < 0.001


def test_drop_leaves_out_before_rows_move() -> None:
    """Interleave keeps its splits: the rank of a split does not depend on which rows are left out."""
    files = chunk_files(*[4] * 12)
    plan = make_plan(files, 3, even="drop", batch_size=5, shuffle=True)
    free = make_plan(files, 3, batch_size=5, shuffle=True)
    for rank in range(3):
        own = set(rank_rows(free, 2, rank))
        moved = [row for row in rank_rows(plan, 2, rank) if row not in own]
        assert len(moved) <= 3
    assert len(numbers(make_plan([data_file("a", [48])], 3, even="drop", batch_size=5), 0, 1)) == 15


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    ranks=st.integers(1, 5),
    shards=st.sampled_from([None, 1, 2, 3]),
    batch=st.integers(1, 5),
    shuffle=st.booleans(),
    workers=st.integers(1, 2),
)
def test_padded_shards_keep_their_rows_while_they_rotate(rows, ranks, shards, batch, shuffle, workers) -> None:
    """A shard has room in as many steps as any other: no row moves to another rank, in any epoch."""
    options = {"sharding": Rotate(shards and shards * ranks), "shuffle": shuffle, "batch_size": batch}
    free = make_plan(chunk_files(*rows), ranks, **options)
    try:
        padded = make_plan(chunk_files(*rows), ranks, even="pad", num_shards=workers, **options)
    except EmptyDatasetError:  # an epoch of `total_shards` without a row
        return
    for epoch in range(4):
        steps = padded.steps(epoch)
        assert steps == [-(-sum(free.rows(epoch)) // (ranks * batch))] * ranks
        for rank in range(ranks):
            real = [piece for shard in padded.rank(epoch, rank).shards for piece in shard if not piece.pad]
            assert sorted(row_ids(real)) == sorted(rank_rows(free, epoch, rank))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 8))
def test_only_rows_beyond_the_padded_steps_of_a_shard_move(counts, batch) -> None:
    """Several datasets together may give a rank more rows than the padded steps hold."""
    given = np.array(counts, np.int64)
    targets = even_targets("pad", given, batch, False, keeps_shards=True)
    room = -(-sum(counts) // (len(counts) * batch)) * batch
    assert targets.sum() == sum(counts)
    assert targets.max(initial=0) <= room
    assert ((targets >= given) | (targets == room)).all()
    assert np.maximum(given - targets, 0).sum() == np.maximum(given - room, 0).sum()
