"""Translates `storage_options` from other libraries' names to those of the store's client; rejects unknown names.

It knows the names of boto3, pandas, pyarrow, polars, pyiceberg and of environment variables. Errors never show values.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fsspec.dircache import DirCache
from fsspec.registry import get_filesystem_class

from torch_dataloader_utils.errors import OptionError

_IMPLIED = "implied"  # needs no option: plain HTTP is allowed if the endpoint's URL says so


@dataclass(frozen=True)
class _Store:
    """How options of a store's client may be spelled.

    Attributes:
        package: the client's package.
        prefixes: removed from the start of names.
        aliases: other name -> the client's option; after a dot, a key of that option.
        passed_on: options that the client accepts although its signature does not name them.
        starts: prefixes of such options.
    """

    package: str
    prefixes: tuple[str, ...]
    aliases: Mapping[str, str]
    passed_on: tuple[str, ...] = ()
    starts: tuple[str, ...] = field(default=("\0",))


_S3 = _Store(
    "s3fs",
    ("aws_", "s3_"),
    {
        **dict.fromkeys(("access_key_id", "access_key"), "key"),
        **dict.fromkeys(("secret_access_key", "secret_key"), "secret"),
        "session_token": "token",
        **dict.fromkeys(("endpoint", "endpoint_override", "endpoint_url_s3"), "endpoint_url"),
        **dict.fromkeys(("region_name", "region", "default_region"), "client_kwargs.region_name"),
        "verify": "client_kwargs.verify",
        **dict.fromkeys(("anonymous", "skip_signature"), "anon"),
        "profile_name": "profile",
        "scheme": "use_ssl",
        "allow_http": _IMPLIED,
    },
    ("profile", "session_vars", "event_hooks", "include_builtin_handlers"),
)
_GCS = _Store(
    "gcsfs",
    ("google_", "gcs_", "gs_"),
    {
        **dict.fromkeys(("application_credentials", "credentials", "access_token", "oauth2_token"), "token"),
        **dict.fromkeys(("service_account", "service_account_path", "service_account_file"), "token"),
        "project_id": "project",
        **dict.fromkeys(("endpoint", "endpoint_override", "service_host"), "endpoint_url"),
    },
    ("batch_size", "memmove_max_workers"),
    ("retry_",),
)
_AZURE = _Store(
    "adlfs",
    ("azure_", "adls_", "storage_"),
    {
        **dict.fromkeys(("account", "name"), "account_name"),
        **dict.fromkeys(("access_key", "key"), "account_key"),
        **dict.fromkeys(("sas_key", "sas"), "sas_token"),
        **dict.fromkeys(("authority_id", "tenant"), "tenant_id"),
        **dict.fromkeys(("anonymous", "skip_signature"), "anon"),
    },
    ("authority", "process_timeout", "require_envvar"),
    (
        "exclude_",
        "managed_identity_",
        "workload_identity_",
        "interactive_browser_",
        "shared_cache_",
        "broker_",
        "visual_",
    ),
)
_STORES = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GCS),
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE),
}


def client_options(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as fsspec's clients expect them, for a URL that may be a chain (`zip://x::s3://bucket/a.zip`).

    Raises:
        OptionError: the client of S3, Google Cloud Storage or Azure has no such option, two names are given for one
            option, or client_kwargs is not a dict.
        ImportError: a client is not installed.
    """
    protocols = [part.partition("://")[0] for part in url.split("::")]
    nested = {name: dict(given[name]) for name in protocols if isinstance(given.get(name), Mapping)}
    of_first = {name: value for name, value in given.items() if name not in nested}
    inner = {name: translated(name, options) for name, options in nested.items()}
    return {**translated(protocols[0], of_first), **inner}


def translated(protocol: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """As `client_options`, for one protocol; options of clients that are not known here stay unchanged."""
    store = _STORES.get(protocol)
    if store is None or not given:
        return dict(given)
    kind = get_filesystem_class(protocol)
    if kind.__module__.partition(".")[0] != store.package:
        return dict(given)  # the user's own client
    if not isinstance(given.get("client_kwargs"), (Mapping, type(None))):
        raise OptionError(f"storage_options: {protocol}:// takes a dict as 'client_kwargs'.")
    names = {name: _client_name(name, store, kind, protocol) for name in given}
    _reject_twins(names, given)
    options = {name: _value(name, name, value) for name, value in given.items() if names[name] == name}
    for name, target in names.items():
        outer, dot, inner = target.partition(".")
        if dot:
            options[outer] = {**(options.get(outer) or {}), inner: given[name]}
        elif target not in (name, _IMPLIED):
            options[target] = _value(name, target, given[name])
    return _with_scheme(options)


def _client_name(name: str, store: _Store, kind: type, protocol: str) -> str:
    """The client's name of an option.

    Raises:
        OptionError: there is no such option; suggests the nearest name.
    """
    if not isinstance(name, str):
        raise OptionError("storage_options: expected strings as names of options.")
    accepted = _accepted(kind) | set(store.passed_on)
    if name in accepted or name.startswith(store.starts):
        return name
    plain = name.lower().replace("-", "_").replace(".", "_")
    for prefix in store.prefixes:
        plain = plain.removeprefix(prefix)
    if plain in accepted:
        return plain
    if plain in store.aliases:
        return store.aliases[plain]
    close = difflib.get_close_matches(plain, [*store.aliases, *sorted(accepted)], n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    usual = dict.fromkeys(target.rpartition(".")[2] for target in store.aliases.values() if target != _IMPLIED)
    raise OptionError(
        f"storage_options: {protocol}:// has no option {name!r}. {hint}It takes {', '.join(usual)} and the other "
        f"options of {kind.__module__.partition('.')[0]}.{kind.__name__}."
    )


def _reject_twins(names: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Reject two names for one option."""
    seen: dict[str, str] = {}
    for name, target in _spelled(names, given):
        if target in seen and target != _IMPLIED:
            raise OptionError(f"storage_options: {seen[target]!r} and {name!r} are the same option: give one of them.")
        seen[target] = name


def _spelled(names: Mapping[str, str], given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each option's given name and the client's name for it, including those in `client_kwargs`."""
    yield from names.items()
    yield from ((f"client_kwargs[{key!r}]", f"client_kwargs.{key}") for key in given.get("client_kwargs") or {})


def _value(name: str, target: str, value: Any) -> Any:
    """The value as the client expects it; other libraries write flags as text."""
    if target == "use_ssl" and name.lower().endswith("scheme"):
        return value != "http"
    if target == "anon" and isinstance(value, str):
        return value.lower() in ("true", "1", "yes")
    return value


def _with_scheme(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the endpoint as a URL; in pyarrow it is a host and a scheme."""
    endpoint = options.get("endpoint_url")
    if isinstance(endpoint, str) and endpoint and "://" not in endpoint:
        options["endpoint_url"] = f"{'https' if options.get('use_ssl', True) else 'http'}://{endpoint}"
    return options


@cache
def _accepted(kind: type) -> frozenset[str]:
    """The options in the signature of the client's class, and those that every fsspec client has."""
    classes = [base for base in kind.__mro__ if not base.__module__.startswith(("fsspec.", "builtins"))]
    names = {"skip_instance_cache"}
    for owner in (*classes, DirCache):
        parameters = inspect.signature(owner.__init__).parameters.values()
        names |= {item.name for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)}
    return frozenset(names - {"self"})
