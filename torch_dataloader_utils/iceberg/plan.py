"""Plans a table read: which files contain a snapshot's rows, which files delete some of them, and what is pruned."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, FileReadError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.filters.sql import TableFilter, table_filter
from torch_dataloader_utils.iceberg.catalog import again, open_table, renewed
from torch_dataloader_utils.iceberg.file_scan import FileScan
from torch_dataloader_utils.iceberg.metadata import OpenTable
from torch_dataloader_utils.iceberg.planned import IcebergPlan
from torch_dataloader_utils.iceberg.pruning import Pruning
from torch_dataloader_utils.iceberg.row_ids import ROW_KEY, check_row_ids, hashes_row_ids
from torch_dataloader_utils.iceberg.schema import (
    check_metadata_columns,
    iceberg_table,
    table_schema,
    unreadable_columns,
)
from torch_dataloader_utils.iceberg.snapshots import Resolved, SnapshotChoice, cursor_of, described, resolve
from torch_dataloader_utils.iceberg.table_storage import Places
from torch_dataloader_utils.iceberg.vended import TableAccess
from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage import Naming, Renewal, Storage
from torch_dataloader_utils.storage.waiting import limited

_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, kw_only=True)
class IcebergRead:
    """Which part of a table to read, and how to access its files.

    Attributes:
        catalog: as in `open_table`.
        snapshot: selects the snapshot.
        filters: selects rows, in a form that `table_filter` accepts.
        scan_filter: selects files, in the same forms: it prunes, but filters no rows.
        columns: the columns to read; None for all.
        metadata_columns: such as "_file" and "_pos".
        subset: selects a subset of the rows, perhaps by their ids.
        features: may read older rows beside appended ones.
        storage_options: for the table's files; they override the catalog's.
        filesystem: for the table's files; used instead of storage options.
        progress: shows the reading of manifests.
    """

    catalog: Any = field(default=None, repr=False)
    snapshot: SnapshotChoice = field(default_factory=SnapshotChoice)
    filters: Any = None
    scan_filter: Any = None
    columns: Sequence[str] | None = None
    metadata_columns: Sequence[str] = ()
    subset: SubsetOptions = field(default_factory=SubsetOptions)
    features: Feature = field(default_factory=Feature)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)
    progress: Progress = LOGGED


def plan_table(table: Any, read: IcebergRead, cursor: SnapshotCursor | None = None) -> IcebergPlan:
    """The plan of a table, from its metadata and manifests alone: no data file and no delete file is opened.

    Args:
        table: as in `open_table`.
        read: what to read of it.
        cursor: a snapshot resolved earlier, to read exactly that again; None for the one that `read` selects.

    Raises:
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached or denies access.
        SnapshotError: the table has no such snapshot.
        FileReadError: metadata or a manifest cannot be read.
        ColumnNotFoundError: a filter names a column that the table does not have.
        UnsupportedTypeError: a requested column has an unsupported type.
        OptionError: an option has an invalid value.
    """
    opened = open_table(table, read.catalog, read.storage_options, read.filesystem)
    with Naming(opened.name, "metadata"):  # parts of it may contradict each other
        return _planned(opened, table, read, cursor)


def _planned(opened: OpenTable, table: Any, read: IcebergRead, cursor: SnapshotCursor | None) -> IcebergPlan:
    metadata = opened.metadata
    resolved = resolve(metadata, read.snapshot, cursor)
    start = read.snapshot.start if cursor is None else cursor.start
    check_metadata_columns(read.metadata_columns, metadata.format_version)
    by_row_id = hashes_row_ids(read.subset, resolved.schema, metadata.format_version)
    metadata_columns = dict.fromkeys([*read.metadata_columns, *([ROW_KEY] if by_row_id else [])])
    columns = table_schema(resolved.schema, opened.foreign, read.columns, list(metadata_columns))
    rows = _filter(read.filters, columns, resolved, opened)
    scan = _filter(read.scan_filter, columns, resolved, opened)
    renewing = partial(_renewing, access=opened.access, table=table, read=read)
    places = _places(opened.access, read, renewing)
    pruning = Pruning([item for item in (rows, scan) if item is not None], resolved.schema, metadata.specs())
    scanned = FileScan(opened, resolved, places, pruning, read.progress)
    files, selected = scanned.files(), cursor_of(resolved, start)
    replay = read.features.older_rows(files, partial(scanned.older, start), selected)
    files = files if replay is None else (*files, *replay.files)
    if by_row_id:
        check_row_ids(opened.name, files, read.subset)
    keys = {number for planned in files for delete in planned.file.deletes for number in delete.equality_ids}
    return IcebergPlan(
        name=opened.name,
        location=metadata.location,
        files=files,
        table=iceberg_table(columns, resolved.schema, opened, keys, _name_mapping(opened)),
        storage=places.storage,
        snapshot=described(resolved, read.snapshot.ref, start),
        cursor=selected,
        row_key=ROW_KEY if by_row_id else None,
        hidden=tuple(name for name in metadata_columns if name not in read.metadata_columns),
        row_filter=None if rows is None else rows.rows,
        scan_filter=None if scan is None else scan.rows,
        pruned=scanned.pruned,
        replay=replay,
    )


def newest_snapshot(table: Any, read: IcebergRead) -> SnapshotCursor:
    """The current snapshot of the branch or tag in `read.snapshot` (by default, of the table).

    Raises:
        CatalogError: the catalog cannot be reached or denies access.
        SnapshotError: the branch or tag no longer exists.
    """
    resolved = resolve(_opened_again(table, read).metadata, SnapshotChoice(ref=read.snapshot.ref))
    return cursor_of(resolved, read.snapshot.start)


def refreshed_storage(
    access: TableAccess, table: Any, read: IcebergRead, seconds: float = 0
) -> tuple[Storage, float | None]:
    """The storage of a table's files with newly fetched credentials, and when they expire (seconds since 1970).

    A plan keeps its files; only its storage is replaced.

    Args:
        access: the access to its files until now.
        table: the table, as given.
        read: what is read of it.
        seconds: the time limit of each call to the catalog or the storage; 0 for none. Any thread may call this.

    Raises:
        CatalogError: the catalog cannot be reached or denies access.
        BatchTimeoutError: it does not answer.
    """
    with limited(seconds):
        fresh = renewed(access, table, read.catalog) or _opened_again(table, read).access
        return _places(fresh, read).storage, fresh.expires_at


def _renewing(storage: Storage, access: TableAccess, table: Any, read: IcebergRead) -> Storage:
    """The storage, which can renew its credentials if a catalog may provide them."""
    if storage.local or not access.from_catalog:
        return storage
    ask = partial(refreshed_storage, access, table, read, storage.timeout)
    return replace(storage, renewal=Renewal(ask, access.expires_at))


def _opened_again(table: Any, read: IcebergRead) -> OpenTable:
    return open_table(again(table), read.catalog, read.storage_options, read.filesystem)


def _name_mapping(opened: OpenTable) -> Any:
    """The parsed name mapping of the table, or None.

    Raises:
        FileReadError: it is not JSON.
    """
    mapping = opened.metadata.properties.get(_NAME_MAPPING)
    try:
        return None if mapping is None else json.loads(mapping)
    except (ValueError, RecursionError) as error:
        raise FileReadError(
            f"{printable(opened.name)}: the table's property {_NAME_MAPPING!r} is not JSON: {error}. Correct it."
        ) from error


def _places(
    access: TableAccess, read: IcebergRead, renewing: Callable[[Storage], Storage] = lambda storage: storage
) -> Places:
    return Places(access, read.storage_options or {}, read.filesystem, renewing)


def _filter(filters: Any, columns: pa.Schema, resolved: Resolved, opened: OpenTable) -> TableFilter | None:
    """The filter over these columns; the error for an unknown column lists those with unsupported types."""
    try:
        return table_filter(filters, columns, resolved.schema)
    except ColumnNotFoundError as error:
        others = unreadable_columns(resolved.schema, opened.foreign)
        if not others:
            raise
        listed = ", ".join(f"{name!r} ({kind})" for name, kind in others.items())
        raise ColumnNotFoundError(f"{error} Columns whose types cannot be read here: {listed}.") from error
