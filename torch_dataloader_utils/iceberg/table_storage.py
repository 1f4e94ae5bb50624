"""The storage of a table's files, from the properties that its catalog provides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.option_names import client_options
from torch_dataloader_utils.storage.spelling import SAME_SCHEME

_S3 = {
    "key": ("s3.access-key-id", "client.access-key-id"),
    "secret": ("s3.secret-access-key", "client.secret-access-key"),
    "token": ("s3.session-token", "client.session-token"),
    "endpoint_url": ("s3.endpoint",),
    "profile": ("s3.profile-name", "client.profile-name"),
}
_GCS = {
    "token": ("gcs.oauth2.token",),
    "project": ("gcs.project-id",),
    "endpoint_url": ("gcs.service.host",),
    "access": ("gcs.access",),
}
_ADLS = {
    "connection_string": ("adls.connection-string",),
    "account_name": ("adls.account-name",),
    "account_key": ("adls.account-key",),
    "account_host": ("adls.account-host",),
    "sas_token": ("adls.sas-token",),
    "tenant_id": ("adls.tenant-id",),
    "client_id": ("adls.client-id",),
    "client_secret": ("adls.client-secret",),
    "credential": ("adls.credential",),
}
_LITERAL = ("https", "az")  # schemes whose clients are chosen by their own names
_NESTED = ("client_kwargs", "config_kwargs")  # dicts of options
_IDENTITIES = ("key", "profile", "anon", "account_key", "sas_token", "connection_string", "credential")
_CREDENTIALS = (*_IDENTITIES, "secret", "token")  # options that belong to an identity
_NOT_POSSIBLE = ("s3.signer", "adls.token")
_EXPIRY = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms")


def storage_options(scheme: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """The fsspec filesystem's options for URLs of this scheme, from the properties of a table's FileIO.

    Includes only the options that the store itself needs, no credentials of the catalog.

    Raises:
        OptionError: the store requires an option that is not supported here.
    """
    for name in _NOT_POSSIBLE:
        if properties.get(name) and scheme in (name.partition(".")[0], "abfs" if name.startswith("adls") else ""):
            raise OptionError(
                f"the catalog sets {name}= for the table's files, which is not supported: pass storage_options= with "
                "your own credentials."
            )
    if scheme == "s3" and _flag(properties, "s3.remote-signing-enabled"):
        raise OptionError(
            "the catalog sets s3.remote-signing-enabled= for the table's files: it signs each request itself, which is "
            "not supported: pass storage_options= with your own credentials."
        )
    makers = {"s3": _s3_options, "gs": _gcs_options, "abfs": _adls_options}
    return makers[scheme](properties) if scheme in makers else {}


def expires_at(properties: Mapping[str, str]) -> float | None:
    """When the credentials of a table's storage expire, in seconds since 1970; None if the properties do not say."""
    times = [int(value) for name, value in properties.items() if name.startswith(_EXPIRY) and value.isdecimal()]
    return min(times) / 1000 if times else None


class Places:
    """Maps a table's file names to one storage and paths in it."""

    def __init__(
        self, location: str, properties: Mapping[str, str], options: Mapping[str, Any], filesystem: Any
    ) -> None:
        self._properties = properties
        self._options = options
        self._filesystem = filesystem
        self._checked: set[tuple[str, str]] = set()
        self.storage = self._storage_of(location)
        self._strip = self._stripper()

    def path(self, url: str) -> str:
        """The path in the storage for a file that the table names by a URL or a local path.

        Raises:
            OptionError: the file is on another storage than the table.
        """
        scheme, colon, rest = url.partition("://")
        place = (scheme, rest.partition("/")[0]) if colon else ("", "")
        if place not in self._checked:
            if self._storage_of(url) != self.storage:
                raise OptionError(
                    f"{printable(url)} is on another storage than the table ({self.storage.protocol}): all files of a "
                    "table must be on one storage."
                )
            self._checked.add(place)
        path: str = self._strip(url)
        return path

    def _storage_of(self, url: str) -> Storage:
        return open_storage(_spelled(url), self._options_for(url), self._filesystem)[0]

    def _options_for(self, url: str) -> dict[str, Any]:
        scheme = _spelled(url).partition("://")[0] if "://" in url else "file"
        if scheme == "file":
            return {}
        return _over(storage_options(scheme, self._properties), client_options(_spelled(url), self._options))

    def _stripper(self) -> Any:
        """A function that converts URLs to paths, without opening anything."""
        if self.storage.local:
            return LocalFileSystem._strip_protocol
        if self.storage.recipe is not None:
            kind = self.storage.recipe[0]
            return lambda url: kind._strip_protocol(_spelled(url))
        return lambda url: open_storage(_spelled(url), None, self._filesystem)[1]


def _over(catalog: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """The options of both, under the client's names; the user's take precedence, and credentials are never mixed."""
    if any(user.get(name) for name in _IDENTITIES):
        catalog = {name: value for name, value in catalog.items() if name not in _CREDENTIALS}
    both = {name: {**catalog[name], **user[name]} for name in _NESTED if catalog.get(name) and user.get(name)}
    return {**catalog, **user, **both}


def _spelled(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    return f"{SAME_SCHEME.get(scheme, scheme)}{colon}{rest}" if colon and scheme not in _LITERAL else url


def _named(names: Mapping[str, tuple[str, ...]], properties: Mapping[str, str]) -> dict[str, Any]:
    """Option -> value, for the properties that are set; if several names are set, the first takes precedence."""
    given = {option: [properties[name] for name in known if properties.get(name)] for option, known in names.items()}
    return {option: values[0] for option, values in given.items() if values}


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").lower() in ("true", "1")


def _s3_options(properties: Mapping[str, str]) -> dict[str, Any]:
    options = _named(_S3, properties)
    region = properties.get("s3.region") or properties.get("client.region")
    if region:
        options["client_kwargs"] = {"region_name": region}
    config: dict[str, Any] = {}
    if proxy := properties.get("s3.proxy-uri"):
        config["proxies"] = {"http": proxy, "https": proxy}
    for option, name in (("connect_timeout", "s3.connect-timeout"), ("read_timeout", "s3.request-timeout")):
        if properties.get(name):
            config[option] = float(properties[name])
    if _flag(properties, "s3.force-virtual-addressing"):
        config["s3"] = {"addressing_style": "virtual"}
    if config:
        options["config_kwargs"] = config
    return {**options, "anon": True} if _flag(properties, "s3.anonymous") else options


def _gcs_options(properties: Mapping[str, str]) -> dict[str, Any]:
    options = _named(_GCS, properties)
    return {**options, "requester_pays": True} if _flag(properties, "gcs.requester-pays") else options


def _adls_options(properties: Mapping[str, str]) -> dict[str, Any]:
    options = _named(_ADLS, properties)
    for name, value in properties.items():
        # The names of vended tokens include their account: adls.sas-token.<account>.dfs.core.windows.net
        if name.startswith("adls.sas-token.") and "sas_token" not in options:
            account = name.removeprefix("adls.sas-token.").partition(".")[0]
            options = {"account_name": account, **options, "sas_token": value}
    return {**options, "anon": True} if _flag(properties, "adls.anon") else options
