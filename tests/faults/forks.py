"""Rounds in which a process that has used pyarrow, s3fs, pyiceberg and loaders starts another that reads, too."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyiceberg.catalog.sql import SqlCatalog

from tests.faults import rows
from tests.faults.residue import held, left_over
from tests.faults.rounds import SLACK, Attempt, Outcome, batches_of, fail_unless
from tests.storage.servers import Store
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import DataLoaderUtilsError

TIMEOUT = 10.0  # seconds: the loader's own
METHODS = ("fork", "forkserver", "spawn")
# What the child reads: a loader that it makes, over a local folder, S3 or an Iceberg table; or what its parent made:
# a dataset not read yet; (forked) a loader that has live workers; (forked) an iterator in the middle of a pass.
SOURCES = ("local", "s3", "iceberg")
KINDS = (*SOURCES, "dataset", "loader", "iterator")
_PRELOAD = ["tests.faults.forks"]


class Parent:
    """A process that has used everything: the places of the rows, and a client of each library, held."""

    def __init__(self, folder: Path, temporary: Path, store: Store) -> None:
        store.put(folder, "rows")
        catalog = SqlCatalog("rounds", uri=f"sqlite:///{temporary}/catalog.db", warehouse=f"file://{temporary}")
        catalog.create_namespace("a")
        table = catalog.create_table("a.rows", rows.table().schema)
        for number in range(2):
            table.append(rows.table(number, rows.ROWS // 2))
        self.places: dict[str, tuple[str, dict[str, Any]]] = {
            "local": (str(folder), {}),
            "s3": (store.url("rows"), {"storage_options": store.storage_options}),
            "iceberg": (table.metadata_location, {}),
        }
        # Threads of pyarrow's pools, s3fs's event loop and pyiceberg's executor run from here on.
        fail_unless(pyarrow.dataset.dataset(folder).to_table().num_rows == rows.ROWS, "pyarrow")
        self.s3 = store.filesystem
        fail_unless(len(self.s3.find(store.url("rows"))) == rows.FILES, "s3fs")
        fail_unless(catalog.load_table("a.rows").scan().to_arrow().num_rows == rows.ROWS, "pyiceberg")

    def create(self, source: str, mode: str) -> tuple[Any, Any]:
        """A loader of one of the sources."""
        path, options = self.places[source]
        return create(source, path, mode, options)


def create(source: str, path: str, mode: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """A loader of the rows at a place."""
    given = {**options, "timeout": TIMEOUT}
    if source != "iceberg":
        return rows.create(path, mode, **given)
    return IcebergDataset.create_dataloader(path, batch_size=rows.BATCH, shuffle="splits", **rows.MODES[mode], **given)


def fork_rounds(folder: Path, temporary: Path, store: Store, rounds: int, seed: int) -> Iterator[Outcome]:
    """Rounds of each start method in turn."""
    parent = Parent(folder, temporary, store)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.faults.forks"])
    for source, mode in (("local", "processes by forkserver"), ("s3", "pool"), ("iceberg", "pool")):
        loader, dataset = parent.create(source, mode)
        fail_unless(sorted(rows.ids_of(loader)) == list(range(rows.ROWS)), f"{source}, {mode} in the parent")
        dataset.close()
    del loader, dataset
    before = held(temporary)
    for number in range(rounds * len(METHODS)):
        chance = random.Random(f"{seed} forks {number}")
        yield fork_round(parent, multiprocessing.get_context(METHODS[number % len(METHODS)]), chance)
        more = left_over(before, temporary)
        fail_unless(not more, f"left behind: {more}")


def fork_round(parent: Parent, context: Any, chance: random.Random) -> Outcome:
    """One round: the child delivers every row or one clear error, and so does what its parent was in the middle of."""
    method = context.get_start_method()
    kind = chance.choice(KINDS if method == "fork" else KINDS[:4])
    source = chance.choice(SOURCES) if kind not in SOURCES else kind
    modes = [mode for mode in rows.MODES if mode != "processes by spawn" or chance.random() < 0.2]
    mode, mode_of_parent = chance.choice(modes), chance.choice(modes)
    what = f"{kind} ({source}, {mode}) in a child by {method}"
    loader, dataset = parent.create(source, mode_of_parent)
    try:
        iterator, begun = None, []
        if kind in ("loader", "iterator"):
            what = f"the parent's {kind} ({source}, {mode_of_parent}) in a child by {method}"
            iterator = iter(loader)
            begun = [next(iterator)["id"].tolist() for _ in range(3)]
        given = {"dataset": pickle.dumps(dataset) if kind == "dataset" and method != "fork" else dataset}
        given |= {
            "loader": loader,
            "iterator": iterator,
            **{name: (name, *parent.places[name], mode) for name in SOURCES},
        }
        attempt, closing = _in_child(context, what, kind, given[kind])
        errors = (DataLoaderUtilsError,) if kind in ("loader", "iterator") else ()
        fail_unless(attempt.error is None or isinstance(attempt.error, errors), f"{what}: {attempt.error!r}")
        if attempt.error is None and kind != "iterator":
            fail_unless(sorted(attempt.ids) == list(range(rows.ROWS)), f"{what}: {len(attempt.ids)} rows")
        if iterator is not None:
            rest = sum(begun, []) + rows.ids_of(iterator)
            fail_unless(sorted(rest) == list(range(rows.ROWS)), f"{what}: the parent got {len(rest)} rows")
            fail_unless(kind != "iterator" or attempt.error is not None, f"{what}: the child took the parent's batches")
    finally:
        dataset.close()  # also after a broken promise: its workers hold what the server waits for
    return Outcome(what, attempt.name, attempt.waited, closing)


def _in_child(context: Any, what: str, kind: str, given: Any) -> tuple[Attempt, float]:
    """What the child got, and in how many seconds it ended after that."""
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(kind, given, theirs))
    process.start()
    theirs.close()
    try:
        # A spawned child imports torch first.
        fail_unless(ours.poll(TIMEOUT + 2 * SLACK), f"{what}: hangs")
        attempt = ours.recv()
        began = time.monotonic()
        process.join(TIMEOUT + SLACK)
        fail_unless(process.exitcode == 0, f"{what}: the child ended with {process.exitcode}")
        fail_unless(attempt.waited < TIMEOUT + SLACK, f"{what}: waited {attempt.waited:.1f} s")
        return attempt, time.monotonic() - began
    finally:
        process.kill()
        process.join()
        ours.close()
        process.close()


def _child(kind: str, given: Any, conn: Connection) -> None:
    """Read in the child."""
    if kind in SOURCES:
        given, _ = create(given[0], given[1], given[3], given[2])
    elif isinstance(given, bytes):
        given = pickle.loads(given)
    attempt = batches_of(given)
    conn.send(attempt)
    conn.close()
