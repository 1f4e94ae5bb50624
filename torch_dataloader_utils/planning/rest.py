"""The rest of an epoch after some of its batches were delivered, for any number of ranks to share.

Untouched windows dissolve into their pieces. What is left of a begun window is a slice of it, which stays a source of
its own; so is what is left of a begun block whose rows are known only after reading, as a window without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.model import END, Piece, RankCursor, Rows, Split, Task, Window, WorkerCursor, turn_of
from torch_dataloader_utils.planning.even import take, total_rows
from torch_dataloader_utils.planning.merging import merged_rows, merged_segments
from torch_dataloader_utils.planning.order import Order, Runs, SplitTable, from_first
from torch_dataloader_utils.planning.rank_plan import RankPlan, places_after
from torch_dataloader_utils.planning.splits import Splits


@dataclass(frozen=True, eq=False)
class RemainingRows:
    """The rows of an epoch that its first phases left.

    Attributes:
        epoch: the epoch.
        phase: the number of earlier phases.
        order: the rows for the ranks to share; with `ranks`, the rows that no rank holds.
        ranks: the pieces of each rank, padding last, if each rank resumes with its own.
        laps: for a mix, the rows of each dataset by lap, which are parts of `order`.
        first: for a mix, the number of the first of them among the rows of the run.
        fresh: for a mix of datasets without end, the first lap of each that no rank has begun.
        left: likewise, the units of the epoch that are left, or its steps.
    """

    epoch: int
    phase: int
    order: Order
    ranks: tuple[tuple[Piece, ...], ...] | None = None
    laps: tuple[tuple[Order, ...], ...] = ()
    first: int = 0
    fresh: tuple[int, ...] = ()
    left: int = 0


@dataclass(frozen=True)
class BegunLap:
    """What a rank has not delivered of a lap of a dataset without end.

    Attributes:
        lap: its number.
        pieces: of splits, and of begun windows.
    """

    lap: int
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Undelivered:
    """What the ranks of a phase have not delivered.

    Attributes:
        pieces: without padding.
        begun: instead, if datasets have no end: of each rank, of each dataset, the lap that it has begun.
        steps: likewise, how many were taken of the phase.
    """

    pieces: Sequence[Piece] = ()
    begun: Sequence[Sequence[BegunLap]] = ()
    steps: int = 0


def rest_of(splits: Splits, pieces: Iterable[Piece]) -> Order:
    """The rows of these pieces as an order: begun windows, then a few runs per split, in the epoch's order."""
    return order_of(splits, merged(pieces))


def order_of(splits: Splits, pieces: Iterable[Piece]) -> Order:
    """The rows of these pieces as an order, a unit for each."""
    begun: dict[Split | Window, int] = {}

    def number(source: Split | Window) -> int:
        if isinstance(source, Split) and splits[source.index] == source:
            return source.index
        return begun.setdefault(source, len(splits) + len(begun))

    runs = [
        (number(piece.source), piece.order, Rows(0, 0) if piece.rows is None else from_first(piece.rows, piece.source))
        for piece in pieces
    ]
    table = SplitTable(splits, [_numbered(source, number) for source, number in begun.items()])
    return Order(Runs.of_rows(table, runs))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """The same rows in as few pieces as possible, in the epoch's order: splits' rows joined, begun windows kept.

    Begun windows come first; where partitions are read one after another, in each of them.
    """
    by_source: dict[Window | int, list[Piece]] = {}
    for piece in pieces:
        if isinstance(piece.source, Window):
            by_source.setdefault(piece.source, []).append(replace(piece, order=-1))
        else:
            by_source.setdefault(piece.source.index, []).append(piece)
    out: list[Piece] = []
    for same in sorted(by_source.values(), key=_order):
        rows = [piece.rows for piece in same if piece.rows is not None]
        if rows:
            source = same[0].source
            # Windows that several workers began may end up in one list: indices distinguish them.
            source = replace(source, index=len(out)) if isinstance(source, Window) else source
            out += [replace(same[0], source=source, rows=part) for part in merged_rows(rows)]
        else:
            out += merged_segments(same)
    return out


def _order(same: Sequence[Piece]) -> tuple[int, int, int]:
    source = same[0].source
    return turn_of(source), same[0].order, source.index


def left_by_rank(
    plans: Callable[[int], RankPlan], delivered: int | RankCursor | None, *, laps: bool = False
) -> list[Piece]:
    """The rows that a rank has not delivered: rows of splits and begun windows, padding last.

    Args:
        plans: returns the rank's plan for a lap.
        delivered: the number of batches if the plan knows row counts, else a cursor; None at the beginning.
        laps: whether a worker that has ended starts again (`steps_per_epoch`), so that none is skipped.
    """
    if isinstance(delivered, int):
        left = _after_batches(plans, delivered, laps)
    else:
        plan = plans(0)
        cursors = delivered.shards if delivered else (WorkerCursor(),) * len(plan.shards)
        left = [piece for shard, at in enumerate(cursors) for piece in _after_cursor(plan.tasks(shard), at)]
    real = [part for piece in left if not piece.pad for part in _dissolved(piece)]
    return real + [piece for piece in left if piece.pad]


def begun_laps(plans: Callable[[int], RankPlan], delivered: RankCursor | None) -> list[BegunLap]:
    """What a rank has not delivered of the lap that it has begun of each shard, if shards have no end.

    Args:
        plans: returns the rank's plan for a lap.
        delivered: its progress; None at the beginning.
    """
    cursors = delivered.shards if delivered else (WorkerCursor(),) * len(plans(0).shards)
    found = []
    for shard, at in enumerate(cursors):
        pieces = _after_cursor(plans(at.lap).tasks(shard), replace(at, lap=0))
        found.append(BegunLap(at.lap, [part for piece in pieces for part in _dissolved(piece)]))
    return found


def _after_batches(plans: Callable[[int], RankPlan], count: int, laps: bool) -> list[Piece]:
    places, _ = places_after(plans, count, laps=laps)
    return [
        piece
        for shard, (lap, rows) in zip(plans(0).shards, places, strict=True)
        if lap == 0
        for piece in take(shard, rows, total_rows(shard))
    ]


def _after_cursor(tasks: Sequence[Task], at: WorkerCursor) -> list[Piece]:
    if at.lap or at == END:
        return []
    if at.task + bool(at.rows) > len(tasks):
        raise CheckpointMismatchError(
            f"the state is damaged: a worker has read {at.task} blocks, but its plan has {len(tasks)}. Load an "
            "intact copy, or an earlier checkpoint."
        )
    begun = _rest_of_block(tasks[at.task].pieces, at) if at.rows else []
    return begun + [piece for task in tasks[at.task + bool(at.rows) :] for piece in task.pieces]


def _rest_of_block(pieces: Sequence[Piece], at: WorkerCursor) -> list[Piece]:
    """The rest of a block: its rows from the cursor on, in the block's order."""
    if at.rows >= at.live:
        return []
    first = pieces[0]
    if len(pieces) > 1 or isinstance(first.source, Split):
        return [Piece(Window(tuple(pieces), None, at.live, _bytes(pieces)), Rows(at.rows, at.live), -1)]
    if first.rows is not None:
        return [first.cut(at.rows, at.live)]
    return [Piece(replace(first.source, row_count=at.live), Rows(at.rows, at.live), -1)]


def _dissolved(piece: Piece) -> Sequence[Piece]:
    """The pieces that a window was made of, if it was not begun."""
    window = piece.source
    if isinstance(window, Split) or (piece.rows is not None and (window.index >= 0 or len(piece) != window.row_count)):
        return [piece]
    return window.pieces


def _numbered(source: Split | Window, number: int) -> Split | Window:
    return replace(source, index=number) if isinstance(source, Window) else source


def _bytes(pieces: Iterable[Piece]) -> int:
    return sum(piece.source.size_bytes for piece in pieces)
