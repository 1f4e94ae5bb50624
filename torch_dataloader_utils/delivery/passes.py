"""Passes over the data: which epoch comes next, and what an iterator of a loader does."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from torch_dataloader_utils.errors import StaleIteratorError

_LOG = logging.getLogger("torch_dataloader_utils")


@dataclass(frozen=True, slots=True)
class Run:
    """What one pass executes.

    Attributes:
        batches: the batches, in order.
        steps: how many, or None where only reading tells.
        close: stops the reading; idempotent.
    """

    batches: Iterator[Any]
    steps: int | None
    close: Callable[[], None]


class Passes:
    """The sequence of passes over one dataset; at most one is live.

    A pass begins at the first `next` of an iterator, since frameworks call `iter` and `set_epoch` in any order. The
    epoch of a pass is that of the last `set_epoch` since the pass before it began; without one it is the epoch after
    the last completed pass, or the same epoch afresh if that pass was left half-way.
    """

    def __init__(self, start: Callable[[int], Run]) -> None:
        self._start = start
        self._next_epoch = 0
        self._explicit = False
        # Weak: an iterator that its user dropped must be collected, and its reading with it.
        self._live: weakref.ref[BatchIterator] | None = None
        self._warned = False
        self._unfinished: int | None = None  # epoch of the last pass, until it completes

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch's."""
        self._next_epoch, self._explicit = epoch, True

    def resume_at(self, epoch: int) -> None:
        """The next pass is this epoch's, and those after it count on from there."""
        self._next_epoch, self._explicit = epoch, False

    @property
    def epoch(self) -> int:
        """The epoch of the live pass, or of the next one."""
        live = self.live
        return self._next_epoch if live is None else live.epoch

    @property
    def live(self) -> BatchIterator | None:
        """The iterator whose pass was begun last, while it is not over."""
        return self._live() if self._live is not None else None

    def begin(self, iterator: BatchIterator) -> tuple[int, Run]:
        """End the live pass and start the next one, for this iterator: its epoch and what it executes."""
        old = self.live
        if old is not None:
            if old.exhausted():
                self.finish(old)
            old.close()
        if self._unfinished is not None and not self._explicit:
            _LOG.info("the last pass was left half-way: epoch %d starts afresh", self._next_epoch)
        epoch, self._explicit = self._next_epoch, False
        run = self._start(epoch)
        self._live, self._unfinished = weakref.ref(iterator), epoch
        return epoch, run

    def complete(self, iterator: BatchIterator) -> None:
        """Note that this iterator delivered its last batch, though its user may not have seen the end yet."""
        if self.live is iterator:
            self._unfinished = None
            if not self._explicit:
                self._next_epoch = iterator.epoch + 1

    def finish(self, iterator: BatchIterator) -> None:
        """Note that this iterator's pass is over."""
        self.complete(iterator)
        if iterator.found_nothing and not self._warned:
            self._warned = True
            _LOG.warning("epoch %d: the filter let no row of this rank through; the pass was empty", iterator.epoch)
        if self.live is iterator:
            self._live = None


class BatchIterator:
    """One pass: begins at the first `next`, ends at its last batch, at `close()`, or when another pass begins."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._run: Run | None = None
        self._error: BaseException | None = None
        self._over = False
        self._ahead: list[Any] = []
        self.epoch = passes.epoch
        self.delivered = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StaleIteratorError: another pass was started on this loader.
        """
        if self._run is None:
            self.epoch, self._run = self._passes.begin(self)
            weakref.finalize(self, self._run.close).atexit = False
        if self._over:
            raise StopIteration
        if self._passes.live is not self:
            raise StaleIteratorError(
                f"another pass was started on this loader: this iterator of epoch {self.epoch} ended after "
                f"{self.delivered} batches. Use one iterator at a time, or a loader for each."
            )
        if self._error is not None:
            raise self._error
        try:
            batch = self._ahead.pop() if self._ahead else next(self._run.batches)
        except StopIteration:
            self._over = True
            self._passes.finish(self)
            self.close()
            raise
        except BaseException as error:
            self._error = error
            self.close()
            raise
        self.delivered += 1
        if self.delivered == self._run.steps:
            self._passes.complete(self)
        return batch

    def exhausted(self) -> bool:
        """Whether the last batch was delivered, even if StopIteration was not reached."""
        if self._over or self._run is None or self._error is not None:
            return self._over
        if self._run.steps is not None:
            return self.delivered >= self._run.steps
        if not self._ahead:
            self._ahead.extend(batch for batch in [next(self._run.batches, None)] if batch is not None)
        return not self._ahead

    @property
    def found_nothing(self) -> bool:
        """Whether a pass that could have had batches, for all that its plan said, had none."""
        return self._over and not self.delivered and self._run is not None and self._run.steps is None

    def close(self) -> None:
        """End the pass: no thread, file or buffer of it stays behind; idempotent."""
        if self._run is not None:
            self._run.close()
