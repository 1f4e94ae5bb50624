"""Credentials that a catalog vends, and that end: while an epoch is read, on threads and in processes.

The store is one on loopback that checks who reads, and where; the catalog another one.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table
from torch.utils.data import DataLoader

from tests.iceberg.relocate import relocate
from tests.iceberg.services import Vending, vending
from tests.storage.guarded import GuardedStore, guarded
from torch_dataloader_utils import Iceberg, Processes, combine, stream
from torch_dataloader_utils.errors import DataLoaderUtilsError

pytest.importorskip("s3fs")

ROWS, GROUP = 24_000, 2_000
NAME = "ns.points"
HOME = "bucket/ns/points"  # of the table in the store
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "worker_mode": "processes"},
}
READING = {"batch_size": 1_000, "prefetch_bytes": 1, "split_bytes": "20KiB"}  # a row group at a time

Prefixes = list[tuple[str, Mapping[str, str]]]


@dataclass(frozen=True)
class Place:
    """A table of the ids below `ROWS` in 3 files, each of 4 row groups, in a store that lets nobody in."""

    table: Table
    store: GuardedStore


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    warehouse = tmp_path / "warehouse"
    catalog = SqlCatalog("any", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}")
    catalog.create_namespace("ns")
    ids = np.arange(ROWS)
    schema = pa.schema({"id": pa.int64(), "x": pa.float64()})
    location = f"file://{warehouse}/ns/points"
    made = catalog.create_table(
        NAME, schema, location=location, properties={"write.parquet.row-group-limit": str(GROUP)}
    )
    for part in np.split(ids, 3):
        made.append(pa.table({"id": part, "x": part / 2}))
    metadata = Path(made.metadata_location.removeprefix("file://"))
    catalog.close()
    served = tmp_path / "store"
    relocate(metadata, warehouse, served / "bucket", old=f"file://{warehouse}", new="s3://bucket")
    moved = served / "bucket" / metadata.relative_to(warehouse)
    table = StaticTable.from_metadata(str(moved))
    table.metadata_location = f"s3://bucket/{metadata.relative_to(warehouse)}"
    with guarded(served) as store:
        yield Place(table, store)


def ids_of(batches: Any) -> list[int]:
    return sorted(row for batch in batches for row in batch["id"].tolist())


class Office:
    """What the catalog vends: the key of the last load is the only one that the store lets in.

    Args:
        place: the table and its store.
        lasts: seconds after which the catalog says that they end; None: it does not say.
        prefixes: where each set of credentials applies; none: they are the table's.
    """

    def __init__(self, place: Place, lasts: float | None = None, prefixes: tuple[str, ...] = ()) -> None:
        self.place, self.lasts, self.prefixes = place, lasts, prefixes
        self.loads = 0
        self.fails = False
        self._changing = threading.Lock()

    def __call__(self, load: int) -> Mapping[str, str] | Prefixes | None:
        with self._changing:
            if self.fails:
                return None
            self.loads += 1
            ends = {} if self.lasts is None else {"s3.session-token-expires-at-ms": str(self._end())}
            if not self.prefixes:
                return {**self.place.store.admit(f"key{load}", HOME), **ends}
            return [
                (f"s3://{prefix}", {**self.place.store.admit(f"key{load}-{number}", prefix), **ends})
                for number, prefix in enumerate(self.prefixes)
            ]

    def _end(self) -> int:
        assert self.lasts is not None
        return int((time.time() + self.lasts) * 1000)

    def end_all(self) -> None:
        """Let the store refuse all keys that were given out."""
        with self._changing:
            self.place.store.admitted.clear()


@pytest.mark.parametrize("lasts", [3600, None], ids=["expiry told", "no expiry told"])
@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("alone", [True, False], ids=["credentials alone", "with the table"])
def test_credentials_that_end_within_an_epoch_are_asked_for_once(
    place: Place, worker: dict[str, Any], lasts: float | None, alone: bool
) -> None:
    office = Office(place, lasts, (HOME,) if alone else ())
    with vending(place.table, office, alone) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **worker, **READING)) as loader:
            for epoch in range(2):
                batches = iter(loader)
                first = next(batches)
                office.end_all()
                assert ids_of([first, *batches]) == list(range(ROWS))
                assert office.loads == epoch + 2
            office.end_all()  # also between two epochs
            assert ids_of(loader) == list(range(ROWS))
            assert office.loads == 4
    assert sum(path.endswith("/credentials") for path in catalog.asked) == (3 if alone else 0)
    assert catalog.asked.count("GET /v1/namespaces/ns/tables/points") == (1 if alone else 4)


@pytest.mark.parametrize("refusal", [(400, "ExpiredToken"), (400, "InvalidToken"), (403, "InvalidAccessKeyId")])
@pytest.mark.parametrize("worker", [WORKERS["threads"], WORKERS["processes"]], ids=["threads", "processes"])
def test_each_way_of_refusing_is_understood(place: Place, worker: dict[str, Any], refusal: tuple[int, str]) -> None:
    office = Office(place)
    place.store.refusal = refusal
    with (
        vending(place.table, office) as catalog,
        closing(stream(Iceberg(NAME, catalog=catalog.config), **worker)) as loader,
    ):
        assert ids_of(loader) == list(range(ROWS))
        office.end_all()
        assert ids_of(loader) == list(range(ROWS))
        assert office.loads == 2


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_processes_started_in_any_way_get_new_credentials(place: Place, context: str) -> None:
    office = Office(place)
    source: dict[str, Any] = {"num_workers": 2, "worker_mode": Processes(context=context), **READING}
    with vending(place.table, office) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **source)) as loader:
            batches = iter(loader)
            first = next(batches)
            office.end_all()
            assert ids_of([first, *batches]) == list(range(ROWS))
            assert office.loads == 2
    wait_until(lambda: "tdu-credentials" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
def test_new_credentials_come_before_the_old_ones_end(place: Place, worker: dict[str, Any]) -> None:
    """They last for a second, after which the store would still take them: nobody is refused."""
    office = Office(place, lasts=1.0)
    with vending(place.table, office, alone=True) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **worker, **READING)) as loader:
            assert ids_of(loader) == list(range(ROWS))
            known = office.loads
            while office.loads == known:
                assert ids_of(loader) == list(range(ROWS))
    assert place.store.refused == []


def test_processes_get_new_credentials_although_no_batch_is_taken(place: Place) -> None:
    """A training step may take minutes: the thread that takes batches does not answer, another one does."""
    office = Office(place)
    worker = {**WORKERS["processes"], **READING, "prefetch_bytes": "1GiB"}
    with vending(place.table, office) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **worker)) as loader:
            batches = iter(loader)
            first = next(batches)
            office.end_all()
            wait_until(lambda: office.loads == 2)
            assert ids_of([first, *batches]) == list(range(ROWS))


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_of_a_combination_ask_for_the_credentials_of_each_table(place: Place) -> None:
    office = Office(place)
    with vending(place.table, office) as catalog:
        part = Iceberg(NAME, catalog=catalog.config)
        parts = {"first": part, "second": part.replace(ref="main")}
        admitted = place.store.admitted
        with closing(combine(parts, batches="splits", **WORKERS["processes"], **READING)) as loader:
            for key in ("key0", "key1"):
                place.store.admit(key, HOME)
            assert ids_of(loader) == sorted([*range(ROWS)] * 2)
            admitted.clear()
            office.place.store.admit("key0", HOME)
            assert ids_of(loader) == sorted([*range(ROWS)] * 2)
    assert office.loads == 3  # those of the second table alone had ended


@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
def test_a_catalog_whose_credentials_are_refused_too_is_an_error_without_secrets(
    place: Place, worker: dict[str, Any]
) -> None:
    vended = [place.store.admit("first", HOME), place.store.properties("never-admitted")]
    with vending(place.table, lambda load: vended[min(load, 1)]) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **worker)) as loader:
            place.store.admitted.clear()
            with pytest.raises(DataLoaderUtilsError, match=r"points/data/.*PermissionError|AccessDenied") as raised:
                ids_of(loader)
    assert "secret-of" not in str(raised.value)


@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
def test_a_catalog_that_refuses_is_named_where_credentials_are_needed(place: Place, worker: dict[str, Any]) -> None:
    office = Office(place)
    with ExitStack() as running:
        catalog = running.enter_context(vending(place.table, office))
        loader = running.enter_context(closing(stream(Iceberg(NAME, catalog=catalog.config), **worker)))
        assert ids_of(loader) == list(range(ROWS))
        office.end_all()
        office.fails = True
        with pytest.raises(DataLoaderUtilsError, match=f"table='{NAME}': .*could not load it"):
            ids_of(loader)
        office.fails = False
        assert ids_of(loader) == list(range(ROWS))


@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("alone", [True, False], ids=["credentials alone", "with the table"])
def test_each_file_is_read_with_the_credentials_of_its_prefix(
    place: Place, worker: dict[str, Any], alone: bool
) -> None:
    """Metadata, data, and everything else in the store are read by other keys, each of which may read nothing else."""
    office = Office(place, None, (f"{HOME}/data", f"{HOME}/metadata", "bucket/else"))
    with vending(place.table, office, alone) as catalog:
        with closing(stream(Iceberg(NAME, catalog=catalog.config), **worker, **READING)) as loader:
            batches = iter(loader)
            first = next(batches)
            assert place.store.refused == []
            office.end_all()
            assert ids_of([first, *batches]) == list(range(ROWS))
            assert office.loads == 2
    assert {path.split("/")[3] for path, key in place.store.served if key.endswith("-0")} == {"data"}
    assert {path.split("/")[3] for path, key in place.store.served if key.endswith("-1")} == {"metadata"}


def test_the_credentials_of_a_bare_scheme_are_those_of_all_files(place: Place) -> None:
    def vended(load: int) -> Prefixes:
        return [("s3", place.store.admit("any", "bucket"))]

    with vending(place.table, vended) as catalog:
        assert ids_of(stream(Iceberg(NAME, catalog=catalog.config))) == list(range(ROWS))


def test_a_catalog_object_and_its_tables_are_renewed_as_one_by_name(place: Place) -> None:
    """Also before the first row is read: a table may have been loaded long ago; its io has one set of credentials."""
    with vending(
        place.table, office := Office(place, None, (f"{HOME}/data", f"{HOME}/metadata")), alone=True
    ) as service:
        client: Catalog = service.catalog
        for source in (Iceberg(NAME, catalog=client), Iceberg(client.load_table(NAME))):
            office.end_all()
            loader = stream(source)
            assert ids_of(loader) == list(range(ROWS))
            office.end_all()
            assert ids_of(loader) == list(range(ROWS))
        assert client.load_table(NAME).io.properties["s3.access-key-id"].endswith("-1")  # as pyiceberg has it
        client.close()


def test_workers_of_another_loader_are_told_what_to_do(place: Place) -> None:
    """They get the latest credentials, but nobody whom they could ask."""
    office = Office(place)
    with vending(place.table, office) as catalog:
        loader = stream(Iceberg(NAME, catalog=catalog.config))
        office.end_all()
        assert ids_of(loader) == list(range(ROWS))
        foreign = DataLoader(loader.dataset, batch_size=None, num_workers=1)
        assert ids_of(foreign) == list(range(ROWS))
        assert office.loads == 2
        assert ids_of(pickle.loads(pickle.dumps(loader.dataset))) == list(range(ROWS))
        office.end_all()
        with pytest.raises(Exception, match="leave num_workers of torch's DataLoader at 0"):
            ids_of(foreign)
        with pytest.raises(DataLoaderUtilsError, match="Create the loader in the process that reads"):
            ids_of(pickle.loads(pickle.dumps(loader.dataset)))


# -------------------------------------------------------------------------------------------- one catalog per process


def counted(catalog: Vending) -> dict[str, int]:
    return {asked: catalog.asked.count(asked) for asked in catalog.asked}


def test_a_rest_catalog_is_asked_for_its_token_and_configuration_once(place: Place) -> None:
    """Loaders, looks for new snapshots and renewals are one request each."""
    office = Office(place)
    with vending(place.table, office) as catalog:
        loader = stream(Iceberg(NAME, catalog=catalog.config))
        once = counted(catalog)
        assert once.pop("GET /v1/namespaces/ns/tables/points") == 1
        for _ in range(3):
            assert not loader.advance()
        stream(Iceberg(NAME, catalog=dict(catalog.config)))
        assert ids_of(loader) == list(range(ROWS))
        asked = counted(catalog)
        assert asked.pop("GET /v1/namespaces/ns/tables/points") == office.loads
        assert asked == once
        assert once.keys() == {"GET /v1/config", "POST /v1/oauth/tokens"}


def test_a_catalog_that_fails_is_made_anew(place: Place) -> None:
    office = Office(place)
    with vending(place.table, office) as catalog:
        stream(Iceberg(NAME, catalog=catalog.config))
        office.fails = True
        with pytest.raises(DataLoaderUtilsError, match="could not load it"):
            stream(Iceberg(NAME, catalog=catalog.config))
        office.fails = False
        assert ids_of(stream(Iceberg(NAME, catalog=catalog.config))) == list(range(ROWS))
        assert catalog.asked.count("GET /v1/config") == 2
