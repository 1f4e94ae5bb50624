"""Checks that no option contradicts batches with a budget of tokens."""

from __future__ import annotations

from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.options.buckets import BucketOptions
from torch_dataloader_utils.options.groups import BatchOptions, ShardOptions


def check_buckets(bucket: BucketOptions, batch: BatchOptions, shard: ShardOptions, *, packs: bool) -> None:
    """Check that no option contradicts `batch_tokens`: batches are counted only by reading, and none is short.

    Args:
        bucket: the options checked.
        batch: what a batch looks like.
        shard: what ranks get.
        packs: whether documents are packed.

    Raises:
        OptionError: two options exclude each other.
        CountsRequiredError: an option needs the number of batches.
    """
    if bucket.batch_tokens is None:
        return
    text = f"batch_tokens={bucket.batch_tokens}"
    if packs:
        raise OptionError(f"{text} with pack: packed batches have batch_size * pack_length tokens. Leave one out.")
    if batch.output_format not in ("torch", "numpy"):
        raise OptionError(f"output_format={batch.output_format!r} with {text}: expected 'torch' or 'numpy'.")
    if shard.split_batches:
        raise OptionError(f"split_batches=True with {text}: batch_tokens is the budget of a batch of one rank.")
    counted = {
        f"even={shard.even!r}": shard.even in ("drop", "pad"),
        "last_batch='wrap'": batch.last_batch == "wrap",
        f"canonical_ranks={shard.canonical_ranks}": shard.canonical_ranks is not None,
    }
    for name in (name for name, needed in counted.items() if needed):
        raise CountsRequiredError(
            f"{name} with {text} needs the number of batches, which is known only after reading: use steps_per_epoch=n "
            "(exactly n steps) or even='sync' (all ranks stop with the first)."
        )
    if batch.last_batch != "partial":
        raise OptionError(
            f"last_batch={batch.last_batch!r} with {text}: batches differ in their rows, so none is short; leave "
            "last_batch at 'partial'."
        )
