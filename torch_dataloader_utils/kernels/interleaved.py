"""Interleaves rows: batches that each have some consecutive rows of several parts, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import library
from torch_dataloader_utils.kernels.rows import Array, Memory, Ranges, addresses, fresh, width_of

I64: TypeAlias = npt.NDArray[np.int64]


def interleave(columns: Sequence[Sequence[Array]], quotas: I64, outs: Sequence[Array]) -> None:
    """Interleave columns of fixed width.

    Args:
        columns: of each column, its rows in each part, [rows, ...] of one dtype and shape, contiguous.
        quotas: the rows of each part in each batch, int64 [batches, parts], contiguous.
        outs: of each column, where its rows are written, likewise.
    """
    found = library()
    if found is None:
        for column, out in zip(columns, outs, strict=True):
            np.concatenate([column[part][first:last] for part, first, last in chunks(quotas)], out=out)
        return
    sources = np.array([addresses(*column) for column in columns], np.uint64)
    targets, widths = np.array(addresses(*outs), np.uint64), np.array([width_of(out) for out in outs], np.uint64)
    found.tdu_interleave(*addresses(targets, sources, widths), len(outs), *addresses(quotas), *quotas.shape)


def interleave_ranges(parts: Sequence[Ranges], quotas: I64, item: int = 1, memory: Memory | None = None) -> Ranges:
    """Interleave a column whose rows are ranges of items of any number.

    Args:
        parts: its rows in each part, with offsets that count items.
        quotas: as above.
        item: bytes of an item.
        memory: makes the array of all bytes; None: numpy does.

    Returns:
        All bytes, and the offsets of their items, int64 [rows + 1], from 0.
    """
    offsets = np.zeros(1 + int(quotas.sum()), np.int64)
    interleave([[np.diff(ends) for _, ends in parts]], quotas, [offsets[1:]])
    np.cumsum(offsets, out=offsets)
    places = np.cumsum(quotas, axis=0)
    bounds = [(ends[np.append(0, place)] - ends[0]) * item for (_, ends), place in zip(parts, places.T, strict=True)]
    out = (memory or fresh)(int(offsets[-1]) * item)
    sizes = np.ascontiguousarray(np.diff(bounds).T)
    interleave([[values for values, _ in parts]], sizes, [out])
    return out, offsets


def chunks(quotas: I64) -> list[tuple[int, int, int]]:
    """Consecutive rows of one part in one batch: part, first row, and the row after the last; in order of delivery."""
    ends = np.cumsum(quotas, axis=0)
    part = np.broadcast_to(np.arange(quotas.shape[1]), quotas.shape)
    return list(zip(part.ravel().tolist(), (ends - quotas).ravel().tolist(), ends.ravel().tolist(), strict=True))
