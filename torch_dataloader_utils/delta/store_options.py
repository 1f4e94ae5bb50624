"""The options of a table's store as deltalake's client spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.storage.option_names import client_options

_S3 = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint_url",
    "client_kwargs.region_name": "aws_region",
    "anon": "aws_skip_signature",
}
_GCS = {"token": "google_service_account", "endpoint_url": "google_base_url"}
_AZURE = {
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_token",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "anon": "azure_skip_signature",
}
_STORES = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GCS),
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE),
}
# Options of deltalake's client that the clients of the data files do not have.
_OF_THE_LOG = ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename", "aws_s3_locking_provider", "conditional_put")
_TUNING = ("allow_http", "allow_invalid_certificates", "max_retries", "retry_timeout", "timeout", "connect_timeout")
# Options of the clients of the data files that say who reads, so leaving them out would read as somebody else.
_IDENTITIES = ("profile", "connection_string", "credential", "session")


def data_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to the data files."""
    return {name: value for name, value in given.items() if name.lower() not in (*_OF_THE_LOG, *_TUNING)}


def log_options(url: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The options that deltalake's client takes for the same store.

    Args:
        url: the table's URL.
        given: the options as any library spells them.

    Raises:
        OptionError: deltalake's client has no such option, and it says who reads.
    """
    names = _STORES.get(url.partition("://")[0])
    extra = {name: _text(value) for name, value in given.items() if name.lower() in (*_OF_THE_LOG, *_TUNING)}
    if names is None:
        return extra
    options = client_options(url, data_options(given))
    for name in _IDENTITIES:
        if options.get(name):
            raise OptionError(
                f"storage_options: deltalake, which reads the table's log, takes no {name!r}: pass the credentials "
                f"themselves, such as {next(iter(names))!r}, or set them in the environment."
            )
    flat = {**options, **{f"client_kwargs.{key}": value for key, value in (options.get("client_kwargs") or {}).items()}}
    known = {target: _text(flat[name]) for name, target in names.items() if flat.get(name)}
    plain = str(options.get("endpoint_url", "")).startswith("http://")
    return {**({"allow_http": "true"} if plain else {}), **known, **extra}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
