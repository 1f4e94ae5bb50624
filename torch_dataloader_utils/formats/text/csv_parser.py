"""Lines of CSV to columns, by pyarrow's reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.text import lines as text
from torch_dataloader_utils.formats.text.errors import Fault, Row, misfit, shown

_NEWLINE, _RETURN = b"\n\r"
_WINDOW = 2**18  # bytes
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MOST_BLOCK = 2**30  # bytes that pyarrow parses as one block, at most


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """The `format_options` of CSV.

    Attributes:
        delimiter: one character; None is a tab for .tsv, a comma else.
        quote_char: around values with delimiters or quotes (doubled there); "" if there is none.
        escape_char: before characters that are meant literally; "" if there is none.
        header: whether the first line holds the columns' names.
        column_names: to be used instead of those; without either, they are f0, f1, ...
        null_values: texts that mean null, in strings too; None is pyarrow's list, and strings are never null.
        newlines_in_values: whether quoted values may hold newlines: a file is then read as one.
        on_bad_lines: "error", or "skip" to leave them out.
        encoding: of the text; if it is not UTF-8, a file is read as one.
        decimal_point: one character.
    """

    delimiter: str | None = None
    quote_char: str = '"'
    escape_char: str = ""
    header: bool = True
    column_names: Sequence[str] | None = None
    null_values: Sequence[str] | None = None
    newlines_in_values: bool = False
    on_bad_lines: str = "error"
    encoding: str = "utf-8"
    decimal_point: str = "."

    def __post_init__(self) -> None:
        for name, least in (("delimiter", 1), ("quote_char", 0), ("escape_char", 0), ("decimal_point", 1)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and least <= len(value.encode()) <= 1):
                raise _wrong(name, value, "one ASCII character" + ("" if least else ' or ""'))
        for name in ("column_names", "null_values"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not all(isinstance(item, str) for item in value)):
                raise _wrong(name, value, "a list of strings")


def _wrong(name: str, value: object, expected: str) -> OptionError:
    return OptionError(f"format_options={{{name!r}: {value!r}}}: expected {expected}.")


class Dialect:
    """How a file's rows and fields are told apart.

    Attributes:
        options: as given.
        skip: whether bad lines are left out.
        one_line: whether a row must not exceed a line.
    """

    def __init__(self, path: str, options: CsvOptions) -> None:
        self.options = options
        self.skip = options.on_bad_lines == "skip"
        self.one_line = not options.newlines_in_values
        tabs = ".tsv" in [suffix.lower() for suffix in PurePosixPath(path.partition("?")[0]).suffixes[-2:]]
        self._delimiter = options.delimiter or ("\t" if tabs else ",")
        self._row = _row_pattern(self._delimiter, options.quote_char, options.escape_char, self.one_line)

    def is_open(self, row: bytes) -> bool:
        """Whether the row ends within quotes."""
        found = self._row.match(row)
        return found is not None and found["open"] is not None

    def rows(self, lines: bytes) -> Iterator[tuple[Row, int]]:
        """The rows of whole lines that are not blank, each with where the next one begins.

        A row that must not exceed a line ends at its newline, even within quotes.
        """
        at = line = 0
        while at < len(lines):
            found = self._row.match(lines, at)
            assert found is not None, "every text begins with a row"
            text, at = found["row"], found.end()
            if text:
                yield Row(line, text), at
            line += len(_LINE_END.findall(found[0]))

    def first_row(self, head: text.Head) -> tuple[Row, int] | None:
        """The first row of a text, and where the next one begins; reads on until it ends. None if there is none."""
        while True:
            found = next(self.rows(head.text[head.start :]), None)
            if head.whole or (found and found[1] + head.start < len(head.text)):
                return found and (found[0], found[1] + head.start)
            head.grow()

    def first_rows(self, head: text.Head, start: int) -> bytes:
        """The rows from byte `start` on that are whole; reads on until there is one."""
        while True:
            lines = head.lines(start)
            if not (head.whole or self.one_line):
                ends = [end for _, end in self.rows(lines)]
                lines = lines[: ends[-2]] if len(ends) > 1 else b""  # the last one may go on
            if head.whole or lines.strip(b"\r\n"):
                return lines
            head.grow()

    def names(self, row: bytes) -> list[str]:
        """The names of the columns, from the first row.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        row.decode()
        read = pacsv.ReadOptions(
            use_threads=False, block_size=len(row) + 2, autogenerate_column_names=not self.options.header
        )
        table = pacsv.read_csv(pa.BufferReader(row + b"\n"), read_options=read, parse_options=self.parse_options(None))
        names: list[str] = table.column_names
        return names

    def inferred(self, lines: pa.Buffer, names: Sequence[str]) -> pa.Schema:
        """The columns of sound rows, with the types that pyarrow finds; bad rows are left out."""
        options = self.parse_options(lambda row: "skip")
        schema: pa.Schema = pacsv.read_csv(
            pa.BufferReader(lines),
            read_options=read_options(lines.size, names),
            parse_options=options,
            convert_options=self.convert_options({}, []),
        ).schema
        return schema

    def parse_options(self, on_bad: Callable[[Any], str] | None) -> pacsv.ParseOptions:
        """Options of pyarrow's reader, with what to do about rows of too many or too few fields."""
        return pacsv.ParseOptions(
            delimiter=self._delimiter,
            quote_char=self.options.quote_char or False,
            escape_char=self.options.escape_char or False,
            newlines_in_values=not self.one_line,
            invalid_row_handler=on_bad,
        )

    def convert_options(self, types: dict[str, pa.DataType], columns: Sequence[str]) -> pacsv.ConvertOptions:
        """Options of pyarrow's reader for these columns (all, if there are none)."""
        nulls = self.options.null_values
        return pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(columns),
            decimal_point=self.options.decimal_point,
            strings_can_be_null=nulls is not None,
            **({} if nulls is None else {"null_values": list(nulls)}),
        )


def read_options(size: int, names: Sequence[str]) -> pacsv.ReadOptions:
    """Options of pyarrow's reader for a text of `size` bytes without names: one block, in the calling thread."""
    return pacsv.ReadOptions(use_threads=False, block_size=min(size + 1, _MOST_BLOCK), column_names=list(names))


def _row_pattern(delimiter: str, quote: str, escape: str, one_line: bool) -> re.Pattern[bytes]:
    """A pattern of a row and its end, with the groups "row" and, if it ends within quotes, "open"."""
    d, q, e = (re.escape(mark.encode()) for mark in (delimiter, quote, escape))
    no_end = b"\\n" if one_line else b""
    escaped = b"|" + e + (b"[^\\n]" if one_line else b".") + b"?+" if escape else b""
    field = b"(?:[^" + d + e + b"\\r\\n]++" + escaped + b")*+"
    opened = b"(?P<open>(?!))?"
    if quote:
        inside = q + b"(?:[^" + q + e + no_end + b"]++|" + q + q + escaped + b")*+"
        opened = b"(?P<open>" + inside + b")"
        field = b"(?:" + inside + q + field + b"|(?!" + q + b")" + field + b")"
    row = b"(?P<row>(?:" + field + d + b")*+(?:" + field + b"|" + opened + b"))"
    return re.compile(row + b"(?:\\r\\n|\\n|\\r|\\Z)", re.DOTALL)


class CsvParser:
    """Parses lines without names; a `Parser`.

    Args:
        dialect: of the file.
        names: of all its columns.
        schema: those that may be asked for, with the types wanted.
    """

    def __init__(self, dialect: Dialect, names: Sequence[str], schema: pa.Schema) -> None:
        self._dialect, self._names = dialect, names
        self._wanted = {field.name: field.type for field in schema}
        self._read_as = {name: _read_as(kind) for name, kind in self._wanted.items()}

    def parse(self, lines: pa.Buffer, columns: Sequence[str]) -> tuple[pa.Table, list[int]]:
        """The rows, without those of too many or too few fields if bad lines are left out."""
        if not self._dialect.skip:
            return self._parsed(lines, columns), []
        bad: list[int] = []

        def note(row: Any) -> str:
            bad.append(row.number - 1)
            return "skip"

        return self._parsed(lines, columns, note, bad), bad

    def parse_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
        """The rows; any bad one is an error."""
        return self._parsed(pa.py_buffer(b"\n".join([*(row.text for row in rows), b""])), columns)

    def rows(self, lines: bytes) -> list[Row]:
        """The rows of whole lines; blank lines are none."""
        return [row for row, _ in self._dialect.rows(lines)]

    def fault(self, row: bytes, columns: Sequence[str]) -> Fault | None:
        """Why a row cannot be read: a quote left open, its number of fields, or a value that does not fit."""
        if self._dialect.is_open(row):
            advice = ", or with newlines in it give format_options={'newlines_in_values': True}"
            return Fault(
                f"a quoted value does not end on this line: {shown(row)}. Close the quote"
                f"{advice if self._dialect.one_line else ''}; give format_options={{'quote_char': ''}} if quotes have "
                "no meaning.",
                fatal=True,
            )
        found: list[Fault] = []

        def note(invalid: Any) -> str:
            found.append(
                Fault(
                    f"has {invalid.actual_columns} fields, where {invalid.expected_columns} are expected: {shown(row)}."
                    " Give another delimiter, or on_bad_lines='skip' to leave such lines out (format_options=)."
                )
            )
            return "skip"

        table = self._read(pa.py_buffer(row + b"\n"), dict.fromkeys(columns, pa.binary()), note)
        if found:
            return found[0]
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
    ) -> pa.Table:
        """The rows of whole lines, as the types wanted; `bad` is what `on_bad` has noted, when it is done."""
        table = self._read(lines, {name: self._read_as[name] for name in columns}, on_bad)
        if self._dialect.options.quote_char and self._ends_within_quotes(lines, table.num_rows + len(bad)):
            raise ValueError("a quoted value holds a newline")
        wanted = pa.schema([(name, self._wanted[name]) for name in columns])
        return table if table.schema.equals(wanted) else table.cast(wanted)

    def _read(self, lines: pa.Buffer, types: dict[str, pa.DataType], on_bad: Callable[[Any], str] | None) -> pa.Table:
        return pacsv.read_csv(
            pa.BufferReader(lines),
            read_options=read_options(lines.size, self._names),
            parse_options=self._dialect.parse_options(on_bad),
            convert_options=self._dialect.convert_options(types, list(types)),
        )

    def _ends_within_quotes(self, lines: pa.Buffer, rows: int) -> bool:
        """Whether some row of `lines` ends within quotes, given how many pyarrow found.

        pyarrow lets a quoted value run on over newlines and to the end of the text: it then finds fewer rows than
        there are lines, or a last line that ends within quotes. A row that may exceed a line must only end.
        """
        found = np.frombuffer(lines, np.uint8)
        quotes, newlines, lone_returns = _marks(found, ord(self._dialect.options.quote_char))
        if not quotes or (not self._dialect.one_line and quotes % 2 == 0):
            return False
        if self._dialect.one_line and not lone_returns:
            count = newlines + int(found[-1] != _NEWLINE)
            if rows == count or rows == count - _blank_lines(found):
                return self._dialect.is_open(_last_line(lines))
        return any(self._dialect.is_open(row.text) for row in self.rows(lines.to_pybytes()))


def _marks(text: npt.NDArray[np.uint8], quote: int) -> tuple[int, int, int]:
    """How many quotes, newlines, and carriage returns without a newline there are."""
    quotes = newlines = lone = 0
    for at in range(0, len(text), _WINDOW):  # in the processor's cache
        window = text[at : at + _WINDOW]
        newline, returns = window == _NEWLINE, window == _RETURN
        quotes += int(np.count_nonzero(window == quote))
        newlines += int(np.count_nonzero(newline))
        if returns.any():
            after = text[at + 1 : at + 1 + _WINDOW] == _NEWLINE
            lone += int(np.count_nonzero(returns)) - int(np.count_nonzero(returns[: len(after)] & after))
    return quotes, newlines, lone


def _blank_lines(text: npt.NDArray[np.uint8]) -> int:
    """Lines without content, of a text where carriage returns are followed by newlines."""
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
    """The type that pyarrow's reader of CSV knows, from which values are cast to `kind`."""
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal(kind) and not pt.is_decimal128(kind):
        return pa.decimal128(min(kind.precision, 38), kind.scale)
    if pt.is_dictionary(kind):
        return pa.dictionary(pa.int32(), _read_as(kind.value_type))
    return kind
