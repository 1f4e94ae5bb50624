"""Which client reads what, in how many requests, and what becomes of its faults."""

from __future__ import annotations

import http.server
import multiprocessing
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.forking import in_fork
from tests.storage.proxy import Faults, Proxy, faulty
from tests.storage.servers import BUCKET, Store
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataNotFoundError, FileReadError, MissingExtraError, OptionError
from torch_dataloader_utils.events import BlockEvent, recording
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import (
    Storage,
    coalesced,
    confirm_unchanged,
    open_storage,
    prefetch,
    remote,
    retries,
)
from torch_dataloader_utils.storage.clients import ArrowClient
from torch_dataloader_utils.storage.remote import RangeFile
from torch_dataloader_utils.storage.storage import HeldFile

CONTENT = random.Random(0).randbytes(300_000)


def planned(storage: Storage, path: str) -> DataFileInfo:
    stored = storage.look(path)
    assert stored is not None
    return DataFileInfo(path, stored.size, version=stored.version)


def ranges_of(storage: Storage, path: str, ranges: list[tuple[int, int]], size: int = 0) -> list[bytes]:
    return HeldFile(storage, path, lambda latest: latest.client().open(path, size)).fetch(ranges)


# ------------------------------------------------------------------------------------------------- whose client reads


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the user's, whose machine this may be, reach AWS clients."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def arrow_of(url: str, **options: Any) -> pafs.FileSystem | None:
    storage, path = open_storage(url, options)
    return storage.client().arrow(path)


KEYS = {"key": "k", "secret": "s"}
HERE = {"endpoint_url": "http://127.0.0.1:1"}


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({**KEYS, **HERE}, {"access_key": "k", "secret_key": "s", "region": "us-east-1"}),
        (
            {**KEYS, "token": "t", "client_kwargs": {**HERE, "region_name": "eu-west-1"}},
            {"access_key": "k", "secret_key": "s", "session_token": "t", "region": "eu-west-1"},
        ),
        ({"anon": True, **HERE}, {"anonymous": True, "region": "us-east-1"}),
    ],
)
def test_options_of_s3fs_that_pyarrow_has_too(options: dict[str, Any], same: dict[str, Any]) -> None:
    storage, path = open_storage("s3://bucket/x", options)
    native = storage.client().arrow(path)
    strategy = pafs.AwsStandardS3RetryStrategy(max_attempts=1)
    place = {"endpoint_override": "127.0.0.1:1", "scheme": "http", "connect_timeout": 5, "retry_strategy": strategy}
    assert native == pafs.S3FileSystem(**same, **place)
    assert pickle.loads(pickle.dumps(storage)) == storage


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    "options",
    [
        {**KEYS, **HERE, "requester_pays": True},
        {**KEYS, **HERE, "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}},
        {**KEYS, **HERE, "version_aware": True},
        {**KEYS, **HERE, "client_kwargs": {"verify": False}},
        {**KEYS, **HERE, "config_kwargs": {"s3": {"payload_signing_enabled": True}}},
        {**KEYS, **HERE, "config_kwargs": {"proxies": {"http": "http://127.0.0.1:2"}}},
        {**KEYS, **HERE, "config_kwargs": {"signature_version": "s3"}},
        {**KEYS, "endpoint_url": "http://127.0.0.1:1/base"},
        {**HERE},  # no credentials anywhere
    ],
)
def test_options_of_s3fs_that_pyarrow_has_not(options: dict[str, Any]) -> None:
    assert arrow_of("s3://bucket/x", **options) is None


@pytest.mark.usefixtures("no_settings")
def test_a_proxy_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")
    assert arrow_of("s3://proxied/x", **KEYS, **HERE) is None
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert arrow_of("s3://direct/x", **KEYS, **HERE) is not None


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("where", ["environment", "profile"])
def test_credentials_and_endpoints_that_the_user_has_set_up(
    moto_s3: Store, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moto_s3.filesystem.pipe(moto_s3.url("clients/set-up"), CONTENT)
    endpoint = moto_s3.storage_options["endpoint_url"]
    if where == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    else:
        (tmp_path / "config").write_text(f"[profile mine]\nendpoint_url = {endpoint}\nregion = us-east-1\n")
        (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = k\naws_secret_access_key = s\n")
        monkeypatch.setenv("AWS_PROFILE", "mine")
    storage, path = open_storage(moto_s3.url("clients/set-up"))
    assert storage.client().arrow(path) is not None
    with storage.open_data(planned(storage, path)) as file:
        assert file.read() == CONTENT


@pytest.mark.usefixtures("no_settings")
def test_credentials_that_expire_stay_with_the_client_that_renews_them(
    moto_s3: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moto_s3.filesystem.pipe(moto_s3.url("clients/expiring"), CONTENT)
    answer = '{"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "Expiration": "2999-01-01T00:00:00Z"}'
    (tmp_path / "answer").write_text(answer)
    (tmp_path / "config").write_text(f"[profile mine]\ncredential_process = cat {tmp_path / 'answer'}\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    storage, path = open_storage(
        moto_s3.url("clients/expiring"), {"endpoint_url": moto_s3.storage_options["endpoint_url"]}
    )
    assert storage.client().arrow(path) is None
    with storage.open_data(planned(storage, path)) as file:
        assert file.read() == CONTENT


def test_azure_and_google_are_read_by_their_fsspec_clients(azurite: Store, fake_gcs: Store) -> None:
    for store in (azurite, fake_gcs):
        assert arrow_of(store.url("x"), **store.storage_options) is None


def test_clients_of_other_classes_are_left_alone() -> None:
    import s3fs

    class Mine(s3fs.S3FileSystem):  # type: ignore[misc]
        """Reads in its own way."""

    assert open_storage("s3://b/x", None, Mine(**KEYS, **HERE))[0].client().arrow("b/x") is None
    assert open_storage("s3://b/x", None, s3fs.S3FileSystem(**KEYS, **HERE))[0].client().arrow("b/x") is not None


# ---------------------------------------------------------------------------------------------- what requests are made


@pytest.fixture(params=["moto_s3", "fake_gcs", "http_server", "azurite"])
def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Proxy]]:
    store: Store = request.getfixturevalue(request.param)
    with faulty(store, tmp_path) as proxy:
        yield store, proxy


def test_requests_of_a_file(proxied: tuple[Store, Proxy], tmp_path: Path) -> None:
    store, proxy = proxied
    rows = pa.table({f"c{i}": np.random.default_rng(i).normal(size=10_000) for i in range(8)})
    (tmp_path / "files").mkdir()
    pq.write_table(rows, tmp_path / "files" / "x.parquet", row_group_size=5_000, use_dictionary=False)
    store.put(tmp_path / "files", "counted")
    storage, path = open_storage(proxy.store.url("counted/x.parquet"), proxy.store.storage_options)
    file = planned(storage, path)
    assert file.version.startswith("etag:")
    storage.client().arrow(path)

    def asked() -> tuple[int, int]:
        counts = proxy.counts().of("counted")
        proxy.inject(Faults())
        return counts["heads"] + counts["lists"], counts["gets"]

    asked()
    with storage.open_footer(file) as source:
        metadata = pq.read_metadata(source)
        source.read_at(10, file.file_size - 20)
    inquiries, gets = asked()
    assert (inquiries <= 1, gets) == (True, 1)
    with storage.open_data(file) as source:
        assert sum(asked()) <= 3  # Google's client inquires by GET, and lists
        chunks = [metadata.row_group(1).column(i) for i in range(8)]
        prefetch(source, [(c.data_page_offset, c.data_page_offset + c.total_compressed_size) for c in chunks])
        opened = pq.ParquetFile(source, metadata=metadata, pre_buffer=False)
        assert opened.read_row_group(1, use_threads=False).equals(rows.slice(5_000))
        assert asked() == (0, 1)
        confirm_unchanged(source)
        assert 1 <= sum(asked()) <= 3
        confirm_unchanged(source)  # nothing was read since
    assert asked() == (0, 0)


def write_orc(rows: pa.Table, path: Path) -> None:
    orc.write_table(rows, path, stripe_size=1 << 16)


def write_ipc(rows: pa.Table, path: Path) -> None:
    feather.write_feather(rows, str(path), compression="lz4", chunksize=50_000)


@pytest.mark.parametrize(
    ("suffix", "write", "columns"),
    [("csv", csv.write_csv, None), ("arrow", write_ipc, None), ("orc", write_orc, ["a"])],
)
def test_a_file_is_confirmed_once_per_task(
    moto_s3: Store, tmp_path: Path, suffix: str, write: Callable[[pa.Table, Path], None], columns: list[str] | None
) -> None:
    (tmp_path / "files").mkdir()
    rows = pa.table({name: np.random.default_rng(1).normal(size=200_000) for name in ("a", "b", "c", "d", "e")})
    write(rows, tmp_path / "files" / f"x.{suffix}")
    moto_s3.put(tmp_path / "files", f"confirmed-{suffix}")
    with faulty(moto_s3, tmp_path) as proxy:
        loader, dataset = StructuredDataset.create_dataloader(
            proxy.store.url(f"confirmed-{suffix}"),
            storage_options=proxy.store.storage_options,
            columns=columns,
            batch_size=50_000,
            num_workers=0,
        )
        tasks: list[BlockEvent] = []
        dataset.on_event(lambda event: tasks.append(event) if isinstance(event, BlockEvent) else None)
        proxy.inject(Faults())
        assert sum(len(batch["a"]) for batch in loader) == 200_000
        heads = proxy.counts().of(f"confirmed-{suffix}")["heads"]
    assert 0 < heads <= len(tasks)


def test_long_ranges_are_asked_for_in_parts_at_the_same_time() -> None:
    asked: list[list[tuple[int, int]]] = []
    longest = remote.LONGEST

    def fetch(ranges: Any) -> list[bytes]:
        asked.append(list(ranges))
        return [b"x" * (stop - start) for start, stop in ranges]

    file = RangeFile("x", 10 * longest, fetch, lambda: None)
    file.prefetch([(5, 3 * longest + 5)])
    assert asked == [[(5 + i * longest, 5 + (i + 1) * longest) for i in range(3)]]
    file.seek(5)
    assert file.read(3 * longest) == b"x" * (3 * longest)
    assert len(asked) == 1
    assert not file._blocks  # read once, they are let go of


@given(st.data())
@settings(max_examples=100)
def test_a_range_file_reads_as_a_file_does(data: st.DataObject) -> None:
    content = random.Random(1).randbytes(data.draw(st.integers(0, 5000)))
    places = st.integers(0, len(content) + 10)

    def fetch(ranges: Any) -> list[bytes]:
        assert all(0 <= start < stop <= len(content) for start, stop in ranges)
        return [content[start:stop] for start, stop in ranges]

    longest, ahead = remote.LONGEST, (remote._AHEAD_LEAST, remote._AHEAD_MOST)
    remote.LONGEST, remote._AHEAD_LEAST, remote._AHEAD_MOST = 300, 100, 400
    try:
        file = RangeFile("x", len(content), fetch, lambda: None, gap=50)
        for _ in range(data.draw(st.integers(1, 12))):
            if data.draw(st.booleans()):
                file.prefetch(data.draw(st.lists(st.tuples(places, places), max_size=5)))
            if data.draw(st.booleans()):
                file.seek(data.draw(places))
            at, count = file.tell(), data.draw(places)
            assert file.read(count) == content[at : at + count]
            assert file.tell() == max(at, min(at + count, len(content)))
    finally:
        remote.LONGEST, (remote._AHEAD_LEAST, remote._AHEAD_MOST) = longest, ahead


@given(
    ranges=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda pair: tuple(sorted(pair)))),
    gap=st.integers(0, 20),
)
def test_coalesced_ranges_hold_the_same_bytes_and_lie_further_apart_than_the_gap(
    ranges: list[tuple[int, int]], gap: int
) -> None:
    joined = coalesced(ranges, gap)
    assert all(start < stop for start, stop in joined)
    assert all(after[0] - before[1] > gap for before, after in pairwise(joined))
    given = {byte for span in ranges for byte in range(*span)}
    covered = {byte for span in joined for byte in range(*span)}
    assert given <= covered
    filled = {byte for byte in covered if any(byte - i in given for i in range(gap + 1))}
    assert covered == filled
    assert all(start in given and stop - 1 in given for start, stop in joined)


def test_reads_that_follow_one_another_fetch_ahead() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(ranges: Any) -> list[bytes]:
        asked.extend(ranges)
        return [b"x" * (stop - start) for start, stop in ranges]

    file = RangeFile("x", 100 << 20, fetch, lambda: None)
    for _ in range(200):
        assert len(file.read(1 << 16)) == 1 << 16
    assert len(asked) < 8


# -------------------------------------------------------------------------------------------------- threads, processes


def _bytes_in(storage: Storage, path: str, queue: Any) -> None:
    queue.put(ranges_of(storage, path, [(0, 10), (100, 110)]))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("arrow", [True, False])
def test_many_threads_and_then_forked_children_read(moto_s3: Store, arrow: bool) -> None:
    moto_s3.filesystem.pipe(moto_s3.url("clients/threads"), CONTENT)
    options = {**moto_s3.storage_options, **({} if arrow else {"requester_pays": True})}
    storage, path = open_storage(moto_s3.url("clients/threads"), options)
    assert (storage.client().arrow(path) is not None) == arrow
    results: list[list[bytes]] = []
    reads = partial(ranges_of, storage, path, [(0, 10), (100, 110), (299_999, 300_000)], len(CONTENT))
    threads = [threading.Thread(target=lambda: results.extend(reads() for _ in range(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[CONTENT[:10], CONTENT[100:110], CONTENT[-1:]]] * 40
    for method in ("fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=_bytes_in, args=(storage, path, queue))
        child.start()
        assert queue.get() == [CONTENT[:10], CONTENT[100:110]]
        child.join(60)
        assert child.exitcode == 0


def _look(client: ArrowClient, path: str) -> None:
    with suppress(OSError):
        client.look(path)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_during_a_request_to_s3_reads(moto_s3: Store) -> None:
    moto_s3.filesystem.pipe(moto_s3.url("clients/forked"), CONTENT)
    storage, path = open_storage(moto_s3.url("clients/forked"), moto_s3.storage_options)
    passed, inner = open_storage(path, None, storage.client().arrow(path))
    reads = partial(ranges_of, storage, path, [(0, 10), (100, 110)])
    assert reads() == ranges_of(passed, inner, [(0, 10), (100, 110)])
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a request to it is under way until it is closed
        stuck = pafs.S3FileSystem(
            access_key="a",
            secret_key="b",
            scheme="http",
            endpoint_override=f"127.0.0.1:{silent.getsockname()[1]}",
            request_timeout=60,
        )
        thread = threading.Thread(target=_look, args=(ArrowClient(stuck), "bucket/key"), daemon=True)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert in_fork(reads, 30) == [CONTENT[:10], CONTENT[100:110]]
        with pytest.raises(FileReadError, match="pyarrow can create no S3 client"):
            in_fork(partial(ranges_of, passed, inner, [(0, 10)]), 30)


EXITING = """
import json, sys, threading
from torch_dataloader_utils.storage import open_storage
storage, path = open_storage(sys.argv[1], json.loads(sys.argv[2]))
file = storage.open(path)
file.read(10)
threading.Thread(target=lambda: [storage.open(path).read(10) for _ in range(50)]).start()
"""


@pytest.mark.parametrize("options", [{}, {"requester_pays": True}])
def test_a_process_ends_with_files_open_and_reads_under_way(moto_s3: Store, options: dict[str, Any]) -> None:
    import json

    moto_s3.filesystem.pipe(moto_s3.url("clients/exit"), CONTENT)
    given = json.dumps({**moto_s3.storage_options, **options})
    command = [sys.executable, "-c", EXITING, moto_s3.url("clients/exit"), given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------------------- faults


class Shaky(MemoryFileSystem):  # type: ignore[misc]
    """Its first reads of a range end in the faults given."""

    store: dict[str, Any] = {}  # noqa: RUF012 - as its parent has it
    cachable = False

    def __init__(self, *faults: Any, **options: Any) -> None:
        super().__init__(**options)
        self.faults = list(faults)
        self.tries = 0

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        self.tries += 1
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, BaseException):
            raise fault
        data: bytes = super().cat_file(path, start, end, **kwargs)
        return data if fault is None else fault(data)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Waits between tries are short."""
    retries._retrying.cache_clear()
    monkeypatch.setattr(retries, "_LONGEST_WAIT", 0.01)
    yield
    retries._retrying.cache_clear()


def shaky(*faults: Any) -> tuple[Shaky, Storage]:
    fs = Shaky(*faults)
    fs.pipe("/x", CONTENT)
    return fs, Storage("memory", filesystem=fs)


def http_fault(status: int) -> Exception:
    import aiohttp
    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL

    about = aiohttp.RequestInfo(URL("http://h/x"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://h/x"))
    return aiohttp.ClientResponseError(about, (), status=status)


def s3_fault(status: int, code: str) -> Exception:
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = translate_boto_error(ClientError(response, "GetObject"))
    return error


def gcs_fault(status: int) -> Exception:
    from gcsfs.retry import HttpError

    error: Exception = HttpError({"code": status, "message": "said"})
    return error


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


PASSING: list[Callable[[], Any]] = [
    lambda: ConnectionResetError("reset"),
    lambda: TimeoutError("slow"),
    lambda: OSError("of pyarrow"),
    lambda: http_fault(503),
    lambda: http_fault(429),
    lambda: s3_fault(503, "SlowDown"),
    lambda: s3_fault(500, "InternalError"),
    lambda: gcs_fault(429),
    lambda: caused_by(FileNotFoundError("x"), http_fault(502)),
    lambda: lambda data: data[:-1],  # a truncated body
]
LASTING: list[Callable[[], Any]] = [
    lambda: PermissionError("denied"),
    lambda: FileNotFoundError("gone"),
    lambda: ValueError("no such bucket name"),
    lambda: http_fault(403),
    lambda: http_fault(416),
    lambda: s3_fault(403, "AccessDenied"),
    lambda: s3_fault(403, "SignatureDoesNotMatch"),
    lambda: s3_fault(404, "NoSuchBucket"),
    lambda: gcs_fault(401),
    lambda: caused_by(FileNotFoundError("x"), http_fault(403)),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", PASSING)
def test_faults_that_pass_are_tried_again_and_counted(fault: Callable[[], Any]) -> None:
    fs, storage = shaky(fault(), fault())
    with recording() as noted, storage.open("/x") as file:
        assert file.read_at(1000, 500) == CONTENT[500:1500]
    assert (fs.tries, noted.work().retries) == (3, 2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", LASTING)
def test_faults_that_last_are_raised_at_once_with_the_files_name(fault: Callable[[], Any]) -> None:
    fs, storage = shaky(fault())
    with (
        recording() as noted,
        storage.open("/x") as file,
        pytest.raises(FileReadError, match=r"^/x: cannot be read: "),
    ):
        file.read_at(1000, 500)
    assert (fs.tries, noted.work().retries) == (1, 0)


@pytest.mark.usefixtures("quick")
def test_a_missing_package_for_retries_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _, storage = shaky()
    monkeypatch.setitem(sys.modules, "tenacity", None)
    with pytest.raises(MissingExtraError, match=r"torch-dataloader-utils\[remote\]"):
        storage.look("/x")


@pytest.mark.usefixtures("quick")
def test_tries_are_bounded_and_reported() -> None:
    fs, storage = shaky(*[ConnectionResetError("reset") for _ in range(100)])
    message = r"^/x: cannot be read: .*: reset; given up after 8 tries"
    with storage.open("/x") as file, pytest.raises(FileReadError, match=message):
        file.read_at(10, 0)
    assert fs.tries == 8


@pytest.mark.usefixtures("quick")
def test_only_the_range_that_failed_is_asked_for_again() -> None:
    fs, storage = shaky(ConnectionResetError("reset"))
    ranges = [(i * 1000, i * 1000 + 10) for i in range(20)]
    with recording() as noted:
        assert ranges_of(storage, "/x", ranges) == [CONTENT[start:stop] for start, stop in ranges]
    assert fs.tries == 21
    work = noted.work()  # of the threads that waited for the requests, too
    assert (work.requests, work.retries, work.bytes_read) == (20, 1, 200)


def test_a_corrupt_file_is_not_read_again() -> None:
    fs = fsspec.filesystem("memory")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": list(range(1000))}), sink, compression="zstd", write_page_checksum=True)
    damaged = bytearray(sink.getvalue().to_pybytes())
    damaged[20:60] = bytes(40)
    fs.pipe("/clients/corrupt.parquet", bytes(damaged))
    storage, path = open_storage("memory://clients/corrupt.parquet")
    with (
        recording() as noted,
        storage.open_data(planned(storage, path)) as source,
        pytest.raises(OSError),  # noqa: PT011 - the decoder's
    ):
        pq.ParquetFile(source, page_checksum_verification=True).read()
    assert noted.work().retries == 0


def test_an_unknown_bucket_is_named(moto_s3: Store) -> None:
    storage, path = open_storage("s3://no-such-bucket/x", moto_s3.storage_options)
    assert storage.look(path) is None
    with pytest.raises(FileReadError, match="no-such-bucket/x has disappeared"):
        storage.open_data(DataFileInfo(path, 10))
    with pytest.raises(
        FileReadError, match=r"^s3://no-such-bucket: cannot be read: FileNotFoundError.*Check the address"
    ):
        storage.find("no-such-bucket")
    with pytest.raises(DataNotFoundError, match=r"^s3://no-such-bucket/x: there is no such file"):
        StructuredDataset.create_dataloader("s3://no-such-bucket/x", storage_options=moto_s3.storage_options)


def test_credentials_that_the_client_refuses_name_the_address_and_the_option() -> None:
    with pytest.raises(FileReadError, match=r"^s3://bucket/x: .*aws_secret_access_key.*storage_options=\.$"):
        StructuredDataset.create_dataloader("s3://bucket/x", storage_options={"key": "AKIA"})


def test_paths_are_named_as_users_write_them(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/a.csv", "id\n1\n")
    inside, path = open_storage(f"zip://x::file://{tmp_path}/a.zip")
    assert inside.named(path) == "x"  # not file://x, which is the archive's protocol
    assert open_storage("memory://x/y")[0].named("/x/y") == "/x/y"
    assert Storage().named("x") == "x"


# ------------------------------------------------------------------------------------------------------------- servers


class Whole(http.server.BaseHTTPRequestHandler):
    """Knows no ranges."""

    sized = True

    def do_HEAD(self) -> None:
        self.send_response(200)
        if self.sized:
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Unsized(Whole):
    """Nor does it tell sizes."""

    sized = False


@pytest.mark.parametrize("handler", [Whole, Unsized])
def test_web_servers_without_ranges_or_sizes(handler: type[Whole]) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        storage, path = open_storage(f"http://127.0.0.1:{server.server_port}/x")
        for _ in range(2):
            with storage.open_data(DataFileInfo(path, len(CONTENT))) as file:
                assert file.size() == len(CONTENT)
                assert file.read_at(1000, 500) == CONTENT[500:1500]
                assert file.read_at(2000, len(CONTENT) - 1000) == CONTENT[-1000:]
        server.shutdown()


def test_a_key_with_an_empty_part_is_read(moto_s3: Store) -> None:
    moto_s3.filesystem.pipe(f"{BUCKET}/clients//odd key+%20.bin", CONTENT)
    storage, path = open_storage(f"s3://{BUCKET}/clients//odd key+%20.bin", moto_s3.storage_options)
    with storage.open_data(planned(storage, path)) as file:
        assert file.read() == CONTENT


def test_a_filesystem_of_pyarrow_given(moto_s3: Store) -> None:
    moto_s3.filesystem.pipe(moto_s3.url("clients/given"), CONTENT)
    given = pafs.S3FileSystem(
        access_key="k", secret_key="s", endpoint_override=f"127.0.0.1:{moto_s3.port}", scheme="http", region="us-east-1"
    )
    storage, path = open_storage(f"{BUCKET}/clients/given", None, given)
    file = planned(storage, path)
    assert file.version.startswith("mtime:")
    assert storage.find(f"{BUCKET}/clients")
    with storage.open_data(file) as opened:
        assert opened.read() == CONTENT
    with pytest.raises(OptionError):
        open_storage("x", None, object())
