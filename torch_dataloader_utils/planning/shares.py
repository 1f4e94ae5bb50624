"""One epoch dealt to all ranks, in columns: piece objects are made only for a rank that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import end_with, even_targets, left_out_runs, padding, take, transfers
from torch_dataloader_utils.planning.options import PlanOptions, World
from torch_dataloader_utils.planning.order import I64, Order, concatenated
from torch_dataloader_utils.planning.sharding import Policy


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds which rows in one epoch, before and after levelling.

    Attributes:
        orders: the rows that the policy gave each rank, without those left out.
        left_out: rows that no rank gets (`even="drop"`).
        counts: rows of each of `orders`, shape [ranks].
        targets: rows of each rank after levelling, shape [ranks].
    """

    orders: tuple[Order, ...]
    left_out: tuple[Order, ...]
    counts: I64
    targets: I64

    def parts(self, rank: int) -> Iterator[Order]:
        """The rows of a rank after levelling: a prefix of its own, then tails of others."""
        if self.orders[rank].table.uncounted is not None:
            yield self.orders[rank]
            return
        for donor, first, last in transfers(self.counts, self.targets, rank):
            yield self.orders[donor].take(first, last)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank after levelling, made part by part."""
        for part in self.parts(rank):
            yield from part.pieces()

    def following(self, rank: int) -> Iterator[Piece]:
        """The pieces of the ranks after `rank`, and last of `rank` itself."""
        for step in range(1, len(self.orders) + 1):
            yield from self.pieces((rank + step) % len(self.orders))


def deal(order: Order, policy: Policy, options: PlanOptions, num_ranks: int, epoch: int) -> Shares:
    """The shares of all ranks of an epoch.

    Raises:
        ShardingError: the policy lost or repeated rows.
    """
    worlds = [World(rank, num_ranks, epoch, options) for rank in range(num_ranks)]
    batch_rows = options.batch_rows(num_ranks)
    left_out: list[Order] = []
    if options.even == "drop":
        laps = options.total_shards // num_ranks if options.total_shards else 1
        whole = order if policy.complete else concatenated([policy.share(order, world) for world in worlds])
        excess = len(whole) % (num_ranks * batch_rows)
        left_out = left_out_runs(whole, excess, options.seed if options.shuffle else None, epoch // laps)
    kept = _without(order, left_out) if policy.deals_kept else order
    orders = tuple(policy.share(kept, world) for world in worlds)
    if policy.complete:
        _check_complete(orders, kept)
    if not policy.deals_kept:
        orders = tuple(_without(share, left_out) for share in orders)
    counts = np.array([len(share) for share in orders], dtype=np.int64)
    return Shares(orders, tuple(left_out), counts, even_targets(options.even, counts, batch_rows, _dealt(orders)))


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


def _dealt(orders: tuple[Order, ...]) -> bool:
    """Whether rows were dealt one by one or in blocks, which is even already."""
    return any(order.picked is not None for order in orders)


def _check_complete(orders: tuple[Order, ...], whole: Order) -> None:
    if whole.table.uncounted is None:
        found, expected, unit = sum(map(len, orders)), len(whole), "rows"
    else:
        found, expected, unit = sum(order.num_units for order in orders), whole.num_units, "splits"
    if found != expected:
        raise ShardingError(
            f"The sharding policy gave {found} {unit} to {len(orders)} ranks, of {expected}: each must go to exactly "
            "one rank."
        )
