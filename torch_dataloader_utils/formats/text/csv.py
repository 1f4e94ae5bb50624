"""CSV: a segment is a byte range; without quoted newlines, each of its lines is a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from torch_dataloader_utils.errors import Example, OptionError, SchemaMismatchError, use
from torch_dataloader_utils.formats.text.csv_dialect import CsvOptions, Dialect, as_utf8, is_utf8, read_options
from torch_dataloader_utils.formats.text.errors import BadLines, Fault, Row, cited, misfit, parsed
from torch_dataloader_utils.formats.text.format import TextFormat
from torch_dataloader_utils.formats.text.limits import LongLine
from torch_dataloader_utils.formats.text.plan import Head, TextPlan, longest_line
from torch_dataloader_utils.formats.text.whole_numbers import is_rounded, may_round
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.printing import shortened, shown
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import damaged

# Parses lines of CSV to columns with pyarrow's reader.


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
                    f"has {invalid.actual_columns} fields, expected {invalid.expected_columns}: {cited(row)}. "
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


_DELIMITERS = (",", ";", "\t", "|")
_COMPARED_ROWS = 100
_SHOWN = 80  # characters of a header in an error


class CsvFormat(TextFormat):
    """The CSV format."""

    name = "csv"
    options = MappingProxyType({option.name: option.default for option in fields(CsvOptions)})

    def plan(self, path: str, head: Head, options: Mapping[str, Any]) -> tuple[TextPlan, pa.Schema]:
        """The plan with the names from the first line, and a schema with types that fit the first lines."""
        chosen = CsvOptions(**options)
        dialect = Dialect(path, chosen)
        first = dialect.first_row(head)
        if first is None:
            names = tuple(chosen.column_names or ())
            return TextPlan(0, names=names), pa.schema([(name, pa.null()) for name in names])
        row, stop = first
        names = _names(path, row, dialect)
        start = stop if chosen.header else head.start
        lines = dialect.first_rows(head, start)
        if len(names) == 1 and chosen.header and chosen.delimiter is None and chosen.column_names is None:
            _check_one_column(path, row, lines, chosen)
        try:
            schema = _inferred(path, lines, names, dialect, head.text[:start].count(b"\n"))
        except LongLine as error:
            raise LongLine(start + error.offset) from error
        plan = TextPlan(
            size=0 if head.whole and not lines.strip(b"\r\n") else head.size,
            start=start,
            step=0 if chosen.newlines_in_values else self.range_bytes,
            tail=longest_line(lines),
            names=names,
            kind="rows" if chosen.newlines_in_values else "lines",
            codec=head.codec,
            encoding=chosen.encoding,
        )
        return plan, schema

    def parser(
        self, path: str, plan: TextPlan, options: Mapping[str, Any], schema: pa.Schema
    ) -> tuple[CsvParser, pa.Schema]:
        """A parser of the file's lines, and the requested columns that it has, or else its first column."""
        known = set(plan.names)
        given = pa.schema([field for field in schema if field.name in known])
        if not len(given) and plan.names:  # so that rows can be counted
            given = pa.schema([(plan.names[0], pa.binary())])
        return CsvParser(Dialect(path, CsvOptions(**options)), plan.names, given, declared=self.declared), given


FORMAT = CsvFormat()


def _names(path: str, row: Row, dialect: Dialect) -> tuple[str, ...]:
    """The names of the columns, in order.

    Raises:
        DamagedFileError: the first row ends within quotes, or is not UTF-8.
        SchemaMismatchError: two columns have the same name.
    """
    where, options = f"{printable(path)}, line {row.line + 1}", dialect.options
    if unclosed := dialect.unclosed(row.text):
        raise damaged(path, f"{where}: {unclosed}")
    try:
        header = dialect.names(row.text)
    except UnicodeDecodeError as error:
        raise damaged(
            path,
            f"{where}, byte {error.start}: is not UTF-8. Set format_options={{'encoding': ...}}, if it is a text file "
            "at all.",
        ) from error
    names = tuple(header if options.column_names is None else options.column_names)
    if len(names) != len(header):
        raise OptionError(f"{where}: has {len(header)} fields, but column_names has {len(names)} names.")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        others = Example("[...]", [f"f{place}" for place in range(len(names))])
        raise SchemaMismatchError(
            f"{where}: more than one column is called {name!r}, but names must be unique.",
            remedies=[
                use("replaces the names in the first line", format_options=options.but(column_names=others)),
                use("if the first line is a row", format_options=options.but(header=False)),
            ],
        )
    return names


def _check_one_column(path: str, header: Row, lines: bytes, chosen: CsvOptions) -> None:
    """Check that no other delimiter separates the header and the first rows into equally many fields.

    Raises:
        OptionError: one does, so the file has more columns than the one that would be read.
    """
    for mark in _DELIMITERS:
        dialect = Dialect(path, replace(chosen, delimiter=mark))
        expected = _count(dialect, header)
        if expected < 2:
            continue
        rows = [row for row, _ in islice(dialect.rows(lines), _COMPARED_ROWS)]
        if rows and all(_count(dialect, row) == expected for row in rows):
            raise OptionError(
                f"{printable(path)}: one column, {_shown(header)}, was found, but {mark!r} separates the header and "
                f"the rows after it into {expected} fields.",
                remedies=[
                    use(format_options=chosen.but(delimiter=mark)),
                    use("if it is one column", format_options=chosen.but(delimiter=Dialect(path, chosen).delimiter)),
                ],
            )


def _count(dialect: Dialect, row: Row) -> int:
    """The number of fields of a row; 0 if it ends within quotes."""
    return 0 if dialect.is_open(row.text) else len(dialect.names(as_utf8(row.text)))


def _shown(header: Row) -> str:
    return shown(shortened(as_utf8(header.text).decode(), _SHOWN))


def _inferred(path: str, lines: bytes, names: tuple[str, ...], dialect: Dialect, before: int) -> pa.Schema:
    """The columns with the types that pyarrow infers from these lines, after checking their rows.

    Raises:
        DamagedFileError: a row has too many or too few fields, or a quoted newline; the message names file and line.
    """
    content = pa.py_buffer(lines)
    if not lines.strip(b"\r\n"):
        return pa.schema([(name, pa.null()) for name in names])
    plain = CsvParser(dialect, names, pa.schema([(name, pa.binary()) for name in names]))
    parsed(plain, content, names, BadLines(path, dialect.skip, lambda: before), note=False)
    inferred = dialect.inferred(content, names)
    # pyarrow infers bytes for values that are not UTF-8: here they are an error on reading, unless schema= says bytes.
    return pa.schema([field.with_type(pa.string()) if pt.is_binary(field.type) else field for field in inferred])
