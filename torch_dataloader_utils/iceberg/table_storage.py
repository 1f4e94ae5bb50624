"""The storage of a table's files, from the properties that its catalog provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.iceberg.vended import TableAccess, Vended
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.option_names import client_options
from torch_dataloader_utils.storage.spelling import SAME_SCHEME
from torch_dataloader_utils.storage.storage import Recipe

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
_SIGNING = "s3.remote-signing-enabled"
_NOT_POSSIBLE = {"s3": ("s3.signer", _SIGNING), "abfs": ("adls.token",)}


def storage_options(scheme: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """The fsspec filesystem's options for URLs of this scheme, from the properties of a table's FileIO.

    Includes only the options that the store itself needs, no credentials of the catalog.
    """
    makers = {"s3": _s3_options, "gs": _gcs_options, "abfs": _adls_options}
    return makers[scheme](properties) if scheme in makers else {}


def check_possible(scheme: str, properties: Mapping[str, str]) -> None:
    """Check that these properties of a table's FileIO give access to its files.

    Raises:
        OptionError: they ask for what is not supported here, such as requests that the catalog signs, and have no key.
    """
    for name in _NOT_POSSIBLE.get(scheme, ()):
        given = _flag(properties, name) if name == _SIGNING else properties.get(name)
        if given and not any(properties.get(key) for key in _S3["key"] if scheme == "s3"):
            signs = ", so that it signs each request itself" if scheme == "s3" else ""
            raise OptionError(
                f"the catalog sets {name}= for the table's files{signs}: that is not supported. Pass storage_options= "
                "with your own credentials."
            )


class Places:
    """Maps a table's file names to one storage and paths in it.

    Args:
        access: how the table's files are reached.
        options: the user's storage options, which take precedence.
        filesystem: the user's filesystem, used instead; None: there is none.
        renewing: the storage, as one that renews its credentials.

    Raises:
        OptionError: the catalog gives access to the files in a way that is not supported, and the user gives none.
    """

    def __init__(
        self,
        access: TableAccess,
        options: Mapping[str, Any],
        filesystem: Any,
        renewing: Callable[[Storage], Storage] = lambda storage: storage,
    ) -> None:
        location = access.location
        self._properties = access.properties
        self._options = options
        self._filesystem = filesystem
        self._checked: set[tuple[str, str]] = set()
        own = [one for one in access.vended if _scheme(one.prefix) == _scheme(location)]
        self._check_possible(_scheme(location), own)
        self._whole = self._storage_of(location)
        self._strip = self._stripper()
        self.storage = renewing(replace(self._whole, vended=self._recipes(location, own)))

    def _check_possible(self, scheme: str, vended: Sequence[Vended]) -> None:
        """Check that the catalog gives credentials, unless the user does."""
        if not self._options and self._filesystem is None:
            for own in [one.properties for one in vended] or [{}]:
                check_possible(scheme, {**self._properties, **own})

    def _recipes(self, location: str, vended: Sequence[Vended]) -> tuple[tuple[str, Recipe], ...]:
        """Recipes with credentials, by the paths that they are for; the longest first."""
        found: dict[str, Recipe] = {}
        for one in vended if self._filesystem is None else ():
            recipe = self._storage_of(location, one.properties).recipe
            if recipe is not None:
                found[self._below(one.prefix)] = recipe
        if all(recipe == self._whole.recipe for recipe in found.values()):
            return ()  # the user's credentials take precedence over all of them
        return tuple(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))

    def _below(self, prefix: str) -> str:
        """The path of a prefix; "" for that of a scheme, which may stand alone."""
        path: str = self._strip(prefix.rstrip("/")) if prefix.partition(":")[2].strip("/") else ""
        return path

    def path(self, url: str) -> str:
        """The path in the storage for a file that the table names by a URL or a local path.

        Raises:
            OptionError: the file is on another storage than the table.
        """
        scheme, colon, rest = url.partition("://")
        place = (scheme, rest.partition("/")[0]) if colon else ("", "")
        if place not in self._checked:
            if self._storage_of(url) != self._whole:
                raise OptionError(
                    f"{printable(url)} is on another storage than the table ({self.storage.protocol}): all files of a "
                    "table must be on one storage."
                )
            self._checked.add(place)
        path: str = self._strip(url)
        return path

    def _storage_of(self, url: str, vended: Mapping[str, str] = MappingProxyType({})) -> Storage:
        return open_storage(_spelled(url), self._options_for(url, vended), self._filesystem)[0]

    def _options_for(self, url: str, vended: Mapping[str, str]) -> dict[str, Any]:
        scheme = _spelled(url).partition("://")[0] if "://" in url else "file"
        if scheme == "file":
            return {}
        of_catalog = over(storage_options(scheme, self._properties), storage_options(scheme, vended))
        return over(of_catalog, client_options(_spelled(url), self._options))

    def _stripper(self) -> Any:
        """A function that converts URLs to paths, without opening anything."""
        if self._whole.local:
            return LocalFileSystem._strip_protocol
        if self._whole.recipe is not None:
            kind = self._whole.recipe[0]
            return lambda url: kind._strip_protocol(_spelled(url))
        return lambda url: open_storage(_spelled(url), None, self._filesystem)[1]


def over(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The options of both, under the client's names; the second take precedence, and credentials are never mixed."""
    if has_identity(second):
        first = {name: value for name, value in first.items() if name not in _CREDENTIALS}
    both = {name: {**first[name], **second[name]} for name in _NESTED if first.get(name) and second.get(name)}
    return {**first, **second, **both}


def has_identity(options: Mapping[str, Any]) -> bool:
    """Whether storage options, under the client's names, say who reads."""
    return any(options.get(name) for name in _IDENTITIES)


def _scheme(url: str) -> str:
    """The scheme of a URL, or of a prefix that is one, in one spelling."""
    scheme = url.partition(":")[0]
    return SAME_SCHEME.get(scheme, scheme)


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
