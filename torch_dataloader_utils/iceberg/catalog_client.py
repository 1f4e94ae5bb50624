"""pyiceberg's catalogs; a REST catalog's token and headers go to no other host than those in its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI, RestCatalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config, merge_config

from torch_dataloader_utils.errors import CatalogError
from torch_dataloader_utils.iceberg.catalog_io import with_limits
from torch_dataloader_utils.storage import printable
from torch_dataloader_utils.storage.waiting import answered, limit

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
