"""Batches that are sent to a device ahead of the loop: which copies are made, when, and what is handed over.

Copies begin when the first batch of a block is cut, which is `AHEAD` batches before that batch is handed over. The
loop's stream is told to wait for them when it gets a batch, not before, so training goes on while blocks are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from torch_dataloader_utils.batching.columns import Array, Jagged
from torch_dataloader_utils.batching.devices import Target
from torch_dataloader_utils.batching.sent_columns import Send, Span, Views, sent_column, sent_jagged
from torch_dataloader_utils.batching.tensors import TensorForm
from torch_dataloader_utils.convert.columns import Column, Dense, Ragged
from torch_dataloader_utils.errors import StaleIteratorError

AHEAD = 2  # batches that are cut, and so sent, before they are handed over
_AT_A_TIME = 1 << 25  # bytes of a block that are sent before its first batch: a window may hold gigabytes

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


class Sent:
    """A batch on its way to a device."""

    __slots__ = ("_batch", "_shipment")

    def __init__(self, batch: dict[str, Any], shipment: Shipment) -> None:
        self._batch = batch
        self._shipment = shipment

    def handed(self) -> dict[str, Any]:
        """The batch, for use by the calling thread where it uses tensors at present."""
        self._shipment.arrive()
        return self._batch


class SentForm(TensorForm):
    """Batches as `Sent` dicts of output key -> tensor on a device, dict of these, or list.

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

    def _piece(self, columns: Mapping[str, Column], span: Span) -> Iterator[Sent]:
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
                yield Sent(dict(zip(self._entries, batch, strict=True)), shipment)

    def _sent(self, entry: str, columns: Mapping[str, Column], span: Span, send: Send) -> Views:
        if entry not in self._jagged:
            return sent_column(columns[entry], span, send)
        return sent_jagged({key: cast(Ragged, columns[key]) for key in self._jagged[entry]}, span)

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


def ahead(batches: Iterator[T], number: int = AHEAD) -> Iterator[T]:
    """The batches, each once the next `number` have been cut. An error takes its turn after the batches before it."""
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


def handed_over(batches: Iterator[Sent]) -> Iterator[dict[str, Any]]:
    """The batches, each made usable where the calling thread uses tensors when it takes it."""
    return map(Sent.handed, batches)
