"""Loads a table's metadata from a catalog, a pyiceberg table, a metadata file or a table's folder."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
from pyiceberg.exceptions import ValidationError as InvalidError
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import IcebergType

from torch_dataloader_utils.errors import CatalogError, DataNotFoundError, FileReadError, MissingExtraError, OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.storage import Naming, Storage, Stored, open_storage, printable, url_of

_METADATA = re.compile(r"(?:v(\d+)|(\d+)-.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_HINT = "version-hint.text"
_SECRET = re.compile(r"secret|password|token|credential|key|sas|auth", re.IGNORECASE)
_NANOSECONDS = ("timestamp_ns", "timestamptz_ns")
_SHOWN = 5  # names listed in an error
_NAMES = "Some catalogs, such as SQL ones, separate tables by the catalog's name: set 'name' in catalog_config=."


@dataclass(frozen=True)
class OpenTable:
    """A table as of when it was opened; no catalog connection stays open.

    Attributes:
        name: for messages.
        metadata: all its snapshots, schemas and specs.
        properties: properties of its storage, under the names of pyiceberg's FileIO. May contain credentials.
        manifests: snapshot id -> manifest paths, for snapshots without a manifest list (format version 1).
        foreign: field id -> type, for fields whose types pyiceberg does not know; they appear as strings.
        defaults: field id -> initial default as spelled in the metadata, for nanosecond fields, whose defaults
            pyiceberg cannot read.
    """

    name: str
    metadata: TableMetadata
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    manifests: Mapping[int, Sequence[str]] = field(default_factory=dict)
    foreign: Mapping[int, str] = field(default_factory=dict)
    defaults: Mapping[int, str] = field(default_factory=dict)


def open_table(
    table: Any,
    catalog_config: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> OpenTable:
    """The table's metadata as of now.

    Args:
        table: "namespace.table" in a catalog, a `pyiceberg.table.Table`, or the path of a metadata file or of a
            table's folder.
        catalog_config: the catalog's properties for `load_catalog`, its name under "name"; None for pyiceberg's
            default catalog.
        storage_options: for paths.
        filesystem: for paths.

    Raises:
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached or denies access.
        FileReadError: the file is not table metadata.
        MissingExtraError: the catalog's client is not installed.
        OptionError: `table` or `catalog_config` has another form, or both a path and a catalog were given.
    """
    if isinstance(table, Table):
        return _loaded(table)
    if isinstance(table, os.PathLike):
        url_of(table)  # refuses a path without a name
    if not isinstance(table, (str, os.PathLike)) or not str(table):
        raise OptionError(
            f"table={shown(table)}: expected 'namespace.table', a pyiceberg Table, or the path of a metadata.json or "
            "of a table's folder."
        )
    if catalog_config is not None and _spelled_as_path(table):
        raise OptionError(
            f"table={printable(str(table))!r} is a path, which needs no catalog, but catalog_config= was also given: "
            "leave out catalog_config=, or pass the table's name in the catalog, such as 'namespace.table'."
        )
    if catalog_config is not None or not _is_path(table):
        return _loaded(_from_catalog(str(table), catalog_config))
    storage, path = open_storage(table, storage_options, filesystem)
    return _read(storage, _metadata_path(storage, path))


def _is_path(table: str | os.PathLike[str]) -> bool:
    return _spelled_as_path(table) or os.path.exists(table)


def _spelled_as_path(table: str | os.PathLike[str]) -> bool:
    return not isinstance(table, str) or "/" in table or os.sep in table or table.endswith((".json", ".gz"))


# ----------------------------------------------------------------------------------------------------------- catalogs


def _loaded(table: Table) -> OpenTable:
    properties = {name: value for name, value in table.io.properties.items() if isinstance(value, str)}
    return OpenTable(".".join(table.name()), table.metadata, properties)


def again(table: Any) -> Any:
    """The table reloaded from its catalog, if it is a pyiceberg table of a catalog; otherwise `table` unchanged.

    Raises:
        CatalogError: the catalog cannot be reached or denies access.
    """
    if not isinstance(table, Table) or isinstance(table, StaticTable):
        return table
    name = table.name()
    with _asking(f"table {'.'.join(name)!r}", f"catalog {table.catalog.name!r}", table.catalog.properties):
        return table.catalog.load_table(name)


def _from_catalog(identifier: str, config: Mapping[str, Any] | None) -> Table:
    if config is not None and not isinstance(config, Mapping):
        raise OptionError(
            f"catalog_config={type(config).__name__}: expected a dict of arguments of pyiceberg's load_catalog."
        )
    properties = dict(config or {})
    name = properties.pop("name", None)
    if "." not in identifier:
        raise OptionError(f"table={identifier!r}: expected 'namespace.table', or a path (containing '/').")
    shown = "the default catalog (no 'name' was given)" if name is None else f"catalog {name!r}"
    with _asking(f"table={identifier!r}", shown, properties):
        return load_catalog(name, **properties).load_table(identifier)


@contextmanager
def _asking(table: str, catalog: str, properties: Mapping[str, Any]) -> Iterator[None]:
    """A context that converts a catalog client's exceptions to errors that name table and catalog, but no secrets."""
    try:
        yield
    except NoSuchTableError as error:
        raise DataNotFoundError(f"{table}: {catalog} has no such table. {_NAMES}") from error
    except NoSuchNamespaceError as error:
        raise DataNotFoundError(f"{table}: {catalog} has no such namespace. {_NAMES}") from error
    except NotInstalledError as error:
        raise MissingExtraError(f"{table}: {catalog} needs a client that is not installed: {error}") from error
    except Exception as error:
        original = f"{type(error).__name__}: {error}"
        text = _without_secrets(original, properties)
        message = (
            f"{table}: {catalog} could not load it: {text.rstrip('. ')}. Check catalog_config=, which is passed to "
            "pyiceberg's load_catalog; without it, or with a 'name' alone, pyiceberg's own configuration is used."
        )
        if text != original:  # the cause contains a secret, so no traceback may print it
            raise CatalogError(message) from None
        raise CatalogError(message) from error


def _without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    for name, value in properties.items():
        if _SECRET.search(name) and isinstance(value, str) and value:
            for part in {value, *value.split(":")} - {""}:  # a credential is "id:secret"
                text = text.replace(part, "***")
    return printable(text)


# -------------------------------------------------------------------------------------------------------------- paths


def _metadata_path(storage: Storage, path: str) -> str:
    """The metadata file at `path`, or the latest one if `path` is a table's folder."""
    stored = storage.look(path)
    if stored is None:
        raise DataNotFoundError(f"{printable(path)}: there is no such metadata file or table folder.")
    if not stored.folder:
        return path
    for folder in (f"{path.rstrip('/')}/metadata", path):
        files = [file for file in _listed(storage, folder) if _METADATA.match(_name(file.path))]
        if files:
            return _latest(storage, folder, files)
    raise DataNotFoundError(
        f"{printable(path)}: is not an Iceberg table: expected a folder 'metadata' with files such as "
        "'v1.metadata.json'."
    )


def _listed(storage: Storage, folder: str) -> list[Stored]:
    stored = storage.look(folder)
    return storage.find(folder, recursive=False) if stored is not None and stored.folder else []


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _latest(storage: Storage, folder: str, files: Sequence[Stored]) -> str:
    """The file that the hint names, or else the one with the highest version."""
    hint = storage.look(f"{folder}/{_HINT}")
    if hint is not None:
        word = _bytes(storage, hint.path).decode().strip()
        named = [file.path for file in files if _name(file.path) in (word, f"{word}.metadata.json")]
        if named:
            return named[0]
    # A version number in the hint may be stale: the next version's file is written before the hint.
    highest = max(map(_version, files))
    paths = [file.path for file in files if _version(file) == highest]
    if len(paths) > 1:
        raise OptionError(
            f"{printable(folder)}: has {len(paths)} metadata files of version {highest}, such as "
            f"{[_name(path) for path in paths[:_SHOWN]]}, and only the catalog knows which is current: pass the path "
            "of one, or the catalog."
        )
    return paths[0]


def _version(file: Stored) -> int:
    match = _METADATA.match(_name(file.path))
    assert match is not None
    return int(match[1] or match[2])


def _bytes(storage: Storage, path: str) -> bytes:
    with Naming(path), storage.open(path) as source:
        data: bytes = source.read()
    return data


def _read(storage: Storage, path: str) -> OpenTable:
    """The table described by this metadata file."""
    shown = printable(path)
    data = _bytes(storage, path)
    try:
        content = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except (ValueError, OSError, EOFError) as error:
        raise FileReadError(f"{shown}: is not metadata of an Iceberg table: {error}") from error
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
    except (InvalidError, ValidationError, TypeError, KeyError) as error:
        raise FileReadError(f"{shown}: is not metadata that pyiceberg can read: {error}") from error
    return OpenTable(shown, metadata, {}, manifests, foreign, defaults)


def _inline_manifests(content: dict[str, Any]) -> dict[int, list[str]]:
    """The manifests of snapshots that list them inline; sets these snapshots' manifest list to an empty name."""
    manifests = {}
    for snapshot in content.get("snapshots") or []:
        if "manifest-list" not in snapshot and "manifests" in snapshot:
            manifests[snapshot["snapshot-id"]] = list(snapshot["manifests"])
            snapshot["manifest-list"] = ""
    return manifests


def _places_of_types(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int]]:
    """(the dict that contains it, its key there, field id) for each type given by name, in all schemas."""
    stack = [*(content.get("schemas") or []), *([content["schema"]] if isinstance(content.get("schema"), dict) else [])]
    while stack:
        node = stack.pop()
        # A struct's fields, a list's element, a map's key and value.
        places = [(item, "type", item.get("id")) for item in node.get("fields", [])]
        places += [(node, part, node.get(f"{part}-id")) for part in ("element", "key", "value") if part in node]
        for holder, part, number in places:
            if isinstance(holder[part], dict):
                stack.append(holder[part])
            else:
                yield holder, part, number


def _known(name: str) -> bool:
    try:
        IcebergType.handle_primitive_type(name, None)
    except (ValueError, InvalidError):
        return False
    return True
