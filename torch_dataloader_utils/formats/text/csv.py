"""CSV: a segment is a byte range; without quoted newlines, each of its lines is a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import Example, OptionError, SchemaMismatchError, use
from torch_dataloader_utils.formats.text.csv_dialect import CsvOptions, Dialect, as_utf8
from torch_dataloader_utils.formats.text.csv_parser import CsvParser
from torch_dataloader_utils.formats.text.errors import BadLines, Row, parsed
from torch_dataloader_utils.formats.text.format import TextFormat
from torch_dataloader_utils.formats.text.limits import LongLine
from torch_dataloader_utils.formats.text.plan import Head, TextPlan, longest_line
from torch_dataloader_utils.printing import shortened, shown
from torch_dataloader_utils.storage import damaged, printable

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
