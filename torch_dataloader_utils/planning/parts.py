"""Plans over several datasets: each is ordered and sharded separately, then their rows are mixed on each rank.

Sharding an order that is already mixed could give one rank all rows of one dataset. A single dataset is planned as a
combination of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.order import Order, Runs, SplitTable, joined
from torch_dataloader_utils.planning.sharding import Policy, inner_order, shard_number
from torch_dataloader_utils.planning.splits import I64, Splits
from torch_dataloader_utils.seeding import derive_key


# States hold a digest of its repr: renaming it or a field makes existing states refer to other data.
@dataclass(frozen=True, slots=True)
class Part:
    """What planning needs to know about one dataset of a combination, besides its files and splits.

    Attributes:
        weight: the number of its rows delivered for each row of a dataset of weight 1; None means its row count.
        total_shards: for a dataset that defines its own shards, one per file; None if planning makes the shards.
        dist_world_size: the number of ranks that such a dataset was made for.
        name: of the dataset, for messages.
    """

    weight: float | None = None
    total_shards: int | None = None
    dist_world_size: int | None = None
    name: str = field(default="a dataset", repr=False, compare=False)

    def check_ranks(self, num_ranks: int) -> None:
        """Check that the dataset was made for this number of ranks.

        Raises:
            ShardingError: it was made for another number, or one that does not divide its shards.
        """
        if self.dist_world_size not in (None, num_ranks):
            raise ShardingError(
                f"dist_world_size={self.dist_world_size} must match the distributed world size, num_ranks={num_ranks}: "
                f"create {self.name} with dist_world_size=num_ranks."
            )
        if self.total_shards is not None and self.total_shards % num_ranks:
            raise ShardingError(
                f"total_shards={self.total_shards} of {self.name} must be divisible by num_ranks={num_ranks}: change "
                "one of the two."
            )


@dataclass(frozen=True, eq=False)
class DatasetShare:
    """One dataset of a plan: its splits, and how they are ordered and assigned to ranks.

    Attributes:
        table: the splits of all datasets.
        first: the index of its first split.
        last: the index after its last split.
        policy: assigns its rows to ranks.
        options: the plan's options, with a seed of the dataset's own.
        weight: see `Part`.
        shards: where the splits of each predefined shard end, counted from `first`, shape [shards]; None without any.
        rest: its rows that earlier phases of the epoch did not deliver; None means all rows, in their own order.
    """

    table: SplitTable
    first: int
    last: int
    policy: Policy
    options: PlanOptions
    weight: float | None = None
    shards: I64 | None = None
    rest: Order | None = None

    def order(self, epoch: int) -> Order:
        """All its rows, in the order that the policy divides."""
        if self.rest is not None:
            return self.rest
        key = None
        if self.options.shuffle and self.shards is None:
            seed = self.options.seed
            key = derive_key("order", seed) if self.policy.fixed_order else derive_key("order", seed, epoch)
        order = self.table.order(key, self.first, self.last)
        return order.by_turn() if self.options.by_partition else order

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return int(self.table.lengths[self.first : self.last].sum())

    def lap(self, lap: int, first: int, last: int) -> Order:
        """The rows `[first, last)` of a lap, which is in an order of its own; their places tell laps apart."""
        key = derive_key("order", self.options.seed, lap) if self.options.shuffle else None
        order = self.table.order(key, self.first, self.last).take(first, last)
        return Order(replace(order.rows, place=order.rows.place + lap * len(self.table.splits)))

    def share(self, order: Order, rank: int, num_ranks: int, epoch: int) -> Order:
        """The rows of a rank."""
        return self.policy.share(order, PlanShape(rank, num_ranks, epoch, self.options))

    def lap_rows(self, lap: int, laps: int) -> int:
        """The number of its rows in one of the `laps` epochs that together read all shards once."""
        lengths = self.table.lengths[self.first : self.last]
        if self.shards is None:
            total = int(lengths.sum())
            return (lap + 1) * total // laps - lap * total // laps
        per_lap = len(self.shards) // laps
        ends = np.append(0, self.shards)
        return int(lengths[ends[lap * per_lap] : ends[(lap + 1) * per_lap]].sum())


def dataset_shares(
    table: SplitTable, parts: Sequence[Part], policy: Policy, options: PlanOptions
) -> tuple[DatasetShare, ...]:
    """One `DatasetShare` for each part, with the splits of the files of its index.

    Raises:
        ShardingError: a dataset that defines its own shards does not have `total_shards` of them.
    """
    ends = _part_ends(table.splits, len(parts))
    shares = []
    for number, (part, first, last) in enumerate(zip(parts, [0, *ends], ends, strict=False)):
        # Equal datasets must not get equal orders. The first one gets the same order as in a plan of its own.
        seeded = replace(options, seed=derive_key("part", options.seed, number)) if number else options
        assigned_by, shards = policy, None
        if part.total_shards is not None and options.total_shards is not None:
            shards = _shard_ends(table.splits, number, options.total_shards, part.name)
            assigned_by = _given_shards(shards)
        shares.append(DatasetShare(table, first, last, assigned_by, seeded, part.weight, shards))
    return tuple(shares)


def _part_ends(splits: Splits, parts: int) -> list[int]:
    """Where the splits of each part end."""
    if parts == 1:
        return [len(splits)]
    part = np.array([file.info.part for file in splits.files])
    ends: list[int] = np.searchsorted(part[splits.file], np.arange(parts), side="right").tolist()
    return ends


def part_rows(splits: Splits, parts: int) -> list[int]:
    """The number of rows of each part."""
    table, ends = SplitTable(splits), _part_ends(splits, parts)
    return [int(table.lengths[first:last].sum()) for first, last in pairwise([0, *ends])]


def share_of_rest(rest: Order, policy: Policy, options: PlanOptions) -> DatasetShare:
    """The rest of an epoch as one dataset, with the options for the rest."""
    return DatasetShare(rest.table, 0, len(rest.table.splits), policy, options, rest=rest)


def _shard_ends(splits: Splits, part: int, total_shards: int, name: str) -> I64:
    of_part = np.array([file.info.part == part for file in splits.files], dtype=np.bool_)
    shards = splits.of_each_file[of_part]
    if len(shards) != total_shards:
        raise ShardingError(
            f"total_shards={total_shards}, but {name} has {len(shards)} shards: use the same number for both."
        )
    return np.cumsum(shards)


def _given_shards(ends: I64) -> Policy:
    """The policy that gives a rank one of the dataset's own shards, by the formula of `rotate`."""

    def share(order: Order, shape: PlanShape) -> Order:
        number = shard_number(shape)
        first = int(ends[number - 1]) if number else 0
        return inner_order(order.units(first, int(ends[number])), shape, number)

    return Policy(share, deals_kept=False, fixed_order=True, complete=False, disjoint=True)


@dataclass(frozen=True, eq=False)
class Mixture:
    """The rows of several datasets on one rank, mixed; computed on demand.

    Attributes:
        orders: the rows of each dataset.
        weights: the weight of each dataset; None means its number of rows here.
    """

    orders: tuple[Order, ...]
    weights: tuple[float, ...] | None

    def __len__(self) -> int:
        return sum(map(len, self.orders))

    def runs(self, first: int = 0, last: int | None = None) -> Runs:
        """The rows `[first, last)` of this sequence (all by default), as runs that become pieces."""
        return self._mixed if last is None else self._mixed.take(first, last)

    @property
    def table(self) -> SplitTable:
        """The splits of all datasets."""
        return self.orders[0].table

    @cached_property
    def _mixed(self) -> Runs:
        """All runs, by the position of their middle in their dataset, so that every prefix is close to the weights."""
        parts = [order.runs() for order in self.orders]
        middles = []
        for number, runs in enumerate(parts):
            sizes = runs.rows if self.table.uncounted is None else self.table.sizes[runs.source]
            weight = max(int(sizes.sum()), 1) if self.weights is None else self.weights[number]
            middles.append((np.cumsum(sizes) - sizes / 2) / weight)
        runs = joined(parts)
        turns = np.argsort(np.concatenate(middles), kind="stable")
        return replace(runs.select(turns), place=np.arange(len(turns), dtype=np.int64))


def mixed(datasets: Sequence[DatasetShare], orders: Sequence[Order]) -> Order | Mixture:
    """The rows of one rank, mixed from those of each dataset."""
    if len(orders) == 1:
        return orders[0]
    weights = tuple(dataset.weight for dataset in datasets if dataset.weight is not None)
    return Mixture(tuple(orders), weights or None)
