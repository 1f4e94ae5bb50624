"""Errors that name the file."""

from __future__ import annotations

from collections.abc import Callable

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError
from torch_dataloader_utils.redaction import printable as printable


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
        readable = FileReadError(f"{where}: cannot be read: {printable(_message(error))}")
        raise readable from error


def _message(error: BaseException) -> str:
    """The error's type, its text, and its notes (such as how often a request was tried)."""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
