"""Measures how fast other formats and stores are read, as ratios within one run.

    python benchmarks/storage.py [--small] [--only formats one-file bandwidth planning] [--data FOLDER] [--rounds 5]

formats     our loader (threads, batches of 16,384 rows) against pyarrow's own decode of these files, on as many threads
one-file    one large CSV or JSON Lines file: two workers against one, as threads and as processes
bandwidth   an S3 server with 30 ms added to each request (`--links`): 8 workers against 8 plain range readers, and GETs
planning    many small Parquet files on that server: our requests/s against a bare asyncio loop's, and `manifest=`

Every ratio is the median over rounds of two consecutive runs, so that drift in the machine's speed cancels out; each
contender runs in a process of its own. The servers are part of the test extras. Without --small, the data take about
8 GB of disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pyarrow.json as json_lines
import pyarrow.orc as orc
import pyarrow.parquet as pq
import torch
from storage_data import LINES, mixed, write_as, write_text
from tables import wide
from yarl import URL

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.storage import servers
from tests.storage.proxy import Faults, Proxy, faulty
from tests.storage.servers import HOST, Store
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.options import option_defaults

CORES = len(os.sched_getaffinity(0))
BATCH = 16384
LATENCY = 0.030  # seconds added to each request
READERS = 8
RANGE = 16 << 20  # bytes of a plain reader's request, and of our largest request
IN_FLIGHT = 64  # requests of the bare loop
# Discarding record batches one by one reuses memory that is still in the CPU cache, which real consumers cannot do.
DROPPED = ", batch by batch"
PARTS = ("formats", "one-file", "bandwidth", "planning")


# ----------------------------------------------------------------------------------------------------------- formats


def decode(form: str, path: Path) -> int:
    """Decode a file with pyarrow alone, in one thread; returns its number of rows."""
    if form == "csv":
        return csv.read_csv(path, csv.ReadOptions(use_threads=False)).num_rows
    if form == "jsonl":
        return json_lines.read_json(path, json_lines.ReadOptions(use_threads=False)).num_rows
    if form == "orc":
        stripes = orc.ORCFile(path)
        return sum(stripes.read_stripe(number).num_rows for number in range(stripes.nstripes))
    if form.endswith(DROPPED):
        with pa.OSFile(str(path)) as file:
            batches = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False))
            return sum(batches.get_batch(number).num_rows for number in range(batches.num_record_batches))
    # Without a memory map, so that the bytes are really read.
    return feather.read_table(str(path), memory_map=False, use_threads=False).num_rows


def on_threads(work: Iterable[Callable[[], Any]], count: int) -> float:
    """The seconds that `count` threads take for all of the work, in order."""
    tasks, lock = iter(list(work)), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                task = next(tasks, None)
            if task is None:
                return
            task()

    threads = [threading.Thread(target=run) for _ in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def seconds_of(batches: Iterable[Any]) -> float:
    begin = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - begin


def loader_of(path: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(path, batch_size=BATCH, strings="bytes", **options)[0]


def format_ratio(form: str, folder: str, rounds: int) -> dict[str, float]:
    work = [partial(decode, form, path) for path in sorted(Path(folder).iterdir())]
    rows = sum(task() for task in work)
    loader = loader_of(folder)
    seconds_of(loader)
    pairs = [(on_threads(work, CORES), seconds_of(loader)) for _ in range(rounds)]
    ratio = statistics.median(plain / ours for plain, ours in pairs)
    return {"pyarrow, M rows/s": rows / statistics.median(plain for plain, _ in pairs) / 1e6, "ours / pyarrow": ratio}


def formats(given: argparse.Namespace) -> None:
    found = {}
    for form in ("orc", "csv", "jsonl", "ipc-uncompressed", "ipc-lz4"):
        rows = 20_000 if given.small else 250_000 if form in LINES else 1_000_000  # a pass takes tenths of a second
        folder = str(write_as(form, given.data, 8, rows))
        for way in (form, form + DROPPED) if form.startswith("ipc") else (form,):
            found[way] = in_fresh_process("format_ratio", form=way, folder=folder, rounds=given.rounds)
    show("format", found)


# ---------------------------------------------------------------------------------------------------------- one file


def worker_ratio(path: str, mode: str, rounds: int) -> dict[str, float]:
    one, two = (loader_of(path, num_workers=workers, worker_mode=mode) for workers in (1, 2))
    for loader in (one, two):
        next(iter(loader))  # starts the workers
    pairs = [(seconds_of(one), seconds_of(two)) for _ in range(rounds)]
    return {
        "1 worker, MB/s": os.path.getsize(path) / statistics.median(first for first, _ in pairs) / 1e6,
        "2 workers / 1": statistics.median(first / second for first, second in pairs),
    }


def one_file(given: argparse.Namespace) -> None:
    found = {}
    for form in LINES:
        path = given.data / f"one-{given.size_mb}.{form}"
        if not path.exists():
            unfinished = path.with_suffix(".partial")
            write_text(form, unfinished, given.size_mb * 10**6)
            unfinished.rename(path)
        for mode in ("threads", "processes"):
            rounds = min(given.rounds, 3)
            found[f"{form}, {mode}"] = in_fresh_process("worker_ratio", path=str(path), mode=mode, rounds=rounds)
    show("file, workers", found)


# --------------------------------------------------------------------------------------------------------- bandwidth


def ranges_by_pyarrow(store: Store) -> Callable[[str], None]:
    options = store.storage_options
    native = pafs.S3FileSystem(
        access_key=options["key"],
        secret_key=options["secret"],
        endpoint_override=f"{HOST}:{store.port}",
        scheme="http",
        region="us-east-1",
    )

    def read(path: str) -> None:
        with native.open_input_file(path) as file:
            size = file.size()
            for start in range(0, size, RANGE):
                file.read_at(min(RANGE, size - start), start)

    return read


def ranges_by_s3fs(store: Store) -> Callable[[str], None]:
    filesystem = store.filesystem

    def read(path: str) -> None:
        size = filesystem.size(path)
        for start in range(0, size, RANGE):
            filesystem.cat_file(path, start=start, end=min(start + RANGE, size))

    return read


PLAIN = {"pyarrow": ranges_by_pyarrow, "s3fs": ranges_by_s3fs}


def bandwidth_ratio(store: dict[str, Any], client: str, rounds: int) -> dict[str, float]:
    there = Store(**store)
    read, paths = PLAIN[client](there), there.filesystem.find(there.url("wide"))
    loader = loader_of(
        there.url("wide"), storage_options=there.storage_options, num_workers=READERS, prefetch_bytes="1GiB"
    )
    work = [partial(read, path) for path in paths]
    seconds_of(loader)
    pairs = [(on_threads(work, READERS), seconds_of(loader)) for _ in range(rounds)]
    size = sum(there.filesystem.size(path) for path in paths)
    return {
        "8 plain readers, MB/s": size / statistics.median(plain for plain, _ in pairs) / 1e6,
        "ours / plain": statistics.median(plain / ours for plain, ours in pairs),
    }


def one_epoch(store: dict[str, Any]) -> dict[str, float]:
    there = Store(**store)
    loader = loader_of(there.url("wide"), storage_options=there.storage_options, num_workers=READERS)
    return {"seconds": seconds_of(loader)}


def bandwidth(given: argparse.Namespace, proxy: Proxy, origin: Store) -> None:
    # Whole batches in each file: otherwise workers share a row group for their last batches, and each fetches it.
    files, groups, rows = (8, 2, 2 * BATCH) if given.small else (16, 4, BATCH * 11 // 2)
    with tempfile.TemporaryDirectory(dir=given.data) as folder:
        for number in range(files):
            table = wide(groups * rows, np.random.default_rng(number))
            plain = {"row_group_size": rows, "compression": "none", "use_dictionary": False}
            pq.write_table(table, f"{folder}/part-{number:02}.parquet", **plain)
        size = os.path.getsize(f"{folder}/part-00.parquet")
        origin.put(Path(folder), "wide")
    for link in given.links:
        bandwidth_of(given, proxy, size, link, f"{files} files of {size / 1e6:.0f} MB")


def link_of(text: str) -> Faults:
    """A link of so many milliseconds per request, or so many bytes a second: "30ms", "100MB/s"."""
    if text.endswith("ms"):
        return Faults(latency=float(text[:-2]) / 1e3)
    number, unit = text.removesuffix("/s")[:-2], text.removesuffix("/s")[-2:]
    return Faults(rate=float(number) * {"MB": 1e6, "GB": 1e9}[unit])


def bandwidth_of(given: argparse.Namespace, proxy: Proxy, size: int, link: str, files: str) -> None:
    proxy.inject(link_of(link))
    in_fresh_process("one_epoch", store=passed(proxy.store))
    counts = proxy.counts()
    asked = {kind: max(paths.values(), default=0) for kind, paths in (("GETs", counts.gets), ("HEADs", counts.heads))}
    bound = math.ceil(size / RANGE) + 2
    found = {}
    for client in PLAIN:
        ratios = in_fresh_process("bandwidth_ratio", store=passed(proxy.store), client=client, rounds=given.rounds)
        found[client] = {**ratios, "GETs of a file": asked["GETs"], "bound": bound, "HEADs": asked["HEADs"]}
    show(f"plain reader's client ({files}, {link})", found)


# ---------------------------------------------------------------------------------------------------------- planning


def signed_urls(store: Store, paths: list[str]) -> list[str]:
    """Signed URLs, made before the clock starts."""
    filesystem = store.filesystem
    return [filesystem.sign(path, expiration=3600) for path in paths]


async def fetch_all(urls: list[str]) -> float:
    """The seconds that a bare loop takes to get each object once."""
    waiting = iter(urls)

    async def reader(session: aiohttp.ClientSession) -> None:
        for url in waiting:
            async with session.get(URL(url, encoded=True)) as answer:
                answer.raise_for_status()
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begin = time.perf_counter()
        await asyncio.gather(*(reader(session) for _ in range(IN_FLIGHT)))
        return time.perf_counter() - begin


def bare_loop(store: dict[str, Any]) -> dict[str, float]:
    there = Store(**store)
    urls = signed_urls(there, there.filesystem.find(there.url("many")))
    return {"requests": len(urls), "seconds": asyncio.run(fetch_all(urls))}


def plan(store: dict[str, Any], **options: Any) -> dict[str, float]:
    there = Store(**store)
    begin = time.perf_counter()
    loader_of(there.url("many"), storage_options=there.storage_options, num_ranks=1, rank=0, **options)
    return {"seconds": time.perf_counter() - begin}


def planning(given: argparse.Namespace, proxy: Proxy, origin: Store) -> None:
    count = 300 if given.small else 10_000
    with tempfile.TemporaryDirectory(dir=given.data) as folder:
        for number in range(count):
            pq.write_table(mixed(10, number), f"{folder}/part-{number:05}.parquet")
        origin.put(Path(folder), "many")
    store, rates = passed(proxy.store), []
    proxy.inject(Faults(latency=LATENCY))
    for _ in range(min(given.rounds, 3)):
        bare = in_fresh_process("bare_loop", store=store)
        proxy.inject(Faults(latency=LATENCY))
        ours = in_fresh_process("plan", store=store)
        counts = proxy.counts().of("")
        requests = counts["gets"] + counts["heads"] + counts["lists"]
        rates.append((bare["requests"] / bare["seconds"], requests / ours["seconds"], ours["seconds"], requests))
    best, rate, seconds, requests = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(row[1] / row[0] for row in rates)
    row = {"bare, requests/s": best, "ours, requests/s": rate, "ours / bare": ratio}
    row |= {"ours, s": seconds, "requests per file": requests / count}
    if "manifest" in option_defaults():
        with tempfile.TemporaryDirectory() as folder:
            for title in ("saving a manifest, s", "with it, s"):
                row[title] = in_fresh_process("plan", store=store, manifest=f"{folder}/plan.parquet")["seconds"]
    show("files", {f"{count:,}": row})


# ------------------------------------------------------------------------------------------------------- the machinery


def passed(store: Store) -> dict[str, Any]:
    """The store's parameters as plain values for another process."""
    return asdict(store)


def in_fresh_process(name: str, **arguments: Any) -> Any:
    """The result of the function of this name, run in a new process so that contenders do not affect each other."""
    command = [sys.executable, __file__, "--one", name, json.dumps(arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def show(title: str, found: dict[str, dict[str, float]]) -> None:
    """Print the results as a table, a row for each contender."""
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    print(f"\n| {title} | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for key, row in found.items():
        print(
            f"| {key} | " + " | ".join(f"{row[name]:.3g}" if name in row else "" for name in names) + " |", flush=True
        )


@contextmanager
def slow_s3(data: Path) -> Iterator[tuple[Proxy, Store]]:
    """An S3 server behind a proxy, and the server itself."""
    with tempfile.TemporaryDirectory(dir=data) as folder:
        places = [Path(folder, name) for name in ("server", "proxy")]
        for place in places:
            place.mkdir()
        with servers.seaweed(places[0]) as store, faulty(store, places[1]) as proxy:
            yield proxy, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark-storage")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mb", type=int, help="of the one file: 1000 unless told, 20 if small")
    parser.add_argument("--small", action="store_true", help="a quick run, whose figures mean little")
    parser.add_argument("--links", nargs="*", default=["30ms"], help="of `bandwidth`: 0ms 10ms 50ms 100MB/s 1GB/s")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        torch.set_num_threads(1)  # the loaders' threads use the cores
        print(json.dumps(globals()[given.one[0]](**json.loads(given.one[1]))))
        return
    given.data.mkdir(parents=True, exist_ok=True)
    given.size_mb = given.size_mb or (20 if given.small else 1000)
    print(f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}")
    for name, part in (("formats", formats), ("one-file", one_file)):
        if name in given.only:
            part(given)
    if {"bandwidth", "planning"} & set(given.only):
        with slow_s3(given.data) as (proxy, store):
            for name, part in (("bandwidth", bandwidth), ("planning", planning)):
                if name in given.only:
                    part(given, proxy, store)


if __name__ == "__main__":
    main()
