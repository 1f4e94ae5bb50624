"""The local cache under damage, full disks, many processes and kill -9: right bytes, at most more slowly."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.cache_helpers import (
    LEAST,
    MIB,
    Remote,
    block_bytes,
    block_files,
    content,
    forget,
    put,
    stored_bytes,
    warnings_of,
)
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import block_store
from torch_dataloader_utils.storage.cache import prepared

FORKED = multiprocessing.get_context("forkserver")  # of a process that has imported torch: see conftest.py


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def options(tmp_path: Path) -> Cache:
    checked = prepared(Cache(tmp_path / "cache", max_bytes="64MiB"))
    assert checked is not None
    return checked


# --------------------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": flip,
    "a cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "bytes added": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "nothing": lambda path: path.write_bytes(b""),
    "no file": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_block_is_fetched_again_and_healed(
    damage: str, known: bool, options: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    remote = Remote(a=content(3 * MIB + 5))
    remote.read(options)
    if not known:
        forget()
    files = block_files(options)
    for path in files[::2]:
        DAMAGES[damage](path)
    assert remote.read(options) == remote.files["a"]
    assert remote.fetched > len(remote.files["a"])
    assert len(warnings_of(caplog)) == (damage != "no file")
    asked = len(remote.requests)
    forget()
    assert remote.read(options) == remote.files["a"]
    assert len(remote.requests) == asked


@given(data=st.binary(min_size=1, max_size=100), place=st.integers(0), bit=st.integers(0, 7))
def test_the_checksum_tells_every_single_change(data: bytes, place: int, bit: int) -> None:
    changed = bytearray(data)
    changed[place % len(data)] ^= 1 << bit
    assert block_store.checksum_of(memoryview(data)) != block_store.checksum_of(memoryview(changed))
    assert -(2**63) <= block_store.checksum_of(memoryview(data)) < 2**63


@pytest.mark.parametrize("known", [True, False])
def test_without_the_folder_reading_continues(known: bool, options: Cache, caplog: pytest.LogCaptureFixture) -> None:
    remote = Remote(a=content(3 * MIB), b=content(2 * MIB, 1))
    remote.read(options)
    if not known:
        forget()
    shutil.rmtree(options.folder)
    Path(options.folder).touch()  # nor can it be made again
    for _ in range(3):
        assert remote.read(options) == remote.files["a"]
        assert remote.read(options, "b") == remote.files["b"]
    [message] = warnings_of(caplog)
    assert "Reading continues" in message


def test_a_folder_that_was_removed_is_made_again(options: Cache, caplog: pytest.LogCaptureFixture) -> None:
    remote = Remote(a=content(3 * MIB))
    remote.read(options)
    shutil.rmtree(options.folder)
    for _ in range(2):
        assert remote.read(options) == remote.files["a"]
    assert remote.fetched == 6 * MIB
    assert warnings_of(caplog) == []


# ------------------------------------------------------------------------------------------------------ full disks


def fill_under_limit(folder: str, queue: Any) -> None:
    """Read twice while no file may grow beyond 128 KiB, and report what was said."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("torch_dataloader_utils").addHandler(handler)
    remote = Remote(a=content(5 * MIB), small=b"x")
    options = Cache(folder, max_bytes=LEAST)
    remote.read(options, "small")  # the count exists when the disk becomes full
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 10, resource.RLIM_INFINITY))
    right = [remote.read(options) == remote.files["a"] for _ in range(2)]
    queue.put((right, messages, stored_bytes(options)))


def test_blocks_that_cannot_be_written_cost_speed_only(tmp_path: Path) -> None:
    queue = FORKED.SimpleQueue()
    process = FORKED.Process(target=fill_under_limit, args=(str(tmp_path), queue))
    process.start()
    right, messages, stored = queue.get()
    process.join()
    assert right == [True, True]
    assert len(messages) == 1
    assert "cannot write blocks" in messages[0]
    assert stored <= 128 << 10  # no torn block is left


FULL = """
import logging, os, sys
from tests.storage.cache_helpers import *
from torch_dataloader_utils.storage.cache import BLOCK, FOOTER
logging.basicConfig(level=logging.WARNING, format="WARNED %(message)s", stream=sys.stdout)
folder = sys.argv[1]
remote = Remote(**{f"f{i}": content(4 * MIB, i) for i in range(8)})
options = Cache(folder, max_bytes=1 << 30)
for _ in range(2):
    for path in remote.files:
        assert remote.read(options, path) == remote.files[path]
free = os.statvfs(folder)
assert free.f_bavail * free.f_bsize < 4 * MIB, free
assert remote.fetched < 2 * 32 * MIB  # what did fit was used
sizes = set(map(block_bytes, block_files(options)))
assert sizes <= {BLOCK, BLOCK - FOOTER, FOOTER}, sizes
"""


def test_a_full_disk_costs_speed_only(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=16m tmpfs {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    command = f"{mount} && exec {sys.executable} -c '{FULL}' {tmp_path}"
    run = ["unshare", "-rm", "sh", "-c", command]
    done = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [message] = [line for line in done.stdout.splitlines() if line.startswith("WARNED")]
    assert "cannot write blocks" in message


# -------------------------------------------------------------------------------------------- threads and processes


def read_at_random(remote: Remote, options: Cache, seed: int, reads: int) -> None:
    """Reads and prefetches of random ranges of random files, each compared."""
    draw = random.Random(seed)
    files = {path: remote.open(options, path) for path in remote.files}
    for _ in range(reads):
        path = draw.choice(sorted(files))
        start = draw.randrange(len(remote.files[path]))
        stop = min(start + draw.randrange(1, 3 * MIB), len(remote.files[path]))
        if draw.random() < 0.3:
            files[path].prefetch([(start, stop)])
        assert files[path].read_at(stop - start, start) == remote.files[path][start:stop]
    for file in files.values():
        file.close()


def some_files() -> Remote:
    """24 MiB: more than the smallest cache holds, so that blocks are evicted while others read them."""
    return Remote(**{f"f{i}": content(6 * MIB, i) for i in range(4)})


def test_threads_share_a_cache_that_evicts(tmp_path: Path) -> None:
    remote, options = some_files(), Cache(str(tmp_path), max_bytes=LEAST)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: read_at_random(remote, options, seed, 40), range(6)))
    assert stored_bytes(options) <= LEAST


def process_reads(folder: str, seed: int, reads: int) -> None:
    read_at_random(some_files(), Cache(folder, max_bytes=LEAST), seed, reads)


def test_processes_share_a_cache_that_evicts(tmp_path: Path) -> None:
    processes = [FORKED.Process(target=process_reads, args=(str(tmp_path), seed, 60)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert stored_bytes(Cache(str(tmp_path), max_bytes=LEAST)) <= LEAST


def read_all(folder: str, barrier: Any, queue: Any) -> None:
    remote = some_files()
    barrier.wait()
    right = all(remote.read(Cache(folder, max_bytes=1 << 30), path) == remote.files[path] for path in remote.files)
    queue.put((right, len(remote.requests), remote.fetched))


def test_two_processes_that_read_the_same_at_once_fetch_it_at_most_twice(tmp_path: Path) -> None:
    barrier, queue = FORKED.Barrier(2), FORKED.SimpleQueue()
    processes = [FORKED.Process(target=read_all, args=(str(tmp_path), barrier, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    assert all(right for right, _, _ in results)
    assert 24 * MIB <= sum(fetched for _, _, fetched in results) <= 48 * MIB
    remote = some_files()
    for path in remote.files:
        assert remote.read(Cache(str(tmp_path), max_bytes=1 << 30), path) == remote.files[path]
    assert remote.requests == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_at_any_moment_shares_the_cache(tmp_path: Path) -> None:
    options = Cache(str(tmp_path), max_bytes=LEAST)
    remote, stop = some_files(), threading.Event()

    def busy() -> None:
        seed = 0
        while not stop.is_set():
            read_at_random(remote, options, seed := seed + 1, 3)

    def child() -> None:
        read_at_random(remote, options, 99, 5)
        store = block_store.BlockStore(options.folder, 2 * LEAST)
        put(store, f"{'cd' * 16}-0", b"of the child")
        into = memoryview(bytearray(12))
        assert store.read(f"{'cd' * 16}-0", into)
        assert into == b"of the child"

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = [multiprocessing.get_context("fork").Process(target=child) for _ in range(8)]
        for one in children:
            one.start()
            one.join(60)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [one.exitcode for one in children] == [0] * 8


# ----------------------------------------------------------------------------------------------------------- kills


def hold_the_count(folder: str, held: Any) -> None:
    """Begin a block, and never end it."""

    with block_store.BlockStore(folder, LEAST)._counted():
        held.set()
        time.sleep(600)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Any]:
    """A process that holds the lock of the cache in `tmp_path`."""
    held = FORKED.Event()
    process = FORKED.Process(target=hold_the_count, args=(str(tmp_path), held))
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_writer_killed_while_it_counts_holds_up_nobody(
    holder: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    options, remote = Cache(str(tmp_path), max_bytes=LEAST), Remote(a=content(MIB))
    for _ in range(2):
        assert remote.read(options) == remote.files["a"]
    assert remote.fetched == MIB
    assert warnings_of(caplog) == []


def test_a_writer_that_stops_while_it_counts_costs_the_others_seconds(
    holder: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_store, "_BUSY", 0.2)
    options, remote = Cache(str(tmp_path), max_bytes=LEAST), Remote(a=content(MIB))
    for _ in range(3):
        assert remote.read(options) == remote.files["a"]
    assert remote.fetched == 3 * MIB
    [message] = warnings_of(caplog)
    assert "cannot write blocks" in message
    assert "another process" in message


def fill_forever(folder: str, started: Any) -> None:
    """Read and write, in turns with versions that no one has read, so that there is always something to write."""
    remote, options, version = some_files(), Cache(folder, max_bytes=LEAST), 0
    while True:
        version += 1
        for path in remote.files:
            assert remote.read(options, path, f"etag:{version % 3 or os.getpid() * version}") == remote.files[path]
            started.set()


def start_filling(folder: Path) -> tuple[Any, Any]:
    started = FORKED.Event()
    process = FORKED.Process(target=fill_forever, args=(str(folder), started))
    process.start()
    return process, started


def check_clean(folder: Path, remote: Remote) -> None:
    """All versions that were filled read right, and the blocks are whole and no more than fit."""
    options = Cache(str(folder), max_bytes=LEAST)
    for version in (1, 2):
        for path in remote.files:
            assert remote.read(options, path, f"etag:{version}") == remote.files[path]
    assert stored_bytes(options) <= LEAST
    store = block_store.BlockStore(str(folder), LEAST)
    finished = [path for path in block_files(options) if path.name.count(".") == 1]
    assert finished
    for path in finished:
        assert store.read(path.stem, memoryview(bytearray(block_bytes(path))))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_kill_9_of_one_of_two_writers_at_any_moment(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw, remote = random.Random(seed), some_files()
    survivor, writing = start_filling(tmp_path)
    try:
        for _ in range(3):
            victim, started = start_filling(tmp_path)
            assert started.wait(60)
            time.sleep(draw.random() * 0.3)
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            assert victim.exitcode == -signal.SIGKILL
            assert survivor.is_alive()  # it compares all that it reads
            read_at_random(remote, Cache(str(tmp_path), max_bytes=LEAST), seed, 5)
        assert writing.is_set()
        assert survivor.is_alive()
    finally:
        os.kill(survivor.pid, signal.SIGKILL)
        survivor.join()
    check_clean(tmp_path, remote)
    assert warnings_of(caplog) == []
