"""Tables of real catalogs and stores: REST, Glue and PostgreSQL; many ranks and processes; credentials."""

import json
import os
import pickle
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from tests import forkrun
from tests.iceberg.services import (
    CLIENT_SECRET,
    TOKEN,
    Service,
    glue_tables,
    postgres_tables,
    rest_tables,
    sqlite_tables,
    vending,
)
from tests.storage import servers
from tests.storage.servers import ServerMissingError, Store
from torch_dataloader_utils import IcebergDataset, Processes

PATIENCE = 90.0  # seconds from the death of a server to the error: some 20 of tries, for each of two files at most


def _opened(stack: ExitStack, context: AbstractContextManager[Any]) -> Any:
    try:
        return stack.enter_context(context)
    except ServerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with ExitStack() as stack:
        yield _opened(stack, rest_tables(tmp_path_factory.mktemp("rest")))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with ExitStack() as stack:
        yield _opened(stack, servers.moto(tmp_path_factory.mktemp("moto")))


def points(begin: int, end: int) -> pa.Table:
    ids = np.arange(begin, end)
    return pa.table({"id": ids, "x": np.random.default_rng(begin).random(end - begin)})


def three_commits(catalog: Catalog, name: str = "ns.points") -> list[int]:
    """Make a table by two appends and a delete: the ids that are left."""
    catalog.create_namespace_if_not_exists("ns")
    small_groups = {"write.parquet.row-group-limit": "500"}
    table = catalog.create_table(name, schema=points(0, 1).schema, properties=small_groups)
    table.append(points(0, 3000))
    table.append(points(3000, 5000))
    table.delete("id >= 2500 and id < 3100")
    return [*range(2500), *range(3100, 5000)]


def ids_of(loader: Any) -> list[int]:
    return sorted(row for batch in loader for row in batch["id"].tolist())


# --------------------------------------------------------------------------------------------------- REST and S3


def start(scenario: str, config: Mapping[str, str], out: Path) -> subprocess.Popen[str]:
    """A job of two ranks that has begun."""
    return subprocess.Popen(
        [
            *forkrun.command(),
            *(str(Path(__file__).parent / "service_jobs.py"), scenario, json.dumps(config), str(out)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(job: subprocess.Popen[str], out: Path) -> list[Any]:
    """What each rank of a job found."""
    _, errors = job.communicate(timeout=180)
    assert job.returncode == 0, errors[-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_two_ranks_read_every_row_of_a_rest_table_once(rest: Service, tmp_path: Path) -> None:
    wanted = three_commits(rest.catalog)
    ranks = ended(start("epochs", rest.config, tmp_path), tmp_path)
    for epoch in range(2):
        seen = [rank["epochs"][epoch] for rank in ranks]
        assert sorted(row for one in seen for row in one["ids"]) == wanted
        assert len({one["steps"] for one in seen}) == 1
        assert all(one["ids"] != sorted(one["ids"]) for one in seen)


@pytest.mark.slow
def test_a_server_that_goes_within_an_epoch_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    """Each rank has 8 files of 1.6 MB and buffers of 1 MiB: most are unread when the server is killed."""
    with ExitStack() as running:
        (tmp_path / "server").mkdir()
        service = _opened(running, rest_tables(tmp_path / "server"))
        catalog = service.catalog
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.points", schema=points(0, 1).schema)
        for number in range(16):
            table.append(points(number * 100_000, (number + 1) * 100_000))
        job = start("killed", service.config, tmp_path)
        deadline = time.monotonic() + 120
        while not all((tmp_path / f"{rank}.begun").exists() for rank in range(2)):
            assert job.poll() is None, job.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    (tmp_path / "gone").touch()
    for found in ended(job, tmp_path):
        assert 0 < found["rows"] < 800_000
        assert found["error"].startswith("FileReadError: wh1/ns/points/data/")
        assert "adminsecret" not in found["error"]
        assert found["seconds"] < PATIENCE


# ---------------------------------------------------------------------------------------------- Glue and PostgreSQL


def test_glue(s3: Store) -> None:
    service = glue_tables(s3)
    wanted = three_commits(service.catalog)
    loader, _ = IcebergDataset.create_dataloader("ns.points", catalog_config=service.config, batch_size=512)
    assert ids_of(loader) == wanted


def test_postgres(tmp_path: Path) -> None:
    pytest.importorskip("psycopg2")
    with ExitStack() as running:
        service = _opened(running, postgres_tables(tmp_path))
        catalog = service.catalog
        wanted = three_commits(catalog)
        catalog.close()
        loader, _ = IcebergDataset.create_dataloader("ns.points", catalog_config=service.config, batch_size=512)
        assert ids_of(loader) == wanted


# -------------------------------------------------------------------------------------------------------- processes


@pytest.fixture(scope="module")
def on_s3(s3: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Service, list[int]]:
    service = sqlite_tables(tmp_path_factory.mktemp("sqlite"), s3)
    catalog = service.catalog
    wanted = three_commits(catalog)
    catalog.close()
    return service, wanted


@pytest.mark.parametrize(
    "worker",
    [
        {"worker_mode": "threads"},
        {"worker_mode": Processes(context="fork")},
        pytest.param({"worker_mode": Processes(context="forkserver")}, marks=pytest.mark.slow),
        pytest.param({"worker_mode": Processes(context="spawn")}, marks=pytest.mark.slow),
    ],
    ids=["threads", "fork", "forkserver", "spawn"],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_workers_read_after_this_process_has_used_s3(on_s3: tuple[Service, list[int]], worker: dict[str, Any]) -> None:
    service, wanted = on_s3
    options: dict[str, Any] = {"catalog_config": service.config, "batch_size": 256, "split_bytes": "8KiB"}
    here, _ = IcebergDataset.create_dataloader("ns.points", num_workers=0, **options)
    assert ids_of(here) == wanted  # clients and their threads are there now
    loader, dataset = IcebergDataset.create_dataloader("ns.points", num_workers=2, **worker, **options)
    assert [ids_of(loader), ids_of(loader)] == [wanted, wanted]
    assert ids_of(here) == wanted
    dataset.close()


# ---------------------------------------------------------------------------------------------------------- secrets


def test_no_secret_of_the_catalog_is_in_the_pickle(catalog: Catalog) -> None:
    """Not even where they belong to the properties of the table's io, as pyiceberg has it; a copy reads without."""
    wanted = three_commits(catalog)
    with vending(catalog.load_table("ns.points"), lambda load: {"s3.secret-access-key": "of-no-use-here"}) as rest:
        given = rest.catalog.load_table("ns.points")
        assert CLIENT_SECRET in given.io.properties["credential"]
        named, _ = IcebergDataset.create_dataloader("ns.points", catalog_config=rest.config)
        ready, _ = IcebergDataset.create_dataloader(given)
        pickles = [pickle.dumps(item) for loader in (named, ready) for item in (loader, loader.dataset)]
    for data in pickles:
        for secret in (CLIENT_SECRET, TOKEN, "of-no-use-here"):
            assert secret.encode() not in data
        assert ids_of(pickle.loads(data)) == wanted
