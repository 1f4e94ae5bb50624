"""Rows with names: the columns `_file` and `_pos` of files, and the codes of the files' names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import unencoded
from torch_dataloader_utils.convert.converter import Converter, build_converter
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, leave_out, use
from torch_dataloader_utils.filters.arrow import filter_columns
from torch_dataloader_utils.filters.facts import can_be_true, is_value
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.options import Options, ReadOptions
from torch_dataloader_utils.options.by_column import with_leaf
from torch_dataloader_utils.options.sources import FILE, POSITION, SHARES
from torch_dataloader_utils.options.strings import Codes
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.reading.row_names import FILE_FIELD, POSITION_FIELD, NumberedOpener
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.schemas.merge import is_text, plain_type
from torch_dataloader_utils.storage import Storage

_REMEMBERED = 1 << 16  # answers about segments
_FIELDS = {FILE: FILE_FIELD, POSITION: POSITION_FIELD, SHARES: pa.field(SHARES, pa.float32())}


def file_name(path: str, storage: Storage) -> str:
    """The name of a file: its absolute path, or its URL, without secrets; bytes that are no text are escaped."""
    if storage.local:
        return path.encode("utf-8", "backslashreplace").decode()
    return redacted(path if "://" in path else f"{storage.protocol}://{path}")


def check_asked(
    stored: Collection[str], columns: Sequence[str] | None, added: Sequence[str], known: Collection[str]
) -> None:
    """Check that columns which are to be added are not only among those that are asked for.

    Args:
        stored: the columns that there are.
        columns: those that are asked for.
        added: those that are to be added.
        known: all that can be.

    Raises:
        ColumnNotFoundError: one is.
    """
    for name in columns or ():
        if name in known and name not in stored and name not in added:
            raise ColumnNotFoundError(
                f"columns: {name!r} is not a column of the data but one that can be added: columns only gives it its "
                "place.",
                remedies=[use(metadata_columns=(*added, name))],
            )


def named_schema(schema: pa.Schema, read: ReadOptions) -> pa.Schema:
    """The columns of files, followed by those that are to name rows.

    Raises:
        OptionError: the files have a column of such a name.
        ColumnNotFoundError: such a column is asked for, but not to be added.
    """
    added = read.metadata_columns
    check_asked(schema.names, read.columns, added, _FIELDS)
    for name in added:
        if name in schema.names:
            rest = [each for each in added if each not in schema.names]
            raise OptionError(
                f"metadata_columns: {name!r} is a column of the files themselves.",
                remedies=[use(metadata_columns=rest) if rest else leave_out("metadata_columns")],
            )
    return pa.schema([*schema, *(_FIELDS[name] for name in added if name in _FIELDS)])


def check_added(schema: pa.Schema, added: Sequence[str], name: str) -> None:
    """Check that a table has these columns.

    Args:
        schema: its columns.
        added: those that are to name rows.
        name: of the table.

    Raises:
        OptionError: it has not.
    """
    for column in added:
        if column not in schema.names:
            raise OptionError(
                f"metadata_columns: {column!r}: {name} has no such column: what reads this table does not know the "
                "names of rows.",
                remedies=[leave_out("metadata_columns")],
            )


def named(file: DataFile, storage: Storage) -> DataFile:
    """The file with its name as the value of a partition column."""
    return replace(file, partition=(*file.partition, (FILE, file_name(file.info.path, storage))))


def numbered_opener(form: Format, read: ReadOptions) -> FileOpener:
    """What opens files of this format, with the numbers of their rows if these are asked for.

    Raises:
        OptionError: the options leave out rows, so that the others have no numbers.
    """
    if POSITION not in read.metadata_columns:
        return form
    given = dict(read.format_options or {})
    if not form.numbers_rows(given):
        rest = {name: value for name, value in given.items() if name != "on_bad_lines"}
        raise OptionError(
            f"metadata_columns: {POSITION!r} counts the rows of a file, but format_options={given} leaves some out.",
            remedies=[use(format_options=rest) if rest else leave_out("format_options")],
        )
    return NumberedOpener(form)


CanHold: TypeAlias = Callable[[Mapping[str, Any], Segment | None], bool]


def name_test(expression: pc.Expression | None, schema: pa.Schema, added: Collection[str]) -> CanHold | None:
    """Whether a row of a segment can match a filter that names rows; None if it does not.

    The function takes columns that have one value in all rows of a file, with it (None: null), and a segment as the
    file has it; None for all rows of the file. It may be wrong only by saying yes, and opens no file.

    Args:
        expression: the filter.
        schema: all columns.
        added: those that name rows.
    """
    needed = () if expression is None else filter_columns(expression, schema)
    if expression is None or not set(added).intersection(needed):
        return None
    kinds = {name: schema.field(name).type for name in needed}
    of_filter = pa.schema(kinds)

    @lru_cache(maxsize=_REMEMBERED)  # files of a writer often have equal segments
    def possible(values: tuple[tuple[str, Any], ...], first: int | None, rows: int | None) -> bool:
        facts = [is_value(pc.field(name), value, plain_type(kinds[name])) for name, value in values]
        if first is not None and rows is not None:
            facts += [pc.field(POSITION) >= first, pc.field(POSITION) < first + rows]
        return can_be_true(expression, facts, of_filter)

    def can_hold(values: Mapping[str, Any], segment: Segment | None) -> bool:
        # Zeros and NaNs of one partition may differ.
        known = ((name, values[name]) for name, kind in kinds.items() if name in values and not pt.is_floating(kind))
        numbered = segment is not None and POSITION in added and POSITION in kinds
        return possible(tuple(known), *((segment.first_row, segment.rows) if numbered and segment else (None, None)))

    return can_hold


def with_matching(file: DataFile, can_hold: CanHold) -> DataFile:
    """The file with only the segments in which a row can match."""
    values = dict(file.partition)
    kept = tuple(segment for segment in file.layout.segments if can_hold(values, segment))
    return replace(file, layout=replace(file.layout, segments=kept))


# The codes of names in tensors and arrays: the place of a file among all files, as they are read.


def converter_of(schema: pa.Schema, names: Sequence[str], options: Options) -> Converter:
    """The converter of these columns, with codes for the names of files, unless `strings` says what becomes of them.

    Args:
        schema: of the rows that are converted.
        names: of the files; empty if rows do not have them.
        options: of the loader.
    """
    convert, form = options.convert, options.batch.output_format
    asked = convert.strings if isinstance(convert.strings, Mapping) else {}
    text = FILE in schema.names and is_text(unencoded(schema.field(FILE).type)[0])  # a transform may replace it
    if not names or not text or FILE in asked:
        return build_converter(schema, convert, form)
    strings = with_leaf(convert.strings, "list", FILE, Codes(tuple(dict.fromkeys(names))))
    made = build_converter(schema, replace(convert, strings=strings), form)
    return made.with_codes({key: replace(leaf, extends=True) for key, leaf in made.codes.items() if key == FILE})
