"""The plan of a table: which files a snapshot's rows are in, what deletes rows of them, and what is pruned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.snapshots import Snapshot

from torch_dataloader_utils.errors import ColumnNotFoundError, FileReadError
from torch_dataloader_utils.filters.sql import TableFilter, table_filter
from torch_dataloader_utils.iceberg.catalog import OpenTable, again, open_table
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.delete_index import DeleteIndex, delete_index, told_size
from torch_dataloader_utils.iceberg.manifests import Entry, Manifest, inline_manifest, read_manifest, read_manifest_list
from torch_dataloader_utils.iceberg.partitions import Partitions
from torch_dataloader_utils.iceberg.pruning import Pruning
from torch_dataloader_utils.iceberg.schema import (
    check_metadata_columns,
    iceberg_table,
    table_schema,
    unreadable_columns,
)
from torch_dataloader_utils.iceberg.snapshots import (
    PinnedSnapshot,
    Resolved,
    SnapshotChoice,
    SnapshotInfo,
    described,
    pinned,
    resolve,
)
from torch_dataloader_utils.iceberg.table_storage import Places, expires_at
from torch_dataloader_utils.model import IcebergDataFileInfo
from torch_dataloader_utils.storage import Naming, Renewal, Storage, printable

_REMOTE_READS = 32  # manifests fetched at once: waiting, not computing
_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, kw_only=True)
class IcebergRead:
    """What is read of a table, and how it is found.

    Attributes:
        catalog_config: as `open_table` takes it.
        snapshot: which snapshot.
        filters: which rows, as `table_filter` takes it.
        scan_filter: in the same forms, which files: it prunes, and filters no row.
        columns: those that will be read; None for all.
        metadata_columns: such as "_file" and "_pos".
        storage_options: for the table's files, before what the catalog says of them.
        filesystem: for the table's files, instead.
    """

    catalog_config: Mapping[str, Any] | None = field(default=None, repr=False)
    snapshot: SnapshotChoice | PinnedSnapshot = field(default_factory=SnapshotChoice)
    filters: Any = None
    scan_filter: Any = None
    columns: Sequence[str] | None = None
    metadata_columns: Sequence[str] = ()
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file as strategies see it, and as readers do."""

    info: IcebergDataFileInfo
    file: IcebergFile


@dataclass(frozen=True)
class PrunedFiles:
    """How many manifests and data files there are, and how many are left after pruning."""

    manifests_before: int = 0
    manifests_after: int = 0
    files_before: int = 0
    files_after: int = 0


@dataclass(frozen=True)
class IcebergPlan:
    """What is read of a table; picklable.

    Attributes:
        name: of the table, for messages.
        location: of the table, as its metadata spells it.
        files: in the order of their commits, then of their paths, whatever the manifests' order is.
        table: what readers need of the table.
        storage: where the files are.
        snapshot: which one, or None in a table without one.
        pinned: what reads it again.
        row_filter: which rows match, over the columns of `table.schema`; None for all.
        scan_filter: the same of the filter that only prunes.
        pruned: what was left out before reading.
    """

    name: str
    location: str
    files: tuple[PlannedFile, ...]
    table: IcebergTable
    storage: Storage
    snapshot: SnapshotInfo | None
    pinned: PinnedSnapshot
    row_filter: pc.Expression | None = None
    scan_filter: pc.Expression | None = None
    pruned: PrunedFiles = PrunedFiles()

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition of the files: "partition" (column -> value), "spec_id", "files" and "records" (physical)."""
        files: Counter[Any] = Counter()
        records: Counter[Any] = Counter()
        values = {}
        for planned in self.files:
            info = planned.info
            key = info.spec_id, tuple(info.partition.values())
            values[key] = info.partition
            files[key] += 1
            records[key] += info.record_count or 0
        return [
            {"partition": dict(values[key]), "spec_id": key[0], "files": files[key], "records": records[key]}
            for key in values
        ]


def plan_table(table: Any, read: IcebergRead) -> IcebergPlan:
    """The plan of a table, from its metadata and manifests alone: no data file and no delete file is opened.

    Args:
        table: as `open_table` takes it.
        read: what of it.

    Raises:
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached, or refuses.
        SnapshotError: the table has no such snapshot.
        FileReadError: metadata or a manifest cannot be read.
        ColumnNotFoundError: a filter names a column that the table has not.
        UnsupportedTypeError: a column that is to be read has a type that cannot be.
        OptionError: a value that cannot work.
    """
    opened = open_table(table, read.catalog_config, read.storage_options, read.filesystem)
    metadata = opened.metadata
    found = resolve(metadata, read.snapshot)
    check_metadata_columns(read.metadata_columns, metadata.format_version)
    columns = table_schema(found.schema, opened.foreign, read.columns, read.metadata_columns)
    rows = _filter(read.filters, columns, found, opened)
    scan = _filter(read.scan_filter, columns, found, opened)
    places = _places(opened, read)
    pruning = Pruning([item for item in (rows, scan) if item is not None], found.schema, metadata.specs())
    scanned = _Scan(opened, found, places, pruning)
    files = scanned.files()
    keys = {number for planned in files for delete in planned.file.deletes for number in delete.equality_ids}
    mapping = metadata.properties.get(_NAME_MAPPING)
    return IcebergPlan(
        name=opened.name,
        location=metadata.location,
        files=files,
        table=iceberg_table(columns, found.schema, opened, keys, None if mapping is None else json.loads(mapping)),
        storage=_renewing(places.storage, opened, table, read),
        snapshot=described(found, read.snapshot),
        pinned=pinned(found, read.snapshot),
        row_filter=None if rows is None else rows.rows,
        scan_filter=None if scan is None else scan.rows,
        pruned=scanned.pruned,
    )


def newest_snapshot(table: Any, read: IcebergRead) -> PinnedSnapshot:
    """The current snapshot of the branch or tag that is read (without one, of the table), all its rows.

    Raises:
        CatalogError: the catalog cannot be reached, or refuses.
        SnapshotError: the branch or tag is gone.
    """
    choice = SnapshotChoice(ref=read.snapshot.ref)
    return pinned(resolve(_opened_again(table, read).metadata, choice), choice)


def refreshed_storage(table: Any, read: IcebergRead) -> tuple[Storage, float | None]:
    """The storage of a table's files with credentials fetched anew, and when these end (seconds since 1970).

    A plan's files stay as they are; only where they are read from is replaced.

    Raises:
        CatalogError: the catalog cannot be reached, or refuses.
    """
    opened = _opened_again(table, read)
    return _places(opened, read).storage, expires_at(opened.properties)


def _renewing(storage: Storage, opened: OpenTable, table: Any, read: IcebergRead) -> Storage:
    """The storage, with a way to new credentials where a catalog may give some."""
    if storage.local or not opened.properties:
        return storage
    return replace(storage, renewal=Renewal(partial(refreshed_storage, table, read), expires_at(opened.properties)))


def _opened_again(table: Any, read: IcebergRead) -> OpenTable:
    return open_table(again(table), read.catalog_config, read.storage_options, read.filesystem)


def _places(opened: OpenTable, read: IcebergRead) -> Places:
    return Places(opened.metadata.location, opened.properties, read.storage_options or {}, read.filesystem)


def _filter(filters: Any, columns: pa.Schema, found: Resolved, opened: OpenTable) -> TableFilter | None:
    """The filter over these columns; an unknown column may be one of those that cannot be read."""
    try:
        return table_filter(filters, columns, found.schema)
    except ColumnNotFoundError as error:
        others = unreadable_columns(found.schema, opened.foreign)
        if not others:
            raise
        listed = ", ".join(f"{name!r} ({kind})" for name, kind in others.items())
        raise ColumnNotFoundError(f"{error} Columns of types that cannot be read here: {listed}.") from error


class _Scan:
    """Reads the manifests of what was resolved, once."""

    def __init__(self, opened: OpenTable, found: Resolved, places: Places, pruning: Pruning) -> None:
        self._opened = opened
        self._found = found
        self._places = places
        self._pruning = pruning
        self._partitions = Partitions(opened.metadata.specs(), found.schema)
        self.pruned = PrunedFiles()

    def files(self) -> tuple[PlannedFile, ...]:
        """The data files that can hold matching rows, with the deletes that apply to them."""
        data, deletes = self._manifests()
        left = [manifest for manifest in data if self._pruning.manifest(manifest.record)]
        index = self._deletes(deletes) if left else DeleteIndex()
        before = sum(map(_listed_files, data)) - sum(map(_listed_files, left))
        planned = []
        # One at a time: what a manifest says of a file is ten times what is kept of it.
        for entry in self._entries(left):
            before += 1
            if self._pruning.file(entry.file, entry.spec_id):
                planned.append(self._planned(entry, index))
        self.pruned = PrunedFiles(len(data), len(left), before, len(planned))
        planned.sort(key=lambda one: (one.file.sequence_number, one.file.table_path))
        _check_once(planned)
        return tuple(one for one in planned if one.file.record_count)

    def _manifests(self) -> tuple[list[Manifest], list[Manifest]]:
        """Those of data files and those of delete files."""
        if self._found.appends is None:
            snapshots = [self._found.snapshot] if self._found.snapshot is not None else []
            found = [manifest for snapshot in snapshots for manifest in self._listed(snapshot)]
            return [one for one in found if not one.deletes], [one for one in found if one.deletes]
        found = [
            manifest
            for snapshot in self._found.appends
            for manifest in self._listed(snapshot)
            if manifest.snapshot_id == snapshot.snapshot_id and not manifest.deletes
        ]
        return found, []

    def _listed(self, snapshot: Snapshot) -> list[Manifest]:
        """The manifests of a snapshot."""
        number = snapshot.snapshot_id
        paths = self._opened.manifests.get(number)
        if paths is None:
            piece = f"manifest list of snapshot {number}"
            data = self._bytes(snapshot.manifest_list, piece)
            with Naming(snapshot.manifest_list, piece):
                found = read_manifest_list(data)
        else:
            found = [inline_manifest(path, self._bytes(path), number) for path in paths]
        _check_specs(found, self._opened.metadata.specs())
        return found

    def _entries(self, manifests: Sequence[Manifest]) -> Iterator[Entry]:
        """The live files of these manifests; for appends, those that they added."""
        appends = self._found.appends
        wanted = None if appends is None else {snapshot.snapshot_id for snapshot in appends}
        for manifest, data in self._read(manifests):
            with Naming(manifest.path):
                for entry in read_manifest(data, manifest):
                    if wanted is None or (entry.added and entry.snapshot_id in wanted):
                        yield entry

    def _deletes(self, manifests: Sequence[Manifest]) -> DeleteIndex:
        left = [manifest for manifest in manifests if self._pruning.manifest(manifest.record)]
        specs = self._opened.metadata.specs()
        unpartitioned = frozenset(number for number, spec in specs.items() if spec.is_unpartitioned())
        return delete_index(self._entries(left), self._partitions.place, unpartitioned, self._places.path)

    def _planned(self, entry: Entry, index: DeleteIndex) -> PlannedFile:
        file = entry.file
        place = self._partitions.place(entry)
        partition = self._partitions.of(place, entry)
        deletes = index.of(file.file_path, entry.sequence_number, place) if index else ()
        rows = file.record_count
        info = IcebergDataFileInfo(
            self._places.path(file.file_path),
            told_size(file),
            rows if rows >= 0 else None,
            partition=partition.values,
            snapshot_id=entry.snapshot_id,
            deletes=len(deletes),
            spec_id=entry.spec_id,
        )
        return PlannedFile(
            info,
            IcebergFile(
                file.file_format.value.lower(),
                file.file_path,
                rows,
                entry.sequence_number,
                deletes,
                partition.constants,
                entry.first_row_id,
            ),
        )

    def _read(self, manifests: Sequence[Manifest]) -> Iterable[tuple[Manifest, bytes]]:
        """The manifests with their bytes; those of remote stores are fetched concurrently."""
        if self._places.storage.local or len(manifests) < 2:
            return ((manifest, self._bytes(manifest.path)) for manifest in manifests)
        with ThreadPoolExecutor(min(_REMOTE_READS, len(manifests)), thread_name_prefix="manifests") as pool:
            return list(zip(manifests, pool.map(lambda one: self._bytes(one.path), manifests), strict=True))

    def _bytes(self, url: str, piece: str = "") -> bytes:
        with Naming(url, piece), self._places.storage.open(self._places.path(url)) as source:
            data: bytes = source.read()
        return data


def _listed_files(manifest: Manifest) -> int:
    """How many live files a manifest has, as its list tells (0 where it does not)."""
    return (manifest.record.added_files_count or 0) + (manifest.record.existing_files_count or 0)


def _check_specs(manifests: Sequence[Manifest], specs: Mapping[int, Any]) -> None:
    for manifest in manifests:
        if manifest.spec_id not in specs:
            raise FileReadError(
                f"{printable(manifest.path)}: its files are of the partition spec {manifest.spec_id}, and the table "
                f"has the specs {sorted(specs)}: its metadata is not the one that this manifest was written for."
            )


def _check_once(files: Sequence[PlannedFile]) -> None:
    paths = {planned.info.path for planned in files}
    if len(paths) < len(files):
        twice, times = Counter(planned.info.path for planned in files).most_common(1)[0]
        raise FileReadError(
            f"{printable(twice)}: the table lists this file {times} times: its rows would be read as often."
        )
