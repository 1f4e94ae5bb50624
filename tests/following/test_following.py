"""follow=True: each pass reads what was appended since the pass before it, each row once, through restarts."""

import json
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests import forkrun
from tests.iceberg.helpers import compact
from tests.iceberg.test_advance import DRIVERS, config_of, ids_of, open_table, rows
from tests.iceberg.test_advance import table as table
from torch_dataloader_utils import Follow, combine
from torch_dataloader_utils.errors import (
    CatalogError,
    DataNotFoundError,
    OptionError,
    ShardingError,
    SnapshotError,
    StaleIteratorError,
)
from torch_dataloader_utils.following.waiting import may_pass

NO_WAIT = {"follow": Follow(wait=0)}


@pytest.mark.parametrize("worker", DRIVERS)
def test_each_pass_reads_what_was_appended_since_the_last(table: Table, worker: dict[str, Any]) -> None:
    loader, dataset = open_table(table, **NO_WAIT, **worker)
    assert ids_of(loader) == list(range(100))
    table.append(rows(100, 130))
    table.append(rows(130, 150))
    assert ids_of(loader) == list(range(100, 150))
    assert ids_of(loader) == []
    table.append(rows(150, 160))
    dataset.set_epoch(7)
    assert ids_of(loader) == list(range(150, 160))
    dataset.close()


def test_a_pass_waits_for_rows(table: Table) -> None:
    loader, _ = open_table(table, follow=Follow(0.05))
    assert ids_of(loader) == list(range(100))
    later = threading.Timer(0.3, lambda: table.append(rows(100, 110)))
    later.start()
    began = time.monotonic()
    assert ids_of(loader) == list(range(100, 110))
    assert time.monotonic() - began > 0.25
    later.join()


@contextmanager
def unreachable(folder: Path) -> Iterator[None]:
    """A context in which the catalog's database cannot be opened."""
    (folder / "catalog.db").rename(folder / "away.db")
    (folder / "catalog.db").mkdir()
    try:
        yield
    finally:
        (folder / "catalog.db").rmdir()
        (folder / "away.db").rename(folder / "catalog.db")


def begun(loader: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that reads a pass, and its ids, or its error."""
    result: list[Any] = []

    def read() -> None:
        try:
            result.extend(ids_of(loader))
        except Exception as error:  # noqa: BLE001 - compared by the test
            result.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, result


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_waiting_pass_outlives_an_outage_of_the_catalog(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torch_dataloader_utils")
    loader, _ = open_table("ns.t", catalog_config=config_of(tmp_path), follow=Follow(0.05))
    assert ids_of(loader) == list(range(100))
    with unreachable(tmp_path):
        thread, read = begun(loader)
        until(lambda: "could not load it" in caplog.text)
        time.sleep(0.2)  # several more looks
    until(lambda: "the catalog answers again" in caplog.text)
    table.append(rows(100, 110))
    thread.join(30)
    assert read == list(range(100, 110))
    assert sum("could not load it" in record.getMessage() for record in caplog.records) == 1
    assert "It is asked again every 0.05 s." in caplog.text


@pytest.mark.parametrize("options", [{"wait": 0.3}, {"timeout": 2}, {"wait": 0}])  # timeout is also that of a read
def test_an_outage_longer_than_the_patience_ends_the_pass(
    table: Table, tmp_path: Path, options: dict[str, Any]
) -> None:
    config = config_of(tmp_path)
    timeout = {"timeout": options["timeout"]} if "timeout" in options else {}
    follow = Follow(0.05, wait=options.get("wait"))
    loader, _ = open_table("ns.t", catalog_config=config, follow=follow, **timeout)
    assert ids_of(loader) == list(range(100))
    began = time.monotonic()
    with unreachable(tmp_path), pytest.raises(CatalogError, match="could not load it"):
        ids_of(loader)
    assert time.monotonic() - began >= min(options.values())
    table.append(rows(100, 110))
    assert ids_of(loader) == list(range(100, 110))  # nothing is lost


def test_a_table_that_is_gone_ends_the_wait_at_once(table: Table, catalog: Catalog, tmp_path: Path) -> None:
    loader, _ = open_table("ns.t", catalog_config=config_of(tmp_path), follow=Follow(0.05))
    ids_of(loader)
    catalog.drop_table("ns.t")
    with pytest.raises(DataNotFoundError):
        ids_of(loader)
    del table


@pytest.mark.parametrize(("status", "passes"), [(503, True), (500, True), (429, True), (401, False), (400, False)])
def test_which_errors_of_a_catalog_may_pass(status: int, passes: bool) -> None:
    response = requests.Response()
    response.status_code = status
    error = CatalogError("it said no")
    error.__cause__ = requests.HTTPError(response=response)
    assert may_pass(error) is passes
    assert not may_pass(CatalogError("of this package's own"))
    assert not may_pass(error.__cause__)


@pytest.mark.parametrize("loads", [False, True])
def test_close_and_a_loaded_state_end_a_waiting_pass(table: Table, loads: bool) -> None:
    loader, dataset = open_table(table, follow=Follow(60))
    ids_of(loader)
    state = loader.state_dict()
    thread, result = begun(loader)
    time.sleep(0.3)
    assert thread.is_alive()
    began = time.monotonic()
    if loads:
        loader.load_state_dict(state)
    else:
        dataset.close()
    thread.join(30)
    assert time.monotonic() - began < 1
    (error,) = result
    assert isinstance(error, StaleIteratorError)
    assert "while its pass waited for appended rows" in str(error)
    table.append(rows(100, 110))
    assert ids_of(loader) == list(range(100, 110))


def test_a_compaction_is_no_new_row(table: Table) -> None:
    loader, _ = open_table(table, **NO_WAIT)
    ids_of(loader)
    compact(table)
    assert ids_of(loader) == []
    table.append(rows(100, 110))
    assert ids_of(loader) == list(range(100, 110))


def test_an_empty_table_is_read_once_it_has_rows(catalog: Catalog) -> None:
    table = catalog.create_table("ns.empty", schema=rows(0, 1).schema)
    loader, _ = open_table(table, **NO_WAIT)
    assert ids_of(loader) == []
    table.append(rows(0, 10))
    assert ids_of(loader) == list(range(10))
    assert ids_of(loader) == []


def test_an_abandoned_pass_loses_nothing(table: Table) -> None:
    loader, dataset = open_table(table, **NO_WAIT)
    next(iter(loader))
    dataset.set_epoch(1)
    assert ids_of(loader) == list(range(100))
    table.append(rows(100, 110))
    assert ids_of(loader) == list(range(100, 110))


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_restart_after_any_step_repeats_and_loses_nothing(table: Table, accelerated: bool) -> None:

    from accelerate import Accelerator  # it saves states one batch ahead

    def opened() -> tuple[Any, Any]:
        loader, dataset = open_table(table, **{**NO_WAIT, "batch_size": 7, "shuffle": True})
        if accelerated:
            Accelerator(cpu=True).prepare(loader)
        return loader, dataset

    loader, _ = opened()
    ids_of(loader)
    table.append(rows(100, 120))
    read: list[int] = []
    for number in range(14):
        state = loader.state_dict()
        loader, _ = opened()
        loader.load_state_dict(state)
        for batch in loader:
            read += batch["id"].tolist()
            break
        if number < 6:
            table.append(rows(120 + number, 121 + number))
    assert sorted(read) == list(range(100, 126))


def test_a_state_says_whether_its_rows_were_read(table: Table) -> None:
    loader, dataset = open_table(table, **NO_WAIT)
    assert dataset._saved_cursor()["read"] is False
    before = loader.state_dict()
    ids_of(loader)
    assert dataset._saved_cursor()["read"] is True
    assert loader.dataset._steps() is None
    after = loader.state_dict()
    again, _ = open_table(table, **NO_WAIT)
    again.load_state_dict(after)
    assert ids_of(again) == []
    again.load_state_dict(before)
    assert ids_of(again) == list(range(100))
    whole, _ = open_table(table)
    whole.load_state_dict(after)
    assert ids_of(whole) == list(range(100))


def test_an_expired_snapshot_is_an_error(table: Table, catalog: Catalog) -> None:
    loader, dataset = open_table(table, **NO_WAIT)
    ids_of(loader)
    first = dataset._saved_cursor()["end"]
    for number in range(3):
        table.append(rows(100 + number, 101 + number))
    history = [snapshot.snapshot_id for snapshot in table.snapshots()]
    table.maintenance.expire_snapshots().by_ids(history[:2]).commit()
    assert history[0] == first
    with pytest.raises(SnapshotError, match="not an ancestor"):
        ids_of(loader)


@pytest.mark.slow
def test_all_ranks_follow_what_rank_0_finds(table: Table, tmp_path: Path) -> None:
    del table
    ranks = 3
    script = str(Path(__file__).parent / "following_jobs.py")
    arguments = [*forkrun.command(ranks), script, "follow", json.dumps(config_of(tmp_path)), str(tmp_path)]
    subprocess.run(arguments, check=True, timeout=180)
    of_each = [json.loads((tmp_path / f"{rank}.json").read_text())["epochs"] for rank in range(ranks)]
    for epoch, (first, last) in enumerate(((0, 100), (100, 110), (110, 130), (130, 140))):
        assert len({one[epoch]["steps"] for one in of_each}) == 1
        assert sorted(row for one in of_each for row in one[epoch]["ids"]) == list(range(first, last))


def test_ranks_that_cannot_agree_do_not_follow(table: Table) -> None:
    loader, _ = open_table(table, follow=True, num_ranks=2, rank=1)
    with pytest.raises(ShardingError, match=r"follow=True with num_ranks=2 needs a process group"):
        next(iter(loader))


def test_options_that_exclude_each_other(table: Table) -> None:
    with pytest.raises(OptionError, match=r"follow=True: snapshot_id= was given"):
        open_table(table, follow=True, snapshot_id=table.current_snapshot().snapshot_id)
    with pytest.raises(OptionError, match=r"follow=True with steps_per_epoch=3"):
        open_table(table, follow=True, steps_per_epoch=3)
    with pytest.raises(OptionError, match=r"appended=Appended\(1\) with follow=Follow\(\): what is followed has"):
        open_table(table, follow=True, appended=1)
    with pytest.raises(OptionError, match=r"follow='yes': expected True, False or Follow"):
        open_table(table, follow="yes")


def test_a_combination_cannot_follow(table: Table) -> None:
    with pytest.raises(OptionError, match=r"dataset 'live' has follow=True .* cannot be combined"):
        combine({"live": open_table(table, **NO_WAIT)[1]})


def test_a_copy_does_not_follow(table: Table) -> None:
    _, dataset = open_table(table, **NO_WAIT)
    with pytest.raises(OptionError, match=r"follow=True: this dataset is a copy without a catalog"):
        next(iter(pickle.loads(pickle.dumps(dataset))))
