"""Parses lines of CSV to columns with pyarrow's reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from torch_dataloader_utils.formats.text.csv_dialect import Dialect, as_utf8, is_utf8, read_options
from torch_dataloader_utils.formats.text.errors import Fault, Row, misfit, shown
from torch_dataloader_utils.formats.text.limits import LongLine
from torch_dataloader_utils.formats.text.whole_numbers import is_rounded, may_round
from torch_dataloader_utils.late_imports import pc

_NEWLINE, _RETURN = b"\n\r"
_WINDOW = 2**18  # bytes


class CsvParser:
    """Parses lines without a header; a `Parser`.

    Args:
        dialect: the file's dialect.
        names: the names of all its columns.
        schema: the columns that may be requested, with the requested types.
        declared: whether these are declared: then whole numbers may be rounded to floats.
    """

    def __init__(self, dialect: Dialect, names: Sequence[str], schema: pa.Schema, *, declared: bool = False) -> None:
        self._dialect, self._names, self._declared = dialect, names, declared
        self._wanted = {field.name: field.type for field in schema}
        self._read_as = {name: _read_as(kind) for name, kind in self._wanted.items()}

    def parse(self, lines: pa.Buffer, columns: Sequence[str]) -> tuple[pa.Table, list[int]]:
        """The rows; if bad lines are skipped, without rows that have too many or too few fields.

        Raises:
            LongLine: a row exceeds the limit (if rows may have several lines; otherwise, the caller checks this).
        """
        most = self._dialect.options.max_line_bytes
        if not self._dialect.one_line and lines.size > most:
            try:  # pyarrow rejects rows that contain a whole block, and some shorter ones
                return self._parsed_or_skipped(lines, columns, max(most // 2, 1))
            except pa.ArrowInvalid:
                if (row := self._dialect.first_long_row(lines.to_pybytes())) is not None:
                    raise LongLine(row) from None
        return self._parsed_or_skipped(lines, columns)

    def _parsed_or_skipped(
        self, lines: pa.Buffer, columns: Sequence[str], block: int | None = None
    ) -> tuple[pa.Table, list[int]]:
        # pyarrow hands bad rows over as text, so those of other text are left to the caller, who reads halves of it.
        if not (self._dialect.skip and is_utf8(lines)):
            return self._parsed(lines, columns, block=block), []
        bad: list[int] = []

        def note(row: Any) -> str:
            bad.append(row.number - 1)
            return "skip"

        return self._parsed(lines, columns, note, bad, block), bad

    def parse_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
        """The rows; raises for any bad one."""
        return self._parsed(pa.py_buffer(b"\n".join([*(row.text for row in rows), b""])), columns)

    def rows(self, lines: bytes) -> list[Row]:
        """The rows of whole lines; blank lines are ignored."""
        return [row for row, _ in self._dialect.rows(lines)]

    def fault(self, row: bytes, columns: Sequence[str]) -> Fault | None:
        """Why a row cannot be read: an unclosed quote, a wrong number of fields, or a value that does not fit."""
        if unclosed := self._dialect.unclosed(row):
            return Fault(unclosed, fatal=True)
        miscounted: list[Fault] = []

        def note(invalid: Any) -> str:
            miscounted.append(
                Fault(
                    f"has {invalid.actual_columns} fields, expected {invalid.expected_columns}: {shown(row)}. "
                    "Set another delimiter, or on_bad_lines='skip' to leave out such lines (in format_options=).",
                )
            )
            return "skip"

        self._read(pa.py_buffer(as_utf8(row) + b"\n"), dict.fromkeys(columns, pa.binary()), note)
        if miscounted:
            return miscounted[0]
        table = self._read(pa.py_buffer(row + b"\n"), dict.fromkeys(columns, pa.binary()), None)
        faults = (self._misfit(row, name, table[name][0].as_py()) for name in columns)
        return next((fault for fault in faults if fault is not None), None)

    def _misfit(self, row: bytes, name: str, value: bytes | None) -> Fault | None:
        """Why a value does not fit its column's type, or None if it does."""
        try:
            self._parsed(pa.py_buffer(row + b"\n"), [name])
        except ValueError:
            return misfit(name, value or b"", self._wanted[name])
        return None

    def _parsed(
        self,
        lines: pa.Buffer,
        columns: Sequence[str],
        on_bad: Callable[[Any], str] | None = None,
        bad: Sequence[int] = (),
        block: int | None = None,
    ) -> pa.Table:
        """The rows of whole lines, in the requested types; `bad` is the list that `on_bad` fills."""
        table = self._read(lines, {name: self._read_as[name] for name in columns}, on_bad, block)
        if self._dialect.options.quote_char and self._ends_within_quotes(lines, table.num_rows + len(bad)):
            raise ValueError("a quoted value holds a newline")
        if not self._declared:
            self._check_whole_numbers(lines, table, block)
        wanted = pa.schema([(name, self._wanted[name]) for name in columns])
        return table if table.schema.equals(wanted) else table.cast(wanted)

    def _check_whole_numbers(self, lines: pa.Buffer, table: pa.Table, block: int | None) -> None:
        """Check that no whole number was rounded to a float.

        Raises:
            ValueError: one was.
        """
        large = [name for name in table.column_names if may_round(table[name])]
        texts = self._read(lines, dict.fromkeys(large, pa.string()), lambda row: "skip", block) if large else table
        for name in large:
            written = texts[name].filter(pc.match_substring_regex(texts[name], r"^\s*[+-]?[0-9]{16,}\s*$"))
            if any(is_rounded(int(text)) for text in written.to_pylist()):
                raise ValueError(f"column {name!r} has a whole number that float64 would round")

    def _read(
        self,
        lines: pa.Buffer,
        types: dict[str, pa.DataType],
        on_bad: Callable[[Any], str] | None,
        block: int | None = None,
    ) -> pa.Table:
        return pacsv.read_csv(
            pa.BufferReader(lines),
            read_options=read_options(lines.size, self._names, block),
            parse_options=self._dialect.parse_options(on_bad),
            convert_options=self._dialect.convert_options(types, list(types)),
        )

    def _ends_within_quotes(self, lines: pa.Buffer, rows: int) -> bool:
        """Whether any row of `lines` ends within quotes, given the number of rows that pyarrow found.

        pyarrow lets a quoted value extend over newlines and to the end of the text: then it finds fewer rows than
        lines, or the last line ends within quotes. If rows may span lines, only an unclosed quote matters.
        """
        content = np.frombuffer(lines, np.uint8)
        quotes, newlines, lone_returns = _marks(content, ord(self._dialect.options.quote_char))
        if not quotes or (not self._dialect.one_line and quotes % 2 == 0):
            return False
        if self._dialect.one_line and not lone_returns:
            count = newlines + int(content[-1] != _NEWLINE)
            if rows == count or rows == count - _blank_lines(content):
                return self._dialect.is_open(_last_line(lines))
        return any(self._dialect.is_open(row.text) for row in self.rows(lines.to_pybytes()))


def _marks(text: npt.NDArray[np.uint8], quote: int) -> tuple[int, int, int]:
    """The numbers of quotes, of newlines, and of carriage returns without a newline."""
    quotes = newlines = lone = 0
    for at in range(0, len(text), _WINDOW):  # windows that fit into the CPU cache
        window = text[at : at + _WINDOW]
        newline, returns = window == _NEWLINE, window == _RETURN
        quotes += int(np.count_nonzero(window == quote))
        newlines += int(np.count_nonzero(newline))
        if returns.any():
            after = text[at + 1 : at + 1 + _WINDOW] == _NEWLINE
            lone += int(np.count_nonzero(returns)) - int(np.count_nonzero(returns[: len(after)] & after))
    return quotes, newlines, lone


def _blank_lines(text: npt.NDArray[np.uint8]) -> int:
    """The number of empty lines in a text in which every carriage return is followed by a newline."""
    newline, returns = text == _NEWLINE, text == _RETURN
    first = int(newline[0] or returns[0])
    pairs = returns[1:-1] & newline[:-2]  # a return at the beginning of a line
    return first + int(np.count_nonzero(newline[1:] & newline[:-1])) + int(np.count_nonzero(pairs))


def _last_line(lines: pa.Buffer) -> bytes:
    """The last line that is not blank, without its end."""
    size = 2**12
    while True:
        end: bytes = lines.slice(max(lines.size - size, 0)).to_pybytes().rstrip(b"\r\n")
        place = end.rfind(b"\n")
        if place >= 0 or size >= lines.size:
            return end[place + 1 :]
        size *= 8


def _read_as(kind: pa.DataType) -> pa.DataType:
    """A type that pyarrow's CSV reader supports, from which values are cast to `kind`."""
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal(kind) and not pt.is_decimal128(kind):
        return pa.decimal128(min(kind.precision, 38), kind.scale)
    if pt.is_dictionary(kind):
        return pa.dictionary(pa.int32(), _read_as(kind.value_type))
    return kind
