"""The manifest: every file with its layout, one schema over all, without what the filter rules out up front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.distributed.exchange import Sharers
from torch_dataloader_utils.filters.arrow import as_expression, filter_columns
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.options.sources import FILE, POSITION
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.reading.places import FileKeys
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, LiveRows, Positions, live_file
from torch_dataloader_utils.sources.file_schema import files_schema, partition_constants
from torch_dataloader_utils.sources.files import AnyPath
from torch_dataloader_utils.sources.inspection import files_to_read
from torch_dataloader_utils.sources.manifest_file import Inspected, InspectedFile
from torch_dataloader_utils.sources.partition_filters import matching_files
from torch_dataloader_utils.sources.partitions import partition_values, without_partitions
from torch_dataloader_utils.sources.row_names import name_test, named, named_schema, numbered_opener, with_matching
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.storage.hub_client import commits


@dataclass(frozen=True)
class Pruned:
    """How much the filter ruled out before reading: counts before and after pruning."""

    files_before: int
    files_after: int
    segments_before: int
    segments_after: int


@dataclass(frozen=True)
class FileManifest:
    """What is read; picklable.

    Attributes:
        files: the files with segments to read, in order.
        schema: one type per column over all files; columns found only in folder names are last.
        partition_names: columns whose values are folder names (see `DataFile.partition`).
        storage: where the files are.
        opener: opens them.
        pruned: how much the filter ruled out.
        file_count: files found, including empty and pruned ones.
        has_rows: whether any file may have rows, before the filter.
        null_evidence: columns (nested ones as `parent.child`) that certainly contain nulls, each with the path of a
            file that proves it (and a note if that file lacks the column).
        missing: columns that some of `files` lack, each with the number of these files and the path of the first.
        format_options: options of the format.
        predicate: selects the rows to read, over the columns of `schema`; None for all.
        decided: whether it keeps all rows of `files`, because it is on partition columns alone.
        origin: identifies what the files were taken from if their names do not, such as a snapshot.
        skipped: damaged files that are left out.
        overruled: columns of files whose values provably differ from those of the folder names, which count, each with
            the path of such a file.
        unused_folders: why folders named `key=value` became no columns; "" if they did, were not to, or there are none.
        relative: path of a file -> its path below the folder that was given, for those found in one; None if the
            places of the data's rows do not last.
        row_key: a column that identifies a row wherever it is, if rows are chosen by it; replaces their places.
        hidden: columns of `schema` that are read, but not delivered.
        keys: of the files, if `schema` has the places of rows.
        names: of the files, pruned ones too, in order, if `schema` has them.
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
    missing: Mapping[str, tuple[int, str]] = field(default_factory=dict, repr=False)
    format_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    predicate: pc.Expression | None = None
    decided: bool = False
    origin: str = ""
    skipped: tuple[SkippedFile, ...] = ()
    overruled: Mapping[str, str] = field(default_factory=dict, repr=False)
    unused_folders: str = field(default="", repr=False)
    relative: Mapping[str, str] | None = field(default=None, repr=False)
    row_key: str | None = None
    hidden: tuple[str, ...] = ()
    keys: FileKeys | None = field(default=None, repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def deliverable(self) -> pa.Schema:
        """The columns that batches may have."""
        return pa.schema([item for item in self.schema if item.name not in self.hidden])

    def name_of(self, file: DataFile) -> str:
        """The file's path below the given folder; of one given by name its last part, so that folders can be moved."""
        return (self.relative or {}).get(file.info.path, file.info.path.rsplit("/", 1)[-1])


def build_manifest(
    path: AnyPath | Sequence[AnyPath],
    read: ReadOptions,
    sharers: Sharers | None = None,
    progress: Progress = LOGGED,
) -> FileManifest:
    """The manifest of the files at `path`: lists them, reads each footer once, prunes by `read.filters`.

    With `read.manifest`, the content of that file replaces listing and footers; the first of `sharers` reads it for
    all.
    With `read.on_error="skip"`, damaged files are left out.

    Raises:
        DataNotFoundError: there are no data files.
        FileReadError: a file has another format or is damaged; the message names it.
        SchemaMismatchError: the files' columns have incompatible types.
        ColumnNotFoundError: a filter, or `schema=`, names a column that no file has.
        OptionError: the files have no known format or several, or the filter is invalid.
    """
    return listed_manifest(*files_to_read(path, read, sharers or Sharers(), progress), read)


def listed_manifest(storage: Storage, inspected: Inspected, read: ReadOptions) -> FileManifest:
    """The manifest of files that were listed; raises the errors of `build_manifest`."""
    partitions = partition_values(inspected.files, read)
    made = manifest_of(storage, inspected, partitions, read)
    found = commits(file.path for file in inspected.files) if storage.protocol == "hf" else []
    unused = without_partitions(inspected.files) if read.partitioning == "auto" and not any(partitions) else ""
    return replace(made, origin=", ".join(f"commit {commit}" for commit in found), unused_folders=unused)


def manifest_of(
    storage: Storage,
    inspected: Inspected,
    partitions: Sequence[Mapping[str, str | None]],
    read: ReadOptions,
    deleted: Mapping[str, Sequence[int] | Positions] | None = None,
) -> FileManifest:
    """The manifest of files whose footers have been read.

    Args:
        storage: where they are.
        inspected: the files.
        partitions: column -> value as text, one mapping per file, for columns that are not in the files.
        read: the schema, the filters and the options of the format.
        deleted: deleted row numbers by path, if the files are a table's; its schema may have columns that no file has
            yet.

    Raises:
        SchemaMismatchError: the files' columns have incompatible types.
        ColumnNotFoundError: a filter, or `schema=`, names a column that no file has.
        OptionError: the filter is invalid, or rows are deleted from files of a format that does not number rows.
        FileReadError: a file does not contain the deleted rows.
    """
    form = format_named(inspected.format)
    form = form if read.schema is None else form.with_declared_types()
    stored, folders = files_schema(inspected.files, partitions, read, form.typed, deleted is not None)
    schema, added = named_schema(stored, read), read.metadata_columns
    before = _data_files(inspected.files, partitions, stored, folders)
    before = [named(file, storage) for file in before] if FILE in added else before
    predicate = row_predicate(read.filters, schema)
    after = _prune(form, inspected.files, before, schema, predicate, added)
    whole = matching_files(after, predicate, schema, lambda file: dict(file.partition))
    after = after if whole is None else _only(after, whole)
    opener = numbered_opener(form, read)
    marked = {path: rows for path, rows in (deleted or {}).items() if len(rows)}
    files = [live_file(file, marked.get(file.info.path, ())) for file in after]
    return FileManifest(
        files=tuple(file for file in files if file.layout.segments),
        schema=schema,
        partition_names=(*folders, FILE) if FILE in added else folders,
        storage=storage,
        opener=LiveOpener(opener) if marked else opener,
        pruned=pruned_counts(before, after),
        file_count=len(files),
        has_rows=any(file.layout.segments for file in inspected.files),
        null_evidence=_null_evidence(form, inspected.files, files, stored),
        missing=_missing(inspected.files, files, stored),
        format_options=dict(read.format_options or {}),
        predicate=predicate,
        decided=whole is not None,
        skipped=inspected.skipped,
        overruled=_overruled(form, inspected.files, before, folders),
        relative={file.path: file.relative for file in inspected.files if file.relative != file.path},
        names=tuple(dict(file.partition)[FILE] for file in before) if FILE in added else (),
    )


def _data_files(
    inspected: Sequence[InspectedFile],
    partitions: Sequence[Mapping[str, str | None]],
    schema: pa.Schema,
    folders: Sequence[str],
) -> list[DataFile]:
    """The files with the values of the columns that folders make."""
    pairs = zip(inspected, partitions, strict=True)
    return [file.data_file(partition_constants(file.path, texts, schema, folders)) for file, texts in pairs]


def row_predicate(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters`, in any form, as an expression over the columns of `schema`; None where there is no filter.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: the filter is invalid.
    """
    if isinstance(filters, str) or type(filters).__module__.startswith("pyiceberg."):
        from torch_dataloader_utils.filters.sql import rows_expression  # needs an extra, and a second to import

        return rows_expression(filters, schema)
    return as_expression(filters, schema)


def _prune(
    form: Format,
    inspected: Sequence[InspectedFile],
    files: Sequence[DataFile],
    schema: pa.Schema,
    predicate: pc.Expression | None,
    added: Sequence[str],
) -> list[DataFile]:
    """The files with only the segments in which a row can match; a file may have none left."""
    if predicate is None:
        return list(files)
    can_hold = name_test(predicate, schema, added)
    if can_hold is not None:
        files = [with_matching(file, can_hold) for file in files]
        if POSITION in filter_columns(predicate, schema):  # of which statistics say nothing
            return files
    prune = form.pruner(predicate, schema)
    return [
        replace(file, layout=prune(file.layout, own.schema, dict(file.partition)))
        for file, own in zip(files, inspected, strict=True)
    ]


def _only(files: Sequence[DataFile], kept: Sequence[DataFile]) -> list[DataFile]:
    """The files, those not among `kept` without segments."""
    names = {file.info.key for file in kept}
    return [
        file if file.info.key in names else replace(file, layout=replace(file.layout, segments=())) for file in files
    ]


def pruned_counts(before: Sequence[DataFile], after: Sequence[DataFile]) -> Pruned:
    """The counts of files with segments, and of segments, before and after pruning."""

    def counts(files: Sequence[DataFile]) -> tuple[int, int]:
        return sum(bool(file.layout.segments) for file in files), sum(len(file.layout.segments) for file in files)

    (files_before, segments_before), (files_after, segments_after) = counts(before), counts(after)
    return Pruned(files_before, files_after, segments_before, segments_after)


def _null_evidence(
    form: Format, inspected: Sequence[InspectedFile], files: Sequence[DataFile], schema: pa.Schema
) -> dict[str, str]:
    evidence: dict[str, str] = {}
    names = frozenset(schema.names)
    for own, file in zip(inspected, files, strict=True):
        if not file.layout.segments:
            continue
        constants = dict(file.partition)
        absent = names.difference(own.schema.names, constants)
        empty = {name for name, value in constants.items() if value is None}
        # If rows of a file are deleted, they may be the ones with nulls.
        proven = () if isinstance(file.layout.metadata, LiveRows) else form.null_columns(file.layout)
        in_file = {name for name in proven if name not in constants}
        for name in sorted(absent | empty | in_file):
            which = f"{file.info.path}, which has no such column" if name in absent else file.info.path
            evidence.setdefault(name, which)
    return evidence


def _overruled(
    form: Format, inspected: Sequence[InspectedFile], files: Sequence[DataFile], names: Sequence[str]
) -> dict[str, str]:
    """Partition columns that a file has, too, with other values, by the statistics of its first segment."""
    found: dict[str, str] = {}
    for own, file in zip(inspected, files, strict=True):
        both = [name for name in names if name in own.schema.names and name not in found]
        if not both or not file.layout.segments:
            continue
        ranges = form.value_ranges(file.layout, file.layout.segments[0].number, both)
        constants = dict(file.partition)
        found |= {name: file.info.path for name in both if name in ranges and _differs(constants[name], *ranges[name])}
    return found


def _differs(value: Any, low: Any, high: Any) -> bool:
    """Whether not all values of a range are the value."""
    return value is None or (type(value) is type(low) is type(high) and not low <= value <= high)


def _missing(
    inspected: Sequence[InspectedFile], files: Sequence[DataFile], schema: pa.Schema
) -> dict[str, tuple[int, str]]:
    missing: dict[str, tuple[int, str]] = {}
    for own, file in zip(inspected, files, strict=True):
        if file.layout.segments:
            lacked = set(schema.names).difference(own.schema.names, dict(file.partition))
            for name in sorted(lacked):
                count, first = missing.get(name, (0, file.info.path))
                missing[name] = count + 1, first
    return missing
