"""The keyword arguments of a generator, split over jobs: lists hold one entry per shard, everything else is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import ShardingError

GenKwargs = dict[str, Any]


def number_of_shards(gen_kwargs: Mapping[str, Any]) -> int:
    """The length of the lists among the values; 1 without lists, or with empty ones.

    Raises:
        ShardingError: lists of different lengths, so the number of shards is ambiguous.
    """
    lengths = {name: len(value) for name, value in gen_kwargs.items() if isinstance(value, list)}
    if len(set(lengths.values())) > 1:
        raise ShardingError(
            f"The lists in gen_kwargs have different lengths: {lengths}. Each list must hold one entry per shard; "
            "pass values that all shards share as a tuple."
        )
    return max([1, *lengths.values()])


def distribute_shards(num_shards: int, max_num_jobs: int) -> list[range]:
    """The shard indices of each job: contiguous ranges in order, the first ones longer by one if they differ.

    There are `min(num_shards, max_num_jobs)` jobs: none is empty.

    Raises:
        ShardingError: a negative number of shards, or no job.
    """
    if num_shards < 0 or max_num_jobs < 1:
        raise ShardingError(
            f"num_shards={num_shards!r} and max_num_jobs={max_num_jobs!r}: expected at least 0 shards and 1 job."
        )
    jobs = min(num_shards, max_num_jobs)
    if not jobs:
        return []
    size, longer = divmod(num_shards, jobs)
    starts = [job * size + min(job, longer) for job in range(jobs + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def split_gen_kwargs(gen_kwargs: Mapping[str, Any], max_num_jobs: int) -> list[GenKwargs]:
    """The arguments of each job: its entries of every list, and all other values as they are.

    Raises:
        ShardingError: lists of different lengths, or no job.
    """
    jobs = distribute_shards(number_of_shards(gen_kwargs), max_num_jobs)
    return [{name: _part(value, shards) for name, value in gen_kwargs.items()} for shards in jobs]


def merge_gen_kwargs(gen_kwargs_list: Sequence[Mapping[str, Any]]) -> GenKwargs:
    """The arguments that were split: lists joined in the order of the jobs, other values taken from the first job.

    Raises:
        ShardingError: no job, or jobs with different names.
    """
    if len({frozenset(gen_kwargs) for gen_kwargs in gen_kwargs_list}) != 1:
        raise ShardingError(
            f"Cannot merge the gen_kwargs of {len(gen_kwargs_list)} jobs with the names "
            f"{[sorted(gen_kwargs) for gen_kwargs in gen_kwargs_list]}: expected one job or more, all with the same."
        )
    first = gen_kwargs_list[0]
    return {
        name: list(chain.from_iterable(gen_kwargs[name] for gen_kwargs in gen_kwargs_list))
        if isinstance(value, list)
        else value
        for name, value in first.items()
    }


def shuffle_gen_kwargs(rng: np.random.Generator, gen_kwargs: Mapping[str, Any]) -> GenKwargs:
    """A copy with shuffled lists; lists of equal length get the same permutation, so that entries stay together.

    Args:
        rng: the source of the permutations, one per length, in the order in which lengths first occur.
        gen_kwargs: the arguments; not changed.
    """
    orders: dict[int, list[int]] = {}
    for value in gen_kwargs.values():
        if isinstance(value, list) and len(value) not in orders:
            orders[len(value)] = order = list(range(len(value)))
            rng.shuffle(order)
    return {
        name: [value[i] for i in orders[len(value)]] if isinstance(value, list) else value
        for name, value in gen_kwargs.items()
    }


def _part(value: Any, shards: range) -> Any:
    return value[shards.start : shards.stop] if isinstance(value, list) else value
