"""Loads a table's metadata from a catalog, a pyiceberg table, a metadata file or a table's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any
from urllib.parse import urljoin, urlsplit

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
from pyiceberg.exceptions import ValidationError as InvalidError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io
from pyiceberg.table import StaticTable, Table
from pyiceberg.utils.config import Config, merge_config

from torch_dataloader_utils.errors import (
    CatalogError,
    DataLoaderUtilsError,
    DataNotFoundError,
    FileReadError,
    MissingExtraError,
    OptionError,
)
from torch_dataloader_utils.iceberg.metadata import MOST_BYTES, OpenTable, fault_of, inflated, read_metadata
from torch_dataloader_utils.options.sources import is_path
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable, remember_secrets
from torch_dataloader_utils.storage import Naming, Storage, Stored, open_storage
from torch_dataloader_utils.storage.waiting import answered, limit
from torch_dataloader_utils.values import url_of

# pyiceberg's catalogs; a REST catalog's token and headers go to no other host than those in its configuration.

_ADDRESSES = ("uri", OAUTH2_SERVER_URI)


def table_of(name: str | None, properties: Mapping[str, Any], identifier: str) -> Table:
    """The table of the catalog that pyiceberg's `load_catalog` returns for these arguments.

    Raises:
        BatchTimeoutError: the catalog, or the store of its metadata, does not answer within the time limit of this
            context.
        CatalogError: a REST catalog sends its client to another host.
        FileReadError: the metadata file is too large.
    """
    config = Config()
    chosen = config.get_default_catalog_name() if name is None else name
    merged: Any = merge_config(config.get_catalog_config(chosen) or {}, dict(properties))
    kind, uri = merged.get("type"), str(merged.get("uri") or "")
    rest = kind.lower() == "rest" if isinstance(kind, str) else uri.startswith("http")
    home = rest and uri and "py-catalog-impl" not in properties

    def load() -> Table:
        with _HomeRestCatalog(chosen, **merged) if home else load_catalog(name, **properties) as catalog:
            return with_limits(catalog).load_table(identifier)

    return _limited(load, identifier)


def loaded(catalog: Catalog, identifier: str | tuple[str, ...]) -> Table:
    """The table of this catalog, which the user created.

    Raises:
        BatchTimeoutError: the catalog does not answer within the time limit of this context.
    """
    dialect = getattr(getattr(catalog, "engine", None), "dialect", None)  # of a SQL catalog
    if getattr(dialect, "name", None) == "sqlite":
        return catalog.load_table(identifier)  # on this thread, to which a connection to SQLite is bound
    return _limited(lambda: catalog.load_table(identifier), identifier)


def _limited(load: Callable[[], Table], identifier: str | tuple[str, ...]) -> Table:
    table = identifier if isinstance(identifier, str) else ".".join(identifier)
    return answered(load, limit(), f"table {table!r}", "catalog")


class _HomeRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog that follows no redirect to another host, where requests would send all but `Authorization`.

    A redirected request for a token would even send the secret itself.
    """

    def _config_headers(self, session: Any) -> None:
        super()._config_headers(session)
        session.hooks["response"].append(_stay)

    def _fetch_config(self) -> None:
        given = [self.properties[name] for name in _ADDRESSES if self.properties.get(name)]
        super()._fetch_config()
        for name in _ADDRESSES:
            address = self.properties.get(name)
            if address and not any(_same_host(one, address) for one in given):
                raise _elsewhere(f"its configuration sets {name}=", address)


def _stay(response: Any, **_: Any) -> Any:
    """The response, unless it redirects to another host."""
    if response.is_redirect:
        target = urljoin(response.url, response.headers["location"])
        if not _same_host(response.url, target):
            response.close()
            raise _elsewhere("it redirects to", target)
    return response


def _same_host(one: str, other: str) -> bool:
    """Whether both are on one host and port; plain HTTP may become HTTPS there."""
    before, after = urlsplit(one), urlsplit(other)
    if before.hostname != after.hostname:
        return False
    upgraded = (before.scheme, after.scheme) == ("http", "https") and not after.port
    return upgraded or (before.scheme, before.port) == (after.scheme, after.port)


def _elsewhere(what: str, target: str) -> CatalogError:
    parts = urlsplit(target)
    host = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    return CatalogError(
        f"the catalog sends its client to another host: {what} {printable(host)}. Its token and headers are only sent "
        "to the hosts in catalog_config=: if you trust the other one, set 'uri' (or 'oauth2-server-uri') to it."
    )


# How pyiceberg's catalogs read metadata files: none too large, by no class that a table names.


def with_limits(catalog: Catalog) -> Catalog:
    """The catalog, which reads metadata files through `LimitedIO`, or the class that its own configuration names.

    pyiceberg would also import any class that a table's metadata names, and call it.
    """
    catalog.properties.setdefault(PY_IO_IMPL, f"{LimitedIO.__module__}.{LimitedIO.__name__}")
    load = catalog._load_file_io

    def load_file_io_of(properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        return load(_without_class(properties or {}), location)

    catalog._load_file_io = load_file_io_of
    return catalog


class LimitedIO(FileIO):  # type: ignore[misc]
    """Reads metadata files as pyiceberg does by default, none with a larger text than `inflated` permits."""

    def new_input(self, location: str) -> InputFile:
        """The file to read."""
        return _LimitedFile(self._files(location).new_input(location))

    def new_output(self, location: str) -> Any:
        """The file to write."""
        return self._files(location).new_output(location)

    def delete(self, location: Any) -> None:
        """Delete the file."""
        self._files(getattr(location, "location", location)).delete(location)

    def _files(self, location: str) -> FileIO:
        return load_file_io(_without_class(self.properties), location)


class _LimitedFile(InputFile):  # type: ignore[misc]
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        found: bool = self._file.exists()
        return found

    def open(self, seekable: bool = True) -> Any:
        with self._file.open(seekable=seekable) as source:
            data = source.read(MOST_BYTES + 1)
        inflated(data, self.location)
        return BytesIO(data)


def _without_class(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != PY_IO_IMPL}


_METADATA = re.compile(r"(?:v(\d+)|(\d+)-.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
_HINT = "version-hint.text"
_SHOWN = 5  # names listed in an error
_NAMES = "Some catalogs, such as SQL ones, separate tables by the catalog's name: set 'name' in catalog_config=."


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
        catalog_config: the catalog's properties for `load_catalog`, its name under "name", with the name of a table
            only; None for pyiceberg's default catalog.
        storage_options: for paths.
        filesystem: for paths.

    Raises:
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached or denies access.
        FileReadError: the file is not table metadata.
        MissingExtraError: the catalog's client is not installed.
        OptionError: `table` or `catalog_config` has another form.
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
    if catalog_config is not None or not (is_path(table) or os.path.exists(table)):
        return _loaded(_from_catalog(str(table), catalog_config))
    storage, path = open_storage(table, storage_options, filesystem)
    return read_metadata(storage, _metadata_path(storage, path))


# ----------------------------------------------------------------------------------------------------------- catalogs


def _loaded(table: Table) -> OpenTable:
    properties = {name: value for name, value in table.io.properties.items() if isinstance(value, str)}
    remember_secrets(properties, getattr(table.catalog, "properties", None))
    return OpenTable(".".join(table.name()), table.metadata, properties)


def again(table: Any) -> Any:
    """The table reloaded from its catalog, if it is a pyiceberg table of a catalog; otherwise `table` unchanged.

    Raises:
        BatchTimeoutError: the catalog does not answer.
        CatalogError: the catalog cannot be reached or denies access.
    """
    if not isinstance(table, Table) or isinstance(table, StaticTable):
        return table
    name = table.name()
    with _asking(f"table {'.'.join(name)!r}", f"catalog {table.catalog.name!r}"):
        from torch_dataloader_utils.iceberg.catalog import loaded  # as below

        return loaded(table.catalog, name)


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
    with _asking(f"table={identifier!r}", shown):
        from torch_dataloader_utils.iceberg.catalog import table_of  # REST's client takes time to import

        remember_secrets(properties, Config().get_catalog_config(name or ""))
        return table_of(name, properties, identifier)


@contextmanager
def _asking(table: str, catalog: str) -> Iterator[None]:
    """A context that converts a catalog client's exceptions to errors that name table and catalog."""
    try:
        yield
    except DataLoaderUtilsError:
        raise
    except NoSuchTableError as error:
        raise DataNotFoundError(f"{table}: {catalog} has no such table. {_NAMES}") from error
    except NoSuchNamespaceError as error:
        raise DataNotFoundError(f"{table}: {catalog} has no such namespace. {_NAMES}") from error
    except NotInstalledError as error:
        raise MissingExtraError(f"{table}: {catalog} needs a client that is not installed: {error}") from error
    except (InvalidError, ValidationError) as error:
        raise FileReadError(
            f"{table}: {catalog} has metadata of it that is damaged: {fault_of(error)}. Read another version by the "
            "path of its metadata.json, or restore the table."
        ) from None  # the cause prints values of the metadata
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise CatalogError(
            f"{table}: {catalog} could not load it: {text.rstrip('. ')}. Check catalog_config=, which is passed to "
            "pyiceberg's load_catalog; without it, or with a 'name' alone, pyiceberg's own configuration is used."
        ) from error


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
