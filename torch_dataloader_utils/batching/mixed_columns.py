"""Puts the rows of several blocks in the order of mixed batches: each batch has some rows of every block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Column, Dense, Memory, Ragged, Text, concat
from torch_dataloader_utils.kernels import chunks, interleave, interleave_ranges

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]


def mixed_columns(
    columns: Mapping[str, Sequence[Column]], quotas: I64, dense: Mapping[str, Array], memory: Memory
) -> dict[str, Column]:
    """The rows of each key in the order of their batches.

    Args:
        columns: by key, its rows of each block.
        quotas: the number of rows of each block in each batch, [batches, blocks].
        dense: where `Dense` columns are written, uint8, of their size, by key.
        memory: makes the arrays of the values of other columns.
    """
    mixed: dict[str, Column] = {}
    arrays, outs = [], []
    for key, parts in columns.items():
        of_parts = [np.ascontiguousarray(part.array) for part in parts if isinstance(part, Dense)]
        if len(of_parts) < len(parts):
            mixed[key] = _mixed(parts, quotas, memory)
            continue
        out = dense[key].view(of_parts[0].dtype).reshape(-1, *of_parts[0].shape[1:])
        arrays.append(of_parts)
        outs.append(out)
        mixed[key] = Dense(out)
    interleave(arrays, quotas, outs)
    return mixed


def _mixed(parts: Sequence[Any], quotas: I64, memory: Memory) -> Column:
    """The rows of a column that is not `Dense`."""
    if all(isinstance(part, Ragged) for part in parts):
        return _ragged(parts, quotas, memory)
    if all(isinstance(part, Text) for part in parts):
        return _text(parts, quotas, memory)
    return concat([parts[part].slice(first, last) for part, first, last in chunks(quotas)])


def _ragged(parts: Sequence[Ragged], quotas: I64, memory: Memory) -> Ragged:
    like = parts[0].values
    item = like.itemsize * math.prod(like.shape[1:])
    ranges = [(part.values.reshape(-1).view(np.uint8), part.offsets) for part in parts]
    data, offsets = interleave_ranges(ranges, quotas, item, memory)
    return Ragged(data.view(like.dtype).reshape(int(offsets[-1]), *like.shape[1:]), offsets, parts[0].layout)


def _text(parts: Sequence[Text], quotas: I64, memory: Memory) -> Text:
    values, offsets = interleave_ranges([(part.values, part.offsets) for part in parts], quotas, 1, memory)
    valid, masks = None, Text.masks(parts)
    if masks is not None:
        valid = np.empty(len(offsets) - 1, np.bool_)
        interleave([masks], quotas, [valid])
    return Text(values, offsets, valid, parts[0].binary)
