"""Errors that name the file."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from torch_dataloader_utils.errors import DamagedFileError, DataLoaderUtilsError, FileReadError
from torch_dataloader_utils.file_limit import remedy, too_many_files
from torch_dataloader_utils.redaction import printable


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
        readable = self._readable(f"{where}: cannot be read: {printable(_message(error))}{hint}", error)
        raise readable from error

    def _readable(self, message: str, error: Exception) -> FileReadError:
        return FileReadError(message)


class Reaching(Naming):
    """A context in which a store is asked for the first time, so that its address or credentials may be wrong."""

    __slots__ = ()

    def _readable(self, message: str, error: Exception) -> FileReadError:
        return FileReadError(f"{message.rstrip('.')}. Check the address, the network, and storage_options=.")


class Decoding(Naming):
    """A context in which a file's bytes are decoded; they were read, so most errors mean that they are damaged."""

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowMemoryError):
            problem = ValueError(f"{error}: the piece is too large for this machine, or its sizes are wrong.")
            problem.__cause__ = error
            error = problem
        super().__exit__(kind, error, trace)

    def _readable(self, message: str, error: Exception) -> FileReadError:
        return damaged(self._path, message) if _of_content(error) else FileReadError(message)


# Errors for which the content of a file is not to blame: the machine, an installation, or what a decoder can do.
_NOT_OF_CONTENT = (
    MemoryError,
    ImportError,
    NotImplementedError,
    AttributeError,
    NameError,
    RuntimeError,
)


def _of_content(error: Exception) -> bool:
    """Whether a decoder's error is about the bytes it was given."""
    # pyarrow raises plain OSErrors for them; where reading itself failed, it sets `errno`.
    if isinstance(error, OSError):
        return type(error) is OSError and error.errno is None
    return not isinstance(error, _NOT_OF_CONTENT) and not isinstance(error.__cause__, MemoryError)


def damaged(path: str, message: str) -> DamagedFileError:
    """The error for a file whose content is damaged.

    Args:
        path: the file.
        message: names it, and says what is wrong.
    """
    error = DamagedFileError(message)
    error.path = path
    error.add_note(
        "Restore or remove the file. With on_error='skip', create_dataloader leaves out files that are damaged when it "
        "is called."
    )
    return error


def _message(error: BaseException) -> str:
    """The error's type, its text, and its notes (such as how often a request was tried)."""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
