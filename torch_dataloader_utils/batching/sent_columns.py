"""Sends the columns of a block to a device, each in one copy, and cuts them into batches there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_dataloader_utils.batching.columns import (
    Slicer,
    ends_of,
    jagged_batches,
    list_column,
    longest_of,
    padded,
    ragged_batches,
    rebased,
)
from torch_dataloader_utils.convert.columns import Column, Dense, Ragged
from torch_dataloader_utils.convert.layouts import Padding

Array = npt.NDArray[Any]

Send: TypeAlias = Callable[[Array], torch.Tensor]

# Cuts a column that was sent: (number of the first batch, number of batches, how to send more) -> one value per batch.
Views: TypeAlias = Callable[[int, int, Send], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive batches of a block.

    Attributes:
        first: the first row.
        count: the number of batches.
        size: rows per batch.
    """

    first: int
    count: int
    size: int

    def rows_before(self, number: int) -> int:
        """The first row of a batch of the span, by its number there."""
        return self.first + number * self.size


def sent_column(column: Column, span: Span, send: Send) -> Views:
    """The column's rows of these batches, sent; strings, objects and numbers of whole batches stay with the processor.

    Rectangles, ends of runs and joined lists are computed for a group of batches at a time, and sent together.
    """
    if isinstance(column, Dense):
        return _dense(column, span, send)
    if not isinstance(column, Ragged):
        return _kept(list_column(column), span)
    if column.layout == "ragged":
        return _ragged(column, span, send)
    if column.layout == "longest":
        return _kept(longest_of(column), span)
    if column.layout == "ends":
        ends = ends_of(column)
        return _computed(lambda *rows: ((each,) for each in ends(*rows)), span, lambda each: each)
    if isinstance(column.layout, Padding):
        return _computed(
            partial(_rectangles, column, column.layout),
            span,
            lambda values, lengths: {"values": values, "lengths": lengths},
        )
    return _nested(column, span, send)


def sent_jagged(columns: Mapping[str, Ragged], span: Span) -> Views:
    """The joined columns of lists of these batches, sent in groups."""
    return _computed(
        partial(jagged_batches, columns),
        span,
        lambda values, lengths: {"keys": list(columns), "values": values, "lengths": lengths},
    )


def _kept(slicer: Slicer, span: Span) -> Views:
    return lambda number, count, _: slicer(span.rows_before(number), count, span.size)


def _dense(column: Dense, span: Span, send: Send) -> Views:
    size = span.size
    whole = send(column.array[span.first : span.rows_before(span.count)])

    def views(number: int, count: int, _: Send) -> Sequence[torch.Tensor]:
        return torch.unsafe_split_with_sizes(whole[number * size : (number + count) * size], [size] * count)

    return views


def _ragged(column: Ragged, span: Span, send: Send) -> Views:
    offsets, bounds = rebased(column, span.first, span.count, span.size)
    values = send(column.values[bounds[0] : bounds[-1]])
    all_offsets = send(offsets.reshape(-1))
    starts, entries = bounds - bounds[0], span.size + 1

    def views(number: int, count: int, _: Send) -> Sequence[dict[str, torch.Tensor]]:
        ends = starts[number : number + count + 1]
        parts = torch.unsafe_split_with_sizes(values[ends[0] : ends[-1]], np.diff(ends).tolist())
        each = torch.unsafe_split(all_offsets[number * entries : (number + count) * entries], entries)
        return [{"values": part, "offsets": part_offsets} for part, part_offsets in zip(parts, each, strict=True)]

    return views


def _nested(column: Ragged, span: Span, send: Send) -> Views:
    ragged = _ragged(column, span, send)

    def views(number: int, count: int, more: Send) -> list[torch.Tensor]:
        return [
            torch.nested.nested_tensor_from_jagged(part["values"], part["offsets"])
            for part in ragged(number, count, more)
        ]

    return views


def _rectangles(column: Ragged, padding: Padding, first: int, count: int, size: int) -> Iterable[tuple[Array, Array]]:
    return (padded(*batch, padding) for batch in ragged_batches(column, first, count, size))


def _computed(
    batches: Callable[[int, int, int], Iterable[tuple[Array, ...]]], span: Span, entry: Callable[..., Any]
) -> Views:
    """Arrays that are computed for each batch, and sent for each group.

    Args:
        batches: (first row, count, size) -> the arrays of each batch.
        span: the batches.
        entry: makes the value of a batch from its tensors.
    """

    def views(number: int, count: int, send: Send) -> list[Any]:
        arrays = zip(*batches(span.rows_before(number), count, span.size), strict=True)
        return [entry(*tensors) for tensors in zip(*(_together(each, send) for each in arrays), strict=True)]

    return views


def _together(arrays: Sequence[Array], send: Send) -> list[torch.Tensor]:
    """These arrays of one dtype as tensors, sent in one copy."""
    flat = send(np.concatenate([array.reshape(-1) for array in arrays]))
    parts = torch.unsafe_split_with_sizes(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
