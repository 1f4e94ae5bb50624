"""Moves rows between lists, from counts alone: equal steps for ranks, whole batches for workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.order import Order, Pieces
from torch_dataloader_utils.planning.splits import I64
from torch_dataloader_utils.seeding import derive_key, random_below


def transfers(counts: I64, targets: I64, number: int) -> list[tuple[int, int, int]]:
    """The rows of list `number` after levelling, as parts `(list, first, last)`: half-open row ranges of the old lists.

    Each list keeps a prefix. Rows above its target are pooled, list by list, and given to the lists that lack rows,
    in order: at most `len(counts) - 1` cuts.

    Args:
        counts: rows of each list, shape [lists].
        targets: rows that each list must hold, with the same total, shape [lists].
        number: the index of the list.
    """
    kept = np.minimum(counts, targets)
    parts = [(number, 0, int(kept[number]))] if kept[number] else []
    given = np.cumsum(targets - kept)
    stop = int(given[number])
    start = stop - int(targets[number] - kept[number])
    pool = np.cumsum(counts - kept)
    donor = int(np.searchsorted(pool, start, side="right"))
    while start < stop:
        end = min(stop, int(pool[donor]))
        shift = int(counts[donor] - pool[donor])
        if start < end:
            parts.append((donor, start + shift, end + shift))
        start, donor = end, donor + 1
    return parts


def even_targets(
    even: str,
    counts: I64,
    batch_rows: int,
    deals_evenly: bool,
    *,
    keeps_shards: bool = False,
    levelled: bool = False,
    unit: int = 1,
) -> I64:
    """Real rows that each rank must hold, shape [ranks].

    Args:
        even: the option `even`.
        counts: rows that the policy assigned to each rank, without those left out, shape [ranks].
        batch_rows: rows per batch of a rank.
        deals_evenly: whether rows were assigned in turn; no row needs to move if the steps of `even="pad"` have room
            for the rows of each rank.
        keeps_shards: whether a shard keeps its rows over the epochs, so that only those beyond the steps of
            `even="pad"` move.
        levelled: whether ranks get equal numbers of full steps with `even="none"`, and share the rest.
        unit: rows of a sequence, which are shared together if it is not 1; what is left goes to the last rank.
    """
    total, ranks = int(counts.sum()), len(counts)
    if even in ("none", "sync") and levelled:
        steps, left = divmod(total, ranks * batch_rows)
        shares = np.diff(np.arange(ranks + 1, dtype=np.int64) * (left // unit) // ranks) * unit
        shares[-1] += left % unit
        return steps * batch_rows + shares
    if even == "drop":
        return np.full(ranks, total // ranks, dtype=np.int64)
    padded = -(-total // (ranks * batch_rows)) * batch_rows
    if even == "pad" and keeps_shards:
        kept = np.minimum(counts, padded)
        room, surplus = np.cumsum(padded - kept), int((counts - kept).sum())
        moved: I64 = np.diff(np.minimum(room, surplus), prepend=0)
        return kept + moved
    if even == "pad" and not (deals_evenly and counts.max() <= padded):
        cuts = np.arange(ranks + 1, dtype=np.int64) * total // ranks
        return np.diff(cuts)
    return counts


def left_out_runs(order: Order, count: int, seed: int | None, before: int) -> list[Order]:
    """The `count` rows of `order` that `even="drop"` leaves out: one run in file order, or two if it wraps around.

    Args:
        order: the rows of the epoch.
        count: rows to leave out.
        seed: draws the start of the run; None leaves out the last rows.
        before: the number of rows left out in earlier epochs; the run begins after them, so that all rows are left out
            in turn.
    """
    if not count:
        return []
    total = len(order)
    at = total - count
    if seed is not None:
        at = (random_below(total, derive_key("left_out", seed)) + before) % total
    return order.in_file_order([(at, min(at + count, total)), (0, at + count - total)])


def total_rows(pieces: Iterable[Piece]) -> int:
    """The number of rows of all pieces."""
    return pieces.rows if isinstance(pieces, Pieces) else sum(map(len, pieces))


def take(pieces: Iterable[Piece], first: int, last: int) -> list[Piece]:
    """The rows `[first, last)` of these pieces; consumes no more of them than needed."""
    if isinstance(pieces, Pieces) and not pieces.repeats and last <= pieces.runs.total:
        return list(pieces.runs.take(first, last).pieces())
    out: list[Piece] = []
    at = 0
    for piece in pieces:
        if at >= last:
            break
        size = len(piece)
        low, high = max(first - at, 0), min(last - at, size)
        if low < high:
            out.append(piece if high - low == size else piece.cut(low, high))
        at += size
    return out


# Drops a rank's short last batch, or fills it with rows that are marked as padding.


def padding(pieces: Iterable[Piece], count: int) -> list[Piece]:
    """`count` rows of padding: the first rows of `pieces`, which are not empty, repeated as often as needed."""
    first = [replace(piece, pad=True) for piece in take(pieces, 0, count)]
    out = list(first)
    missing = count - total_rows(first)
    while missing > 0:
        again = take(first, 0, missing)
        out += again
        missing -= total_rows(again)
    return out


def end_with(pieces: Pieces, batch_rows: int, last_batch: str, following: Iterable[Piece]) -> Pieces:
    """The pieces with their short last batch dropped, padded with their own rows, or completed with `following`."""
    short = pieces.rows % batch_rows
    if not short or last_batch == "partial":
        return pieces
    if last_batch == "drop":
        return pieces.first(pieces.rows - short)
    missing = batch_rows - short
    return replace(pieces, pads=tuple(padding(pieces.first(missing) if last_batch == "pad" else following, missing)))
