"""The manifest: every file with its layout, one schema over all, and nothing that a filter rules out at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.distributed.peers import Peers
from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError
from torch_dataloader_utils.filters.arrow import as_expression
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.schemas.merge import check_schema, guessed_schema, merge_types, resolve_schema
from torch_dataloader_utils.sources.files import (
    AnyPath,
    FoundFile,
    detect_format,
    find_files,
    open_entries,
    partition_values,
)
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.sources.manifest_file import (
    Asked,
    Inspected,
    InspectedFile,
    asked_of,
    kept_inspection,
    stale_remedy,
)
from torch_dataloader_utils.storage import Storage, printable


@dataclass(frozen=True)
class Pruned:
    """How much the filter ruled out before reading: counts before and after it."""

    files_before: int
    files_after: int
    segments_before: int
    segments_after: int


@dataclass(frozen=True)
class FileManifest:
    """What is read; picklable.

    Attributes:
        files: those with segments to read, in order.
        schema: one type per column over all files; columns that come from folder names alone are the last.
        partition_names: columns that come from folder names (their values are in `DataFile.partition`).
        storage: where the files are.
        opener: opens them.
        pruned: what the filter ruled out.
        file_count: files found, empty and pruned ones included.
        has_rows: whether a file may hold rows, before the filter.
        null_evidence: columns (nested ones as `parent.child`) that hold nulls for certain, each with a file's path, and
            that it has no such column, where that is why.
        format_options: of the format.
        predicate: which rows are read, over the columns of `schema`; None for all.
        origin: what the files were found by, where they do not tell: a snapshot.
    """

    files: tuple[DataFile, ...]
    schema: pa.Schema
    partition_names: tuple[str, ...]
    storage: Storage
    opener: FileOpener
    pruned: Pruned
    file_count: int
    has_rows: bool
    null_evidence: Mapping[str, str] = field(repr=False)
    format_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    predicate: pc.Expression | None = None
    origin: str = ""


@dataclass(frozen=True)
class _Footer:
    """One file as its footer and its path tell."""

    file: InspectedFile
    texts: Mapping[str, str | None]

    @property
    def layout(self) -> FileLayout:
        return self.file.layout

    @property
    def schema(self) -> pa.Schema:
        return self.file.schema


def build_manifest(
    path: AnyPath | Sequence[AnyPath], read: ReadOptions, num_ranks: int | None = None, peers: Peers | None = None
) -> FileManifest:
    """The manifest of the files at `path`: lists them, reads each footer once, prunes by `read.filters`.

    With `read.manifest`, what that file holds is taken instead; the first of `peers` does it for all.

    Raises:
        DataNotFoundError: there are no data files.
        FileReadError: a file is not of the format, or damaged: names it.
        SchemaMismatchError: the files' columns do not fit together.
        ColumnNotFoundError: a filter, or `schema=`, names a column that no file has.
        OptionError: files of no or several formats, or a filter that cannot work.
    """
    storage, inspected = _inspected(path, read, num_ranks, peers)
    form = format_named(inspected.format)
    texts = partition_values(inspected.files, read.partitioning)
    footers = [_Footer(file, values) for file, values in zip(inspected.files, texts, strict=True)]
    schema, partition_names = _schema(footers, read, form.typed)
    before = [_data_file(footer, schema, partition_names) for footer in footers]
    predicate = _predicate(read.filters, schema)
    after = _prune(form, footers, before, schema, predicate)
    return FileManifest(
        files=tuple(file for file in after if file.layout.segments),
        schema=schema,
        partition_names=partition_names,
        storage=storage,
        opener=form,
        pruned=pruned_counts(before, after),
        file_count=len(footers),
        has_rows=any(footer.layout.segments for footer in footers),
        null_evidence=_null_evidence(form, footers, after, schema),
        format_options=dict(read.format_options or {}),
        predicate=predicate,
    )


def _inspected(
    path: AnyPath | Sequence[AnyPath], read: ReadOptions, num_ranks: int | None, peers: Peers | None
) -> tuple[Storage, Inspected]:
    """What the manifest file, or else listing and footers tell."""
    if read.manifest is None:
        storage, found = find_files(path, read)
        return storage, _inspect(storage, found, read)

    def ask() -> Asked:
        storage, entries = open_entries(path, read)
        return asked_of(entries, storage, read.format, read.format_options or {})

    inspected = kept_inspection(
        read.manifest, read, ask, lambda: _inspect(*find_files(path, read), read), num_ranks, peers
    )
    storage, _ = open_entries(path, read)
    return replace(storage, remedy=stale_remedy(read.manifest)), inspected


def _inspect(storage: Storage, found: Sequence[FoundFile], read: ReadOptions) -> Inspected:
    form = detect_format(storage, found, read.format)
    options = checked_options(form, read.format_options)

    def inspect(file: FoundFile) -> InspectedFile:
        layout, schema = form.layout(DataFileInfo(file.path, file.size, version=file.version), storage, options)
        return InspectedFile(file.path, file.size, file.relative, file.version, layout, schema)

    return Inspected(form.name, tuple(read_footers(storage, inspect, found)))


def _data_file(footer: _Footer, schema: pa.Schema, partition_names: Sequence[str]) -> DataFile:
    file, layout = footer.file, footer.layout
    values = tuple((name, _typed(footer.texts[name], schema.field(name), file.path)) for name in partition_names)
    return DataFile(DataFileInfo(file.path, file.size, layout.row_count, version=file.version), layout, values)


# ----------------------------------------------------------------------------------------------------------- schema


def _schema(footers: Sequence[_Footer], read: ReadOptions, typed: bool) -> tuple[pa.Schema, tuple[str, ...]]:
    """The schema over all files, and which of its columns come from folder names.

    A folder's value takes precedence over a column of that name in the files, whose type and place it then takes.
    """
    # Once per schema object: files from a manifest share them, and thousands of equal ones take long to compare.
    distinct: dict[int, _Footer] = {}
    for footer in footers:
        distinct.setdefault(id(footer.schema), footer)
    files = [(printable(footer.file.path), footer.schema) for footer in distinct.values()]
    keys = list(footers[0].texts)
    if read.schema is not None:
        # What text was guessed to be is no matter: it is read as the types declared.
        schema = check_schema(read.schema, files if typed else ())
        _reject_unknown(schema, {*keys, *(name for _, found in files for name in found.names)})
        return schema, tuple(key for key in keys if key in schema.names)
    schema = resolve_schema(files, merge_types) if typed else guessed_schema(files)
    for key in keys:
        if key not in schema.names:
            schema = schema.append(pa.field(key, _partition_type([footer.texts[key] for footer in footers])))
    return schema, tuple(keys)


def _reject_unknown(schema: pa.Schema, known: set[str]) -> None:
    for name in schema.names:
        if name not in known:
            raise ColumnNotFoundError(f"schema= has a column {name!r} that no file has: there are {sorted(known)}.")


def _partition_type(texts: Iterable[str | None]) -> pa.DataType:
    """int32 or int64 where all values are whole numbers that fit, else string (as pyarrow and Spark infer)."""
    numbers = []
    for text in texts:
        if text is None:
            continue
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            return pa.string()
        numbers.append(int(text))
    bits = max((number if number >= 0 else ~number).bit_length() for number in numbers) if numbers else 64
    return pa.string() if bits > 63 or not numbers else pa.int64() if bits > 31 else pa.int32()


def _typed(text: str | None, column: pa.Field, path: str) -> Any:
    """The value of a folder's text in its column's type.

    Raises:
        SchemaMismatchError: it has none.
    """
    try:
        return pa.scalar(text, pa.string()).cast(column.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"{printable(path)}: the folder {column.name}={text} has no value for a column of type {column.type}. "
            "Pass partitioning=None to ignore folder names, or schema= with another type."
        ) from error


# ---------------------------------------------------------------------------------------------------------- pruning


def _predicate(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters` as an expression over the columns of `schema`."""
    if isinstance(filters, str) or type(filters).__module__.startswith("pyiceberg."):
        from torch_dataloader_utils.filters.sql import rows_expression  # needs an extra, and a second to import

        return rows_expression(filters, schema)
    return as_expression(filters, schema)


def _prune(
    form: Format,
    footers: Sequence[_Footer],
    files: Sequence[DataFile],
    schema: pa.Schema,
    predicate: pc.Expression | None,
) -> list[DataFile]:
    """The files with the segments in which a row can match; some may have none left."""
    if predicate is None:
        return list(files)
    prune = form.pruner(predicate, schema)
    return [
        replace(file, layout=prune(file.layout, footer.schema, dict(file.partition)))
        for file, footer in zip(files, footers, strict=True)
    ]


def pruned_counts(before: Sequence[DataFile], after: Sequence[DataFile]) -> Pruned:
    """How much was ruled out from one to the other."""

    def counts(files: Sequence[DataFile]) -> tuple[int, int]:
        return sum(bool(file.layout.segments) for file in files), sum(len(file.layout.segments) for file in files)

    (files_before, segments_before), (files_after, segments_after) = counts(before), counts(after)
    return Pruned(files_before, files_after, segments_before, segments_after)


def _null_evidence(
    form: Format, footers: Sequence[_Footer], files: Sequence[DataFile], schema: pa.Schema
) -> dict[str, str]:
    found: dict[str, str] = {}
    names = frozenset(schema.names)
    for footer, file in zip(footers, files, strict=True):
        if not file.layout.segments:
            continue
        constants = dict(file.partition)
        absent = names.difference(footer.schema.names, constants)
        empty = {name for name, value in constants.items() if value is None}
        in_file = {name for name in form.null_columns(file.layout) if name not in constants}
        for name in sorted(absent | empty | in_file):
            found.setdefault(name, f"{file.info.path}, which has no such column" if name in absent else file.info.path)
    return found
