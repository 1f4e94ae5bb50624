"""Policies: the rows of one rank, as a function of the ordered rows of the epoch.

A policy takes an `Order` and a `PlanShape` (rank, ranks, epoch, options) and returns the rank's `Order`. A new one is
one function:

    def backwards(order: Order, shape: PlanShape) -> Order:
        return order.part(shape.num_ranks - 1 - shape.rank, shape.num_ranks)

    register_policy("backwards", backwards)         # or sharding=backwards
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.order import Order
from torch_dataloader_utils.seeding import derive_key

Share = Callable[[Order, PlanShape], Order]


@dataclass(frozen=True)
class Policy:
    """A function that assigns rows, and what planning must know of it.

    Attributes:
        share: from the epoch's order and a rank's place in the plan to that rank's rows.
        deals_kept: whether rows that `even="drop"` leaves out leave before it is called (else after).
        fixed_order: whether the order it cuts is the same in all epochs.
        complete: whether the ranks together get every row in every epoch.
    """

    share: Share
    deals_kept: bool = True
    fixed_order: bool = False
    complete: bool = True


def interleave(order: Order, shape: PlanShape) -> Order:
    """Every R-th split: `all_splits[rank::num_ranks]`."""
    return order.every(shape.rank, shape.num_ranks)


def contiguous(order: Order, shape: PlanShape) -> Order:
    """The rows `[floor(r * N / R), floor((r + 1) * N / R))`, as NVIDIA DALI cuts shards."""
    return order.part(shape.rank, shape.num_ranks)


def rotate(order: Order, shape: PlanShape) -> Order:
    """`contiguous`, moving on by one shard in each epoch (DALI's default) unless `stick_to_shard`."""
    moved = 0 if shape.options.stick_to_shard else shape.epoch
    number = (shape.rank + moved) % shape.num_ranks
    return inner_order(order.part(number, shape.num_ranks), shape, number)


def rotate_shards(order: Order, shape: PlanShape) -> Order:
    """One of `total_shards` shards per rank and epoch (the rotation of ESPnet3)."""
    number = shard_number(shape)
    return inner_order(order.part(number, shape.options.total_shards or shape.num_ranks), shape, number)


def strided(order: Order, shape: PlanShape) -> Order:
    """Every R-th row, or block of rows of one batch: `(row // block) % R == r`."""
    options = shape.options
    block = options.batch_rows(shape.num_ranks) if options.shard_batches or options.split_batches else 1
    return order.deal(shape.rank, shape.num_ranks, block)


def shard_number(shape: PlanShape) -> int:
    """Which of `total_shards` shards a rank reads: `(epoch * R + rank) % S`.

    With `full_rotation`, ranks change places each time that all shards were read, so that every rank meets every
    shard once in S epochs.
    """
    ranks, rank = shape.num_ranks, shape.rank
    total = shape.options.total_shards or ranks
    if shape.options.full_rotation:
        rank = (rank + shape.epoch // (total // ranks)) % ranks
    return (shape.epoch * ranks + rank) % total


def inner_order(shard: Order, shape: PlanShape, number: int) -> Order:
    """Shard `number` of an order that is the same in all epochs; shuffled, its splits come in another order in each."""
    if not shape.options.shuffle:
        return shard
    return shard.shuffled(derive_key("shard", shape.options.seed, shape.epoch, number))


_POLICIES = {
    "interleave": Policy(interleave, deals_kept=False),
    "contiguous": Policy(contiguous),
    "rotate": Policy(rotate, fixed_order=True),
    "strided": Policy(strided),
}
_ROTATE_SHARDS = Policy(rotate_shards, deals_kept=False, fixed_order=True, complete=False)


def register_policy(name: str, policy: Policy | Share) -> None:
    """Make `sharding=name` mean this policy.

    Raises:
        OptionError: the name is taken.
    """
    if name in _POLICIES or name == "auto":
        raise OptionError(f"register_policy({name!r}): the name is taken; give another one.")
    _POLICIES[name] = policy if isinstance(policy, Policy) else Policy(policy)


def find_policy(sharding: str | Policy | Share, options: PlanOptions) -> Policy:
    """The policy that `sharding` (a name other than `"auto"`, a policy or a function) means under these options.

    Raises:
        OptionError: no policy has this name.
    """
    if isinstance(sharding, Policy):
        return sharding
    if not isinstance(sharding, str):
        return Policy(sharding)
    if sharding not in _POLICIES:
        names = ", ".join(map(repr, ["auto", *_POLICIES]))
        raise OptionError(f"sharding={sharding!r}: expected one of {names}, or a function (order, shape) -> order.")
    return _ROTATE_SHARDS if options.total_shards is not None else _POLICIES[sharding]


def resolve_auto(options: PlanOptions, num_ranks: int, num_splits: int, counted: bool) -> str | Policy | Share:
    """The sharding to use: `"auto"` is interleave with 2 splits per shard or without counts, else contiguous."""
    if options.sharding != "auto":
        return options.sharding
    # Virtual ranks take the place of all workers of all ranks.
    shards = options.canonical_ranks or num_ranks * options.num_shards
    many = num_splits >= 2 * shards
    return "interleave" if many or not counted else "contiguous"
