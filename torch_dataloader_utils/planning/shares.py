"""One epoch dealt to all ranks, in columns: piece objects are made only for a rank that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import end_with, even_targets, left_out_runs, padding, take, transfers
from torch_dataloader_utils.planning.mixing import DatasetShare, Mixture, mixed
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Order, concatenated
from torch_dataloader_utils.planning.runs import I64, Runs
from torch_dataloader_utils.seeding import derive_key


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds which rows in one epoch, before and after levelling.

    Attributes:
        orders: the rows that the policy gave each rank, without those left out.
        left_out: rows that no rank gets (`even="drop"`).
        counts: rows of each of `orders`, shape [ranks].
        targets: rows of each rank after levelling, shape [ranks].
    """

    orders: tuple[Order | Mixture, ...]
    left_out: tuple[Order, ...]
    counts: I64
    targets: I64

    def parts(self, rank: int) -> Iterator[Runs]:
        """The rows of a rank after levelling: a prefix of its own, then tails of others."""
        if self.orders[rank].table.uncounted is not None:
            yield self.orders[rank].runs()
            return
        for donor, first, last in transfers(self.counts, self.targets, rank):
            yield self.orders[donor].runs(first, last)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank after levelling, made part by part."""
        for part in self.parts(rank):
            yield from part.pieces()

    def following(self, rank: int) -> Iterator[Piece]:
        """The pieces of the ranks after `rank`, and last of `rank` itself."""
        for step in range(1, len(self.orders) + 1):
            yield from self.pieces((rank + step) % len(self.orders))


def deal(lanes: Sequence[DatasetShare], options: PlanOptions, num_ranks: int, epoch: int, phase: int = 0) -> Shares:
    """The shares of all ranks of an epoch (of what is left of it, after `phase` phases).

    Raises:
        ShardingError: the policy lost or repeated rows.
    """
    batch_rows = options.batch_rows(num_ranks)
    whole = [lane.order(epoch) for lane in lanes]
    left_out: list[Order] = []
    if options.even == "drop":
        laps = options.total_shards // num_ranks if options.total_shards else 1
        rows = concatenated(
            [x for lane, order in zip(lanes, whole, strict=True) for x in _read(lane, order, num_ranks, epoch)]
        )
        excess = len(rows) % (num_ranks * batch_rows)
        left_out = left_out_runs(rows, excess, _left_out_seed(options, phase), epoch // laps)
    dealt = [_dealt(lane, order, left_out, num_ranks, epoch) for lane, order in zip(lanes, whole, strict=True)]
    orders = tuple(mixed(lanes, shares) for shares in zip(*dealt, strict=True))
    counts = np.array([len(share) for share in orders], dtype=np.int64)
    targets = even_targets(options.even, counts, batch_rows, _deals_evenly(orders), options.levelled)
    return Shares(orders, tuple(left_out), counts, targets)


def _left_out_seed(options: PlanOptions, phase: int) -> int | None:
    if not options.shuffle:
        return None
    return derive_key("phase", options.seed, phase) if phase else options.seed


def _read(lane: DatasetShare, order: Order, num_ranks: int, epoch: int) -> list[Order]:
    """The rows of a lane that an epoch reads."""
    if lane.policy.complete:
        return [order]
    return [lane.share(order, rank, num_ranks, epoch) for rank in range(num_ranks)]


def _dealt(lane: DatasetShare, order: Order, left_out: list[Order], num_ranks: int, epoch: int) -> list[Order]:
    """The rows of each rank in a lane, without those left out."""
    kept = _without(order, left_out) if lane.policy.deals_kept else order
    shares = [lane.share(kept, rank, num_ranks, epoch) for rank in range(num_ranks)]
    if lane.policy.complete:
        _check_complete(shares, kept)
    return shares if lane.policy.deals_kept else [_without(share, left_out) for share in shares]


def rank_pieces(shares: Shares, rank: int, options: PlanOptions, batch_rows: int) -> list[Piece]:
    """A rank's pieces, in order: real ones, then padding."""
    pieces = list(shares.pieces(rank))
    if options.even == "pad":
        total = int(shares.targets.sum())
        steps = -(-total // (len(shares.targets) * batch_rows))
        missing = steps * batch_rows - int(shares.targets[rank])
        # A rank without a row of its own repeats the epoch's first rows.
        return [*pieces, *padding(pieces or shares.following(len(shares.orders) - 1), missing)]
    if options.even == "none":
        return end_with(pieces, batch_rows, options.last_batch, shares.following(rank))
    return pieces


def dropped_tails(shares: Shares, batch_rows: int) -> list[Piece]:
    """The rows of every rank's short batch, which `last_batch="drop"` leaves out."""
    tails: list[Piece] = []
    for rank, count in enumerate(shares.targets.tolist()):
        tails += take(shares.pieces(rank), count - count % batch_rows, count)
    return tails


def _without(order: Order, runs: list[Order]) -> Order:
    for run in runs:
        order = order.without(run)
    return order


def _deals_evenly(orders: tuple[Order | Mixture, ...]) -> bool:
    """Whether rows were dealt one by one or in blocks, which is even already (a sum of several is not)."""
    return any(isinstance(order, Order) and order.picked is not None for order in orders)


def _check_complete(orders: Sequence[Order], whole: Order) -> None:
    if whole.table.uncounted is None:
        found, expected, unit = sum(map(len, orders)), len(whole), "rows"
    else:
        found, expected, unit = sum(order.num_units for order in orders), whole.num_units, "splits"
    if found != expected:
        raise ShardingError(
            f"The sharding policy gave {found} {unit} to {len(orders)} ranks, of {expected}: each must go to exactly "
            "one rank."
        )
