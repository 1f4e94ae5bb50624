"""The data files of a snapshot and the delete files that apply to them, from the manifests, which are read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, Transform, UnknownTransform
from pyiceberg.types import IcebergType, UnknownType

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile
from torch_dataloader_utils.iceberg.delete_index import DeleteIndex, PartitionKey, delete_index, manifest_size
from torch_dataloader_utils.iceberg.manifests import Entry, Manifest, inline_manifest, read_manifest, read_manifest_list
from torch_dataloader_utils.iceberg.metadata import OpenTable
from torch_dataloader_utils.iceberg.planned import PlannedFile, PrunedFiles
from torch_dataloader_utils.iceberg.pruning import Pruning
from torch_dataloader_utils.iceberg.schema import arrow_type, plain_value
from torch_dataloader_utils.iceberg.snapshots import Resolved, snapshots_after
from torch_dataloader_utils.iceberg.table_storage import Places
from torch_dataloader_utils.model import IcebergDataFileInfo
from torch_dataloader_utils.progress import Progress
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.tables import check_listed_once
from torch_dataloader_utils.storage import Naming

_REMOTE_READS = 32  # manifests fetched at once: the threads wait rather than compute


class FileScan:
    """Reads the manifests of a resolved snapshot, once."""

    def __init__(
        self, opened: OpenTable, resolved: Resolved, places: Places, pruning: Pruning, progress: Progress
    ) -> None:
        self._opened = opened
        self._resolved = resolved
        self._places = places
        self._pruning = pruning
        self._progress = progress
        self._partitions = Partitions(opened.metadata.specs(), resolved.schema)
        self.pruned = PrunedFiles()

    def files(self) -> tuple[PlannedFile, ...]:
        """The data files that can contain matching rows, with the deletes that apply to them."""
        data, deletes = self._manifests()
        left = [manifest for manifest in data if self._pruning.manifest(manifest.record)]
        index = self._deletes(deletes) if left else DeleteIndex()
        before = sum(map(_listed_files, data)) - sum(map(_listed_files, left))
        planned = []
        # One at a time: a manifest entry takes ten times the memory of a planned file.
        for entry in self._entries(left):
            before += 1
            if self._pruning.file(entry.file, entry.spec_id):
                planned.append(self._planned(entry, index))
        self.pruned = PrunedFiles(len(data), len(left), before, len(planned))
        planned.sort(key=lambda one: (one.file.sequence_number, one.file.table_path))
        check_listed_once([one.info.path for one in planned], self._places.storage)
        return tuple(planned)

    def older(self, start: int | str | None) -> list[PlannedFile]:
        """Those from before the files that were appended after the snapshot `start`; none if all files are read."""
        if self._resolved.appends is None:
            return []
        all_files = replace(self._resolved, appends=None)
        whole = FileScan(self._opened, all_files, self._places, self._pruning, self._progress).files()
        new = snapshots_after(self._opened.metadata, start, self._resolved.snapshot)
        return [planned for planned in whole if planned.info.snapshot_id not in new]

    def _manifests(self) -> tuple[list[Manifest], list[Manifest]]:
        """The manifests of data files, and those of delete files."""
        if self._resolved.appends is None:
            snapshots = [self._resolved.snapshot] if self._resolved.snapshot is not None else []
            manifests = [manifest for snapshot in snapshots for manifest in self._listed(snapshot)]
            return [one for one in manifests if not one.deletes], [one for one in manifests if one.deletes]
        manifests = [
            manifest
            for snapshot in self._resolved.appends
            for manifest in self._listed(snapshot)
            if manifest.snapshot_id == snapshot.snapshot_id and not manifest.deletes
        ]
        return manifests, []

    def _listed(self, snapshot: Snapshot) -> list[Manifest]:
        """The manifests of a snapshot."""
        number = snapshot.snapshot_id
        paths = self._opened.manifests.get(number)
        if paths is None:
            piece = f"manifest list of snapshot {number}"
            data = self._bytes(snapshot.manifest_list, piece)
            with Naming(snapshot.manifest_list, piece):
                manifests = read_manifest_list(data)
        else:
            manifests = [inline_manifest(path, self._bytes(path), number) for path in paths]
        _check_specs(manifests, self._opened.metadata.specs())
        return manifests

    def _entries(self, manifests: Sequence[Manifest]) -> Iterator[Entry]:
        """The live files of these manifests; for appends, only the added files."""
        appends = self._resolved.appends
        wanted = None if appends is None else {snapshot.snapshot_id for snapshot in appends}
        read = self._progress.each(self._read(manifests), len(manifests), "reading the table's manifests", "manifests")
        for manifest, data in read:
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
            manifest_size(file),
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

    def _read(self, manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, bytes]]:
        """The manifests with their bytes, fetched concurrently from remote stores."""
        if self._places.storage.local or len(manifests) < 2:
            yield from ((manifest, self._bytes(manifest.path)) for manifest in manifests)
            return
        with ThreadPoolExecutor(min(_REMOTE_READS, len(manifests)), thread_name_prefix="manifests") as pool:
            yield from zip(manifests, pool.map(lambda one: self._bytes(one.path), manifests), strict=True)

    def _bytes(self, url: str, piece: str = "") -> bytes:
        with Naming(url, piece), self._places.storage.open(self._places.path(url)) as source:
            data: bytes = source.read()
        return data


def _listed_files(manifest: Manifest) -> int:
    """The number of live files in a manifest according to the manifest list (0 if it is not recorded)."""
    return (manifest.record.added_files_count or 0) + (manifest.record.existing_files_count or 0)


def _check_specs(manifests: Sequence[Manifest], specs: Mapping[int, Any]) -> None:
    for manifest in manifests:
        if manifest.spec_id not in specs:
            raise FileReadError(
                f"{printable(manifest.path)}: its files use the partition spec {manifest.spec_id}, but the table has "
                f"the specs {sorted(specs)}: its metadata is not the one for which this manifest was written."
            )


# The partition values of files, according to the specs with which they were written.


@dataclass(frozen=True, slots=True)
class Partition:
    """The values of one partition.

    Attributes:
        values: name of the partition field -> value as a Python object, for users and strategies.
        constants: (field id of the column, value for Arrow), for columns partitioned by identity.
    """

    values: Mapping[str, Any]
    constants: tuple[tuple[int, Any], ...]


class Partitions:
    """The partitions of a table's files; equal partitions share one object."""

    def __init__(self, specs: Mapping[int, PartitionSpec], schema: Schema) -> None:
        self._specs = specs
        self._types = {number: _types(spec, schema) for number, spec in specs.items()}
        self._columns = schema.field_ids
        self._found: dict[PartitionKey, Partition] = {}

    def place(self, entry: Entry) -> PartitionKey:
        """The spec and values of a file's partition, as a key: NaNs are equal, -0.0 differs from 0.0."""
        values = tuple(value.hex() if isinstance(value, float) else value for value in entry.file.partition._data)
        return entry.spec_id, values

    def of(self, place: PartitionKey, entry: Entry) -> Partition:
        """The partition of a file at this place."""
        partition = self._found.get(place)
        if partition is None:
            partition = self._found[place] = self._read(entry)
        return partition

    def _read(self, entry: Entry) -> Partition:
        spec, types = self._specs[entry.spec_id], self._types[entry.spec_id]
        values = [plain_value(value) for value in entry.file.partition._data]
        return Partition(
            {item.name: _shown(value, kind) for item, kind, value in zip(spec.fields, types, values, strict=True)},
            tuple(
                (item.source_id, value)
                for item, value in zip(spec.fields, values, strict=True)
                if isinstance(item.transform, IdentityTransform) and item.source_id in self._columns
            ),
        )


def _types(spec: PartitionSpec, schema: Schema) -> list[pa.DataType | None]:
    """The types of a partition's values; None if the transform is unknown or its column was dropped."""
    fields = spec.partition_type(schema).fields
    return [_type(item.transform, typed.field_type) for item, typed in zip(spec.fields, fields, strict=True)]


def _type(transform: Transform[Any, Any], kind: IcebergType) -> pa.DataType | None:
    known = not isinstance(transform, UnknownTransform) and not isinstance(kind, UnknownType)
    return arrow_type(kind) if known else None


def _shown(value: Any, kind: pa.DataType | None) -> Any:
    """The value as a Python object, such as a date for days; unchanged if Python has none or `kind` is None."""
    if value is None or kind is None:
        return value
    try:
        return pa.scalar(value, kind).as_py()
    except (OverflowError, ValueError):
        return value
