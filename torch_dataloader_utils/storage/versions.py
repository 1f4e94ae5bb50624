"""What a store reports about a file's content, and whether that is still what was planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pyarrow.fs as pafs

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileChangedError
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.errors import Naming

# Each of fsspec's clients has its own key.
_TIMES = ("lastmodified", "last-modified", "last_modified", "updated", "mtime", "modified", "created")
_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What a store reports about a file; None where it reports nothing.

    Attributes:
        size: bytes.
        etag: tag of its content.
        mtime: when it was last written, in nanoseconds since 1970.
    """

    size: int | None = None
    etag: str | None = None
    mtime: int | None = None

    @property
    def version(self) -> str:
        """`etag:...`, else `mtime:...` in nanoseconds, else ""."""
        if self.etag is not None:
            return f"etag:{self.etag}"
        return "" if self.mtime is None else f"mtime:{self.mtime}"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file or folder in a listing.

    Attributes:
        path: as the storage names it.
        size: bytes; 0 where the store does not report it.
        version: identifies its content; "" where the store reports nothing about it.
        folder: whether it is a folder.
        real: its path without links; "" where the store has none.
        linked: whether it was found behind a link.
        special: what it is if it is neither a file nor a folder, such as "a named pipe"; else "".
        written: when it was last written, in nanoseconds since 1970; None where the store does not report it.
    """

    path: str
    size: int = 0
    version: str = ""
    folder: bool = False
    real: str = field(default="", compare=False)
    linked: bool = field(default=False, compare=False)
    special: str = ""
    written: int | None = field(default=None, compare=False)


def facts_of(info: Mapping[Any, Any]) -> StoredFacts:
    """The facts in an fsspec `info`, or in the headers of an open pyarrow file."""
    words = {_text(key).lower(): value for key, value in info.items()}
    size, etag = words.get("size", words.get("content-length")), words.get("etag")
    times = (_nanoseconds(words[word]) for word in _TIMES if words.get(word))
    return StoredFacts(
        size=None if size is None else int(size),
        etag=_text(etag).removeprefix("W/").strip('"') if etag else None,
        mtime=next((time for time in times if time is not None), None),
    )


def facts_of_info(info: pafs.FileInfo) -> StoredFacts:
    """The facts in an entry of a pyarrow listing."""
    return StoredFacts(size=info.size, mtime=info.mtime_ns)


def check_unchanged(file: DataFileInfo, now: StoredFacts) -> None:
    """Check that a file is the one that was planned, as far as both the plan and the store know.

    Raises:
        FileChangedError: it is another one.
    """
    if file.file_size and now.size is not None and file.file_size != now.size:
        raise _changed(file, now, f"{file.file_size} bytes", f"{now.size} bytes")
    kind, _, planned = file.version.partition(":")
    if kind == "etag" and now.etag is not None and planned != now.etag:
        raise _changed(file, now, f"etag {planned}", f"etag {now.etag}")
    if kind == "mtime" and now.mtime is not None and not _same_time(int(planned), now.mtime):
        raise _changed(file, now, f"of {_date(int(planned))}", f"of {_date(now.mtime)}")


def check_same(file: DataFileInfo, opened: StoredFacts, now: StoredFacts) -> None:
    """Check that an open file is still the one that was planned, and the one that was opened.

    Raises:
        FileChangedError: it is another one.
    """
    check_unchanged(file, now)
    check_unchanged(replace(file, file_size=opened.size or 0, version=opened.version), now)


@contextmanager
def as_planned(file: DataFileInfo, remedy: str) -> Iterator[None]:
    """A context like `Naming`, for a file that existed when it was planned; `remedy` is added to the error if not."""
    try:
        with Naming(file.path):
            try:
                yield
            except FileNotFoundError as error:
                if isinstance(error, DataLoaderUtilsError):
                    raise
                raise gone(file) from None  # it may name the URL with its secrets
    except FileChangedError as error:
        if remedy and remedy not in str(error):
            error.args = (f"{error} {remedy}",)
        raise


def gone(file: DataFileInfo) -> FileChangedError:
    """The error for a file that has disappeared."""
    return FileChangedError(
        f"{printable(file.path)} has disappeared since it was planned, so its rows would be lost: do not remove "
        "files that are being read. Restore it; or, unless a table or list still names it, create the loader again."
    )


def replaced(file: DataFileInfo) -> FileChangedError:
    """The error for a file in whose place is another one of the same size and time."""
    return FileChangedError(
        f"{printable(file.path)} was replaced by another file while it was read: create the loader again, and do not "
        "replace files that are being read."
    )


def _changed(file: DataFileInfo, now: StoredFacts, was: str, is_now: str) -> FileChangedError:
    error = FileChangedError(
        f"{printable(file.path)} has changed since it was planned: it was {was} and is now {is_now}. Rows would be "
        "lost or repeated: create the loader again, and write new files instead of changing those in use."
    )
    error.size = now.size
    return error


def _same_time(one: int, other: int) -> bool:
    """Whether two times are equal, compared to the second if one has only whole seconds (as in HTTP headers)."""
    if one % _SECOND and other % _SECOND:
        return one == other
    return one // _SECOND == other // _SECOND


def _nanoseconds(value: Any) -> int | None:
    """The time in ns since 1970 of a datetime, seconds, or the text of either; None for anything else."""
    if isinstance(value, (bytes, str)):
        value = _parsed(_text(value))
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        # Not timestamp(): a float cannot hold nanoseconds.
        return int((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * _SECOND + aware.microsecond * 1000
    # A float of seconds is exact to the microsecond.
    return round(value * 10**6) * 1000 if isinstance(value, (int, float)) else None


def _parsed(text: str) -> datetime | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return parse(text)
        except ValueError:
            continue
    return None


def _date(time: int) -> str:
    return datetime.fromtimestamp(time / _SECOND, UTC).isoformat()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
