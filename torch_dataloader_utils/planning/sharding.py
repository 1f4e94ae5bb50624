"""Policies: the rows of one rank, as a function of the ordered rows of the epoch.

A policy takes an `Order` and a `PlanShape` (rank, ranks, epoch, options) and returns the rank's `Order`. To add one,
write a function:

    def backwards(order: Order, shape: PlanShape) -> Order:
        return order.part(shape.num_ranks - 1 - shape.rank, shape.num_ranks)

    register_policy("backwards", backwards)         # or sharding=backwards

For a policy with options, write a dataclass whose instances are called like that function; its fields are the options:

    @dataclass(frozen=True)
    class Shifted:
        by: int = 1

        def __call__(self, order: Order, shape: PlanShape) -> Order:
            return order.part((shape.rank + self.by) % shape.num_ranks, shape.num_ranks)

    register_policy("shifted", Shifted)             # sharding={"kind": "shifted", "by": 2}, or sharding=Shifted(by=2)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import Rotate, Strided, check_names, name_of, split_sharding
from torch_dataloader_utils.options.sharding import WORDS
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.order import Order
from torch_dataloader_utils.seeding import derive_key

Share: TypeAlias = Callable[[Order, PlanShape], Order]


@dataclass(frozen=True)
class Policy:
    """A function that assigns rows, and what planning needs to know about it.

    Attributes:
        share: maps the epoch's order and a rank's place in the plan to that rank's rows; or a dataclass whose
            instances are such functions and whose fields are the policy's options.
        deals_kept: whether the rows that `even="drop"` leaves out are removed before the call; otherwise after it.
        fixed_order: whether the order that it divides is the same in all epochs.
        complete: whether the ranks together get every row in every epoch.
        disjoint: whether no two ranks can get the same row; if False, each plan is checked.
    """

    share: Share | type[Any]
    deals_kept: bool = True
    fixed_order: bool = False
    complete: bool = True
    disjoint: bool = False


Sharding: TypeAlias = str | Rotate | Strided | Mapping[str, Any] | Policy | Callable[..., Any]


def interleave(order: Order, shape: PlanShape) -> Order:
    """Every R-th split: `all_splits[rank::num_ranks]`."""
    return order.every(shape.rank, shape.num_ranks)


def contiguous(order: Order, shape: PlanShape) -> Order:
    """The rows `[floor(r * N / R), floor((r + 1) * N / R))`, as NVIDIA DALI cuts shards."""
    return order.part(shape.rank, shape.num_ranks)


def rotate(order: Order, shape: PlanShape) -> Order:
    """`contiguous`, shifted by one shard in each epoch (DALI's default) unless `stick_to_shard`."""
    moved = 0 if shape.options.rotation.stick_to_shard else shape.epoch
    number = (shape.rank + moved) % shape.num_ranks
    return inner_order(order.part(number, shape.num_ranks), shape, number)


def rotate_shards(order: Order, shape: PlanShape) -> Order:
    """One of `total_shards` shards per rank and epoch (the rotation of ESPnet3)."""
    number = shard_number(shape)
    return inner_order(order.part(number, shape.options.total_shards or shape.num_ranks), shape, number)


def strided(order: Order, shape: PlanShape) -> Order:
    """Every R-th row, or block of rows of one batch: `(row // block) % R == r`."""
    options = shape.options
    block = 1 if options.unit == "row" else options.batch_rows(shape.num_ranks)
    return order.deal(shape.rank, shape.num_ranks, block)


def shard_number(shape: PlanShape) -> int:
    """The index of the shard that a rank reads: `(epoch * R + rank) % S`.

    With `full_rotation`, ranks swap places whenever all shards have been read, so that every rank reads every shard
    once in S epochs.
    """
    ranks, rank = shape.num_ranks, shape.rank
    total = shape.options.total_shards or ranks
    if shape.options.rotation.full_rotation:
        rank = (rank + shape.epoch // (total // ranks)) % ranks
    return (shape.epoch * ranks + rank) % total


def inner_order(shard: Order, shape: PlanShape, number: int) -> Order:
    """Shard `number` of an order that is the same in all epochs; shuffling permutes its splits in each epoch."""
    if not shape.options.shuffle:
        return shard
    return shard.shuffled(derive_key("shard", shape.options.seed, shape.epoch, number))


_POLICIES = {
    "interleave": Policy(interleave, deals_kept=False, disjoint=True),
    "contiguous": Policy(contiguous, disjoint=True),
    "rotate": Policy(rotate, fixed_order=True, disjoint=True),
    "strided": Policy(strided, disjoint=True),
}
FUNCTION = "function "  # the prefix of the name of a policy that is a function
_ROTATE_SHARDS = Policy(rotate_shards, deals_kept=False, fixed_order=True, complete=False, disjoint=True)


def register_policy(name: str, policy: Policy | Share | type[Any]) -> None:
    """Register a policy under a name for `sharding=`.

    Args:
        name: its name in `sharding=`.
        policy: a function `(order, shape) -> order`; or a dataclass whose instances are such functions. Users set its
            fields with `sharding={"kind": name, option: value}`.

    Raises:
        OptionError: the name is taken.
    """
    if _registered(name) in _POLICIES or name.lower() == "auto":
        raise OptionError(f"register_policy({name!r}): the name is taken; use another one.")
    _POLICIES[name] = _policy(policy)


def find_policy(sharding: Sharding) -> Policy:
    """The policy for `sharding` (other than `"auto"`).

    Raises:
        OptionError: no policy has this name, or it has no such option.
    """
    if isinstance(sharding, (Rotate, Strided)):
        numbered = isinstance(sharding, Rotate) and sharding.total_shards is not None
        return _ROTATE_SHARDS if numbered else _POLICIES[name_of(sharding)]
    plain = with_options(sharding)
    if not isinstance(plain, Mapping):
        return _policy(plain)
    name, given = split_sharding(plain)
    policy = _policy(name)
    made: Any = policy.share
    return replace(policy, share=made(**given))


def with_options(sharding: Sharding) -> Sharding:
    """The same policy with all of its own options, if it has any, as plain values that a state can hold.

    Raises:
        OptionError: no policy has this name, it has no such option, or a value is not plain.
    """
    if sharding == "auto" or isinstance(sharding, (Rotate, Strided)):
        return sharding
    policy, given = _given(sharding)
    share, label = _policy(policy).share, getattr(policy, "__name__", policy)
    options = _options_of(share)
    check_names(label, given, options)
    if not isinstance(share, type):
        return policy
    try:
        made = share(**given)
        values = json.loads(json.dumps({item.name: getattr(made, item.name) for item in options}))
    except TypeError as error:  # an option without a default is missing, or a state cannot hold a value
        raise OptionError(
            f"sharding={label!r} with the options {given!r}: {error}. Pass each option that has no default, as a plain "
            "value."
        ) from error
    return {"kind": policy, **values}


def policy_name(sharding: Any) -> Any:
    """The policy's name in states and digests: a string, or a dict of the name and the policy's options."""
    if isinstance(sharding, (Rotate, Strided)):
        return sharding.to_dict()
    if isinstance(sharding, Mapping):
        return {**sharding, "kind": policy_name(sharding["kind"])}
    if isinstance(sharding, str):
        return sharding
    name = getattr(sharding, "__qualname__", type(sharding).__name__)
    return f"{FUNCTION}{getattr(sharding, '__module__', '')}.{name}"


def _policy(sharding: Any) -> Policy:
    """The policy with this name, or made from this function."""
    if isinstance(sharding, str):
        if sharding not in _POLICIES:
            names = ", ".join(map(repr, ["auto", *_POLICIES]))
            raise OptionError(f"sharding={sharding!r}: expected one of {names}, or a function (order, shape) -> order.")
        return _POLICIES[sharding]
    return sharding if isinstance(sharding, Policy) else Policy(sharding)


def _given(sharding: Sharding) -> tuple[Sharding, dict[str, Any]]:
    """The policy and the options given for it."""
    if isinstance(sharding, Mapping):
        kind, given = split_sharding(sharding)
        return _registered(kind), given
    if not isinstance(sharding, (type, Policy)) and _options_of(sharding):
        return type(sharding), {item.name: getattr(sharding, item.name) for item in _options_of(sharding)}
    return sharding, {}


def _registered(kind: Any) -> Any:
    """The name that a policy is registered under, of which a dict may change the case."""
    if not isinstance(kind, str) or kind in _POLICIES:
        return kind
    return next((name for name in _POLICIES if name.lower() == kind.lower()), kind)


def _options_of(policy: Any) -> list[Field[Any]]:
    """The options of a policy that is a dataclass; empty for any other."""
    return [item for item in fields(policy) if item.init] if is_dataclass(policy) else []


def resolve_auto(options: PlanOptions, num_ranks: int, num_splits: int, counted: bool) -> Sharding:
    """The sharding to use: `"auto"` is interleave with 2 splits per shard or without counts, else contiguous.

    In partitions one after another all words are contiguous: whole splits would take ranks through them at different
    speeds.
    """
    given: Sharding = options.sharding
    if options.by_partition and given in WORDS:
        return "contiguous"
    if given != "auto":
        return given
    # Virtual ranks replace all workers of all ranks.
    shards = options.canonical_ranks or num_ranks * options.num_shards
    many = num_splits >= 2 * shards
    return "interleave" if many or not counted else "contiguous"
