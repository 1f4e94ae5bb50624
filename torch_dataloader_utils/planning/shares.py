"""One epoch assigned to all ranks, in columns: piece objects are created only for the requested rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import (
    end_with,
    even_targets,
    left_out_runs,
    padding,
    take,
    total_rows,
    transfers,
)
from torch_dataloader_utils.planning.merging import pattern
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Order, Pieces, Runs, concatenated, joined
from torch_dataloader_utils.planning.parts import DatasetShare, Mixture, mixed
from torch_dataloader_utils.planning.rank_plan import BatchSchedule
from torch_dataloader_utils.planning.rest import RemainingRows, Undelivered
from torch_dataloader_utils.planning.splits import I64, Splits
from torch_dataloader_utils.planning.tasks import SegmentTable
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import derive_key, permutation


class ScheduledShares(Protocol):
    """The shares of all ranks where each batch has rows of several shards, by a schedule."""

    def check(self, names: Sequence[str]) -> None:
        """Check that there are rows for `even`; `names` are those of the datasets.

        Raises:
            EmptyDatasetError: an epoch has no rows.
            ShardingError: `even="drop"` would leave out all rows, or all of a dataset.
        """

    def never_read(self, names: Sequence[str]) -> str:
        """A text about a dataset of which no epoch has a row; "" if there is none."""

    def steps(self) -> list[int]:
        """The number of batches of each rank."""

    def rows(self) -> list[int]:
        """The number of real rows of each rank, without padding."""

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank without padding."""

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` or `last_batch` is `"drop"`."""

    def schedule(self, rank: int) -> BatchSchedule:
        """The rows of each shard in the batches of a rank."""

    def shards(
        self, rank: int, segments: Callable[[Shards], SegmentTable], key: tuple[int | str, ...], lap: int = 0
    ) -> Shards:
        """What each shard of a rank delivers.

        Args:
            rank: the rank.
            segments: returns the segments of the files of shards.
            key: of the rank's windows.
            lap: how often shards have started again, if they have no end.
        """

    def rest(self, splits: Splits, left: Undelivered, phase: int) -> RemainingRows:
        """The rest of the epoch.

        Args:
            splits: all splits.
            left: what no rank has delivered.
            phase: the number of phases before the rest.
        """


@dataclass(frozen=True, eq=False)
class Shares:
    """The rows of each rank in one epoch, before and after levelling.

    Attributes:
        orders: the rows that the policy assigned to each rank, without those left out.
        left_out: the rows that no rank gets (`even="drop"`).
        counts: the number of rows in each of `orders`, shape [ranks].
        targets: the number of rows of each rank after levelling, shape [ranks].
        options: the plan's options; `last_batch` is "partial" if the reader applies it.
        batch_rows: rows per batch of a rank.
    """

    orders: tuple[Order | Mixture, ...]
    left_out: tuple[Order, ...]
    counts: I64
    targets: I64
    options: PlanOptions
    batch_rows: int

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank after levelling: a prefix of its own rows, then tails of others."""
        yield from self._runs(rank).pieces()

    def following(self, rank: int) -> Iterator[Piece]:
        """The pieces of the ranks after `rank`, and finally of `rank` itself."""
        for step in range(1, len(self.orders) + 1):
            yield from self.pieces((rank + step) % len(self.orders))

    def steps(self) -> list[int]:
        """The number of batches of each rank; requires known row counts, like the methods below."""
        if self.options.even == "pad":
            return [self._padded_steps] * len(self.targets)
        return [-(-rows // self.batch_rows) for rows in self.rows()]

    def rows(self) -> list[int]:
        """The number of real rows of each rank, without padding."""
        rows: list[int] = (self.targets - self.targets % self._whole).tolist()
        return rows

    def delivered(self, rank: int) -> Pieces:
        """A rank's pieces, in order: real ones, then padding."""
        pieces = Pieces(self._runs(rank))
        if self.options.even == "pad":
            missing = self._padded_steps * self.batch_rows - int(self.targets[rank])
            # A rank without rows of its own repeats the epoch's first rows.
            repeated = pieces.first(missing) or self.following(len(self.orders) - 1)
            return replace(pieces, pads=tuple(padding(repeated, missing)))
        if self.options.even == "none":
            pieces = end_with(pieces, self.batch_rows, self.options.last_batch, self.following(rank))
        return pieces if pieces.pads or self._whole == 1 else pieces.first(pieces.rows - pieces.rows % self._whole)

    def again(self, rank: int, key: int | None) -> Pieces:
        """A rank's rows again (if it has none, those of the ranks after it), in an order drawn by `key`."""
        runs, ranks = self._runs(rank), len(self.orders)
        if not len(runs.source):
            runs = joined([self._runs((rank + step) % ranks) for step in range(1, ranks + 1)])
        if key is None:
            return Pieces(runs)
        places = np.arange(len(runs.source), dtype=np.int64)
        runs = runs.select(permutation(len(places), key))
        runs = runs.by_turn() if self.options.by_partition else runs
        return Pieces(replace(runs, place=places))

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` or `last_batch` is `"drop"`."""
        for order in self.left_out:
            yield from order.runs().trimmed().pieces()
        if self._whole > 1:
            for rank, (count, kept) in enumerate(zip(self.targets.tolist(), self.rows(), strict=True)):
                yield from take(self.pieces(rank), kept, count)

    def _runs(self, rank: int) -> Runs:
        order = self.orders[rank]
        if order.table.uncounted is not None:
            return order.runs().trimmed()
        parts = [self.orders[donor].runs(*rows) for donor, *rows in transfers(self.counts, self.targets, rank)]
        return (joined(parts) if parts else order.runs(0, 0)).trimmed()

    @property
    def _whole(self) -> int:
        """What the rows of a rank are a multiple of; those beyond it are not delivered."""
        if self.options.even == "none" and self.options.last_batch == "drop":
            return self.batch_rows
        filled = self.options.even == "pad" or self.options.last_batch in ("pad", "wrap")
        return 1 if filled else self.options.unit_rows

    @property
    def _padded_steps(self) -> int:
        return -(-int(self.targets.sum()) // (len(self.targets) * self.batch_rows))


@dataclass(frozen=True, eq=False)
class KeptShares:
    """The rows of each rank if each resumes with its own, after the number of workers changed.

    Attributes:
        ranks: the pieces of each rank, padding last.
        left_out: the rows that no rank holds.
        batch_rows: rows per batch of a rank.
    """

    ranks: tuple[tuple[Piece, ...], ...]
    left_out: Order
    batch_rows: int

    def steps(self) -> list[int]:
        """Batches of each rank."""
        return [-(-total_rows(pieces) // self.batch_rows) for pieces in self.ranks]

    def rows(self) -> list[int]:
        """Real rows of each rank, without padding."""
        return [total_rows(self.pieces(rank)) for rank in range(len(self.ranks))]

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank, without padding."""
        return (piece for piece in self.ranks[rank] if not piece.pad)

    def delivered(self, rank: int) -> Pieces:
        """A rank's pieces, in order: real ones, then padding."""
        return Pieces.of(self.ranks[rank])

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank holds."""
        return iter(self.left_out.runs().trimmed().pieces())


def assign(
    datasets: Sequence[DatasetShare], options: PlanOptions, num_ranks: int, epoch: int, phase: int = 0
) -> Shares:
    """The shares of all ranks in an epoch, or in its rest after `phase` phases.

    Raises:
        ShardingError: the policy lost or repeated rows.
    """
    batch_rows = options.batch_rows(num_ranks)
    whole: deque[Order] = deque(dataset.order(epoch) for dataset in datasets)
    left_out: list[Order] = []
    if options.even == "drop":
        laps = options.total_shards // num_ranks if options.total_shards else 1
        rows = concatenated(
            [x for share, order in zip(datasets, whole, strict=True) for x in _read(share, order, num_ranks, epoch)]
        )
        excess = len(rows) % (num_ranks * batch_rows)
        left_out = left_out_runs(rows, excess, _left_out_seed(options, phase), epoch // laps * excess)
        del rows  # like the orders below: each takes tens of bytes per split
    by_dataset = [_shares_of(share, whole.popleft(), left_out, num_ranks, epoch) for share in datasets]
    orders = tuple(mixed(datasets, shares) for shares in zip(*by_dataset, strict=True))
    counts = np.array([len(share) for share in orders], dtype=np.int64)
    targets = even_targets(
        options.even,
        counts,
        batch_rows,
        options.by_partition or _are_even(orders),
        keeps_shards=all(dataset.policy.fixed_order for dataset in datasets),
        levelled=options.levelled,
        unit=options.unit_rows,
    )
    return Shares(orders, tuple(left_out), counts, targets, options, batch_rows)


def _left_out_seed(options: PlanOptions, phase: int) -> int | None:
    if not options.shuffle:
        return None
    return derive_key("phase", options.seed, phase) if phase else options.seed


def _read(dataset: DatasetShare, order: Order, num_ranks: int, epoch: int) -> list[Order]:
    """The rows of a dataset that an epoch reads: as one order if that is all of them, else by rank."""
    if dataset.policy.complete:
        return [order]
    return [dataset.share(order, rank, num_ranks, epoch) for rank in range(num_ranks)]


def _shares_of(dataset: DatasetShare, order: Order, left_out: list[Order], num_ranks: int, epoch: int) -> list[Order]:
    """The rows of a dataset that each rank gets, without those left out."""
    if dataset.policy.deals_kept:
        order = _without(order, left_out)
    shares = [dataset.share(order, rank, num_ranks, epoch) for rank in range(num_ranks)]
    if dataset.policy.complete:
        _check_complete(shares, order)
    if not dataset.policy.disjoint:
        _check_disjoint(shares)
    return shares if dataset.policy.deals_kept else [_without(share, left_out) for share in shares]


def _without(order: Order, runs: list[Order]) -> Order:
    for run in runs:
        order = order.without(run)
    return order


def _are_even(orders: tuple[Order | Mixture, ...]) -> bool:
    """Whether rows were assigned singly or in blocks, which is already even for one dataset, but not for several."""
    return any(isinstance(order, Order) and order.picked is not None for order in orders)


def _check_complete(orders: Sequence[Order], whole: Order) -> None:
    if whole.table.uncounted is None:
        given, expected, unit = sum(map(len, orders)), len(whole), "rows"
    else:
        given, expected, unit = sum(order.num_units for order in orders), whole.num_units, "splits"
    if given != expected:
        raise ShardingError(
            f"The sharding policy gave {given} {unit} to {len(orders)} ranks, expected {expected}: it must give each "
            "to exactly one rank."
        )


def _check_disjoint(orders: Sequence[Order]) -> None:
    """Check that no row is in two orders that were divided alike: by units, or by the same blocks in turn."""
    picks = sorted(
        (id(order.rows), pattern(order.picked), order.picked.start, order.picked.stop)
        for order in orders
        if order.picked is not None
    )
    units = [order.rows for order in orders if order.picked is None]
    if (units and joined(units).overlap()) or any(a[:2] == b[:2] and b[2] < a[3] for a, b in pairwise(picks)):
        raise ShardingError(
            f"The sharding policy gave some rows to several of {len(orders)} ranks, or to one of them twice: it must "
            "give each to exactly one rank."
        )
