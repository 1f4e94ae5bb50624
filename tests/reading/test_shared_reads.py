"""Windows that several threads read together, and the memory that rows are gathered into."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reading.test_shuffle import by_file, folder, inline, pieces_of, plain, shuffled, source_of, wanted_of
from torch_dataloader_utils import StructuredDataset, seeding
from torch_dataloader_utils.convert import converter
from torch_dataloader_utils.convert.columns import Dense
from torch_dataloader_utils.events import NO_WORK
from torch_dataloader_utils.executors.threads import ThreadDriver
from torch_dataloader_utils.formats.parquet import FORMAT
from torch_dataloader_utils.kernels import rows
from torch_dataloader_utils.model import Piece, Split, Task, Window
from torch_dataloader_utils.reading import windows
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.reading.buffers import BufferPool
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.reading.windows import WindowRead, WindowReader

__all__ = ["folder"]  # a fixture


def test_readers_share_the_columns_of_a_window(folder: Path) -> None:
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source))
    first, second = (source.scan.open(source.by_key) for _ in range(2))
    shared = first.share(tasks[0])
    assert shared is not None
    assert shared.open
    begun, finished = threading.Event(), threading.Event()
    read = first.windows.columns

    def late(*given: Any) -> Any:
        begun.set()
        assert finished.wait(30)
        return read(*given)

    first.windows.columns = late
    blocks: list[Block | None] = []
    thread = threading.Thread(target=lambda: blocks.append(shared.read(first)))
    thread.start()
    assert begun.wait(30)
    assert shared.read(second) is None  # the other reader has not finished its columns yet
    assert not shared.open
    finished.set()
    thread.join()
    (block,) = blocks
    assert block is not None
    assert block.work != NO_WORK
    assert str(plain(block)) == str(plain(inline(source, tasks)[0]))  # the keys in the same order, too
    first.close()
    second.close()


def test_an_error_of_a_shared_read_is_reported_once(folder: Path) -> None:
    source = source_of(folder)
    reader = source.scan.open(source.by_key)
    shared = reader.share(shuffled(source, pieces_of(source))[0])
    assert shared is not None
    assert [shared.abandon(), shared.abandon()] == [True, False]
    assert not shared.open
    assert shared.read(reader) is None
    reader.close()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [{"_SCATTERED": 1}, {"_SCATTERED": 1 << 30}, {"_TAKEN": 4, "_KEPT": 3}, {"_NEAR": 0}, {"_NEAR": 20}],
    ids=str,
)
def test_rows_of_any_width_are_gathered_alike(
    folder: Path, sizes: dict[str, int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "_DRAWN", 2)  # so that small windows, too, are divided into buckets
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source))
    wanted = [str(plain(block)) for block in inline(source, tasks)]
    for name, size in sizes.items():
        monkeypatch.setattr(rows if name == "_TAKEN" else windows, name, size)
    if not compiled:
        monkeypatch.setattr(rows, "library", lambda: None)
    assert [str(plain(block)) for block in inline(source, tasks)] == wanted


STACKED = {
    "columns": ["id", "half", "u16", "maybe"],
    "dtypes": {"half": "float32", "u16": "float32"},
    "stack": {"x": ["maybe", "u16", "half"], "u16": ["u16", "u16"]},
}


def test_the_columns_of_a_stack_are_shared(folder: Path) -> None:
    source = source_of(folder, **STACKED)
    tasks = shuffled(source, pieces_of(source))
    reader = source.scan.open(source.by_key)
    assert reader.share(tasks[0]) is not None
    reader.close()
    for block, ids in zip(inline(source, tasks), wanted_of(tasks, by_file), strict=True):
        assert block.columns is not None
        assert list(block.columns) == list(source.scan.report()) == ["id", "x", "u16"]
        i = np.array(ids, np.float32)
        expected = {"id": np.array(ids), "x": np.stack([np.where(i % 5 == 1, np.nan, i / 2), i, i], 1)}
        for key, wanted in {**expected, "u16": np.stack([i, i], 1)}.items():
            column = block.columns[key]
            assert isinstance(column, Dense)
            assert column.array.flags.c_contiguous
            assert column.array.flags.writeable
            np.testing.assert_array_equal(column.array, wanted)


def test_an_error_after_the_last_column_of_a_shared_read_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(folder, **STACKED)
    reader = source.scan.open(source.by_key)
    shared = reader.share(shuffled(source, pieces_of(source))[0])
    assert shared is not None

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(converter, "stacked", no_memory)  # memory for the stack
    with pytest.raises(MemoryError):
        shared.read(reader)
    assert shared.abandon()  # so the error is raised in the loop, not lost
    reader.close()


def test_the_files_of_a_window_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        table = pa.table({f"x{i}": np.arange(100) + 100 * number for i in range(3)})
        pq.write_table(table, tmp_path / f"{number:02}.parquet")
    opened = []
    open_file = FORMAT.open
    monkeypatch.setattr(type(FORMAT), "open", lambda self, file, *rest: opened.append(file) or open_file(file, *rest))
    monkeypatch.setattr("torch_dataloader_utils.reading.decoding._CALL_BYTES", 1)  # a call for each column
    loader, dataset = StructuredDataset.create_dataloader(
        str(tmp_path), shuffle=True, batch_size=100, num_workers=0, num_ranks=1, rank=0
    )
    assert sorted(value for batch in loader for value in batch["x0"].tolist()) == list(range(2000))
    dataset.close()
    assert len(opened) == 20


class Counting:
    """A reader that counts its blocks."""

    def __init__(self) -> None:
        self.read = threading.Semaphore(0)

    def share(self, task: Task) -> None:
        """Not shared."""

    def block(self, task: Task) -> Block:
        self.read.release()
        return Block(1, {}, None, 100)

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("windows", [True, False])
def test_the_next_window_is_read_while_one_is_delivered(windows: bool) -> None:
    reader = Counting()
    rows = Piece(Split(None, (0, 1)), None)  # type: ignore[arg-type]
    pieces = (Piece(Window((rows,), 1, 1), None),) if windows else (rows,)
    driver = ThreadDriver(lambda: reader, [[Task(pieces, 1, 100)] * 5], 1, 2, timeout=5)  # type: ignore[arg-type]
    assert driver.next_block(0) is not None
    assert reader.read.acquire(timeout=5)
    assert reader.read.acquire(timeout=5 if windows else 0.2) is windows
    assert not reader.read.acquire(timeout=0.2)  # and no third
    driver.close()


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.booleans()), max_size=60))
def test_a_pool_fills_at_most_an_eighth_more_memory_than_was_leased_at_some_time(
    steps: Sequence[tuple[int, bool]],
) -> None:
    pool, held, most = BufferPool(), [], 0
    for size, release in steps:
        held.append(pool.lease(size))
        held[-1][:] = len(held) % 256
        most = max(most, sum(_size_of(array) for array in held))
        assert sum(_size_of(array) for array in held) + pool.idle_bytes <= most + most // 8
        if release:
            held.pop(0)
    for array in held:
        assert (array == array[0]).all()  # nobody else has written to it


def test_a_pool_serves_a_request_from_a_buffer_of_up_to_twice_its_size() -> None:
    pool = BufferPool()
    for size, made in [(1 << 20, 1), (3 << 18, 1), (1 << 19, 1), (1 << 18, 2)]:
        array = pool.lease(size)
        assert len(array) == size
        assert pool.made == made
        del array


_LEASED = """
from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.reading.buffers import BufferPool

pool, before = BufferPool(), restart_peak()
held = [pool.lease({size}) for _ in range((192 << 20) // {size})]
leased = peak_memory() - before
for array in held:
    array[:] = 1
print(leased >> 20, peak_memory() - before >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
@pytest.mark.parametrize("size", [3 << 20, 64 << 20])
def test_what_is_leased_takes_no_memory_before_it_is_written(size: int) -> None:
    # in a process of its own: memory that earlier tests have freed is given again, and is not counted a second time
    program = [sys.executable, "-c", _LEASED.format(size=size)]
    leased, written = map(int, subprocess.check_output(program, text=True).split())
    assert leased < 16
    assert written > 160


def _size_of(array: np.ndarray[Any, Any]) -> int:
    return len(array.base)


def test_all_threads_read_the_only_window(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source), 1000)[:1]
    names = set()
    read = WindowReader.columns

    def noted(*given: Any) -> Any:
        names.add(threading.current_thread().name)
        time.sleep(0.02)
        return read(*given)

    monkeypatch.setattr(WindowReader, "columns", noted)
    driver = ThreadDriver(lambda: source.scan.open(source.by_key), [tasks], 1, 3, timeout=60)
    assert driver.next_block(0) is not None
    assert driver.next_block(0) is None
    driver.close()
    assert len(names) == 3


def test_all_threads_read_the_first_window_before_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it takes a while until the thread that opens it lets others join."""
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source), 300)
    assert len(tasks) > 1
    reads = []
    share, read = TaskReader.share, WindowReader.columns

    def opened_slowly(*given: Any) -> Any:
        time.sleep(0.1)
        return share(*given)

    def noted(self: WindowReader, window: WindowRead, *given: Any) -> Any:
        reads.append((window, threading.current_thread().name))
        time.sleep(0.02)
        return read(self, window, *given)

    monkeypatch.setattr(TaskReader, "share", opened_slowly)
    monkeypatch.setattr(WindowReader, "columns", noted)
    driver = ThreadDriver(lambda: source.scan.open(source.by_key), [tasks], 1 << 30, 3, timeout=60)
    assert driver.next_block(0) is not None
    driver.close()
    first = [thread for window, thread in reads if window is reads[0][0]]
    assert [window for window, _ in reads[: len(first)]] == [reads[0][0]] * len(first)
    assert len(set(first)) == 3


def test_a_stopped_driver_does_not_read_its_window_to_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source), 1000)[:1]
    calls = []
    begun, stopped = threading.Event(), threading.Event()
    read = WindowReader.columns

    def noted(*given: Any) -> Any:
        calls.append(given)
        begun.set()
        assert stopped.wait(30)
        return read(*given)

    monkeypatch.setattr(WindowReader, "columns", noted)
    driver = ThreadDriver(lambda: source.scan.open(source.by_key), [tasks], 1, 1, timeout=60)
    assert begun.wait(30)
    driver.stop()
    stopped.set()
    driver.close()
    assert len(calls) == 1


def test_a_forked_child_does_not_wait_for_the_parents_reads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(folder)
    tasks = shuffled(source, pieces_of(source), 1000)[:1]
    reads: list[Any] = []
    begun, forked = threading.Event(), threading.Event()
    read = WindowReader.columns

    def held(self: WindowReader, shared: Any, items: Any) -> Any:
        reads.append(shared)
        with shared._lock:
            begun.set()
            assert forked.wait(30)
        return read(self, shared, items)

    monkeypatch.setattr(WindowReader, "columns", held)
    driver = ThreadDriver(lambda: source.scan.open(source.by_key), [tasks], 1, 1, timeout=60)
    assert begun.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0)  # reached only if the hooks of the fork have ended
    deadline = time.monotonic() + 10
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if status == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    forked.set()
    assert driver.next_block(0) is not None
    driver.close()
    assert status == (child, 0)


def test_a_small_lease_frees_no_large_buffer() -> None:
    pool = BufferPool()
    for _ in range(3):
        small = pool.lease(36 << 16)
        large = pool.lease(64 << 16)
        del large
        joined = pool.lease(1 << 16)
        del joined, small
    assert pool.made == 3
