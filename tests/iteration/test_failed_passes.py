"""Passes that fail, are abandoned or time out: what they held is given back at once, whoever keeps their error."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.executors.helpers import AND_AHEAD, not_kept
from torch_dataloader_utils import DataLoaderUtilsError, StructuredDataset
from torch_dataloader_utils.errors import BatchTimeoutError, FileReadError, OptionError
from torch_dataloader_utils.executors.drivers import InlineDriver
from torch_dataloader_utils.executors.processes import ProcessDriver, WorkerPool
from torch_dataloader_utils.executors.threads import ThreadDriver
from torch_dataloader_utils.iteration.failures import kept, let_go
from torch_dataloader_utils.units import parse_bytes

ROUNDS = int(os.environ.get("TDU_ROUNDS", "4"))  # growth shows at once, because nothing is collected
ROWS = 4000
BAD = 3000  # the row at which passes fail
PATIENCE = 10  # seconds for threads that a pass did not wait for

pytestmark = pytest.mark.usefixtures("by_hand")


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Nothing is collected: what is given back is given back by the pass itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files, with bytes of the last row groups overwritten."""
    path = write(tmp_path_factory.mktemp("damaged")) / "3.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 4)
    path.write_bytes(data)
    return path.parent


def write(folder: Path) -> Path:
    for number in range(4):
        table = pa.table({"id": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=250, compression="none", use_dictionary=False
        )
    return folder


def has_bad_row(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows) and batch.column("id")[0].as_py() <= BAD <= batch.column("id")[-1].as_py()


def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    if has_bad_row(batch):
        raise KeyError("no such row")
    return batch


def fail_in_collate(batch: Any) -> Any:
    if int(batch["id"][-1]) >= BAD:
        raise KeyError("no such row")
    return batch


def hang(batch: pa.RecordBatch) -> pa.RecordBatch:
    if has_bad_row(batch):
        time.sleep(0.5)
    return batch


# What makes a pass fail: options, and the error.
FAILURES: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "transform": ({"transform": fail}, KeyError),
    "collate": ({"collate_fn": fail_in_collate}, KeyError),
    "damaged": ({}, FileReadError),
    "timeout": ({"transform": hang, "timeout": 0.1}, BatchTimeoutError),
}


def loader_of(folder: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(folder, **{"batch_size": 100, "split_rows": 250} | options)[0]


def failed(loader: Any) -> Exception:
    """The error of a pass, with its traceback; its own loop keeps no batch."""
    try:
        deque(loader, maxlen=0)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("the pass did not fail")


def held() -> dict[str, int]:
    """What this process has, however many other tests ran before."""
    drivers = (ThreadDriver, ProcessDriver, InlineDriver, WorkerPool)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(multiprocessing.active_children()),
        "Arrow's memory": pa.total_allocated_bytes(),
        "drivers": sum(isinstance(thing, drivers) for thing in gc.get_objects()),
    }


def given_back(before: dict[str, int]) -> bool:
    """Whether there is no more than before; waits for threads whose read takes long."""
    deadline = time.monotonic() + PATIENCE
    while any(now > before[kind] for kind, now in held().items()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("driver", AND_AHEAD)
def test_failed_passes_give_back_all_they_held_while_the_last_error_lives(
    folder: Path, damaged: Path, driver: str, failure: str
) -> None:
    if (driver, failure) == ("inline", "timeout"):
        pytest.skip("nothing interrupts a transform in the calling thread")
    options, kind = FAILURES[failure]
    loader = loader_of(damaged if failure == "damaged" else folder, **options, **AND_AHEAD[driver])
    error = failed(loader)
    before = held()
    for _ in range(ROUNDS):
        error = failed(loader)
    assert isinstance(error, kind)
    assert given_back(before), (before, held())
    assert before["drivers"] == before["processes"] == 0


@pytest.mark.parametrize("driver", AND_AHEAD)
def test_an_error_outlives_what_its_pass_held(damaged: Path, driver: str) -> None:
    failed(loader_of(damaged, **AND_AHEAD[driver]))
    before = held()
    error = failed(loader_of(damaged, **AND_AHEAD[driver]))
    assert given_back(before), (before, held())
    assert error.__traceback__ is not None


def abandon_by_break(loader: Any) -> None:
    for _ in loader:
        break


def abandon_by_dropping(loader: Any) -> None:
    next(iter(loader))


def abandon_by_closing_a_generator(loader: Any) -> None:
    batches = (batch for batch in loader)
    next(batches)
    batches.close()


def abandon_by_an_error(loader: Any) -> None:
    try:
        for _ in loader:
            raise ValueError("of the training step")
    except ValueError:
        pass


@pytest.mark.parametrize(
    "abandon", [abandon_by_break, abandon_by_dropping, abandon_by_closing_a_generator, abandon_by_an_error]
)
@pytest.mark.parametrize("driver", AND_AHEAD)
def test_abandoned_passes_give_back_all_they_held(folder: Path, driver: str, abandon: Callable[[Any], None]) -> None:
    loader = loader_of(folder, **not_kept(AND_AHEAD[driver]))
    abandon(loader)
    before = held()
    for _ in range(ROUNDS):
        abandon(loader)
    assert given_back(before), (before, held())
    assert before["drivers"] == before["processes"] == 0


def test_workers_that_stay_keep_a_bounded_number_of_blocks_of_abandoned_passes(folder: Path) -> None:
    loader = loader_of(folder, **AND_AHEAD["processes"])
    descriptors = []  # they vary by the blocks that workers have sent when a pass is left
    for _ in range(30):
        abandon_by_break(loader)
        descriptors.append(held()["descriptors"])
    assert min(descriptors[-5:]) <= max(descriptors[:10]) + 6, descriptors
    loader.dataset.close()


@pytest.mark.parametrize("driver", AND_AHEAD)
def test_the_next_pass_after_a_failed_one_delivers_every_row(folder: Path, driver: str) -> None:
    fails = [True]

    def fail_once(batch: Any) -> Any:
        if fails.pop() if int(batch["id"][-1]) >= BAD and fails else False:
            raise KeyError("once")
        return batch

    loader = loader_of(folder, collate_fn=fail_once, **AND_AHEAD[driver])
    assert isinstance(failed(loader), KeyError)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(ROWS))
    loader.dataset.close()


def test_a_loader_does_not_keep_the_variables_of_the_loop_that_failed(folder: Path) -> None:
    loader = loader_of(folder, transform=fail)
    alive: list[str] = []

    class Model:
        def __del__(self) -> None:
            alive.remove(self.name)

        def __init__(self, name: str) -> None:
            self.name = name
            alive.append(name)

    def train() -> None:
        model = Model("model")
        for _ in loader:
            assert model.name

    with suppress(KeyError):
        train()
    assert alive == []


def test_an_error_is_raised_again_as_often_as_it_is_asked_for(folder: Path) -> None:
    class Uncopyable(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(first + second)

    def fail_so(batch: pa.RecordBatch) -> pa.RecordBatch:
        if has_bad_row(batch):
            raise Uncopyable("no ", "such row")
        return batch

    iterator = iter(loader_of(folder, transform=fail_so))
    with pytest.raises(Uncopyable, match="no such row"):
        list(iterator)
    for _ in range(2):
        with pytest.raises(DataLoaderUtilsError, match="this pass ended with Uncopyable: no such row"):
            next(iterator)


def test_what_is_noted_on_an_error_is_not_on_the_next_one(folder: Path) -> None:
    def fail_with_a_note(batch: pa.RecordBatch) -> pa.RecordBatch:
        if has_bad_row(batch):
            error = KeyError("no such row")
            error.add_note("of the transform")
            raise error
        return batch

    iterator = iter(loader_of(folder, transform=fail_with_a_note, num_workers=0))
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            list(iterator)
        assert "of the transform" in caught.value.__notes__
        assert "of the loop" not in caught.value.__notes__
        caught.value.add_note("of the loop")


@pytest.mark.parametrize("others", [0, 1])
def test_errors_that_are_causes_of_themselves_end_passes_like_others(folder: Path, others: int) -> None:
    def fail_in_a_circle(batch: pa.RecordBatch) -> pa.RecordBatch:
        if has_bad_row(batch):
            error = KeyError("no such row")
            error.__cause__ = KeyError("another") if others else error
            error.__cause__.__cause__ = error
            raise error
        return batch

    iterator = iter(loader_of(folder, transform=fail_in_a_circle, num_workers=0))
    for _ in range(2):
        with pytest.raises(KeyError, match="no such row"):
            list(iterator)


def test_errors_of_a_group_hold_no_more_than_others() -> None:
    def part() -> BaseException:
        with pytest.raises(OptionError) as caught:
            parse_bytes("many", "max_bytes")
        return caught.value

    group = ExceptionGroup("several", [part()])
    frames = [frame for frame, _ in walk_tb(group.exceptions[0].__traceback__)]
    [ours] = [frame for frame in frames if frame.f_globals["__name__"] == parse_bytes.__module__]
    assert ours.f_locals
    let_go(group)
    assert not ours.f_locals
    twin = kept(group)
    assert isinstance(twin, ExceptionGroup)
    assert str(twin) == str(group)
    assert [(type(each), str(each), each.__traceback__) for each in twin.exceptions] == [
        (OptionError, str(group.exceptions[0]), None)
    ]


def test_a_group_is_raised_again(folder: Path) -> None:
    def fail_in_several_ways(batch: pa.RecordBatch) -> pa.RecordBatch:
        if has_bad_row(batch):
            raise ExceptionGroup("no such row", [KeyError("one"), ValueError("two")])
        return batch

    iterator = iter(loader_of(folder, transform=fail_in_several_ways, num_workers=0))
    for _ in range(2):
        with pytest.raises(ExceptionGroup, match="no such row") as caught:
            list(iterator)
        assert list(map(repr, caught.value.exceptions)) == ["KeyError('one')", "ValueError('two')"]


def test_the_traceback_of_a_failed_transform_keeps_its_lines_and_variables(folder: Path) -> None:
    error = failed(loader_of(folder, transform=fail, num_workers=0))
    trace = error.__traceback__
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        last, trace = trace.tb_frame, trace.tb_next
    assert names[:2] == ["failed", "__next__"]
    assert names[-1] == "fail"
    assert last.f_locals["batch"].num_rows  # for a debugger
