"""Rows with names: the columns `_file` and `_pos` of files, and the codes of the files' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from torch_dataloader_utils.convert.buffers import unencoded
from torch_dataloader_utils.convert.converter import Converter, build_converter
from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.filters.facts import can_be_true
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.options import Options, ReadOptions
from torch_dataloader_utils.options.by_column import with_leaf
from torch_dataloader_utils.options.sources import FILE, POSITION
from torch_dataloader_utils.options.strings import Codes
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.reading.row_names import FILE_FIELD, POSITION_FIELD, NumberedOpener
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.schemas.merge import is_text
from torch_dataloader_utils.storage import Storage

_FIELDS = {FILE: FILE_FIELD, POSITION: POSITION_FIELD}


def file_name(path: str, storage: Storage) -> str:
    """The name of a file: its absolute path, or its URL, without secrets; bytes that are no text are escaped."""
    if storage.local:
        return path.encode("utf-8", "backslashreplace").decode()
    return redacted(path if "://" in path else f"{storage.protocol}://{path}")


def named_schema(schema: pa.Schema, added: Sequence[str]) -> pa.Schema:
    """The columns of files, followed by those of these that name rows.

    Raises:
        OptionError: the files have a column of such a name.
    """
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


def with_matching(file: DataFile, expression: pc.Expression, schema: pa.Schema) -> DataFile:
    """The file with only the segments in which, by the numbers of their rows, one can match; opens no file.

    Args:
        file: the file, with the values of its partition columns, and its name.
        expression: a filter on such columns and `_pos`, perhaps among others.
        schema: all columns.
    """
    constants, segments = list(_constants(file, schema)), file.layout.segments
    kept = (one for one in segments if can_be_true(expression, [*constants, *_numbers(one)], schema))
    return replace(file, layout=replace(file.layout, segments=tuple(kept)))


def _constants(file: DataFile, schema: pa.Schema) -> Iterator[pc.Expression]:
    for name, value in file.partition:
        if name in schema.names and value is not None and not pa.types.is_floating(schema.field(name).type):
            yield pc.field(name) == pa.scalar(value, schema.field(name).type)


def _numbers(segment: Segment) -> Iterator[pc.Expression]:
    """What is known of the numbers of a segment's rows."""
    if segment.rows is not None:
        yield pc.field(POSITION) >= segment.first_row
        yield pc.field(POSITION) < segment.first_row + segment.rows


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
