"""Errors that name the file, and no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError

# A URL's query, where signed links carry their secret; and its user and password.
_QUERY = re.compile(r"(\w://[^\s?'\"]+)\?[^\s'\")>]+")
_PASSWORD = re.compile(r"(\w://)[^\s/@'\"]+:[^\s/@'\"]*@")


@contextmanager
def naming(path: str, piece: str = "") -> Iterator[None]:
    """A context that turns what a store or decoder raises into a `FileReadError` naming the file and the piece of it.

    pyarrow's and the stores' own errors seldom say which file they are about, and come from many unrelated classes.
    """
    try:
        yield
    except (DataLoaderUtilsError, MemoryError):
        raise
    except Exception as error:
        where = ", ".join(filter(None, [printable(path), piece]))
        said = _told(error)
        if printable(said) != said:  # nor may a traceback print the cause, which tells a secret
            raise FileReadError(f"{where}: cannot be read: {printable(said)}") from None
        raise FileReadError(f"{where}: cannot be read: {said}") from error


def _told(error: BaseException) -> str:
    """The error's type, what it says, and its notes (such as how often a request was tried)."""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def printable(text: str) -> str:
    """A path or message without the queries and passwords of URLs."""
    return _PASSWORD.sub(r"\1", _QUERY.sub(r"\1", text)) if "://" in text else text
