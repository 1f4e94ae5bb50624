"""Stores that fail now and then cost time, never a row; one that fails for good ends the pass soon, by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from tests.storage.proxy import Faults, Proxy, faulty
from tests.storage.servers import Store
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.events import BlockEvent, Event, Recorder

FILES, ROWS = 24, 100  # rows of a file, in two row groups
PASSING = ("slow down", "unavailable", "error", "reset", "truncated", "stalled")
PASSING_ELSEWHERE = ("unavailable", "reset", "truncated")
REFUSED_WITHIN = 15.0  # seconds until an error that no retry can mend is raised, on a busy machine
GIVEN_UP_WITHIN = 120.0  # seconds until a store that always says "slow down" is given up
# Each of the few readers of a file may ask for it once, in two ways.
REFUSED_REQUESTS = 6
GIVEN_UP_REQUESTS = 200  # clients try again themselves each time that they are asked again
KEY = "part-17"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": ids, "x": ids * 0.5})
        (folder / "parquet").mkdir(exist_ok=True)
        (folder / "csv").mkdir(exist_ok=True)
        pq.write_table(rows, folder / "parquet" / f"part-{number:02}.parquet", row_group_size=ROWS // 2)
        csv.write_csv(rows, folder / "csv" / f"part-{number:02}.csv")
    return folder


@pytest.fixture
def proxy(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Proxy]:
    store: Store = request.getfixturevalue(request.param)
    if not store.filesystem.exists(store.url("faults/parquet/part-00.parquet")):
        store.put(folder, "faults")
    with faulty(store, tmp_path) as proxy:
        yield proxy


def loader_of(proxy: Proxy, form: str = "parquet", **options: Any) -> Any:
    if proxy.store.folder is None:
        path: Any = proxy.store.url(f"faults/{form}")
    else:
        path = [proxy.store.url(f"faults/{form}/part-{number:02}.{form}") for number in range(FILES)]
    given = {"storage_options": proxy.store.storage_options, "num_workers": 2, "batch_size": 64, "shuffle": True}
    return StructuredDataset.create_dataloader(path, **{**given, **options})[0]


def ids_of(loader: Any) -> list[int]:
    return sorted(row for batch in loader for row in batch["id"].tolist())


def retries_of(loader: Any) -> list[int]:
    """A list that gets the retries of each block, by whatever thread or process."""
    retries: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, BlockEvent):
            retries.append(event.work.retries)

    loader.dataset.on_event(count)
    return retries


CASES = [
    pytest.param(store, kind, marks=[pytest.mark.slow] * slow, id=f"{store}-{kind}")
    for store, kinds, slow in [
        ("moto_s3", PASSING, False),
        ("fake_gcs", PASSING_ELSEWHERE, False),
        ("http_server", PASSING_ELSEWHERE, False),
        ("seaweed_s3", PASSING, True),
        ("azurite", PASSING_ELSEWHERE, True),
    ]
    for kind in kinds
]


@pytest.mark.parametrize(("proxy", "kind"), CASES, indirect=["proxy"])
def test_one_request_in_ten_fails_and_every_row_comes_once(
    proxy: Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []  # while the loader is made, too
    monkeypatch.setattr(Recorder, "count", lambda self, name, number=1: noted.append(name))
    if proxy.store.root.startswith("az:"):  # its client waits 15 seconds and more before each try
        client = pytest.importorskip("azure.storage.blob.aio")
        monkeypatch.setattr(client.ExponentialRetry, "get_backoff_time", lambda *_: 0.5)
    proxy.inject(Faults(kind, every=10, stall=1.0, seed=1))
    assert ids_of(loader_of(proxy)) == list(range(FILES * ROWS))
    counts = proxy.counts().of("")
    assert counts["faults"] >= 2
    if not proxy.store.root.startswith(("gs:", "az:")):  # whose clients try again themselves
        assert "retries" in noted
    asked = counts["gets"] + counts["heads"] + counts["lists"]
    assert counts["faults"] < asked / 3  # retries did not fail for good


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["moto_s3"], indirect=True)
def test_the_clients_own_time_limit_ends_a_body_that_never_ends(proxy: Proxy) -> None:
    proxy.inject(Faults("stalled", every=30, stall=600.0))
    options = {**proxy.store.storage_options, "config_kwargs": {"read_timeout": 1}}
    begin = time.monotonic()
    assert ids_of(loader_of(proxy, storage_options=options)) == list(range(FILES * ROWS))
    assert proxy.counts().of("")["faults"] >= 2
    assert time.monotonic() - begin < GIVEN_UP_WITHIN


@pytest.mark.parametrize("proxy", ["moto_s3"], indirect=True)
@pytest.mark.parametrize("options", [{"worker_mode": "processes"}, {"form": "csv"}], ids=str)
def test_in_processes_and_with_text(proxy: Proxy, options: dict[str, Any]) -> None:
    proxy.inject(Faults("truncated", every=10))
    loader = loader_of(proxy, **options)
    retries = retries_of(loader)
    assert ids_of(loader) == list(range(FILES * ROWS))
    assert proxy.counts().of("")["faults"] >= 2
    assert sum(retries) > 0


@pytest.mark.parametrize("reader", ["plan", "thread", "process"])
@pytest.mark.parametrize(
    ("proxy", "kind"),
    [
        ("moto_s3", "forbidden"),
        ("moto_s3", "missing"),
        ("fake_gcs", "forbidden"),
        ("http_server", "missing"),
        pytest.param("azurite", "forbidden", marks=pytest.mark.slow),
        pytest.param("seaweed_s3", "forbidden", marks=pytest.mark.slow),
    ],
    indirect=["proxy"],
)
def test_a_refused_object_is_an_error_at_once(proxy: Proxy, kind: str, reader: str) -> None:
    error, seconds, requests = _failure(proxy, kind, reader)
    assert isinstance(error, DataLoaderUtilsError)
    assert f"{proxy.store.root.partition('://')[2]}/faults/parquet/{KEY}.parquet" in str(error)
    assert seconds < REFUSED_WITHIN
    assert 0 < requests <= REFUSED_REQUESTS
    assert proxy.store.storage_options.get("secret", "no secret") not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["moto_s3"], indirect=True)
@pytest.mark.parametrize("kind", ["slow down", "truncated"])
def test_an_object_that_never_comes_is_given_up(proxy: Proxy, kind: str) -> None:
    error, seconds, requests = _failure(proxy, kind, "thread")
    assert isinstance(error, DataLoaderUtilsError)
    assert f"training-data/faults/parquet/{KEY}.parquet" in str(error)
    assert seconds < GIVEN_UP_WITHIN
    assert 2 < requests <= GIVEN_UP_REQUESTS


def _failure(proxy: Proxy, kind: str, reader: str) -> tuple[BaseException, float, int]:
    """The error while one object fails for good, after how many seconds, and how often it was asked for.

    It fails while the plan is made, or only when a worker (a thread or a process) reads it.
    """
    faults = Faults(kind, match=KEY)
    if reader == "plan":
        proxy.inject(faults)
        begin = time.monotonic()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which, is the test's matter
            loader_of(proxy)
    else:
        loader = loader_of(proxy, worker_mode=reader)
        proxy.inject(faults)
        begin = time.monotonic()
        with pytest.raises(Exception) as caught:  # noqa: PT011
            ids_of(loader)
    seconds = time.monotonic() - begin
    return caught.value, seconds, proxy.counts().of(KEY)["faults"]
