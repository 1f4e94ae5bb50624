"""Moves rows: a small compiled library where there is one, numpy and Arrow elsewhere."""

from torch_dataloader_utils.kernels.interleaved import chunks, interleave, interleave_ranges
from torch_dataloader_utils.kernels.orders import BucketOrder
from torch_dataloader_utils.kernels.rows import compiled, join_offsets, put, take, take_ranges

__all__ = [
    "BucketOrder",
    "chunks",
    "compiled",
    "interleave",
    "interleave_ranges",
    "join_offsets",
    "put",
    "take",
    "take_ranges",
]
