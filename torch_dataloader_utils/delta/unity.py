"""Delta tables of a Unity Catalog, `uc://catalog.schema.table`: where they are, and credentials that are renewed.

deltalake itself reads such names, too, but asks for credentials once, and keeps them from whoever reads the data files.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from torch_dataloader_utils.delta.store_options import data_options
from torch_dataloader_utils.errors import CatalogError, DataNotFoundError, OptionError
from torch_dataloader_utils.iceberg.table_storage import has_identity
from torch_dataloader_utils.redaction import printable, remember_secrets
from torch_dataloader_utils.storage import Renewal, Storage, open_storage
from torch_dataloader_utils.storage.option_names import client_options
from torch_dataloader_utils.storage.retries import retried
from torch_dataloader_utils.storage.waiting import limit, limited

SCHEME = "uc://"
_API = "/api/2.1/unity-catalog"
# Options and, in upper case, environment variables, as Databricks' and deltalake's clients know them.
_HOST = ("databricks_host", "databricks_workspace_url", "unity_workspace_url")
_TOKEN = ("databricks_token", "databricks_access_token", "unity_access_token")
_OF_CATALOG = ("databricks_", "unity_")
_MOST_BYTES = 1 << 24  # of an answer
# Kind of credentials -> the names of its parts, as the clients of the data files call them.
_KINDS: Mapping[str, Mapping[str, str]] = {
    "aws_temp_credentials": {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"},
    "azure_user_delegation_sas": {"sas_token": "sas_token"},
}


class UnityTable:
    """A table of a Unity Catalog.

    Args:
        url: `uc://catalog.schema.table`.
        given: the storage options: the catalog's, such as `databricks_host`, and those of the table's store.

    Attributes:
        location: the table's folder, a URL.
        renewal: renews the credentials of its files; None if they need none, or the user gives some.

    Raises:
        OptionError: the name has another form, there is no host, or the table is none of Delta Lake.
        DataNotFoundError: there is no such table.
        CatalogError: the catalog cannot be reached or refuses.
        BatchTimeoutError: it does not answer within the time limit of this context.
    """

    def __init__(self, url: str, given: Mapping[str, Any]) -> None:
        self._shown = printable(url)
        name, self._seconds = _name_in(url), limit()
        of_catalog = {key: value for key, value in given.items() if key.lower().startswith(_OF_CATALOG)}
        self._given = {key: value for key, value in given.items() if key not in of_catalog}
        self._catalog = UnityCatalog({key.lower(): value for key, value in of_catalog.items()})
        table = self._catalog.asked("GET", f"tables/{quote(name, safe='')}", self._shown)
        kind, location = table.get("data_source_format", "DELTA"), table.get("storage_location")
        if kind != "DELTA":
            raise OptionError(f"{self._shown}: is a table of format {kind}, not of Delta Lake.")
        if not isinstance(location, str) or not location:
            raise OptionError(f"{self._shown}: is a {table.get('table_type', 'view')}, which has no files of its own.")
        self.location, self._id = location, table.get("table_id")
        self._vended: Mapping[str, Any] = {}
        needs_none = location.startswith("file:") or _has_identity(location, data_options(self._given))
        self.renewal = None if needs_none else Renewal(self._renewed, self._issue())

    @property
    def options(self) -> Mapping[str, Any]:
        """The storage options of the log and the files, with the credentials that were issued last."""
        return {**self._vended, **self._given}

    def with_valid(self) -> Mapping[str, Any]:
        """The same with credentials that are valid now.

        Raises:
            CatalogError: the catalog cannot be reached or refuses.
            BatchTimeoutError: it does not answer.
        """
        if self.renewal is not None:
            issued = self.renewal.current()
            # If it is not certain that they are still valid: deltalake cannot ask.
            if issued.expires_at is None or issued.expires_at <= time.time():
                self.renewal.after(issued.number)
        return self.options

    def _renewed(self) -> tuple[Storage, float | None]:
        with limited(self._seconds):
            expires_at = self._issue()
            return open_storage(self.location, data_options(self.options))[0], expires_at

    def _issue(self) -> float | None:
        """Ask for credentials: when they expire, in seconds since 1970, if that is known."""
        request = {"table_id": self._id, "operation": "READ"}
        answer = self._catalog.asked("POST", "temporary-table-credentials", self._shown, request)
        kind = next((kind for kind in _KINDS if isinstance(answer.get(kind), dict)), None)
        if kind is None:
            raise OptionError(
                f"{self._shown}: the catalog gives credentials that deltalake, which reads the log, does not take "
                f"({', '.join(sorted(answer)) or 'none'}). Pass the location of the table, {printable(self.location)}, "
                "with storage_options= of your own, or read it by the catalog's Iceberg endpoint."
            )
        self._vended = {ours: answer[kind][name] for name, ours in _KINDS[kind].items() if answer[kind].get(name)}
        remember_secrets(self._vended)
        ends = answer.get("expiration_time")  # milliseconds
        return ends / 1000 if isinstance(ends, (int, float)) and ends > 0 else None


def _has_identity(location: str, given: Mapping[str, Any]) -> bool:
    """Whether the user's storage options, by whatever names, say who reads."""
    try:
        return has_identity(client_options(location, given))
    except ImportError:
        open_storage(location)  # says what is to be installed
        raise


class UnityCatalog:
    """The requests to a Unity Catalog; its token goes to no other host.

    Args:
        given: options in lower case; what they lack is taken from the environment.

    Raises:
        OptionError: there is no host.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        others = sorted(given.keys() - {*_HOST, *_TOKEN})
        if others:
            raise OptionError(
                f"storage_options: {', '.join(map(repr, others))} cannot be used here: of a Unity Catalog, only "
                f"{_HOST[0]!r} and {_TOKEN[0]!r} can. A token of a service principal is one, too."
            )
        host, token = _first(_HOST, given), _first(_TOKEN, given)
        if host is None:
            raise OptionError(
                f"{SCHEME}: the address of the catalog is not known: set the environment variables {_HOST[0].upper()} "
                f"and {_TOKEN[0].upper()}, or pass storage_options={{{_HOST[0]!r}: 'https://...', {_TOKEN[0]!r}: ...}}."
            )
        self._address = (host if "://" in host else f"https://{host}").rstrip("/")
        self._token = token
        remember_secrets({_TOKEN[0]: token})

    def asked(self, method: str, path: str, table: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """What the catalog answers, as JSON.

        Args:
            method: of HTTP.
            path: below that of the API.
            table: for errors.
            body: of the request.

        Raises:
            CatalogError: the catalog cannot be reached or refuses.
            DataNotFoundError: it does not have the table.
            BatchTimeoutError: it does not answer.
        """
        where = f"the catalog at {printable(self._address)}"
        try:
            answer = retried(partial(self._answer, method, path, body), f"{table}: asking {where}", limit())
        except urllib.error.HTTPError as error:
            with error:
                reason = f"{error.code} {_reason(error)}".rstrip(" .")
            if error.code == 404:
                raise DataNotFoundError(f"{table}: {where} has no such table: {reason}.") from None
            raise CatalogError(f"{table}: {where} refuses: {reason}. Check its token, and your privileges.") from None
        except (OSError, ValueError) as error:
            raise CatalogError(f"{table}: {where} cannot be reached: {type(error).__name__}: {error}.") from error
        if not isinstance(answer, dict):
            raise CatalogError(f"{table}: {where} does not answer as a Unity Catalog does. Check its address.")
        return answer

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{self._address}{_API}/{path}", data, headers, method=method)
        with _OPENER.open(request, timeout=limit() or None) as response:
            return json.loads(response.read(_MOST_BYTES))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes each redirect an error: the request that follows would have the token, whatever its host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _first(names: tuple[str, ...], given: Mapping[str, Any]) -> str | None:
    """The first of these options that is set: if none is given, in the environment."""
    found = [given[name] for name in names if given.get(name)]
    found += [os.environ[name.upper()] for name in names if os.environ.get(name.upper())]
    return str(found[0]) if found else None


def _name_in(url: str) -> str:
    name = url.removeprefix(SCHEME).rstrip("/")
    if len([part for part in name.split(".") if part]) != 3 or name.count(".") != 2 or "/" in name:
        raise OptionError(f"table={printable(url)!r}: expected uc://catalog.schema.table.")
    return name


def _reason(error: urllib.error.HTTPError) -> str:
    """What the catalog says of its refusal."""
    if target := error.headers.get("Location"):
        return f"redirects to {urlsplit(target).hostname}: if you trust that host, name it instead"
    try:
        answer = json.loads(error.read(_MOST_BYTES))
        return printable(f"{answer.get('error_code') or ''} {answer['message']}".strip())
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return str(error.reason)
