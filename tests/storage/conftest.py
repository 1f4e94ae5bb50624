"""Stores that run while tests ask for them: each is started once per test process, when a test first needs it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.storage import servers
from tests.storage.servers import Store


def _started(server: AbstractContextManager[Store]) -> Iterator[Store]:
    try:
        store = server.__enter__()
    except servers.ServerMissingError as error:
        pytest.skip(str(error))
    try:
        yield store
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def moto_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _started(servers.moto(tmp_path_factory.mktemp("moto")))


@pytest.fixture(scope="session")
def seaweed_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _started(servers.seaweed(tmp_path_factory.mktemp("seaweed")))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _started(servers.azurite(tmp_path_factory.mktemp("azurite")))


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _started(servers.fake_gcs(tmp_path_factory.mktemp("gcs")))


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield from _started(servers.http_files(tmp_path_factory.mktemp("http")))
