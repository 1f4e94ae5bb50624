"""What all tests share: Hypothesis profiles, quick collections, and a fixture that finds what a test left behind."""

import gc
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from torch_dataloader_utils.redaction import known

# Times depend on the machine, which others may be using: only what is wrong fails, never what is slow.
# A test without a number of its own tries few examples while working, more on every run, many others each night.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
# The same examples on every run: a red run is the change's doing.
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=40, derandomize=True, print_blob=True)
settings.register_profile("nightly", parent=settings.get_profile("dev"), max_examples=300, print_blob=True)
settings.load_profile("nightly" if os.environ.get("NIGHTLY") else "ci" if os.environ.get("CI") else "dev")


# Test modules import these; what a test sends to a worker process is defined in one.
_OF_TEST_MODULES = ["torch", "pandas", "pyarrow.parquet", "pytest", "hypothesis.strategies"]


def pytest_sessionstart() -> None:
    """Start the fork server with what worker processes import of tests, else each would take a second or two for it.

    (What they import in a program, without torch, is tested in scripts.)
    """
    if hasattr(os, "fork"):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch_dataloader_utils.executors.worker", *_OF_TEST_MODULES])
        forkserver.ensure_running()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests and whole programs first: one of a minute that begins last keeps the whole run waiting."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None and "launchers" not in item.path.parts)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of later collections: of 0.2 seconds each, in hundreds of tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that earlier tests gave, which may be words of messages."""
    monkeypatch.setattr(known, "_known", {})
    monkeypatch.setattr(known, "_longest_first", ())


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Leave what other modules keep out of later collections: with clients of S3, each of them took ten seconds.

    (fsspec keeps a client for each set of options, which holds 50,000 objects.)
    """
    gc.collect()
    gc.freeze()


LEAK_PATIENCE = 5.0  # seconds for threads and processes to end


def _open_files() -> Counter[str]:
    """How often each real file, memfd and shared segment is open here; pipes and sockets are left out.

    (Pipes to the fork server and the resource tracker stay open by design. A leaked worker shows as a process.)
    """
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(entry)
        except OSError:  # closed meanwhile
            continue
        if target.startswith("/") and not target.startswith(("/dev/null", "/dev/tty", "/dev/pts", "/proc/", "/sys/")):
            found[target] += 1
    return found


def _shared_memory() -> Counter[str]:
    """The shared segments of the machine, and the semaphores that this process has: other test processes have some."""
    maps = Path("/proc/self/maps")
    mapped = {line.split()[4] for line in maps.read_text().splitlines()} if maps.exists() else set()  # inodes
    entries = [(path.name, path) for path in Path("/dev/shm").glob("*")]
    return Counter(name for name, path in entries if not name.startswith("sem.") or _inode(path) in mapped)


def _inode(path: Path) -> str:
    """The inode's number, as /proc says it; "" for a file that has just gone."""
    try:
        return str(path.stat().st_ino)
    except FileNotFoundError:
        return ""


def _in_use() -> dict[str, Counter[str]]:
    """What this process holds that an iterator must give back."""
    gc.collect()
    return {
        "threads": Counter(thread.name for thread in threading.enumerate()),
        "processes": Counter(str(child.pid) for child in multiprocessing.active_children()),
        "files": _open_files(),
        "shared memory": _shared_memory(),
    }


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails the test if it leaves threads, worker processes, open files or shared memory behind."""
    before = _in_use()
    yield
    deadline = time.monotonic() + LEAK_PATIENCE
    while True:
        after = _in_use()
        left = {kind: dict(after[kind] - before[kind]) for kind in before if after[kind] - before[kind]}
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not left, f"left behind: {left}"
