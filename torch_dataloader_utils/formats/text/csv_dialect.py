"""How rows and fields of CSV are separated: its options, and the corresponding ones of pyarrow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats import possessive
from torch_dataloader_utils.formats.text.errors import Row, cited
from torch_dataloader_utils.formats.text.limits import MOST_LINE_BYTES
from torch_dataloader_utils.formats.text.plan import Head
from torch_dataloader_utils.formats.text.whole_numbers import with_unsigned

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MOST_BLOCK = 2**30  # maximum bytes that pyarrow parses as one block


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """The `format_options` of CSV.

    Attributes:
        delimiter: one character; None is a tab for .tsv, otherwise a comma.
        quote_char: the character around values with delimiters or quotes (doubled inside); "" for none.
        escape_char: the character before literal characters; "" for none.
        header: whether the first line contains the columns' names.
        column_names: names that replace these; without either, the names are f0, f1, ...
        null_values: texts that mean null, also in string columns; None uses pyarrow's list and never makes strings
            null.
        newlines_in_values: whether quoted values may contain newlines; if so, a file is read as one segment.
        on_bad_lines: "error", or "skip" to drop them.
        encoding: the text's encoding; if it is not UTF-8, a file is read as one segment.
        decimal_point: one character.
        max_line_bytes: a longer line is an error.
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
    max_line_bytes: int = MOST_LINE_BYTES

    def __post_init__(self) -> None:
        for name, least in (("delimiter", 1), ("quote_char", 0), ("escape_char", 0), ("decimal_point", 1)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and least <= len(value.encode()) <= 1):
                raise _wrong(name, value, "one ASCII character" + ("" if least else ' or ""'))
        for name in ("column_names", "null_values"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not all(isinstance(item, str) for item in value)):
                raise _wrong(name, value, "a list of strings")
        if repeated := [name for name, times in Counter(self.column_names or ()).items() if times > 1]:
            raise _wrong("column_names", self.column_names, f"names that differ, but {repeated[0]!r} is there again")

    def but(self, **changes: Any) -> dict[str, Any]:
        """The options that are not the default, with these changes: what to give as `format_options`."""
        given = {
            item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name) != item.default
        }
        return {**given, **changes}


def _wrong(name: str, value: object, expected: str) -> OptionError:
    return OptionError(f"format_options={{{name!r}: {value!r}}}: expected {expected}.")


class Dialect:
    """How a file's rows and fields are separated.

    Attributes:
        options: as given.
        delimiter: the character between values.
        skip: whether bad lines are skipped.
        one_line: whether each row must be a single line.
    """

    def __init__(self, path: str, options: CsvOptions) -> None:
        self.options = options
        self.skip = options.on_bad_lines == "skip"
        self.one_line = not options.newlines_in_values
        tabs = ".tsv" in [suffix.lower() for suffix in PurePosixPath(path.partition("?")[0]).suffixes[-2:]]
        self.delimiter = options.delimiter or ("\t" if tabs else ",")
        self._row = _row_pattern(self.delimiter, options.quote_char, options.escape_char, self.one_line)

    def is_open(self, row: bytes) -> bool:
        """Whether the row ends within quotes."""
        match = self._row.match(row)
        return match is not None and match["open"] is not None

    def unclosed(self, row: bytes) -> str | None:
        """What is wrong with a row that ends within quotes, and what to do; None for other rows."""
        if not self.is_open(row):
            return None
        advice = ", or set format_options={'newlines_in_values': True} if values contain newlines"
        return (
            f"a quoted value does not end on this line: {cited(row)}. Close the quote"
            f"{advice if self.one_line else ''}, or set format_options={{'quote_char': ''}} if quotes have no special "
            "meaning."
        )

    def rows(self, lines: bytes) -> Iterator[tuple[Row, int]]:
        """The rows of whole lines that are not blank, each with the offset of the next row.

        If each row must be a single line, it ends at the newline, even within quotes.
        """
        at = line = 0
        while at < len(lines):
            match = self._row.match(lines, at)
            assert match is not None, "every text begins with a row"
            text, at = match["row"], match.end()
            if text:
                yield Row(line, text), at
            line += len(_LINE_END.findall(match[0]))

    def first_row(self, head: Head) -> tuple[Row, int] | None:
        """The first row of a text and the offset of the next, or None; reads until the row is complete."""
        while True:
            first = next(self.rows(head.text[head.start :]), None)
            if head.whole or (first and first[1] + head.start < len(head.text)):
                return first and (first[0], first[1] + head.start)
            head.grow()

    def first_rows(self, head: Head, start: int) -> bytes:
        """The complete rows from byte `start` on; reads until there is at least one."""
        while True:
            lines = head.lines(start)
            if not (head.whole or self.one_line):
                ends = [end for _, end in self.rows(lines)]
                lines = lines[: ends[-2]] if len(ends) > 1 else b""  # the last one may be incomplete
            if head.whole or lines.strip(b"\r\n"):
                return lines
            head.grow()

    def names(self, row: bytes) -> list[str]:
        """The names of the columns, from the first row.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        text = row.decode()
        if self.options.header and not any(
            mark in text for mark in (self.options.quote_char, self.options.escape_char) if mark
        ):
            return text.split(self.delimiter)  # a table of a million columns would take half a gigabyte
        read = pacsv.ReadOptions(
            use_threads=False, block_size=len(row) + 2, autogenerate_column_names=not self.options.header
        )
        table = pacsv.read_csv(pa.BufferReader(row + b"\n"), read_options=read, parse_options=self.parse_options(None))
        names: list[str] = table.column_names
        return names

    def inferred(self, lines: pa.Buffer, names: Sequence[str]) -> pa.Schema:
        """The columns with the types that pyarrow infers from the good rows; bad rows are skipped."""
        options = self.parse_options(lambda row: "skip")
        text = lines if is_utf8(lines) else pa.py_buffer(as_utf8(lines.to_pybytes()))

        def read(types: dict[str, pa.DataType]) -> pa.Table:
            return pacsv.read_csv(
                pa.BufferReader(text),
                read_options=read_options(text.size, names),
                parse_options=options,
                convert_options=self.convert_options(types, list(types)),
            )

        def fits(name: str, kind: pa.DataType) -> bool:
            try:
                read({name: kind})
            except pa.ArrowInvalid:
                return False
            return True

        return with_unsigned(read({}), fits)

    def first_long_row(self, lines: bytes) -> int | None:
        """The offset of the first row that exceeds the limit, or None."""
        at = 0
        for row, end in self.rows(lines):
            if len(row.text) > self.options.max_line_bytes:
                return lines.index(row.text[:1], at)
            at = end
        return None

    def parse_options(self, on_bad: Callable[[Any], str] | None) -> pacsv.ParseOptions:
        """Parse options for pyarrow's reader, with a handler for rows with too many or too few fields.

        pyarrow cannot call the handler for rows that are not UTF-8: it prints that, and refuses the whole text.
        """
        return pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.options.quote_char or False,
            escape_char=self.options.escape_char or False,
            newlines_in_values=not self.one_line,
            invalid_row_handler=on_bad,
        )

    def convert_options(self, types: dict[str, pa.DataType], columns: Sequence[str]) -> pacsv.ConvertOptions:
        """Convert options for pyarrow's reader and these columns (all columns, if none are given)."""
        nulls = self.options.null_values
        return pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(columns),
            decimal_point=self.options.decimal_point,
            strings_can_be_null=nulls is not None,
            **({} if nulls is None else {"null_values": list(nulls)}),
        )


def read_options(size: int, names: Sequence[str], block: int | None = None) -> pacsv.ReadOptions:
    """Read options for pyarrow's reader and a text of `size` bytes without names, in the calling thread.

    The text is parsed as one block, or else in blocks of so many bytes.
    """
    bytes_of_block = min(block or size + 1, _MOST_BLOCK)
    return pacsv.ReadOptions(use_threads=False, block_size=bytes_of_block, column_names=list(names))


def is_utf8(text: pa.Buffer) -> bool:
    """Whether the text is UTF-8."""
    offsets = pa.py_buffer(np.array([0, text.size]))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, text).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def as_utf8(text: bytes) -> bytes:
    """The text with the replacement character for bytes that are not UTF-8; rows and fields stay the same."""
    return text.decode(errors="replace").encode()


def _row_pattern(delimiter: str, quote: str, escape: str, one_line: bool) -> re.Pattern[bytes]:
    """A pattern for a row and its line end, with the groups "row" and, if it ends within quotes, "open"."""
    d, q, e = (re.escape(mark.encode()) for mark in (delimiter, quote, escape))
    no_end = b"\\n" if one_line else b""
    escaped = b"|" + e + (b"[^\\n]" if one_line else b".") + b"?+" if escape else b""
    field = b"(?:[^" + d + e + b"\\r\\n]++" + escaped + b")" + possessive.MANY
    opened = b"(?P<open>(?!))?"
    if quote:
        inside = q + b"(?:[^" + q + e + no_end + b"]++|" + q + q + escaped + b")" + possessive.MANY
        opened = b"(?P<open>" + inside + b")"
        field = b"(?:" + inside + q + b"(?!" + q + b")" + field + b"|(?!" + q + b")" + field + b")"
    row = b"(?P<row>(?:" + field + d + b")" + possessive.MANY + b"(?:" + field + b"|" + opened + b"))"
    return re.compile(row + b"(?:\\r\\n|\\n|\\r|\\Z)", re.DOTALL)
