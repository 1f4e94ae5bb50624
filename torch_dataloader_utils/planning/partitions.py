"""Partitions one after another: which rows of each partition a list gets, so that all lists are in the same one.

The rows of an order are counted over all partitions, and dealt in blocks: block j to list `j % lists`. That decides
only how many rows of a partition a list gets: these are consecutive, so that lists share few splits. With blocks of one
row, ranks are at most one row apart after each partition. With blocks of a batch, workers that take turns, a batch
each, deliver the partitions in order.
"""

from __future__ import annotations

import numpy as np

from torch_dataloader_utils.options.late_clashes import PARTITIONS_UNKNOWN
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.order import Order, Runs
from torch_dataloader_utils.planning.sharding import Policy
from torch_dataloader_utils.planning.splits import I64


def partition_ranges(ends: I64, number: int, lists: int, block: int = 1) -> tuple[I64, I64]:
    """The rows of one list in each partition: `[first, last)`, two arrays of shape [partitions].

    Args:
        ends: the number of rows up to the end of each partition, shape [partitions].
        number: the index of the list.
        lists: how many there are.
        block: consecutive rows that are counted for the same list.
    """
    begins = np.append(0, ends[:-1])

    def dealt(rows: I64, before: int) -> I64:
        """How many of the first rows are those of the first lists."""
        turns, left = np.divmod(rows, lists * block)
        return turns * before * block + np.minimum(left, before * block)

    first, last = (begins + dealt(ends, before) - dealt(begins, before) for before in (number, number + 1))
    return first, last


def share_of(runs: Runs, number: int, lists: int, block: int = 1) -> Runs:
    """The rows of one list, partition by partition; arguments as for `partition_ranges`."""
    if lists == 1:
        return runs
    final = np.flatnonzero(np.append(np.diff(runs.turns), 1))
    return runs.cut(*partition_ranges(runs.ends[final], number, lists, block))


def _policy(order: Order, shape: PlanShape) -> Order:
    return Order(share_of(order.runs(), shape.rank, shape.num_ranks))


BY_PARTITION = Policy(_policy, disjoint=True)


def check_counts(options: PlanOptions, num_ranks: int) -> None:
    """Check that lists could keep step without knowing how many rows each will deliver: there is only one.

    Raises:
        CountsRequiredError: there are several.
    """
    if options.by_partition and num_ranks * options.num_shards > 1:
        raise PARTITIONS_UNKNOWN.between("")
