"""Batches that are sent to a device ahead of the loop: which copies are made, when, and what is handed over.

Copies begin when the first batch of a block is cut, which is `AHEAD` batches before that batch is handed over. The
loop's stream is told to wait for them when it gets a batch, not before, so training goes on while blocks are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from torch_dataloader_utils.batching.columns import (
    Array,
    Cut,
    Jagged,
    ends,
    flat,
    jagged_batches,
    lists,
    longest,
    padded,
    ragged_batches,
    rebased,
)
from torch_dataloader_utils.batching.devices import Target
from torch_dataloader_utils.batching.tensors import TensorForm
from torch_dataloader_utils.convert.columns import Column, Dense, Ragged
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.errors import StaleIteratorError

# Sends the columns of a block to a device, each in one copy, and cuts them into batches there.

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
        return _kept(lists, column, span)
    if column.layout == "ragged":
        return _ragged(column, span, send)
    if column.layout == "longest":
        return _kept(longest, column, span)
    if column.layout == "ends":
        return _computed(lambda *rows: ((each,) for each in ends(column, *rows)), span, lambda each: each)
    if column.layout == "flat":
        return _computed(lambda *rows: ((each,) for each in flat(column, *rows)), span, lambda each: each)
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


def _kept(cut: Cut, column: Column, span: Span) -> Views:
    return lambda number, count, _: cut(column, span.rows_before(number), count, span.size)


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


# Batches that are cut, and so sent, before they are handed over: the copies of the next block overlap with two steps.
# More would only take memory of the GPU.
AHEAD = 2
# Bytes of a block that are sent before its first batch. Ordinary blocks are smaller, but a window may hold gigabytes:
# putting more in page-locked memory at a time would hold up a step (32 MiB take 4 ms).
_AT_A_TIME = 1 << 25

T = TypeVar("T")


class Shipment:
    """Tensors that were sent together.

    Args:
        target: where to.
        mark: set after they were sent.
        tensors: the memory that batches are views of.
    """

    __slots__ = ("_mark", "_places", "_target", "_tensors")

    def __init__(self, target: Target, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._target = target
        self._mark = mark
        self._tensors = tensors
        self._places: set[Any] = set()

    def arrive(self) -> None:
        """Let the calling thread's place wait for them, once."""
        place = self._target.place()
        if place not in self._places:
            self._target.wait(self._mark, self._tensors)
            self._places.add(place)


class DeviceBatch:
    """A batch on its way to a device: which stream will use it is known only when the loop takes it."""

    __slots__ = ("_batch", "_shipment")

    def __init__(self, batch: dict[str, Any], shipment: Shipment) -> None:
        self._batch = batch
        self._shipment = shipment

    def handed(self) -> dict[str, Any]:
        """The batch, for use by the calling thread where it uses tensors at present."""
        self._shipment.arrive()
        return self._batch


class SentForm(TensorForm):
    """Batches as `DeviceBatch`es, dicts of output key -> tensor on a device, dict of these, or list.

    Args:
        keys: of blocks, in order.
        jagged: target keys of batches with the keys of the columns of lists that they join.
        target: where they are sent.
    """

    def __init__(self, keys: Sequence[str], jagged: Jagged, target: Target) -> None:
        super().__init__(keys, pin_memory=False, jagged=jagged)
        self._target = target

    def _split(self, columns: dict[str, Column], first: int, count: int, size: int) -> Iterator[Any]:
        """`count` batches, views of columns that are sent before the first, or in pieces if they are large."""
        most = _batches_at_a_time(columns, size)
        for number in range(0, count, most):
            yield from self._piece(columns, Span(first + number * size, min(most, count - number), size))

    def _piece(self, columns: Mapping[str, Column], span: Span) -> Iterator[DeviceBatch]:
        """The batches of the span, views of columns that are sent whole before the first."""
        block: list[torch.Tensor] = []
        with self._copying():
            cut = [self._sent(entry, columns, span, self._sending(block)) for entry in self._entries]
        for number in range(0, span.count, self._group):
            group = list(block)
            with self._copying():
                values = [views(number, min(self._group, span.count - number), self._sending(group)) for views in cut]
                mark = self._target.mark()
            shipment = Shipment(self._target, mark, group)
            for batch in zip(*values, strict=True):
                yield DeviceBatch(dict(zip(self._entries, batch, strict=True)), shipment)

    def _sent(self, entry: str, columns: Mapping[str, Column], span: Span, send: Send) -> Views:
        if entry not in self._jagged:
            return sent_column(columns[entry], span, send)
        return sent_jagged(self._source(entry, columns), span)

    def _sending(self, sent: list[torch.Tensor]) -> Send:
        """A function that sends an array, and adds the tensor that it became to `sent`."""

        def send(array: Array) -> torch.Tensor:
            sent.append(self._target.send(torch.from_numpy(array)))
            return sent[-1]

        return send

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """The target's context, for normal tensors even in inference mode: later batches may be trained on."""
        with torch.inference_mode(False), self._target.copying():
            yield


def _batches_at_a_time(columns: Mapping[str, Column], size: int) -> int:
    """How many batches of `size` rows are sent together: at least one."""
    sent = [column for column in columns.values() if isinstance(column, (Dense, Ragged))]
    rows = max((len(column) for column in sent), default=0)
    return max(1, _AT_A_TIME * rows // max(1, size * sum(column.nbytes for column in sent)))


def prefetched(batches: Iterator[T], number: int = AHEAD) -> Iterator[T]:
    """The batches, each once the next `number` have been cut. An error takes its turn after the batches before it.

    This is below everything that counts or ends batches (`even="sync"`, `steps_per_epoch`), so ranks meet in the same
    collectives, and positions need no code for it: a log of blocks may run ahead of the batches taken.
    """
    waiting: deque[T] = deque()
    failure: Exception | None = None
    more = True
    while True:
        while more and len(waiting) <= number:
            try:
                waiting.append(next(batches))
            except StopIteration:
                more = False
            except StaleIteratorError:  # the pass was ended: nobody takes what was cut
                raise
            except Exception as error:  # noqa: BLE001 - raised below
                more, failure = False, error
        if not waiting:
            break
        yield waiting.popleft()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # it holds this frame


def on_current_stream(batches: Iterator[DeviceBatch]) -> Iterator[dict[str, Any]]:
    """The batches, each made usable where the calling thread uses tensors when it takes it."""
    return map(DeviceBatch.handed, batches)
