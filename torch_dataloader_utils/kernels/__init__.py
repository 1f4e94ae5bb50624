"""Moves rows: a small compiled library where there is one, numpy and Arrow elsewhere."""

from torch_dataloader_utils.kernels.orders import BucketOrder
from torch_dataloader_utils.kernels.rows import compiled, join_offsets, put, spread, take, take_ranges

__all__ = ["BucketOrder", "compiled", "join_offsets", "put", "spread", "take", "take_ranges"]
