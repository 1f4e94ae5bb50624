"""A version of a Delta table: its files and the rows deleted from them, as a snapshot that a loader reads."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt
from deltalake import DeltaTable

from torch_dataloader_utils.delta.appends import NonAppends, appended_files
from torch_dataloader_utils.delta.files import ListedFile, deleted_rows, has_vectors, listed_files, with_vectors
from torch_dataloader_utils.delta.log import DeltaLog, reading
from torch_dataloader_utils.delta.schema import Columns, columns_of
from torch_dataloader_utils.delta.store_options import data_options
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan
from torch_dataloader_utils.filters.conditions import row_predicate
from torch_dataloader_utils.filters.facts import can_be_true, is_value
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile
from torch_dataloader_utils.iceberg.planned import IcebergPlan, PlannedFile, PrunedFiles
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import IcebergDataFileInfo
from torch_dataloader_utils.options import Options, ReadOptions
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, Positions, live_file
from torch_dataloader_utils.sources.files import open_entries
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.sources.row_names import file_name
from torch_dataloader_utils.sources.tables import SnapshotCursor, check_listed_once
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.spelling import SAME_SCHEME

_REMEDY = "If a vacuum removed it, version {} can no longer be read: read a newer one."


@dataclass(frozen=True)
class DeltaSnapshot:
    """A version of a table; picklable, without credentials of the log.

    Its data files are read as those of an Iceberg table: a field id finds each column in files of any age.

    Attributes:
        plan: its files.
        deleted: path of a file -> row numbers that a deletion vector deletes.
        relative: path of a file -> its path below the table's folder.
    """

    plan: IcebergPlan
    deleted: Mapping[str, Positions] = field(repr=False, compare=False)
    relative: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """The table, for messages."""
        return self.plan.name

    @property
    def cursor(self) -> SnapshotCursor:
        """Selects the same version again."""
        return self.plan.cursor

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """One dict per partition: "partition" (column -> value), "files" and "records" (deleted ones too)."""
        return [{key: item[key] for key in ("partition", "files", "records")} for item in self.plan.partitions]

    @property
    def in_words(self) -> str:
        """Which version it is."""
        start = self.cursor.start
        return f"version {self.cursor.end}{'' if start is None else f', what was appended after version {start}'}"

    @property
    def replay_in_words(self) -> str:
        """Which older rows are read beside appended ones; "" if none are."""
        return self.plan.replay_in_words

    def manifest(self, options: Options) -> FileManifest:
        """The manifest of the files, like that of any other source.

        Raises:
            FileReadError: a file is missing or damaged.
        """
        made = self.plan.manifest(options)
        files = [live_file(file, self.deleted.get(file.info.path, ())) for file in made.files]
        return replace(
            made,
            files=tuple(file for file in files if file.layout.segments),
            opener=made.opener if isinstance(made.opener, LiveOpener) else LiveOpener(made.opener),
            # If rows of a file are deleted, they may be the ones with nulls.
            null_evidence={name: path for name, path in made.null_evidence.items() if path not in self.deleted},
            origin=f"{self.in_words}{made.origin.removeprefix('no snapshot')}",
            relative=self.relative,
        )


@dataclass(frozen=True)
class Added:
    """Which rows of a version are read: those appended since another.

    Attributes:
        after: the other version.
        non_appends: whether commits in between that take rows away are errors, or left out.
        features: may read older rows beside the appended ones.
    """

    after: int
    non_appends: NonAppends = "error"
    features: Feature = field(default_factory=Feature)


def snapshot_of(table: DeltaTable, log: DeltaLog, read: ReadOptions, added: Added | None = None) -> DeltaSnapshot:
    """The snapshot of a table at the version at which it is loaded; opens no data file.

    Args:
        table: the table.
        log: its log.
        read: the columns, the filters, and the access to the files.
        added: reads only what was appended since another version.

    Raises:
        FileReadError: the log cannot be read, or lists a file twice.
        UnsupportedTypeError: a column has a type that is not supported.
        OptionError: the filter is invalid, or a file is on another storage than the table.
        ColumnNotFoundError: a filter names a column that the table does not have.
        SnapshotError: with `added`, a version in between did more than append, or was cleaned up.
    """
    name, url = log.name, log.url
    with reading(name, f"its log at version {table.version()}"):
        columns = columns_of(table, read, name)
        listed = _listed(table, log, added, bounds=read.filters is not None)
    predicate = row_predicate(read.filters, columns.table.schema.remove_metadata())
    can_hold = (lambda file: True) if predicate is None else file_test(predicate, columns)
    options = data_options(read.storage_options or {})
    storage, [(_, root)] = open_entries(url, replace(read, storage_options=options))
    paths: dict[str, str] = {}

    def place(file: ListedFile) -> str:
        return paths.setdefault(file.path, _path(file, root, url, options))

    files = [file for _, file in listed]
    check_listed_once([place(file) for file in files], storage)
    with reading(name, f"its log at version {table.version()}"):
        deleted = _deleted(listed, table, log, paths, storage, root)
    some = filter(can_hold, files)
    kept = tuple(_planned(file, place(file), storage, file.path in deleted, columns) for file in some)
    cursor = SnapshotCursor(table.version(), None if added is None else added.after)
    older = partial(_older_files, log, can_hold, place, storage, columns)
    replay = None if added is None else added.features.older_rows(kept, partial(older, added.after), cursor)
    plan = IcebergPlan(
        name=name,
        location=url,
        files=kept if replay is None else (*kept, *replay.files),
        table=columns.table,
        storage=replace(storage, remedy=_REMEDY.format(table.version())),
        snapshot=None,
        cursor=cursor,
        row_filter=predicate,
        pruned=PrunedFiles(files_before=len(files), files_after=len(kept)),
        replay=replay,
    )
    return DeltaSnapshot(
        plan,
        {paths[relative]: rows for relative, rows in deleted.items()},
        {path: relative for relative, path in paths.items()},
    )


def _listed(table: DeltaTable, log: DeltaLog, added: Added | None, *, bounds: bool) -> list[tuple[int, ListedFile]]:
    """The files that are read, each with the version that says which of its rows are deleted."""
    if added is None:
        return [(table.version(), file) for file in listed_files(table, bounds)]
    return appended_files(log, added.after, table, added.non_appends, bounds=bounds)


def _older_files(
    log: DeltaLog,
    can_hold: CanHold,
    place: Callable[[ListedFile], str],
    storage: Storage,
    columns: Columns,
    version: int,
) -> list[PlannedFile]:
    """The files of a version without vectors: some of their rows are drawn by number."""
    table = log.at(version)
    marked = with_vectors(log.entries(version)) if has_vectors(table) else frozenset()
    files = [file for file in listed_files(table, bounds=True) if file.path not in marked and can_hold(file)]
    return [_planned(file, place(file), storage, has_vector=False, columns=columns) for file in files]


def _deleted(
    listed: Sequence[tuple[int, ListedFile]],
    table: DeltaTable,
    log: DeltaLog,
    paths: Mapping[str, str],
    storage: Storage,
    root: str,
) -> dict[str, Positions]:
    """The rows that vectors delete of each file, as of the version that it is listed with."""
    if not has_vectors(table):
        return {}
    deleted: dict[str, Positions] = {}
    for version in sorted({version for version, _ in listed}):
        files = [file for at, file in listed if at == version]
        deleted |= deleted_rows(files, log.entries(version), paths, storage, root)
    return deleted


def _planned(file: ListedFile, path: str, storage: Storage, has_vector: bool, columns: Columns) -> PlannedFile:
    constants = tuple((number, file.partition.get(name)) for name, number in columns.partitions.items())
    info = IcebergDataFileInfo(path, file.size, file.rows, partition=file.partition, deletes=int(has_vector))
    rows = -1 if file.rows is None else file.rows
    return PlannedFile(info, IcebergFile("parquet", file_name(path, storage), rows, constants=constants))


def _path(file: ListedFile, root: str, table: str, options: Mapping[str, Any]) -> str:
    """The path of a file in the table's storage."""
    if not file.elsewhere:
        return f"{root.rstrip('/')}/{file.path}"
    scheme, separator, rest = file.path.partition("://")
    own = table.partition("://")[0]
    # Schemes of one store are spelled as the table's.
    same = separator and SAME_SCHEME.get(scheme, scheme) == SAME_SCHEME.get(own, own)
    storage, path = open_storage(f"{own}://{rest}" if same and "://" in table else file.path, options)
    if storage != open_storage(table, options)[0]:
        raise OptionError(
            f"{printable(file.path)} is on another storage than the table: all files of a table must be on one storage."
        )
    return path


# Data files that a filter rules out, judged by what the log records: partition values and bounds of columns.

CanHold: TypeAlias = Callable[[ListedFile], bool]

_EXACT_DIGITS = 15  # of a decimal number in a float64
_MILLISECOND = timedelta(milliseconds=1)  # the log rounds bounds of times


def file_test(expression: pc.Expression, columns: Columns) -> CanHold:
    """A function that reports whether a file can hold a row that matches; it may be wrong only by saying yes.

    Args:
        expression: a filter that fits the table's schema.
        columns: the table's columns.
    """
    if may_name_nan(expression):
        return lambda file: True
    schema = columns.table.schema
    needed = pa.schema([schema.field(name) for name in filter_columns(expression, schema)]).remove_metadata()

    def can_hold(file: ListedFile) -> bool:
        facts = [fact for item in needed for fact in _facts(item, file, columns)]
        return can_be_true(expression, facts, needed)

    return can_hold


def _facts(column: pa.Field, file: ListedFile, columns: Columns) -> Iterator[pc.Expression]:
    """Expressions that are true for every row of the file."""
    place = pc.field(column.name)
    if column.name in columns.partitions:
        value = file.partition.get(column.name)
        if not pt.is_floating(column.type):  # a NaN, or either zero
            yield is_value(place, value, column.type)
        return
    name = columns.physical.get(column.name)
    if name is None:  # it names rows
        return
    lower, upper, nulls = (file.bounds[part].get(name) for part in ("min", "max", "null_count"))
    if nulls and nulls == file.rows:  # zero of zero says nothing of a file with rows
        yield place.is_null()
    elif _has_bounds(column.type):
        if pt.is_timestamp(column.type) and upper is not None:
            upper += _MILLISECOND
        for compare, end in ((operator.ge, lower), (operator.le, upper)):
            if end is not None:
                yield compare(place, pa.scalar(end, column.type)) | place.is_null()


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether the bounds hold for all values: those of floats do not cover NaNs, and writers round long decimals."""
    if pt.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return any(test(kind) for test in (pt.is_integer, pt.is_string, pt.is_date, pt.is_timestamp))
