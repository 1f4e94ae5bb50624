"""Footers that the ranks of a node share: read by one process, mapped by all, gone with the last."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Processes, stream
from torch_dataloader_utils.distributed.ranks import several_on_node
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.parquet import FORMAT
from torch_dataloader_utils.sources import node_footers
from torch_dataloader_utils.sources.node_footers import shared_footers
from torch_dataloader_utils.storage.waiting import limited

FOOTERS = [None if number % 7 == 3 else f"footer {number} ".encode() * (number % 50) for number in range(600)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    gc.collect()
    assert not os.listdir(tmp_path), "files are left"


class Making:
    """Makes footers, and counts how often."""

    def __init__(self, footers: list[bytes | None] = FOOTERS, error: Exception | None = None) -> None:
        self.footers, self.error, self.calls = footers, error, 0

    def __call__(self) -> Generator[bytes | None]:
        self.calls += 1
        yield from self.footers
        if self.error is not None:
            raise self.error


def shared(folder: str, make: Making, name: str = "listing") -> Any:
    return shared_footers(name, len(make.footers), make, folder)


def as_bytes(found: Any) -> list[bytes | None]:
    return [None if footer is None else bytes(footer) for footer in found]


def test_they_are_made_once_and_removed_with_the_last(folder: str) -> None:
    first, second, other = Making(), Making(), Making([b"x"])
    one, two = shared(folder, first), shared(folder, second)
    assert (first.calls, second.calls) == (1, 0)
    assert as_bytes(one) == as_bytes(two) == FOOTERS
    assert as_bytes(shared(folder, other, "another listing")) == [b"x"]
    assert os.stat(os.path.join(folder, os.listdir(folder)[0])).st_mode & 0o777 == 0o600
    del one
    gc.collect()
    last = two[-1]
    del two
    gc.collect()
    assert len(os.listdir(folder)) == 1  # the last footer holds it
    assert bytes(last) == FOOTERS[-1]


def _rank(folder: str, barrier: Any, queue: Any) -> None:
    make = Making()
    barrier.wait()
    found = shared(folder, make)
    queue.put((make.calls, as_bytes(found) == FOOTERS))
    barrier.wait()  # all hold it
    del found


def test_processes_that_come_together_make_them_once(folder: str) -> None:
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(4), context.Queue()
    ranks = [context.Process(target=_rank, args=(folder, barrier, queue)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [queue.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    assert sorted(found) == [(0, True)] * 3 + [(1, True)]


def test_an_error_is_raised_and_the_next_process_makes_them(folder: str) -> None:
    with pytest.raises(FileReadError, match="damaged"):
        shared(folder, Making(error=FileReadError("damaged")))
    make = Making()
    assert as_bytes(shared(folder, make)) == FOOTERS
    assert make.calls == 1


@pytest.mark.parametrize("cut", [0, 100, 5000, -1])
def test_what_a_killed_process_left_unfinished_is_made_again(folder: str, cut: int) -> None:
    found = shared(folder, Making())
    path = os.path.join(folder, os.listdir(folder)[0])
    data = Path(path).read_bytes()
    del found
    gc.collect()
    Path(path).write_bytes(data[:cut])
    os.chmod(path, 0o600)
    make = Making()
    assert as_bytes(shared(folder, make)) == FOOTERS
    assert make.calls == 1


def test_damaged_footers_are_made_again(folder: str) -> None:
    found = shared(folder, Making())
    path = os.path.join(folder, os.listdir(folder)[0])
    data = bytearray(Path(path).read_bytes())
    del found
    gc.collect()
    data[data.index(b"footer 99")] ^= 1
    Path(path).write_bytes(data)
    os.chmod(path, 0o600)
    assert as_bytes(shared(folder, Making())) == FOOTERS


def test_a_file_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / f"tdu-footers-{os.geteuid()}-listing"
    path.touch()
    path.chmod(0o666)
    make = Making()
    assert shared(str(tmp_path), make) is None
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert shared(str(tmp_path), make) is None
    assert shared(str(tmp_path / "missing"), make) is None
    assert make.calls == 0


def test_without_room_nothing_is_left(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_footers, "_SHARE", 1 << 60)
    assert shared(folder, Making()) is None
    monkeypatch.undo()

    def full(*_: Any) -> bool:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(node_footers, "_fits", full)
    assert shared(folder, Making()) is None


def test_a_process_that_is_stopped_keeps_others_waiting_no_longer_than_their_limit(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Stopped(Making):
        def __call__(self) -> Generator[bytes | None]:
            with limited(0.1):
                assert shared(folder, Making()) is None
            yield from super().__call__()

    assert as_bytes(shared(folder, Stopped())) == FOOTERS
    assert "this one reads them, too" in caplog.text


def test_what_nobody_holds_is_removed_an_hour_later(folder: str) -> None:
    held, left = (os.path.join(folder, f"tdu-footers-{os.geteuid()}-{name}") for name in ("held", "left"))
    holding = shared(folder, Making(), "held")
    Path(left).touch()
    for path in (held, left):
        os.utime(path, (time.time() - 4000,) * 2)
    found = shared(folder, Making())
    assert os.path.exists(held)
    assert not os.path.exists(left)
    del holding, found


def test_a_forked_child_leaves_it_to_its_parent(folder: str) -> None:
    found = shared(folder, Making())
    child = multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert len(os.listdir(folder)) == 1
    assert as_bytes(found) == FOOTERS


# ------------------------------------------------------------------------------------------------------------- loaders


@pytest.fixture
def files(tmp_path: Path) -> str:
    data = tmp_path / "data"
    data.mkdir()
    for file in range(120):
        pq.write_table(pa.table({"id": [2 * file, 2 * file + 1]}), data / f"{file:03}.parquet", row_group_size=1)
    return str(data)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers are read."""
    read: list[str] = []
    layout = type(FORMAT).layout

    def noted(self: Any, file: Any, *args: Any) -> Any:
        read.append(file.path)
        return layout(self, file, *args)

    monkeypatch.setattr(type(FORMAT), "layout", noted)
    return read


def ours() -> list[str]:
    gc.collect()
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"tdu-footers-{os.geteuid()}-")]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no memory that files are in")
def test_ranks_of_a_node_read_each_footer_once(files: str, layouts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(ours())
    alone = stream(files, batch_size=7, num_ranks=1, rank=0, filters=[("id", ">=", 5)], count_rows=True)
    expected = [batch["id"].tolist() for batch in alone]
    assert len(layouts) == 120
    assert set(ours()) == before  # nobody shares
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    layouts.clear()
    make = partial(stream, files, batch_size=7, num_ranks=1, rank=0, filters=[("id", ">=", 5)], count_rows=True)
    ranks = [
        make(),
        make(num_workers=1, worker_mode=Processes(persistent=False)),
        make(shuffle=True).replace(shuffle=False),
    ]
    assert len(layouts) == 120
    assert len(set(ours()) - before) == 1
    for rank in ranks:
        assert [batch["id"].tolist() for batch in rank] == expected
    pq.write_table(pa.table({"id": [1000]}), os.path.join(files, "120.parquet"))
    assert sum(len(batch["id"]) for batch in make()) == 236  # another listing has other footers
    assert len(layouts) == 241
    for rank in ranks:
        rank.close()
    del ranks, rank
    assert set(ours()) == before


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({}, False),
        ({"LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_WORLD_SIZE": "8"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, True),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, True),  # torchrun within a task of SLURM
    ],
)
def test_launchers_tell_how_many_processes_a_node_has(
    variables: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "OMPI", "MPI", "HOROVOD", "LOCAL_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert several_on_node() is several
