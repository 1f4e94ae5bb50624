"""Records of manifests and manifest lists whose Avro schemas have no field ids, which pyiceberg cannot read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.typedef import Record

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
