"""`storage_options` under the names that other libraries give them."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import adlfs
import gcsfs
import pyarrow.fs as pafs
import pytest
import s3fs
from fsspec.registry import _registry
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.iceberg.table_storage import Places
from torch_dataloader_utils.iceberg.vended import TableAccess
from torch_dataloader_utils.storage import open_storage
from torch_dataloader_utils.storage.option_names import client_options
from torch_dataloader_utils.storage.storage import Storage

S3FS = {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://h:1", "client_kwargs": {"region_name": "r"}}
SPELLINGS: dict[str, dict[str, Any]] = {
    "s3fs and pandas": S3FS,
    "boto3": {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "endpoint_url": "http://h:1",
        "region_name": "r",
    },
    "pyarrow": {
        "access_key": "k",
        "secret_key": "s",
        "session_token": "t",
        "endpoint_override": "h:1",
        "scheme": "http",
        "region": "r",
    },
    "polars": {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_endpoint_url": "http://h:1",
        "aws_region": "r",
        "aws_allow_http": "true",
    },
    "object_store": {
        "access_key_id": "k",
        "secret_access_key": "s",
        "token": "t",
        "endpoint": "http://h:1",
        "region": "r",
    },
    "pyiceberg": {
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
        "s3.session-token": "t",
        "s3.endpoint": "http://h:1",
        "s3.region": "r",
    },
    "the environment": {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
        "AWS_ENDPOINT_URL": "http://h:1",
        "AWS_DEFAULT_REGION": "r",
    },
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the user's, whose machine this may be, reach AWS clients."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize("library", SPELLINGS)
def test_s3_options_of_other_libraries_are_those_of_s3fs(library: str) -> None:
    options = client_options("s3://bucket/x", SPELLINGS[library])
    assert {**options, "use_ssl": True} == {**S3FS, "use_ssl": True}
    native = open_storage("s3a://bucket/x", SPELLINGS[library])[0].client().arrow("bucket/x")
    assert isinstance(native, pafs.S3FileSystem)
    assert native.region == "r"


def test_flags_written_as_text() -> None:
    assert client_options("s3://b", {"skip_signature": "true"}) == {"anon": True}
    assert client_options("s3://b", {"anonymous": "False"}) == {"anon": False}
    assert client_options("s3://b", {"anon": "false"}) == {"anon": False}
    assert client_options("s3://b", {"endpoint_override": "h:1"}) == {"endpoint_url": "https://h:1"}


def test_options_of_other_stores() -> None:
    azure = {"azure_storage_account_name": "n", "azure_storage_account_key": "k", "exclude_cli_credential": True}
    assert client_options("az://c/x", azure) == {
        "account_name": "n",
        "account_key": "k",
        "exclude_cli_credential": True,
    }
    google = {"google_application_credentials": "key.json", "project_id": "p", "retry_timeout": 3}
    assert client_options("gs://b/x", google) == {"token": "key.json", "project": "p", "retry_timeout": 3}


@pytest.mark.parametrize(
    ("url", "name", "words"),
    [
        ("s3://b/x", "acces_key", "Did you mean 'access_key'? It takes key, secret, token, endpoint_url, region_name"),
        ("s3://b/x", "aws_secret_acess_key", "Did you mean 'secret_access_key'?"),
        ("s3://b/x", "mode", "It takes key"),
        ("s3a://b/x", "zzzz", "has no option 'zzzz'. It takes key"),
        ("gs://b/x", "tokn", "Did you mean 'token'?"),
        ("az://c/x", "acount_key", "Did you mean 'account_key'?"),
        ("simplecache::s3://b/x", "acces_key", "Did you mean 'access_key'?"),
    ],
)
def test_an_unknown_option_is_refused_by_name_without_its_value(url: str, name: str, words: str) -> None:
    options: dict[str, Any] = {name: "t0p-s3cret"}
    if "::" in url:
        options = {"s3": options}
    with pytest.raises(OptionError) as caught:
        StructuredDataset.create_dataloader(url, storage_options=options)
    assert f"has no option {name!r}" in str(caught.value)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "t0p-s3cret", "aws_access_key_id": "t0p-s3cret"},
        {"region": "t0p-s3cret", "region_name": "t0p-s3cret"},
        {"region": "t0p-s3cret", "client_kwargs": {"region_name": "t0p-s3cret"}},
    ],
)
def test_two_names_of_one_option_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="are the same option") as caught:
        open_storage("s3://b/x", options)
    assert all(name in str(caught.value) for name in options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"client_kwargs": "t0p-s3cret"}, {("t0p-s3cret",): "t0p-s3cret"}], ids=["dict", "name"]
)
def test_options_of_the_wrong_type_are_refused_without_their_values(options: dict[Any, Any]) -> None:
    with pytest.raises(OptionError, match=r"storage_options: .*(a dict as 'client_kwargs'|strings as names)") as caught:
        open_storage("s3://b/x", options)
    assert "s3cret" not in str(caught.value)


def test_options_in_client_kwargs_are_kept() -> None:
    options = client_options("s3://b", {"region": "r", "client_kwargs": {"verify": False}})
    assert options == {"client_kwargs": {"verify": False, "region_name": "r"}}


@pytest.mark.parametrize(
    ("protocol", "kind"), [("s3", s3fs.S3FileSystem), ("abfs", adlfs.AzureBlobFileSystem), ("gs", gcsfs.GCSFileSystem)]
)
@given(data=st.data())
def test_every_option_of_the_client_is_left_as_it_is(protocol: str, kind: type, data: st.DataObject) -> None:
    parameters = inspect.signature(kind.__init__).parameters.values()
    named = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD and item.name != "self"]
    # An endpoint becomes a URL, a flag a bool, and options within client_kwargs may be the same as others.
    names = sorted({*named, "use_listings_cache", "skip_instance_cache"} - {"endpoint_url", "anon", "client_kwargs"})
    options = dict.fromkeys(data.draw(st.sets(st.sampled_from(names))), "x")
    assert client_options(f"{protocol}://b/x", options) == options


def test_options_of_a_client_of_ones_own_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(s3fs.S3FileSystem):  # type: ignore[misc]
        def __init__(self, mine: str = "", **options: Any) -> None:
            super().__init__(**options)

    Mine.__module__ = "mine"
    monkeypatch.setitem(_registry, "s3", Mine)
    assert client_options("s3://b", {"mine": "x", "other": 1}) == {"mine": "x", "other": 1}
    assert client_options("memory://b", {"anything": 1}) == client_options("/b", {"anything": 1}) == {"anything": 1}


def test_options_for_a_table_replace_what_its_catalog_says() -> None:
    properties = {"s3.access-key-id": "old", "s3.secret-access-key": "old", "s3.endpoint": "http://h:1"}
    places = Places(TableAccess("s3://b/t", properties), {"aws_access_key_id": "k", "aws_secret_access_key": "s"}, None)
    expected = {"key": "k", "secret": "s", "endpoint_url": "http://h:1"}
    assert places.storage == open_storage("s3://b/t", expected)[0]


@pytest.mark.parametrize("own", [{"key": "k", "secret": "s"}, {"profile": "p"}, {"anon": True}], ids=str)
def test_credentials_for_a_table_are_not_mixed_with_those_of_its_catalog(own: dict[str, Any]) -> None:
    properties = {
        "s3.access-key-id": "old",
        "s3.secret-access-key": "old",
        "s3.session-token": "old",
        "s3.endpoint": "http://h:1",
    }
    places = Places(TableAccess("s3://b/t", properties), own, None)
    assert places.storage == open_storage("s3://b/t", {**own, "endpoint_url": "http://h:1"})[0]


def test_options_for_a_table_keep_the_region_and_proxy_of_its_catalog() -> None:
    properties = {"s3.region": "r", "s3.proxy-uri": "http://p"}
    places = Places(TableAccess("s3://b/t", properties), {"verify": False, "config_kwargs": {"read_timeout": 3}}, None)
    expected = {
        "client_kwargs": {"region_name": "r", "verify": False},
        "config_kwargs": {"proxies": {"http": "http://p", "https": "http://p"}, "read_timeout": 3},
    }
    assert places.storage == open_storage("s3://b/t", expected)[0]


def test_a_local_path_takes_any_options(tmp_path: Path) -> None:
    assert open_storage(tmp_path, {"aws_access_key_id": "k"})[0] == Storage()
