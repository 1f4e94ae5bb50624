"""Handles lines that cannot be read: locates them by parsing halves of the text again, then names or skips them.

The decoders' messages contain neither the file nor the line, and are ignored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import DamagedFileError, DataLoaderUtilsError, SchemaMismatchError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import damaged
from torch_dataloader_utils.storage.locks import ForkLock

_LOG = logging.getLogger("torch_dataloader_utils")
_SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the text, unparsed.

    Attributes:
        line: the number of lines before it in its piece of text.
        text: the row, without the newline that ends it.
    """

    line: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row cannot be read.

    Attributes:
        message: the fault, and what to do.
        column: the column, if the fault is in a value.
        kind: the error to raise.
        fatal: whether the row cannot be skipped, because the start of the next row is unknown.
    """

    message: str
    column: str | None = None
    kind: type[DataLoaderUtilsError] = DamagedFileError
    fatal: bool = False


class Parser(Protocol):
    """How a text format turns text into rows. Used by one thread at a time."""

    def parse(self, text: pa.Buffer, columns: Sequence[str]) -> tuple[pa.Table, list[int]]:
        """The rows, with exactly the requested types, and the numbers of rows that were skipped (only bad ones).

        Raises:
            ValueError: a row cannot be read (pyarrow's errors are subclasses).
        """
        ...

    def parse_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
        """`parse` for rows returned by `rows`; raises for bad ones.

        Raises:
            ValueError: a row cannot be read.
        """
        ...

    def rows(self, text: bytes) -> list[Row]:
        """The rows of the text, including those that `parse` skips; blank lines are ignored.

        Raises:
            BadText: the starts of rows cannot be determined.
        """
        ...

    def fault(self, row: bytes, columns: Sequence[str]) -> Fault | None:
        """Why a row cannot be read, or None if it can."""
        ...


class BadText(ValueError):
    """Text whose rows cannot be separated; `line` lines come before the fault."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


# Files for which this process has warned about bad lines.
_WARNED: set[str] = set()
_LOCK = ForkLock()


@dataclass(frozen=True, slots=True)
class BadLines:
    """How bad lines are handled.

    Attributes:
        path: the file's path.
        skip: whether they are skipped; otherwise they are errors.
        lines_before: counts the lines of the file before this piece of text; returns None if counting would require
            reading too much.
        offset: the offset of the piece's first byte.
    """

    path: str
    skip: bool
    lines_before: Callable[[], int | None]
    offset: int = 0

    def note(self, bad: Sequence[int], rows: Callable[[], Sequence[Row]]) -> None:
        """Count the rows with these numbers as skipped, and warn if they are the first ones in the file."""
        recorder().count("skipped_lines", len(bad))
        with _LOCK:
            warned = self.path in _WARNED
            _WARNED.add(self.path)
        if not warned:
            _LOG.warning(
                "%s: on_bad_lines='skip' left out %d bad lines, the first is %s; further ones are only counted.",
                printable(self.path),
                len(bad),
                self._place(rows()[min(bad)].line),
            )

    def _place(self, line: int) -> str:
        """A line of the piece of text, counted from 0, as a line of the file, counted from 1."""
        before = self.lines_before()
        return f"line {line + 1} after byte {self.offset}" if before is None else f"line {before + line + 1}"

    def fail(self, line: int, fault: Fault, cause: BaseException | None) -> NoReturn:
        """Raise an error that names file and line.

        Raises:
            SchemaMismatchError: a value does not fit the type of its column.
            DamagedFileError: the row is bad in another way.
        """
        column = "" if fault.column is None else f", column {fault.column!r}"
        message = f"{printable(self.path)}, {self._place(line)}{column}: {fault.message}"
        is_damage = fault.kind is DamagedFileError
        raise (damaged(self.path, message) if is_damage else fault.kind(message)) from cause


def parsed(
    parser: Parser, text: pa.Buffer, columns: Sequence[str], bad_lines: BadLines, note: bool = True
) -> list[pa.Table]:
    """The rows of a piece of text, in order; skips bad ones if that is allowed (and counts them, if `note`).

    Raises:
        SchemaMismatchError: a value does not fit the type of its column; the message names file and line.
        DamagedFileError: a row is bad in another way; the message names file and line.
    """
    try:
        table, bad = parser.parse(text, columns)
        tables = [table]
    except ValueError as error:  # pa.ArrowInvalid is one
        tables, bad = _salvaged(parser, text, columns, bad_lines, error)
    if bad and note:
        bad_lines.note(bad, lambda: parser.rows(text.to_pybytes()))
    return tables


def _salvaged(
    parser: Parser, text: pa.Buffer, columns: Sequence[str], bad_lines: BadLines, error: ValueError
) -> tuple[list[pa.Table], list[int]]:
    """The good rows of a text that could not be parsed as a whole, and the numbers of the bad ones."""
    try:
        rows = parser.rows(text.to_pybytes())
    except BadText as bad_text:
        bad_lines.fail(bad_text.line, Fault(str(bad_text)), error)
    tables: list[pa.Table] = []
    bad: list[int] = []
    for piece in _pieces(parser, rows, columns, 0) if rows else ():
        if isinstance(piece, pa.Table):
            tables.append(piece)
            continue
        fault = parser.fault(rows[piece].text, columns)
        if fault is not None and (fault.fatal or not bad_lines.skip):
            bad_lines.fail(rows[piece].line, fault, error)
        if not bad_lines.skip:
            break
        bad.append(piece)
    if not bad:
        raise error  # not the fault of any row: the caller names the file
    return tables, bad


def _pieces(parser: Parser, rows: Sequence[Row], columns: Sequence[str], first: int) -> Iterator[pa.Table | int]:
    """In order, tables of rows that can be parsed and the numbers of the others, counted from `first`."""
    try:
        yield parser.parse_rows(rows, columns)
    except ValueError:
        if len(rows) == 1:
            yield first
            return
        half = len(rows) // 2
        yield from _pieces(parser, rows[:half], columns, first)
        yield from _pieces(parser, rows[half:], columns, first + half)


def cited(value: bytes | str) -> str:
    """A value in the form used in messages."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def misfit(column: str, value: bytes | str, kind: pa.DataType) -> Fault:
    """The fault for a value that does not fit its column's type."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return Fault(f"{cited(value)} is not UTF-8: set format_options={{'encoding': ...}}.", column)
    if pt.is_float64(kind) and re.fullmatch(r"\s*[+-]?[0-9]{16,}\s*", text):
        return Fault(
            f"{cited(text)} is a whole number that float64, the column's type over all files, would round. Set schema= "
            "with a type that holds all values, such as a decimal or pa.string(); pa.float64() rounds them.",
            column,
            SchemaMismatchError,
        )
    remedy = "Set schema= with a type that all values fit, or format_options={'on_bad_lines': 'skip'}"
    return Fault(f"{cited(text)} cannot be read as {kind}. {remedy}.", column, SchemaMismatchError)
