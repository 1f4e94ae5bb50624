"""The iterator of a pass, which threads may share, and which has a state of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Self

from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.distributed.meeting import note_failure
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.file_limit import reject_too_many
from torch_dataloader_utils.iteration.failures import let_go
from torch_dataloader_utils.iteration.one_pass import END, Pass
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.redaction import redacted_error


class BatchIterator:
    """One pass: begins at the first `next`, ends at its last batch, at `close()`, or when another pass begins.

    Threads may share it: each batch goes to one of them. Frameworks that save the state of an iterator find it here.
    """

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._meter = passes.meter
        self._pass: Pass | None = None
        self._unfinished: Iterator[None] = iter(())  # closes the pass of an iterator that is let go before its end
        self._spent = False
        self._ended: Mapping[str, Any] | None = None  # the state that was loaded, if it was that of an ended pass

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StaleIteratorError: another pass was started on this loader, a state was loaded, or the pass was closed.
            RuntimeError: a user's function raised StopIteration, which would end a loop silently.
        """
        meter, current = self._meter, None
        try:
            with self._passes.turn.lock:
                meter.mark -= perf_counter()
                try:
                    batch = self._next()
                except StopIteration as error:
                    raise RuntimeError(
                        "a function passed to the loader (transform or collate_fn) raised StopIteration, which would "
                        "end the epoch silently."
                    ) from error
                except OSError as error:
                    reject_too_many(error)
                    raise
                finally:
                    meter.returned = perf_counter()
                    meter.mark += meter.returned
                current = self._pass
                if current is not None and meter.returned >= current.shown.due:
                    current.shown.update(current)
        except BaseException as error:
            note_failure()
            let_go(error)
            del self, meter, current  # this frame is part of the error
            raise
        if batch is END:
            raise StopIteration
        return batch

    def _next(self) -> Any:
        """The next batch, or END; for one thread at a time."""
        try:
            current = self._pass
            begins = current is None
            if current is None:
                current = self._begin()
                if current is None:
                    return END
                self._pass, self._unfinished = current, _closes(current)
                next(self._unfinished)
            if current.closed or self._passes.live is not current:
                return self._after(current)
            batch = current.take()
            if batch is END:
                return self._finished(current)
            current.taken += 1
            if begins:
                current.clock.note_first()
            return batch
        except BaseException as error:  # as `redact_errors` does, without a call for each batch
            instead = redacted_error(error)
            if instead is None:
                raise
        try:
            raise instead
        finally:
            del instead

    def _begin(self) -> Pass | None:
        """The pass, begun; None for none at all."""
        if self._ended is not None:
            return None
        self._spent = self._spent or self._passes.is_spent()
        return None if self._spent else self._passes.begin()

    def _after(self, current: Pass) -> Any:
        """END, or the error, of a pass that has ended."""
        if current.over:
            return END
        if self._passes.live is current:
            if current.error is not None:
                raise current.error_again()
            if current.complete:
                return self._finished(current)
        raise StaleIteratorError(
            f"another pass was started on this loader, a state was loaded, or the pass was closed: this iterator of "
            f"epoch {current.epoch} ended after {current.taken} batches. Use one iterator at a time, or a separate "
            "loader for each."
        )

    def _finished(self, current: Pass) -> Any:
        current.over = True
        self._passes.finish(current)
        next(self._unfinished, None)
        return END

    def state_dict(self) -> dict[str, Any]:
        """The progress of this pass; after the pass ends, its end, while the dataset's state is the next epoch."""
        if self._ended is not None:
            return dict(self._ended)
        current, codec = self._pass, self._passes.codec
        if current is None:
            return codec.state(self._passes.position)
        state = codec.state(current.now)
        return sealed({**state, "ended": True}) if current.over else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken. Delivers nothing if that was the end of a pass."""
        if state.get("ended"):
            self.close()
            self._pass, self._ended = None, state
            return
        position = self._passes.codec.position(state)
        with self._passes.ended():
            self._passes.load(position)
            self._pass = None

    def at_end(self) -> bool:
        """Whether no batch follows the newest one; if the length is unknown, this fetches the next batch.

        An error of that fetch is raised by the next `next`.
        """
        return self._pass is not None and self._pass.exhausted()

    def close(self) -> None:
        """End the pass: no thread, file or buffer of it stays behind; idempotent."""
        with self._passes.ended(lambda: self._pass):
            pass


def _closes(current: Pass, exiting: Callable[[], bool] = sys.is_finalizing) -> Iterator[None]:
    """Once begun, closes this pass when it is continued or let go.

    The passes keep the progress of an iterator; its reading ends with it. A finalizer from outside could not end it:
    what it holds would never be collected, because a user's function may hold the iterator. A `__del__` would run at
    the end of each epoch, too, where a Ctrl-C is lost. The collector runs in any thread, so this does not wait for the
    turn; nobody takes a batch of an iterator that is gone.
    """
    try:
        yield
    finally:
        if not exiting():
            current.close()
