"""Clients that cannot be created: an error of the package that names the path and the remedy, whatever they raise."""

from __future__ import annotations

import ftplib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.registry import _registry

from tests.ports import HOST, free_ports
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import (
    DataLoaderUtilsError,
    DataNotFoundError,
    FileReadError,
    MissingExtraError,
    OptionError,
)

WORSE = Exception("unlike any other")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to other machines are refused, here and where there is a network."""
    [port] = free_ports(1)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:{port}")


def test_a_server_that_refuses_the_connection(no_network: None) -> None:
    [port] = free_ports(1)
    for url in (f"ftp://{HOST}:{port}/data", "github://owner:repo@main/data"):
        with pytest.raises(FileReadError, match=r"cannot reach its store: .*Check the address") as caught:
            StructuredDataset.create_dataloader(url)
        assert url.partition("@")[0].rpartition("/")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("gs://bucket/data", {"token": 5}, "Token format"),
        ("dbfs:///data", {}, "'instance' and 'token'"),
        ("abfs://container/data", {}, "account_name"),
        ("reference://", {}, "'fo'"),
    ],
)
def test_arguments_that_a_client_refuses(url: str, options: dict[str, Any], words: str, no_network: None) -> None:
    with pytest.raises(OptionError, match=r"refuses the given options: .*storage_options=") as caught:
        StructuredDataset.create_dataloader(url, storage_options=options)
    assert words in str(caught.value)


def test_an_archive_that_is_none_or_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no archive")
    (tmp_path / "x.tar").write_bytes(b"no archive")
    for url in (f"zip://a::{tmp_path}/x.zip", f"tar://a::{tmp_path}/x.tar"):
        with pytest.raises(FileReadError, match="the archive cannot be opened") as caught:
            StructuredDataset.create_dataloader(url)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataNotFoundError, match="there is no such archive"):
        StructuredDataset.create_dataloader(f"zip://a::{tmp_path}/y.zip")


@pytest.fixture
def failing() -> Iterator[type[fsspec.AbstractFileSystem]]:
    class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]
        """Cannot be created."""

        protocol = "failing"
        fault: Exception
        cachable = False

        def __init__(self, **options: Any) -> None:
            raise self.fault

    fsspec.register_implementation("failing", Failing, clobber=True)
    yield Failing
    del _registry["failing"]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ImportError("no module"), MissingExtraError),
        (ConnectionRefusedError(111, "refused"), FileReadError),
        (TimeoutError("slow"), FileReadError),
        (OSError("Unable to load libjvm"), FileReadError),
        (PermissionError("denied"), FileReadError),
        (FileNotFoundError("key.json"), OptionError),
        (TypeError("missing argument"), OptionError),
        (ValueError("bad value"), OptionError),
        (KeyError("region"), OptionError),
        (AttributeError("retired"), OptionError),
        (RuntimeError("no event loop"), OptionError),
        (ftplib.error_perm("530 Login incorrect"), OptionError),
        (AssertionError(), OptionError),
        (WORSE, OptionError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_no_exception_of_a_client_escapes(fault: Exception, kind: type[DataLoaderUtilsError], failing: Any) -> None:
    failing.fault = fault
    with pytest.raises(kind) as caught:
        StructuredDataset.create_dataloader("failing://user:secret@host/data")
    message = str(caught.value)
    assert "failing://" in message
    assert "secret" not in message
    assert type(caught.value) is kind


def test_a_secret_in_a_clients_error_is_not_shown(failing: Any) -> None:
    failing.fault = RuntimeError("GET https://user:s3cr3t@host/x?token=s3cr3t failed")
    with pytest.raises(OptionError) as caught:
        StructuredDataset.create_dataloader("failing://host/data")
    shown = "".join(traceback.format_exception(caught.value))
    assert "RuntimeError: GET https://host/x failed" in shown
    assert "s3cr3t" not in shown
