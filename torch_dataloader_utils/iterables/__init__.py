"""Sharding for any iterable, and for the keyword arguments of a generator: usable without the rest of the package."""

from torch_dataloader_utils.iterables.gen_kwargs import (
    distribute_shards,
    merge_gen_kwargs,
    number_of_shards,
    shuffle_gen_kwargs,
    split_gen_kwargs,
)
from torch_dataloader_utils.iterables.streaming import streaming_shard

__all__ = [
    "distribute_shards",
    "merge_gen_kwargs",
    "number_of_shards",
    "shuffle_gen_kwargs",
    "split_gen_kwargs",
    "streaming_shard",
]
