"""Faults of remote stores, of the cache and of manifest files."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tests.faults import rows
from tests.faults.on_files import every_row, write_numbers
from tests.faults.serving import Behave, serve
from tests.faults.table import fault
from torch_dataloader_utils.errors import (
    BatchTimeoutError,
    DataLoaderUtilsError,
    FileChangedError,
    FileReadError,
    OptionError,
)

SECTION = "Stores, cache and manifests"
TIMEOUT = 1.0  # seconds: the loader's own


class Hanging(LocalFileSystem):
    """The local disk as a store that stops answering: to lists of files, or to whatever opens one."""

    protocol = "hanging"
    hangs: str = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("hanging://")))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self._wait("list")
        return super().ls(path, detail, **options)

    def _open(self, path: str, mode: str = "rb", *given: Any, **options: Any) -> Any:
        self._wait("open")
        return super()._open(path, mode, *given, **options)

    def cat_file(self, path: str, *given: Any, **options: Any) -> Any:
        self._wait("open")
        return super().cat_file(path, *given, **options)

    def _wait(self, what: str) -> None:
        if Hanging.hangs == what:
            time.sleep(1000)


def _hanging(folder: Path) -> str:
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    return f"hanging://{rows.write_files(folder / 'rows')}"


def _served(folder: Path, behave: Behave = lambda number, headers: None) -> list[str]:
    """The URLs of the files of rows on a server."""
    url, _ = serve(rows.write_files(folder / "rows"), behave)
    return [f"{url}/{number:03}.parquet" for number in range(rows.FILES)]


@fault(
    SECTION,
    f"A store stops answering while files are listed (`timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/storage/test_hanging_stores.py::test_construction_waits_no_longer_than_timeout",
)
def hangs_listing(folder: Path) -> Callable[[], object]:
    url, Hanging.hangs = _hanging(folder), "list"
    return lambda: rows.create(url, timeout=TIMEOUT)


@fault(
    SECTION,
    f"... while footers are read (`timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/storage/test_hanging_stores.py::test_construction_waits_no_longer_than_timeout",
)
def hangs_inspecting(folder: Path) -> Callable[[], object]:
    url, Hanging.hangs = _hanging(folder), "open"
    return lambda: rows.create(url, timeout=TIMEOUT)


@fault(
    SECTION,
    f"... while rows are counted (`timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/storage/test_hanging_stores.py::test_counting_waits_no_longer_than_timeout",
)
def hangs_counting(folder: Path) -> Callable[[], object]:
    place = folder / "rows"
    place.mkdir()
    (place / "a.csv").write_text("id\n" + "1\n" * 100)
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    manifest = folder / "m.parquet"
    rows.create(f"hanging://{place}", timeout=TIMEOUT, manifest=str(manifest))
    Hanging.hangs = "open"
    return lambda: rows.create(f"hanging://{place}", timeout=TIMEOUT, manifest=str(manifest), count_rows=True)


@fault(
    SECTION,
    f"... during a pass (`timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/executors/test_drivers.py::test_timeout",
)
def hangs_reading(folder: Path) -> Callable[[], object]:
    url = _hanging(folder)
    loader, _ = rows.create(url, timeout=TIMEOUT)
    Hanging.hangs = "open"
    return lambda: list(loader)


@fault(
    SECTION,
    f"... during a pass in the training process (`num_workers=0, timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/storage/test_hanging_stores.py::test_a_pass_waits_no_longer_than_timeout_and_the_next_one_has_every_row",
)
def hangs_inline(folder: Path) -> Callable[[], object]:
    url = _hanging(folder)
    loader, _ = rows.create(url, "inline", timeout=TIMEOUT)
    Hanging.hangs = "open"
    return lambda: list(loader)


@fault(
    SECTION,
    "A server answers a third of the requests with 500 or a reset connection",
    "every row once, after retries",
    "tests/storage/test_faults.py::test_one_request_in_ten_fails_and_every_row_comes_once",
)
def sometimes(folder: Path) -> Callable[[], object]:
    def behave(number: int, headers: Any) -> Any:
        return None if number % 3 else "reset" if number % 2 else (500, {})

    return every_row(_served(folder, behave), mode="pool")


@fault(
    SECTION,
    "A server answers every request with 500",
    FileReadError,
    "tests/storage/test_faults.py::test_an_object_that_never_comes_is_given_up",
)
def always(folder: Path) -> Callable[[], object]:
    url, _ = serve(folder, lambda number, headers: (500, {}))
    return lambda: rows.create([f"{url}/000.parquet"])


@fault(
    SECTION,
    "An object is replaced by another of the same size while it is open",
    FileChangedError,
    "tests/storage/test_replaced_files.py::test_a_pass_over_an_object_replaced_while_it_is_read_ends",
)
def replaced(folder: Path) -> Callable[[], object]:
    write_numbers(folder / "0.parquet", 0)
    url, _ = serve(folder)
    loader, _ = rows.create([f"{url}/0.parquet"], "inline", batch_size=1000, shuffle=False)
    iterator = iter(loader)
    next(iterator)  # a row group is read; the client keeps what it knows of the object
    write_numbers(folder / "0.parquet", 1)
    return lambda: list(iterator)


@fault(
    SECTION,
    "A client cannot be created (ftp, gs, github)",
    DataLoaderUtilsError,
    "tests/storage/test_failing_clients.py::test_arguments_that_a_client_refuses",
)
def clients(folder: Path) -> Callable[[], object]:
    from tests.ports import free_ports

    [port] = free_ports(1)

    def create() -> Any:
        errors = []
        for url, options in (
            (f"ftp://127.0.0.1:{port}/rows", {}),
            ("gs://bucket/rows", {"token": str(folder / "missing.json")}),
            ("github://nobody/rows", {}),
        ):
            try:
                rows.create(url, storage_options=options)
            except DataLoaderUtilsError as error:
                errors.append(error)
        raise errors[0]

    return create


@fault(
    SECTION,
    "A server redirects to another host, with a token in `headers`",
    "every row once; the other host never sees the token",
    "tests/storage/test_redirects.py::test_what_was_given_for_one_server_is_not_sent_to_another",
)
def redirected(folder: Path) -> Callable[[], object]:
    place, seen = rows.write_files(folder / "rows"), []

    def listen(number: int, headers: Any) -> None:
        seen.append(headers.get("X-Token") or headers.get("Authorization"))

    _, server = serve(place, listen)
    elsewhere = f"http://localhost:{server.server_address[1]}"
    first, _ = serve(place, lambda number, headers: (302, {"Location": f"{elsewhere}/000.parquet"}))
    options = {"headers": {"X-Token": "secret", "Authorization": "Bearer secret"}}

    def read() -> bool:
        loader, _ = rows.create([f"{first}/000.parquet"], storage_options=options)
        return rows.ids_of(loader) == list(range(rows.ROWS_OF_FILE)) and bool(seen) and not any(seen)

    return read


@fault(
    SECTION,
    "Another process is stopped while it holds the cache's lock",
    "every row once, without the cache after a while",
    "tests/storage/test_cache_failures.py::test_a_writer_that_stops_while_it_counts_costs_the_others_seconds",
    "the speed of the cache",
)
def frozen_peer(folder: Path) -> Callable[[], object]:
    from tests.storage.test_cache_failures import hold_the_count

    class Event:
        def set(self) -> None:
            (folder / "held").touch()

    cache = folder / "cache"
    cache.mkdir(mode=0o700)
    peer = multiprocessing.get_context("fork").Process(target=hold_the_count, args=(str(cache), Event()), daemon=True)
    peer.start()
    while not (folder / "held").exists():
        time.sleep(0.01)
    os.kill(peer.pid or 0, signal.SIGSTOP)
    return every_row(_served(folder), mode="pool", cache=str(cache))


@fault(
    SECTION,
    "A cache folder that others may write to",
    OptionError,
    "tests/storage/test_cache.py::test_a_folder_that_others_may_write_to_is_refused",
)
def open_cache(folder: Path) -> Callable[[], object]:
    cache = folder / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    return lambda: rows.create(_served(folder), cache=str(cache))


def _filled_cache(folder: Path) -> tuple[Path, list[str]]:
    """A cache folder that holds all files, and their URLs."""
    cache, urls = folder / "cache", _served(folder)
    assert every_row(urls, cache=str(cache))()
    return cache, urls


@fault(
    SECTION,
    "A block of the cache is damaged on disk",
    "every row once; the block is fetched again",
    "tests/storage/test_cache_failures.py::test_a_damaged_block_is_fetched_again_and_healed",
)
def damaged_cache(folder: Path) -> Callable[[], object]:
    cache, urls = _filled_cache(folder)
    for path in cache.rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            path.write_bytes(bytes(path.stat().st_size))
    return every_row(urls, cache=str(cache))


class _Planted:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


@fault(
    SECTION,
    "Pickles are planted in the cache folder: for its blocks, and as the tables of other caches",
    "every row once; nothing planted is executed",
    "tests/storage/test_cache_promises.py::test_planted_pickles_are_not_executed",
)
def planted(folder: Path) -> Callable[[], object]:
    cache, urls = _filled_cache(folder)
    blocks = [path for path in cache.rglob("*") if path.is_file()]
    for path in [*blocks, *(cache / name for name in ("cache.db", "meta.json", "index.pkl"))]:
        path.write_bytes(pickle.dumps(_Planted()))
    return every_row(urls, cache=str(cache))


@fault(
    SECTION,
    "A manifest file whose paths lie outside of `path=`",
    DataLoaderUtilsError,
    "tests/sources/test_manifest_roots.py::test_a_forged_manifest_is_refused_before_its_files_are_opened",
)
def foreign_manifest(folder: Path) -> Callable[[], object]:
    from torch_dataloader_utils.options import ReadOptions
    from torch_dataloader_utils.sources.inspection import asked_by, found_and_inspected
    from torch_dataloader_utils.sources.manifest_file import pack_manifest

    place, manifest = rows.write_files(folder / "rows", 1), folder / "m.parquet"
    other = rows.write_files(folder / "secret", 1) / "000.parquet"
    read = ReadOptions()
    _, inspected = found_and_inspected(place, read)
    forged = replace(inspected.files[0], path=str(other), size=other.stat().st_size, version="")
    manifest.write_bytes(pack_manifest(replace(inspected, files=(forged,)), asked_by(place, read)))
    return lambda: list(rows.create(place, manifest=str(manifest))[0])
