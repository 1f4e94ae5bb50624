"""Errors that end a pass: they outlive it in users' variables, and must not keep alive what it held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from traceback import walk_tb
from types import FrameType

from torch_dataloader_utils.errors import RowErrors, StaleIteratorError

_PACKAGE = __name__.partition(".")[0] + "."


def let_go(error: BaseException) -> None:
    """Clear the local variables of this package's frames in the tracebacks of an error and its causes.

    They hold drivers, buffers and readers. The lines stay, and so do the variables of the user's functions.
    """
    for frame in _frames(error):
        if frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            with suppress(RuntimeError):  # it is running, and ends with the raise
                frame.clear()


def kept(error: BaseException, before: frozenset[int] = frozenset()) -> BaseException:
    """A copy of the error to raise later; it holds no frame, neither of this package nor of the user's loop.

    Args:
        error: what ended a pass, or one of its causes.
        before: the ids of the errors that it is a cause of; an error may even be its own cause.
    """
    before |= {id(error)}
    try:
        twin = _copy(error, before)
    except Exception:  # noqa: BLE001 - of a user's class, whatever its constructor raises
        twin = None
    if type(twin) is not type(error) or twin is error:
        return StaleIteratorError(f"this pass ended with {type(error).__name__}: {error}")
    if hasattr(twin, "__notes__"):
        twin.__notes__ = list(twin.__notes__)  # what is noted on one must not appear on the other
    if error.__cause__ is not None and id(error.__cause__) not in before:
        twin.__cause__ = kept(error.__cause__, before)
    return twin


def _copy(error: BaseException, before: frozenset[int]) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return type(error)(error.message, [kept(part, before) for part in error.exceptions])
    if isinstance(error, RowErrors):
        parts = {row: part for row, each in error.errors.items() if isinstance(part := kept(each, before), Exception)}
        twin = copy(error)
        twin.errors = parts
        return twin
    return copy(error)


def _frames(error: BaseException) -> set[FrameType]:
    """The frames that an error and its causes hold: those of the tracebacks, and their callers, of each thread."""
    frames: set[FrameType] = set()
    for fault in _chain(error):
        for frame, _ in walk_tb(fault.__traceback__):
            caller: FrameType | None = frame
            while caller is not None and caller not in frames:
                frames.add(caller)
                caller = caller.f_back
    return frames


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, the errors of groups, and those during whose handling each was raised; each once."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        fault = waiting.pop()
        if fault is not None and id(fault) not in seen:
            seen.add(id(fault))
            yield fault
            waiting += [fault.__cause__, fault.__context__]
            if isinstance(fault, BaseExceptionGroup):
                waiting += fault.exceptions
            elif isinstance(fault, RowErrors):
                waiting += fault.errors.values()
