"""Calls to stores that may hang: on threads for which neither a loop nor the exit of the interpreter waits for long."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from sys import maxsize
from time import monotonic
from typing import Any, TypeVar

from torch_dataloader_utils.errors import BatchTimeoutError

T = TypeVar("T")

_IDLE = 1.0  # seconds after which a thread without work ends
_EXIT = 2.0  # seconds for which the exit of the interpreter waits for calls: they end well unless a store hangs

# Seconds that a call to a store may take, for storages that are created in this context; 0 for no limit.
_LIMIT: ContextVar[float] = ContextVar("_LIMIT", default=0.0)
_POOLS: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOLS.clear)  # the exit of a child must not wait for threads of its parent


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A context in which storages get this time limit for each call to their store; 0 for none."""
    before = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def limit() -> float:
    """The time limit of this context."""
    return _LIMIT.get()


def answered(call: Callable[[], T], seconds: float, what: str, who: str = "store") -> T:
    """What `call` returns, in a thread of its own.

    Args:
        call: calls a store or catalog.
        seconds: the time limit; 0 for none.
        what: what is waited for, without secrets.
        who: who must answer.

    Raises:
        BatchTimeoutError: it takes longer. The call is left to its thread.
    """
    if not seconds:
        return call()
    future = _calls(os.getpid()).submit(call)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # an error of the call's own
            return future.result()
    raise BatchTimeoutError(
        f"{what}: the {who} did not answer within timeout={seconds} s. Check that it is reachable and not overloaded, "
        "or increase timeout."
    )


class DaemonThreads(Executor):
    """Runs calls on up to `most` daemon threads, which end when they are idle."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = self._idle = 0
        _POOLS.add(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call it on a thread.

        Raises:
            RuntimeError: the interpreter is exiting.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._idle <= len(self._waiting) and self._threads < self._most:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._threads += 1
            self._waiting.append((future, partial(fn, *args, **kwargs)))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: idle threads end, and a hanging one must not be waited for."""

    def settle(self, seconds: float) -> None:
        """Wait until no call runs, but not for longer than this."""
        deadline = monotonic() + seconds
        with self._changed:
            while self._threads > self._idle and monotonic() < deadline:
                self._changed.wait(0.05)

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised by the future
                    future.set_exception(error)
            del taken, future, call

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None after a time without any."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting, _IDLE)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


@atexit.register
def _settle() -> None:
    # Threads that return from pyarrow while the interpreter shuts down can crash it.
    for pool in list(_POOLS):
        pool.settle(_EXIT)


@lru_cache(maxsize=1)
def _calls(pid: int) -> DaemonThreads:
    """This process's threads for calls with a time limit; a forked child inherits no threads, so it needs its own."""
    return DaemonThreads(maxsize, "calls")
