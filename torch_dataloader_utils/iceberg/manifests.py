"""Manifest lists and manifests: the files of a snapshot, including everything that version 3 records about them.

pyiceberg reads them in about half the time of fastavro, but drops the fields that version 3 added and narrows doubles
to floats. So its reader is given the schemas of version 3, and doubles are read here. pyiceberg cannot read files
whose Avro schemas have no field ids; these are read by name.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import fastavro
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IcebergType, NestedField
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from torch_dataloader_utils.redaction import printable

_AVRO, _CIPHER = b"Obj\x01", b"AGS1"  # first bytes of Avro files, and of files encrypted by Iceberg
_FIRST_ROW_ID = 15  # position in a manifest list record of version 3


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot, as recorded in the manifest list.

    Attributes:
        path: as spelled in the list.
        spec_id: id of its files' partition spec.
        deletes: whether it lists delete files.
        sequence_number: sequence number of the files that it adds.
        snapshot_id: id of the snapshot that added it.
        first_row_id: `_row_id` of the first row of its first file that has none of its own, if the table has row ids.
        record: pyiceberg's record, for pruning.
    """

    path: str
    spec_id: int
    deletes: bool
    sequence_number: int
    snapshot_id: int | None
    first_row_id: int | None
    record: ManifestFile


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a manifest.

    Attributes:
        file: pyiceberg's record.
        spec_id: id of its partition spec.
        sequence_number: its data sequence number.
        snapshot_id: id of the snapshot that added it.
        added: whether its manifest added it (otherwise the file existed before).
        first_row_id: `_row_id` of its first row, if the table has row ids.
    """

    file: DataFile
    spec_id: int
    sequence_number: int
    snapshot_id: int | None
    added: bool
    first_row_id: int | None


def read_manifest_list(data: bytes) -> list[Manifest]:
    """The manifests in the bytes of a manifest list of any version."""
    _check_plain(data)
    return [
        Manifest(
            path=record.manifest_path,
            spec_id=record.partition_spec_id,
            deletes=record.content == ManifestContent.DELETES,
            sequence_number=record.sequence_number,
            snapshot_id=record.added_snapshot_id,
            first_row_id=record[_FIRST_ROW_ID],
            record=record,
        )
        for record in _list_records(data)
    ]


def inline_manifest(path: str, data: bytes, snapshot_id: int) -> Manifest:
    """A manifest of a snapshot without a manifest list (version 1), as a list would record it; reads its header."""
    header = fastavro.reader(io.BytesIO(data)).metadata
    spec_id = int(header.get("partition-spec-id", 0))
    record = ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=spec_id,
        partitions=None,
    )
    return Manifest(path, spec_id, False, 0, snapshot_id, None, record)


def read_manifest(data: bytes, manifest: Manifest) -> Iterator[Entry]:
    """The live files in the bytes of a manifest, with the values they inherit from it."""
    _check_plain(data, manifest.record.key_metadata)
    next_row_id = manifest.first_row_id
    for record in _entry_records(data):
        if record.status == ManifestEntryStatus.DELETED:
            continue
        file, sequence_number = record.data_file, record.sequence_number
        _check_content(file, manifest.deletes)
        row_id: int | None = file[_DATA_FIELDS["first_row_id"]]
        if manifest.first_row_id is None:
            row_id = None
        elif row_id is None:
            row_id, next_row_id = next_row_id, next_row_id + file.record_count
        yield Entry(
            file=file,
            spec_id=manifest.spec_id,
            sequence_number=manifest.sequence_number if sequence_number is None else sequence_number,
            snapshot_id=manifest.snapshot_id if record.snapshot_id is None else record.snapshot_id,
            added=record.status == ManifestEntryStatus.ADDED,
            first_row_id=row_id,
        )


def _check_content(file: DataFile, deletes: bool) -> None:
    """Check that a manifest holds what its manifest list says: otherwise rows would be lost, or deleted ones return."""
    if (file.content not in (None, DataFileContent.DATA)) != deletes:
        listed, expected = ("data file", "delete files") if deletes else ("delete file", "data files")
        raise ValueError(
            f"it lists {printable(file.file_path)}, a {listed}, but its manifest list expects {expected}. "
            "Read another snapshot, or restore the manifest and its list."
        )


def _check_plain(data: bytes, key_metadata: bytes | None = None) -> None:
    """Check that a file is not encrypted; a file that has a key but is plain Avro was decrypted by its store."""
    if data.startswith(_CIPHER) or (key_metadata and not data.startswith(_AVRO)):
        raise ValueError("the file is encrypted, and encrypted tables are not supported: read a decrypted copy.")


def content_of(file: DataFile, name: str) -> Any:
    """A field of a data file that version 3 added."""
    return file[_DATA_FIELDS[name]]


def _optional(schema: Schema) -> Schema:
    """The schema without requirements: older versions lack fields."""
    return Schema(*(_optional_field(field) for field in schema.fields))


def _optional_field(field: NestedField) -> NestedField:
    return NestedField(
        field.field_id, field.name, field.field_type, required=False, initial_default=field.initial_default
    )


_LIST_SCHEMA = _optional(MANIFEST_LIST_FILE_SCHEMAS[3])
_ENTRY_SCHEMA = MANIFEST_ENTRY_SCHEMAS[3]
_DATA_FIELDS = {field.name: place for place, field in enumerate(_ENTRY_SCHEMA.find_type("data_file").fields)}


def _list_records(data: bytes) -> list[ManifestFile]:
    if b'"field-id"' not in data:
        return [manifest_by_name(record) for record in fastavro.reader(io.BytesIO(data))]
    types = {-1: ManifestFile, 508: PartitionFieldSummary}
    return list(_avro(data, _LIST_SCHEMA, types, {517: ManifestContent}))


def _entry_records(data: bytes) -> Iterator[ManifestEntry]:
    if b'"field-id"' not in data:
        yield from map(entry_by_name, fastavro.reader(io.BytesIO(data)))
        return
    types = {-1: ManifestEntry, 2: DataFile}
    enums = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    yield from _avro(data, _ENTRY_SCHEMA, types, enums)


def _avro(data: bytes, schema: Schema, types: Mapping[int, Any], enums: Mapping[int, Any]) -> Iterator[Any]:
    """The records of an Avro file; checks its end, because pyiceberg does not notice if it is truncated."""
    _check_lengths(data)
    with _Avro(data, schema, types, enums) as reader:
        if not data.endswith(reader.header.sync):
            raise EOFError("the file is truncated")
        yield from reader


def _check_lengths(data: bytes) -> None:
    """Check that no record extends beyond its block.

    pyiceberg's compiled decoder checks no length: a damaged file makes it read other memory, or crash the process.
    fastavro checks all of them, and is fast here because it skips every field.

    Raises:
        EOFError: one does, or another error of fastavro.
    """
    writer = fastavro.reader(io.BytesIO(data)).writer_schema
    for _ in fastavro.reader(io.BytesIO(data), {**writer, "fields": []}):
        pass


class _Avro(AvroFile[Any]):  # type: ignore[misc]
    """pyiceberg's reader of Avro files, for bytes in memory."""

    def __init__(self, data: bytes, schema: Schema, types: Mapping[int, Any], enums: Mapping[int, Any]) -> None:
        super().__init__(None, schema, types, enums)
        self.decoder = new_decoder(data)

    def __enter__(self) -> _Avro:
        self.header = self._read_header()
        avro = json.loads(self.header.meta["avro.schema"], object_hook=_without_nanoseconds)
        self.schema = AvroSchemaConversion().avro_to_iceberg(avro)
        readers = _Readers(self.read_types, self.read_enums)
        self.reader = visit_with_partner(self.schema, self.read_schema, readers, SchemaPartnerAccessor())
        return self


def _without_nanoseconds(kind: dict[str, Any]) -> Any:
    """The Avro type, with nanosecond timestamps as plain numbers, because pyiceberg does not know them."""
    return kind["type"] if kind.get("logicalType") == "timestamp-nanos" else kind


class _Readers(ReadSchemaResolver):  # type: ignore[misc]
    """pyiceberg's value readers, except for doubles, which its compiled decoder narrows to floats."""

    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:
        """A reader of all 64 bits."""
        return _Doubles()


class _Doubles(Reader):  # type: ignore[misc]
    _unpack = struct.Struct("<d").unpack

    def read(self, decoder: BinaryDecoder) -> float:
        """The next value."""
        value: float = self._unpack(decoder.read(8))[0]
        return value

    def skip(self, decoder: BinaryDecoder) -> None:
        """Skip the next value."""
        decoder.skip(8)


# Records of manifests and manifest lists whose Avro schemas have no field ids, which pyiceberg cannot read.

_MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def manifest_by_name(record: Any) -> ManifestFile:
    """A record of a manifest list as pyiceberg has it."""
    summaries = record.get("partitions")
    if summaries is not None:
        record = {**record, "partitions": [PartitionFieldSummary.from_args(**summary) for summary in summaries]}
    if "content" in record:
        record = {**record, "content": ManifestContent(record["content"])}
    return ManifestFile.from_args(_table_format_version=3, **record)


def entry_by_name(record: Any) -> ManifestEntry:
    """A record of a manifest as pyiceberg has it."""
    file = dict(record["data_file"])
    for name in _MAPS:
        if isinstance(file.get(name), list):
            file[name] = {item["key"]: item["value"] for item in file[name]}
    file["partition"] = Record(*(_plain(value) for value in file["partition"].values()))
    file["file_format"] = FileFormat(file["file_format"])
    file["content"] = DataFileContent(file.get("content") or 0)
    entry = {**record, "status": ManifestEntryStatus(record["status"])}
    entry["data_file"] = DataFile.from_args(_table_format_version=3, **file)
    return ManifestEntry.from_args(_table_format_version=3, **entry)


_EPOCHS: Mapping[bool, datetime] = {
    aware: datetime.fromisoformat("1970-01-01T00:00:00+00:00" if aware else "1970-01-01") for aware in (True, False)
}


def _plain(value: Any) -> Any:
    """A partition value in pyiceberg's form: days and microseconds as numbers."""
    if isinstance(value, datetime):
        return (value - _EPOCHS[value.tzinfo is not None]) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, time):
        return (datetime.combine(date(1970, 1, 1), value) - _EPOCHS[False]) // timedelta(microseconds=1)
    return value
