"""`streaming_shard`: one rank's samples of any iterable, taken before the expensive part of a pipeline."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from typing import Any

from torch_dataloader_utils.errors import ShardingError, UnsupportedTypeError
from torch_dataloader_utils.iterables.rounds import Rounds, StreamShard


def streaming_shard(
    iterable: Any,
    num_shards: int,
    index: int,
    batch_size: int | None = None,
    split_batches: bool = False,
    drop_last: bool = False,
    even_batches: bool = True,
    contiguous: bool = False,
) -> Any:
    """The samples of one shard, lazily: a `datasets.IterableDataset` for one, a `StreamShard` for any other iterable.

    Sample `i` goes to shard `(i // block) % num_shards`, where `block` is 1 without a `batch_size`.

    Args:
        iterable: the samples, in the same order on every rank. The result can be read again if this iterable can.
        num_shards: the number of shards; usually the number of ranks.
        index: of this shard, in `[0, num_shards)`; usually the global rank.
        batch_size: samples per batch: `block` is `batch_size`, and shards take turns with whole batches.
        split_batches: cut a batch into `num_shards` parts instead: `block` is `batch_size // num_shards`.
        drop_last: leave out the last round if some shard would get fewer than `block` samples.
        even_batches: complete that round with the first samples of the stream; only with a `batch_size`, and without
            `drop_last`. Otherwise the last samples make a short batch or none.
        contiguous: take the samples `[floor(index * n / num_shards), floor((index + 1) * n / num_shards))` instead,
            from an iterable with length n; excludes `batch_size` and `drop_last`.

    Raises:
        ShardingError: numbers or options do not fit together.
        UnsupportedTypeError: an argument has a wrong type, such as `contiguous=True` for an iterable without a length.
    """
    _check_iterable(iterable)
    rounds = _rounds(
        _whole("num_shards", num_shards),
        _whole("index", index),
        None if batch_size is None else _whole("batch_size", batch_size),
        split_batches,
        drop_last,
        even_batches,
    )
    if contiguous:
        _check_contiguous(iterable, batch_size, split_batches, drop_last)
    if _is_instance(iterable, "datasets", "IterableDataset"):
        from torch_dataloader_utils.iterables.hf_datasets import shard_dataset

        return shard_dataset(iterable, rounds)
    if _is_instance(iterable, "torch.utils.data", "IterableDataset"):
        from torch_dataloader_utils.iterables.torch_dataset import TorchStreamShard

        return TorchStreamShard(iterable, rounds, contiguous)
    return StreamShard(iterable, rounds, contiguous)


def _rounds(
    num_shards: int, index: int, batch_size: int | None, split_batches: bool, drop_last: bool, even_batches: bool
) -> Rounds:
    """The rounds that the options define."""
    if num_shards < 1 or not 0 <= index < num_shards:
        raise ShardingError(
            f"num_shards={num_shards} and index={index}: expected at least one shard, and an index in [0, num_shards)."
        )
    if batch_size is None:
        if split_batches:
            raise ShardingError("split_batches=True without batch_size: pass the batch_size that is split.")
        return Rounds(num_shards, index, drop_last=drop_last)
    if batch_size < 1 or (split_batches and batch_size % num_shards):
        raise ShardingError(
            f"batch_size={batch_size} with num_shards={num_shards} and split_batches={split_batches}: expected a "
            f"positive number of samples{', and a multiple of num_shards' if split_batches else ''}."
        )
    block = batch_size // num_shards if split_batches else batch_size
    return Rounds(num_shards, index, block, drop_last, complete=even_batches and not drop_last)


def _is_instance(value: Any, module: str, name: str) -> bool:
    """Whether `value` is of that class; does not import the module, because without it there are no instances."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise UnsupportedTypeError(f"{name}={value!r}: expected a whole number.") from error


def _check_iterable(iterable: Any) -> None:
    """Check that iterating returns samples; starts no iteration, which could have side effects."""
    if isinstance(iterable, (str, bytes)) or not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise UnsupportedTypeError(f"Cannot shard {iterable!r}: expected an iterable of samples.")
    if isinstance(iterable, Mapping):
        raise UnsupportedTypeError(
            f"Cannot shard a {type(iterable).__name__} with the keys {list(iterable)[:10]}: pass one of its values."
        )


def _check_contiguous(iterable: Any, batch_size: int | None, split_batches: bool, drop_last: bool) -> None:
    if batch_size is not None or split_batches or drop_last:
        raise ShardingError(
            f"contiguous=True with batch_size={batch_size}, split_batches={split_batches} and drop_last={drop_last}: "
            "with these, shards take turns by batch; pass either contiguous=True or them."
        )
    try:
        len(iterable)
    except TypeError as error:
        raise UnsupportedTypeError(
            f"contiguous=True for a {type(iterable).__name__}: it has no length, so its parts are known only after "
            "reading; leave contiguous out."
        ) from error
