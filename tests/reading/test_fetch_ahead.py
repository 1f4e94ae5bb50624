"""Files of a task are fetched from a remote store while earlier ones are decoded."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.patience import tried_thrice
from torch_dataloader_utils import FileReadError, StructuredDataset
from torch_dataloader_utils.events import BlockEvent
from torch_dataloader_utils.reading.runs import FetchAhead, FileFetch


class SlowStore(MemoryFileSystem):  # type: ignore[misc]
    """A store whose requests take 50 ms; counts how many are in flight."""

    store: ClassVar[dict[str, Any]] = {}
    lock = threading.Lock()
    now = peak = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        kind = type(self)
        with kind.lock:
            kind.now += 1
            kind.peak = max(kind.peak, kind.now)
        try:
            time.sleep(0.05)
            data: bytes = super().cat_file(path, start, end, **options)
            return data
        finally:
            with kind.lock:
                kind.now -= 1


@pytest.fixture
def store() -> Any:
    SlowStore.store.clear()
    fs = SlowStore(skip_instance_cache=True)
    for number in range(12):
        with fs.open(f"/data/{number:02}.parquet", "wb") as file:
            pq.write_table(pa.table({"id": np.arange(number * 100, number * 100 + 100)}), file)
    return fs


def read(fs: Any, **options: Any) -> tuple[list[int], int]:
    """The ids in order of delivery, and the most requests in flight at a time."""
    loader, _ = StructuredDataset.create_dataloader("memory://data", filesystem=fs, batch_size=64, **options)
    SlowStore.peak = 0
    return [int(each) for batch in loader for each in batch["id"]], SlowStore.peak


@tried_thrice
def test_the_files_of_a_window_are_fetched_together(store: Any) -> None:
    ids, peak = read(store, shuffle=True)
    assert sorted(ids) == list(range(1200))
    assert peak >= 8  # one thread decodes the window


def test_one_thread_delivers_the_same_rows_as_many(store: Any) -> None:
    assert read(store, shuffle=True)[0] == read(store, shuffle=True, num_workers=0)[0]


def test_requests_of_files_fetched_ahead_are_counted(store: Any) -> None:
    loader, dataset = StructuredDataset.create_dataloader("memory://data", filesystem=store, shuffle=True)
    seen: list[BlockEvent] = []
    dataset.on_event(lambda event: seen.append(event) if isinstance(event, BlockEvent) else None)
    list(loader)
    assert sum(event.work.requests for event in seen) == 12
    assert sum(event.work.bytes_read for event in seen) > 12 * 500


def test_a_file_that_disappears_is_named(store: Any) -> None:
    loader, _ = StructuredDataset.create_dataloader("memory://data", filesystem=store, shuffle=True)
    store.rm("/data/07.parquet")
    with pytest.raises(FileReadError, match=r"07\.parquet"):
        list(loader)


class Reader:
    """An open file that remembers what happened to it."""

    schema = pa.schema([])

    def __init__(self, wait: threading.Event | None = None, fails: bool = False) -> None:
        self.wait, self.fails = wait, fails
        self.fetched: list[int] = []
        self.closed = threading.Event()

    def opened(self) -> Reader:
        return self

    def read(self, segment_numbers: Any, columns: Any) -> list[pa.ChunkedArray]:
        return []

    def prefetch(self, segment_numbers: Any) -> bool:
        if self.wait is not None:
            assert self.wait.wait(10)
        if self.fails:
            raise FileReadError("broken")
        self.fetched += segment_numbers
        return True

    def confirm(self) -> None:
        """Nothing."""

    def close(self) -> None:
        self.closed.set()


def announced(readers: dict[str, Reader], size: int = 1) -> FetchAhead:
    ahead = FetchAhead()
    ahead.start({path: FileFetch(reader.opened, [3], size) for path, reader in readers.items()})
    return ahead


def test_files_are_returned_with_their_segments() -> None:
    readers = {"a": Reader(), "b": Reader()}
    ahead = announced(readers)
    assert [ahead.take(path) for path in ("a", "b", "c", "a")] == [readers["a"], readers["b"], None, None]
    assert readers["a"].fetched == readers["b"].fetched == [3]


def test_files_not_taken_are_closed_even_while_they_are_fetched() -> None:
    wait = threading.Event()
    readers = {name: Reader(wait) for name in "abc"}
    ahead = announced(readers)
    ahead.close()
    assert not any(reader.closed.is_set() for reader in readers.values())
    wait.set()
    begun = [reader for reader in readers.values() if reader.closed.wait(2) or reader.fetched]
    assert all(reader.closed.is_set() for reader in begun)


def test_files_ahead_are_bounded_in_bytes() -> None:
    wait = threading.Event()
    opened: list[str] = []
    ahead = FetchAhead()

    def file(name: str) -> FileFetch:
        def open_() -> Any:
            opened.append(name)
            return Reader(wait)

        return FileFetch(open_, [0], 30 << 20)

    ahead.start({name: file(name) for name in "abcd"})
    time.sleep(0.2)
    assert sorted(opened) == ["a", "b"]  # a third would exceed 64 MiB
    wait.set()
    for name in "abcd":
        assert ahead.take(name) is not None
    assert sorted(opened) == ["a", "b", "c", "d"]


def test_an_error_is_raised_where_the_file_is_taken_and_the_file_closed() -> None:
    readers = {"a": Reader(), "b": Reader(fails=True)}
    ahead = announced(readers)
    assert ahead.take("a") is readers["a"]
    with pytest.raises(FileReadError, match="broken"):
        ahead.take("b")
    assert readers["b"].closed.is_set()
