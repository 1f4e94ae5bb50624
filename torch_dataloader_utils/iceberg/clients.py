"""The clients of catalogs: pyiceberg's, one of each REST catalog per process."""

from __future__ import annotations

import copy
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io
from pyiceberg.table import Table

from torch_dataloader_utils.errors import CatalogError, OptionError
from torch_dataloader_utils.iceberg.configuration import configuration
from torch_dataloader_utils.iceberg.metadata import MOST_BYTES, inflated
from torch_dataloader_utils.iceberg.vended import Vended, as_property, parted
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.waiting import answered, limit

T = TypeVar("T")
Identifier = str | tuple[str, ...]


def load_table(catalog: Any, identifier: Identifier) -> Table:
    """The table of a catalog.

    Args:
        catalog: a name in pyiceberg's configuration, properties for `load_catalog` with its name under "name", or a
            pyiceberg Catalog; None for pyiceberg's default catalog.
        identifier: the table's name there.

    Raises:
        BatchTimeoutError: the catalog, or the store of its metadata, does not answer within the time limit of this
            context.
        CatalogError: a REST catalog sends its client to another host.
        FileReadError: the metadata file is too large.
        OptionError: `catalog` has another form, or the configuration does not have it.
    """
    return _answer(catalog, identifier, lambda client: client.load_table(identifier))


def load_credentials(catalog: Any, identifier: Identifier) -> tuple[Vended, ...]:
    """New credentials for a table's files; none if its catalog has no request for them alone.

    Raises:
        BatchTimeoutError: the catalog does not answer within the time limit of this context.
    """

    def ask(client: Catalog) -> tuple[Vended, ...]:
        load = getattr(client, "load_credentials", None)  # of pyiceberg 0.12 and later
        if load is None:
            return ()
        try:
            return parted(load(identifier, ""))[1]
        except NotImplementedError:  # the catalog's configuration does not list this request
            return ()

    given = isinstance(catalog, Catalog)
    rest = isinstance(catalog, RestCatalog) if given else _is_rest(_described(catalog, _text(identifier))[1])
    return _answer(catalog, identifier, ask) if rest else ()


def _text(identifier: Identifier) -> str:
    return identifier if isinstance(identifier, str) else ".".join(identifier)


def _answer(catalog: Any, identifier: Identifier, ask: Callable[[Catalog], T]) -> T:
    table = _text(identifier)

    def limited(call: Callable[[], T]) -> T:
        return answered(call, limit(), f"table {table!r}", "catalog")

    if isinstance(catalog, Catalog):
        dialect = getattr(getattr(catalog, "engine", None), "dialect", None)  # of a SQL catalog
        if getattr(dialect, "name", None) == "sqlite":
            return ask(catalog)  # on this thread, to which a connection to SQLite is bound
        return limited(lambda: ask(_with_all_credentials(catalog)))
    name, properties = _described(catalog, table)
    if _is_rest(properties):
        kept = _KEPT.get(name, properties)
        try:
            return limited(lambda: kept.answer(ask))
        except (NoSuchTableError, NoSuchNamespaceError):
            raise
        except BaseException:
            _KEPT.forget(kept)  # its token may have ended, its configuration may be another one, or it hangs
            raise

    def once() -> T:
        with load_catalog(name, **properties) as client:
            return ask(with_limits(client))

    return limited(once)


def _described(catalog: Any, table: str) -> tuple[str, dict[str, Any]]:
    """The name and the properties of a catalog that is given by these, or by one of them."""
    if not isinstance(catalog, (str, Mapping, type(None))):
        raise OptionError(
            f"catalog: expected a name in pyiceberg's configuration, a dict as pyiceberg's load_catalog takes it, or a "
            f"pyiceberg Catalog, but it is a {type(catalog).__name__}."
        )
    given = {"name": catalog} if catalog is None or isinstance(catalog, str) else dict(catalog)
    return configuration().properties(given.pop("name", None), given, table)


def _is_rest(properties: Mapping[str, Any]) -> bool:
    """Whether pyiceberg's own client of REST catalogs is meant, as `load_catalog` judges."""
    kind, uri = properties.get("type"), str(properties.get("uri") or "")
    rest = kind.lower() == "rest" if isinstance(kind, str) else uri.startswith("http")
    return rest and uri != "" and "py-catalog-impl" not in properties


# A REST catalog is asked for a token and its configuration once.


class _KeptCatalog:
    """A REST catalog, created when it is first asked. One thread asks at a time; no connection stays open."""

    def __init__(self, name: str, properties: Mapping[str, Any]) -> None:
        self._name, self._properties = name, properties
        self._lock = ForkLock()
        self._client: RestCatalog | None = None

    def answer(self, ask: Callable[[Catalog], T]) -> T:
        with self._lock:
            if self._client is None:
                self._client = with_limits(_HomeRestCatalog(self._name, **self._properties))
            try:
                return ask(self._client)
            finally:
                # An idle connection would be cut by a server or a firewall, unnoticed until the next request.
                self._client.close()


class _KeptCatalogs:
    """The REST catalogs of this process, by their properties; a forked child begins without any."""

    _MOST = 16

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._kept: OrderedDict[tuple[int, str], _KeptCatalog] = OrderedDict()

    def get(self, name: str, properties: Mapping[str, Any]) -> _KeptCatalog:
        # An object among the properties is named by its address: it lives as long as the catalog is kept.
        key = os.getpid(), json.dumps([name, properties], sort_keys=True, default=id)
        with self._lock:
            found = self._kept.setdefault(key, _KeptCatalog(name, properties))
            self._kept.move_to_end(key)
            if len(self._kept) > self._MOST:
                self._kept.popitem(last=False)
            return found

    def forget(self, kept: _KeptCatalog) -> None:
        with self._lock:
            for key in [key for key, one in self._kept.items() if one is kept]:
                del self._kept[key]


_KEPT = _KeptCatalogs()


def _with_all_credentials(catalog: Catalog) -> Catalog:
    """A REST catalog that the user made, as one that passes on the credentials of all prefixes; theirs is unchanged."""
    if not isinstance(catalog, RestCatalog):
        return catalog
    shared = copy.copy(catalog)
    shared._resolve_storage_credentials = _all_credentials
    return shared


def _all_credentials(credentials: list[Any], location: str | None) -> dict[str, str]:
    """What pyiceberg adds to a table's properties: all credentials, not only those of the metadata's prefix."""
    return as_property([Vended(one.prefix, one.config) for one in credentials])


# A REST catalog's token and headers go to no other host than those in its configuration.

_ADDRESSES = ("uri", OAUTH2_SERVER_URI)


class _HomeRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog that follows no redirect to another host, where requests would send all but `Authorization`.

    A redirected request for a token would even send the secret itself.
    """

    _resolve_storage_credentials = staticmethod(_all_credentials)

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
