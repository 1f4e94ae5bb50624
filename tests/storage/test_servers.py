"""The servers and the proxy themselves, with other clients than the package's: what the tests of stores rely on."""

import http.client
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.ports import HOST
from tests.storage.proxy import ANSWERS, Faults, Proxy, faulty
from tests.storage.servers import Store, answers

STORES = [
    "moto_s3",
    "fake_gcs",
    "http_server",
    pytest.param("seaweed_s3", marks=pytest.mark.slow),
    pytest.param("azurite", marks=pytest.mark.slow),
]
FILES = {"b.bin": b"0123456789" * 1000, "day=1/a.bin": b"a", "day=1/deep/é x.bin": b"b" * 100_000}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_what_is_put_is_read_whole_and_in_ranges(store: Store, files: Path, request: pytest.FixtureRequest) -> None:
    name = f"put-{request.node.name}".replace("[", "-").strip("]")
    store.put(files, name)
    filesystem = store.filesystem
    for path, data in FILES.items():
        url = store.url(f"{name}/{path}")
        assert filesystem.size(url) == len(data)
        assert filesystem.cat_file(url) == data
        assert filesystem.cat_file(url, start=0, end=1) == data[:1]
    assert filesystem.cat_file(store.url(f"{name}/b.bin"), start=995, end=1005) == b"5678901234"
    if store.folder is None:  # fsspec takes the folders of a web server's index for files
        bucket = store.root.partition("://")[2]
        assert sorted(filesystem.find(store.url(name))) == sorted(f"{bucket}/{name}/{path}" for path in FILES)


def test_s3_is_reached_by_pyarrow(moto_s3: Store, files: Path) -> None:
    moto_s3.put(files, "arrow")
    filesystem = pafs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override=f"{HOST}:{moto_s3.port}", scheme="http", region="us-east-1"
    )
    with filesystem.open_input_file(moto_s3.url("arrow/b.bin").removeprefix("s3://")) as file:
        assert file.read_at(4, 9998) == b"89"


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.storage.servers import http_files\n"
        "with http_files(Path(sys.argv[1])) as store:\n"
        "    print(store.port, flush=True); time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], cwd=root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert answers(port)
        parent.kill()
    deadline = time.monotonic() + 30
    while answers(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---------------------------------------------------------------------------------------------------------- the proxy


@pytest.fixture
def proxy(http_server: Store, files: Path, tmp_path: Path) -> Iterator[Proxy]:
    if not (http_server.folder / "proxied").exists():  # type: ignore[operator]
        http_server.put(files, "proxied")
    with faulty(http_server, tmp_path) as proxy:
        yield proxy


def fetched(proxy: Proxy, name: str = "b.bin", first: int = 0, last: int = 9_999) -> tuple[int, bytes]:
    """Status and body of a plain request."""
    request = urllib.request.Request(proxy.store.url(f"proxied/{name}"), headers={"Range": f"bytes={first}-{last}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_without_faults_the_proxy_passes_on_and_counts(proxy: Proxy) -> None:
    assert fetched(proxy) == (206, FILES["b.bin"])
    assert fetched(proxy, first=5, last=14) == (206, b"5678901234")
    assert proxy.counts().of("b.bin") == {"gets": 2, "heads": 0, "lists": 0, "bytes": 10_010, "faults": 0}
    proxy.inject(Faults(latency=0.3))
    begin = time.monotonic()
    fetched(proxy)
    assert time.monotonic() - begin >= 0.3
    assert proxy.counts().of("b.bin")["gets"] == 1


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_of_the_proxys_own(kind: str, proxy: Proxy) -> None:
    status, code = ANSWERS[kind]
    proxy.inject(Faults(kind, match="b.bin"))
    got, body = fetched(proxy)
    assert got == status
    assert f"<Code>{code}</Code>".encode() in body
    assert fetched(proxy, "day=1/a.bin", last=0) == (206, b"a")
    assert proxy.counts().faults == {"/proxied/b.bin": 1}


@pytest.mark.parametrize(
    ("kind", "error"),
    [("reset", ConnectionResetError), ("truncated", (http.client.IncompleteRead, ConnectionResetError))],
)
def test_broken_connections(kind: str, error: Any, proxy: Proxy) -> None:
    proxy.inject(Faults(kind))
    with pytest.raises(error):
        fetched(proxy)
    counts = proxy.counts().of("b.bin")
    assert counts["faults"] == 1
    assert counts["bytes"] == (5_000 if kind == "truncated" else 0)


def test_a_stalled_body_keeps_the_client_waiting(proxy: Proxy) -> None:
    proxy.inject(Faults("stalled", stall=1.0))
    begin = time.monotonic()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        fetched(proxy)
    assert time.monotonic() - begin >= 1.0


def test_one_request_in_n_fails_and_the_same_ones_each_time(proxy: Proxy) -> None:
    def pattern(seed: int) -> list[int]:
        proxy.inject(Faults("error", every=10, seed=seed))
        return [fetched(proxy, first=number)[0] for number in range(300)]

    first = pattern(0)
    assert 15 <= first.count(500) <= 45
    assert pattern(0) == first != pattern(1)
    assert proxy.counts().of("")["faults"] == pattern(1).count(500)


@pytest.mark.parametrize("store", ["moto_s3", pytest.param("seaweed_s3", marks=pytest.mark.slow)], indirect=True)
def test_s3_is_read_through_the_proxy(store: Store, files: Path, tmp_path: Path) -> None:
    store.put(files, "signed")
    with faulty(store, tmp_path) as proxy:
        filesystem = proxy.store.filesystem
        assert len(filesystem.find(proxy.store.url("signed"))) == len(FILES)
        assert proxy.counts().of("")["lists"] == 1
        proxy.inject(Faults("reset", every=2))
        for path, data in FILES.items():
            assert filesystem.cat_file(proxy.store.url(f"signed/{path}")) == data
        counts = proxy.counts().of("signed")
        assert counts["faults"] > 0
        assert counts["bytes"] == sum(map(len, FILES.values()))


@pytest.mark.slow
def test_seaweedfs_checks_signatures(seaweed_s3: Store, files: Path) -> None:
    seaweed_s3.put(files, "checked")
    wrong = replace(seaweed_s3, storage_options={**seaweed_s3.storage_options, "secret": "wrong"})
    with pytest.raises(PermissionError):
        wrong.filesystem.cat_file(wrong.url("checked/b.bin"))
