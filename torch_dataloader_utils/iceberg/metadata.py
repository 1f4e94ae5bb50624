"""A table's metadata, as read from its metadata file."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pyiceberg.exceptions import ValidationError as InvalidError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import IcebergType

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.iceberg.vended import TableAccess, Vended
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Naming, Storage

# What pyiceberg raises for metadata with missing keys or wrong values.
_INVALID = (
    *(InvalidError, ValidationError, KeyError, TypeError, AttributeError, ValueError),
    *(RecursionError, NotImplementedError),
)
_NANOSECONDS = ("timestamp_ns", "timestamptz_ns")
MOST_BYTES = 2**28  # of metadata, after decompression
_SHOWN = 3  # faults listed in an error


@dataclass(frozen=True)
class OpenTable:
    """A table as of when it was opened; no catalog connection stays open.

    Attributes:
        name: for messages.
        metadata: all its snapshots, schemas and specs.
        properties: properties of its storage, under the names of pyiceberg's FileIO. May contain credentials.
        vended: credentials that its catalog provides for parts of its storage, in place of those in `properties`.
        manifests: snapshot id -> manifest paths, for snapshots without a manifest list (format version 1).
        foreign: field id -> type, for fields whose types pyiceberg does not know; they appear as strings.
        defaults: field id -> initial default as spelled in the metadata, for nanosecond fields, whose defaults
            pyiceberg cannot read.
    """

    name: str
    metadata: TableMetadata
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    vended: tuple[Vended, ...] = ()
    manifests: Mapping[int, Sequence[str]] = field(default_factory=dict)
    foreign: Mapping[int, str] = field(default_factory=dict)
    defaults: Mapping[int, str] = field(default_factory=dict)

    @property
    def access(self) -> TableAccess:
        """How its files are reached."""
        return TableAccess(self.metadata.location, self.properties, self.vended)


def read_metadata(storage: Storage, path: str) -> OpenTable:
    """The table described by this metadata file.

    Raises:
        FileReadError: the file is not table metadata; the message names the file and the missing or wrong key.
    """
    shown = printable(path)
    content = _content(storage, path)
    if not isinstance(content, dict) or "format-version" not in content:
        raise FileReadError(f"{shown}: is not metadata of an Iceberg table: it has no 'format-version'.")
    manifests = _inline_manifests(content)
    foreign: dict[int, str] = {}
    defaults: dict[int, str] = {}
    for holder, part, number in _places_of_types(content):
        if not _known(holder[part]):
            foreign[number] = holder[part]
            holder[part] = "string"
        elif holder[part] in _NANOSECONDS and holder.get("initial-default") is not None:
            defaults[number] = holder["initial-default"]
        else:
            continue
        holder["initial-default"] = holder["write-default"] = None
    try:
        metadata = TableMetadataUtil.parse_obj(content)
    except _INVALID as error:
        raise FileReadError(
            f"{shown}: is damaged, or metadata of a version that pyiceberg does not know: {fault_of(error)}. Read "
            "another metadata file of the table, or restore this one."
        ) from error
    return OpenTable(shown, metadata, manifests=manifests, foreign=foreign, defaults=defaults)


def fault_of(error: Exception) -> str:
    """What is wrong with metadata, from an exception of pyiceberg: the missing or wrong keys."""
    if isinstance(error, InvalidError) and isinstance(error.__cause__, ValidationError):
        error = error.__cause__  # pyiceberg's error has the text of pydantic's, with values of the metadata
    if isinstance(error, ValidationError):
        faults = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        return "; ".join(faults[:_SHOWN]).rstrip(".") + more
    if isinstance(error, KeyError):
        return f"key {error} is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"{type(error).__name__}: {error}".rstrip(".")


def _content(storage: Storage, path: str) -> Any:
    with Naming(path), storage.open(path) as source:
        data = source.read(MOST_BYTES + 1)
    try:
        return json.loads(inflated(data, path))
    except ValueError as error:
        raise FileReadError(f"{printable(path)}: is not metadata of an Iceberg table: {error}") from error
    except RecursionError:
        raise FileReadError(f"{printable(path)}: is not metadata of an Iceberg table: nested too deeply.") from None


def inflated(data: bytes, path: str) -> bytes:
    """The text of a metadata file, compressed or not.

    Args:
        data: of the file; its first `MOST_BYTES` + 1 bytes suffice.
        path: for messages.

    Raises:
        FileReadError: the text is larger than `MOST_BYTES`, or its compression is damaged.
    """
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FileReadError(f"{printable(path)}: is not metadata of an Iceberg table: {error}") from error
    if len(data) > MOST_BYTES:
        raise FileReadError(
            f"{printable(path)}: is larger than {MOST_BYTES >> 20} MiB (decompressed), the most that is read. If "
            "the table has so much metadata, expire snapshots."
        )
    return data


def _inline_manifests(content: dict[str, Any]) -> dict[int, list[str]]:
    """The manifests of snapshots that list them inline; sets these snapshots' manifest list to an empty name.

    Leaves what has another form to pyiceberg, whose error names it.
    """
    manifests = {}
    for snapshot in _dicts(content.get("snapshots")):
        inline, number = snapshot.get("manifests"), snapshot.get("snapshot-id")
        if "manifest-list" not in snapshot and isinstance(inline, list) and isinstance(number, int):
            manifests[number] = [str(name) for name in inline]
            snapshot["manifest-list"] = ""
    return manifests


def _places_of_types(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int]]:
    """(the dict that contains it, its key there, field id) for each type given by name, in all schemas."""
    stack = [*_dicts(content.get("schemas")), *_dicts([content.get("schema")])]
    while stack:
        node = stack.pop()
        # A struct's fields, a list's element, a map's key and value.
        places = [(item, "type", item.get("id")) for item in _dicts(node.get("fields"))]
        places += [(node, part, node.get(f"{part}-id")) for part in ("element", "key", "value") if part in node]
        for holder, part, number in places:
            kind = holder.get(part)
            if isinstance(kind, dict):
                stack.append(kind)
            elif isinstance(kind, str) and isinstance(number, int):
                yield holder, part, number


def _dicts(value: Any) -> list[dict[str, Any]]:
    """The dicts in a list; none if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _known(name: str) -> bool:
    try:
        IcebergType.handle_primitive_type(name, None)
    except (ValueError, InvalidError):
        return False
    return True
