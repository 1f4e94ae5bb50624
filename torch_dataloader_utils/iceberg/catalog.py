"""Loads a table's metadata from a catalog, a pyiceberg table, a metadata file or a table's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
from pyiceberg.exceptions import ValidationError as InvalidError
from pyiceberg.table import StaticTable, Table

from torch_dataloader_utils.errors import (
    CatalogError,
    DataLoaderUtilsError,
    DataNotFoundError,
    FileReadError,
    MissingExtraError,
    OptionError,
)
from torch_dataloader_utils.iceberg.clients import load_credentials, load_table
from torch_dataloader_utils.iceberg.configuration import configuration
from torch_dataloader_utils.iceberg.metadata import OpenTable, fault_of, read_metadata
from torch_dataloader_utils.iceberg.vended import TableAccess, parted
from torch_dataloader_utils.options.sources import is_path
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable, remember_secrets
from torch_dataloader_utils.storage import Naming, Storage, Stored, open_storage
from torch_dataloader_utils.values import url_of

T = TypeVar("T")

_METADATA = re.compile(r"(?:v(\d+)|(\d+)-.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_HINT = "version-hint.text"
_SHOWN = 5  # names listed in an error
_NAMES = (
    "Check the table's name. Some catalogs, such as SQL ones, also separate tables by the catalog's name: it is 'name' "
    "beside 'uri'."
)


def open_table(
    table: Any,
    catalog: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> OpenTable:
    """The table's metadata as of now.

    Args:
        table: "namespace.table" in a catalog, a `pyiceberg.table.Table`, or the path of a metadata file or of a
            table's folder.
        catalog: the catalog of a table that is given by its name: a name in pyiceberg's configuration, properties for
            `load_catalog` with its name under "name", or a pyiceberg Catalog; None for pyiceberg's default catalog.
        storage_options: for paths.
        filesystem: for paths.

    Raises:
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached or denies access.
        FileReadError: the file is not table metadata.
        MissingExtraError: the catalog's client is not installed.
        OptionError: `table` or `catalog` has another form, or pyiceberg's configuration does not have the catalog.
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
    if catalog is not None or not (is_path(table) or os.path.exists(table)):
        return _loaded(_from_catalog(str(table), catalog))
    storage, path = open_storage(table, storage_options, filesystem)
    return read_metadata(storage, _metadata_path(storage, path))


# ----------------------------------------------------------------------------------------------------------- catalogs


def _loaded(table: Table) -> OpenTable:
    given = {name: value for name, value in table.io.properties.items() if isinstance(value, str)}
    properties, vended = parted(given)
    remember_secrets(properties, getattr(table.catalog, "properties", None), *(one.properties for one in vended))
    return OpenTable(".".join(table.name()), table.metadata, properties, vended)


def again(table: Any) -> Any:
    """The table reloaded from its catalog, if it is a pyiceberg table of a catalog; otherwise `table` unchanged.

    Raises:
        BatchTimeoutError: the catalog does not answer.
        CatalogError: the catalog cannot be reached or denies access.
    """
    if not isinstance(table, Table) or isinstance(table, StaticTable):
        return table
    return _asking(table.catalog, table.name(), load_table)


def renewed(access: TableAccess, table: Any, catalog: Any) -> TableAccess | None:
    """The access to a table's files with new credentials; None if its catalog has no request for these alone.

    Args:
        access: the access until now.
        table: the table, as it was given.
        catalog: its catalog, as it was given.

    Raises:
        BatchTimeoutError: the catalog does not answer.
        CatalogError: the catalog cannot be reached or denies access.
    """
    if isinstance(table, StaticTable):
        return None
    given = isinstance(table, Table)
    catalog, name = (table.catalog, table.name()) if given else (catalog, str(table))
    vended = _asking(catalog, name, load_credentials)
    remember_secrets(*(one.properties for one in vended))
    return access.renewed(vended) if vended else None


def _from_catalog(identifier: str, catalog: Any) -> Table:
    if "." not in identifier:
        raise OptionError(f"table={identifier!r}: expected 'namespace.table', or a path (containing '/').")
    return _asking(catalog, identifier, load_table)


def _asking(catalog: Any, identifier: str | tuple[str, ...], ask: Callable[[Any, str | tuple[str, ...]], T]) -> T:
    """What a catalog answers about a table; its client's exceptions become errors that name table and catalog."""
    plain = identifier if isinstance(identifier, str) else ".".join(identifier)
    table, shown = f"table={plain!r}", _shown(catalog)
    try:
        return ask(catalog, identifier)
    except DataLoaderUtilsError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        missing = "table" if isinstance(error, NoSuchTableError) else "namespace"
        hint = configuration().in_table(plain) or f" {_NAMES}"
        raise DataNotFoundError(f"{table}: {shown} has no such {missing}.{hint}") from error
    except NotInstalledError as error:
        raise MissingExtraError(f"{table}: {shown} needs a client that is not installed: {error}") from error
    except (InvalidError, ValidationError) as error:
        raise FileReadError(
            f"{table}: {shown} has metadata of it that is damaged: {fault_of(error)}. Read another version by the "
            "path of its metadata.json, or restore the table."
        ) from None  # the cause prints values of the metadata
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise CatalogError(
            f"{table}: {shown} could not load it: {text.rstrip('. ')}. Check catalog_config=, which is passed to "
            "pyiceberg's load_catalog; without it, or with a 'name' alone, pyiceberg's own configuration is used."
        ) from error


def _shown(catalog: Any) -> str:
    name = catalog if isinstance(catalog, str) else getattr(catalog, "name", None)
    if isinstance(catalog, Mapping):
        name = catalog.get("name")
    return "the default catalog (no 'name' was given)" if name is None else f"catalog {name!r}"


# -------------------------------------------------------------------------------------------------------------- paths


def _metadata_path(storage: Storage, path: str) -> str:
    """The metadata file at `path`, or the latest one if `path` is a table's folder."""
    stored = storage.look(path)
    if stored is None:
        raise DataNotFoundError(f"{printable(path)}: there is no such metadata file or table folder.")
    if not stored.folder:
        return path
    for folder in (f"{path.rstrip('/')}/metadata", path):
        files = [file for file in _files_in(storage, folder) if _METADATA.match(_name(file.path))]
        if files:
            return _latest(storage, folder, files)
    raise DataNotFoundError(
        f"{printable(path)}: is not an Iceberg table: expected a folder 'metadata' with files such as "
        "'v1.metadata.json'."
    )


def _files_in(storage: Storage, folder: str) -> list[Stored]:
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
