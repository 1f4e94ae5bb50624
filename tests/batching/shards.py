"""Shards of numbered rows for batches, without plan or file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Dense
from torch_dataloader_utils.reading.blocks import Block


class Blocks:
    """A driver that hands on these blocks of each shard."""

    def __init__(self, shards: Sequence[Sequence[Block]]) -> None:
        self._shards = [iter(blocks) for blocks in shards]

    def next_block(self, shard: int) -> Block | None:
        return next(self._shards[shard], None)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def block(first: int, rows: int, output: str = "numpy") -> Block:
    """Rows numbered from `first`, all marked as real."""
    ids, valid = np.arange(first, first + rows), np.ones(rows, np.bool_)
    if output in ("arrow", "dict"):
        return Block.of_table(pa.record_batch({"id": ids, "valid": valid}))
    return Block.of_columns(rows, {"id": Dense(ids), "valid": Dense(valid)})


def blocks_of(counts: Sequence[int], output: str = "numpy", first: int = 0) -> list[Block]:
    starts = itertools.accumulate(counts, initial=first)
    return [block(start, rows, output) for start, rows in zip(starts, counts, strict=False)]


def as_list(values: Any) -> list[Any]:
    if isinstance(values, list):
        return values
    return values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
