"""Errors that name the file and reveal no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError
from torch_dataloader_utils.file_limit import remedy, too_many_files
from torch_dataloader_utils.printing import printable as printable


class Naming:
    """A context that turns errors of a store or decoder into a `FileReadError` that names the file and its piece.

    Errors of pyarrow and of stores rarely name the file, and belong to many unrelated classes. This is a class, not a
    generator, because one is entered for every decoded column.

    Args:
        path: the file's path.
        piece: which part of the file, or a function that returns it.
    """

    __slots__ = ("_path", "_piece")

    def __init__(self, path: str, piece: str | Callable[[], str] = "") -> None:
        self._path = path
        self._piece = piece

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (DataLoaderUtilsError, MemoryError)):
            return
        piece = self._piece if isinstance(self._piece, str) else self._piece()
        where = ", ".join(filter(None, [printable(self._path), piece]))
        hint = f". {remedy()}" if too_many_files(error) else ""
        readable = FileReadError(f"{where}: cannot be read: {printable(_message(error))}{hint}")
        raise readable from printable_cause(error)


def printable_cause(error: BaseException) -> BaseException | None:
    """The error, as the cause of another; None if a traceback would print a secret with it."""
    secret = any(printable(message) != message for message in map(_message, _chain(error)))
    return None if secret else error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that a traceback prints before it."""
    seen: set[int] = set()
    last: BaseException | None = error
    while last is not None and id(last) not in seen:
        seen.add(id(last))
        yield last
        last = last.__cause__ or last.__context__


def _message(error: BaseException) -> str:
    """The error's type, its text, and its notes (such as how often a request was tried)."""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
