"""Moves rows: a small compiled library where there is one, numpy and Arrow elsewhere."""

from torch_dataloader_utils.kernels.rows import (
    BucketOrder,
    chunks,
    compiled,
    interleave,
    interleave_ranges,
    join_offsets,
    put,
    stack,
    take,
    take_ranges,
)

__all__ = [
    "BucketOrder",
    "chunks",
    "compiled",
    "interleave",
    "interleave_ranges",
    "join_offsets",
    "put",
    "stack",
    "take",
    "take_ranges",
]
