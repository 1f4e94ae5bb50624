"""A cache that is smaller than the data: what it keeps, what may go, and what is asked of the store."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from tests.storage.cache_helpers import LEAST, MIB, Remote, block_files, content, forget, put, stored_bytes
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import block_store, cache
from torch_dataloader_utils.storage.block_store import BlockFile, BlockStore, leaving
from torch_dataloader_utils.storage.cache import CachedRanges, block_edges, cache_plan
from torch_dataloader_utils.storage.cache_plans import PASSES, CachePlan, kept_since
from torch_dataloader_utils.storage.remote import RangeFile

FORKED = multiprocessing.get_context("forkserver")
STRIPE = 2 * MIB  # what is read together, such as a row group
HOUR = 3600.0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def files_of(size: int) -> Remote:
    """Files of four stripes each, of `size` bytes in all."""
    return Remote(
        **{f"f{i:03}": content(min(4 * STRIPE, size - at), i) for i, at in enumerate(range(0, size, 4 * STRIPE))}
    )


def stripes(remote: Remote) -> list[tuple[str, int]]:
    return [(path, at) for path, data in remote.files.items() for at in range(0, len(data), STRIPE)]


def info_of(remote: Remote, path: str) -> DataFileInfo:
    return DataFileInfo(path, len(remote.files[path]), version="etag:1")


def plan_of(remote: Remote, options: Cache, paths: Sequence[str] = (), passes: int = PASSES) -> CachePlan:
    return cache_plan("memory", [info_of(remote, path) for path in paths or remote.files], options, passes)


def epoch(remote: Remote, options: Cache, order: Sequence[tuple[str, int]]) -> int:
    """The bytes that the store sent for these stripes."""
    before = remote.fetched
    for path, at in order:
        with remote.open(options, path) as file:
            stop = min(at + STRIPE, len(remote.files[path]))
            file.prefetch([(at, stop)])
            assert file.read_at(stop - at, at) == remote.files[path][at:stop]
    return remote.fetched - before


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
def test_later_epochs_hit_what_fits_and_the_first_costs_nothing(c: float, shuffled: bool, tmp_path: Path) -> None:
    remote, options = files_of(int(LEAST / c)), Cache(str(tmp_path), max_bytes=LEAST)
    total, order, draw = sum(map(len, remote.files.values())), stripes(remote), random.Random(0)
    plan = plan_of(remote, options)
    for number in range(4):
        if shuffled:
            draw.shuffle(order)
        if number == 2:
            forget()  # another process goes on
        plan.begin()
        fetched, asked = epoch(remote, options, order), len(remote.requests)
        plan.complete()
        if number == 0:
            assert fetched == total
            assert asked == len(order)  # one for each stripe, as without a cache
        else:
            assert total - LEAST <= fetched <= total - 0.9 * c * total
    assert 0.9 * LEAST < stored_bytes(options) <= LEAST


@pytest.mark.parametrize("shuffled", [False, True])
def test_hits_are_those_of_the_model(shuffled: bool, tmp_path: Path) -> None:
    """Two ranks of a node, in turns: the stripes that the model hits are those for which the store is not asked."""
    model = model_of("cache_model")
    remote, options = files_of(48 * MIB), Cache(str(tmp_path), max_bytes=LEAST + 32 * 8)
    order = stripes(remote)
    orders = list(model.epochs(len(order), 4, shuffled, 2))
    expected = model.simulate("noevict", orders, LEAST // STRIPE)
    for (hits, _, reads), numbers in zip(expected, orders, strict=True):
        before = len(remote.requests)
        epoch(remote, options, [order[number] for number in numbers])
        # The blocks of the last stripe that fit are kept, too: at most one stripe is there in part.
        assert reads - hits - 1 <= len(remote.requests) - before <= reads - hits + 1


# ------------------------------------------------------------------------------------------------- what may go


@given(
    used=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 9000)), max_size=30),
    since=st.dictionaries(st.integers(0, 9), st.floats(0, 9000)),
    wanted=st.integers(0, 40),
    needed=st.integers(0, 40),
)
def test_only_what_is_of_no_use_goes_and_the_oldest_first(
    used: list[tuple[int, float]], since: dict[int, float], wanted: int, needed: int
) -> None:
    blocks = [BlockFile(at, 1, str(i), str(file)) for i, (file, at) in enumerate(used)]
    going = leaving(blocks, wanted, needed, {str(file): at for file, at in since.items()}, 9000.0)
    useless = [i for i, (file, at) in enumerate(used) if at < since.get(file, 9000 - HOUR)]
    of_use = [i for i in range(len(used)) if i not in useless]
    first = sorted(useless, key=lambda i: used[i][1])[: max(wanted, needed)]
    then = sorted(of_use, key=lambda i: used[i][1])[: max(needed - len(first), 0)]
    assert [int(block.path) for block in going] == first + then


def test_of_a_time_in_the_future_nothing_is_known() -> None:
    blocks = [BlockFile(1000.0, 1, "old", "f"), BlockFile(10_000.0, 1, "future", "f"), BlockFile(4990.0, 1, "new", "f")]
    assert [block.path for block in leaving(blocks, 9, 0, {}, 5000.0)] == ["future", "old"]


def look_again(options: Cache) -> None:
    """Let the time until the next look for what may go be over."""
    count = Path(options.folder, "count")
    total, counted, _ = block_store._COUNT.unpack(count.read_bytes())
    count.write_bytes(block_store._COUNT.pack(total, counted, 0.0))


def age(options: Cache, seconds: float) -> None:
    """Let the last use of all blocks be so long ago."""
    for path in block_files(options):
        os.utime(path, (time.time() - seconds,) * 2)
    look_again(options)


def full(tmp_path: Path) -> tuple[Remote, Cache]:
    """A full cache of file a, and a file b of the same size."""
    remote, options = Remote(a=content(LEAST), b=content(LEAST, 1)), Cache(str(tmp_path), max_bytes=LEAST)
    remote.read(options)
    return remote, options


def test_what_a_running_loader_reads_stays_however_long_its_epochs_are(tmp_path: Path) -> None:
    remote, options = full(tmp_path)
    kept, plan = block_files(options), plan_of(remote, options, ["a"])
    plan.begin()
    age(options, 5 * HOUR)
    remote.read(options, "b")
    assert block_files(options) == kept
    plan.close()
    look_again(options)
    remote.read(options, "b")
    assert not set(block_files(options)) & set(kept)


def test_what_was_used_within_the_hour_stays_and_a_hit_is_a_use(tmp_path: Path) -> None:
    remote, options = full(tmp_path)
    kept = block_files(options)
    age(options, 5 * HOUR)
    with remote.open(options) as file:
        file.read(4 * MIB)
    fresh = [path for path in kept if time.time() - path.stat().st_mtime < 100]
    assert len(fresh) == 8
    remote.read(options, "b")
    assert set(block_files(options)) & set(kept) == set(fresh)


def test_other_columns_of_the_same_files_go_after_some_passes(tmp_path: Path) -> None:
    remote = Remote(a=content(2 * LEAST))
    options = Cache(str(tmp_path), max_bytes=LEAST)
    with remote.open(options) as file:
        file.read(LEAST)
    kept, plan = block_files(options), plan_of(remote, options)
    age(options, 1000.0)
    for _ in range(PASSES + 1):
        assert block_files(options) == kept
        plan.begin()
        look_again(options)
        with remote.open(options) as file:
            file.seek(LEAST)
            file.read(LEAST)
        plan.complete()
    assert not set(block_files(options)) & set(kept)


def test_passes_of_seconds_do_not_let_go_what_they_use(tmp_path: Path) -> None:
    """Uses within a minute count as one, so the time of the last may lie before the last passes."""
    remote, options = full(tmp_path)
    kept, plan = block_files(options), plan_of(remote, options)
    age(options, 50.0)
    for _ in range(2 * PASSES):
        plan.begin()
        look_again(options)
        remote.read(options, "a")
        remote.read(options, "b")
        plan.complete()
    assert block_files(options) == kept


def hold_a_plan(folder: str, begun: Any) -> None:
    plan = CachePlan(folder, ["ab" * 16], PASSES, lambda work: work())
    plan.begin()
    begun.set()
    time.sleep(600)


def test_a_plan_counts_as_long_as_its_process_lives(tmp_path: Path) -> None:
    begun = FORKED.Event()
    process = FORKED.Process(target=hold_a_plan, args=(str(tmp_path), begun))
    process.start()
    assert begun.wait(60)
    assert kept_since(str(tmp_path)) == {"ab" * 16: 0.0}
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert kept_since(str(tmp_path)) == {}
    assert list(tmp_path.iterdir()) == []


def test_plans_that_nobody_made_harm_nothing(tmp_path: Path) -> None:
    for name, data in (("plan-" + "0" * 32, b"x"), ("plan-" + "1" * 32, b"\xff" * 999), ("plan-notes", b"x")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / ("plan-" + "2" * 32)).mkdir()
    (tmp_path / ("plan-" + "3" * 32)).symlink_to(tmp_path / "plan-notes")
    assert kept_since(str(tmp_path)) == {}
    assert (tmp_path / "plan-notes").exists()


def test_a_full_folder_is_not_looked_through_for_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, options = full(tmp_path)
    looks: list[str] = []
    real = block_store._block_files

    def counted(folder: str) -> Iterator[BlockFile]:
        looks.append(folder)
        return real(folder)

    monkeypatch.setattr(block_store, "_block_files", counted)
    for _ in range(2):
        epoch(remote, options, [("b", at) for at in range(0, LEAST, STRIPE)])
        forget()  # nor by another process
    assert len(looks) <= 1


# ----------------------------------------------------------------------------------------------- claims and requests


def test_one_of_those_that_read_a_block_at_once_keeps_it(tmp_path: Path) -> None:
    one, other = (BlockStore(str(tmp_path), LEAST) for _ in range(2))
    key = f"{'ab' * 16}-0"
    assert one.claim([(key, 4)]) == {key}
    assert other.claim([(key, 4)]) == set()
    one.release(key)
    assert other.claim([(key, 4)]) == {key}
    other.fill(key, memoryview(b"data"))
    assert one.claim([(key, 4)]) == set()
    into = bytearray(4)
    assert one.read(key, memoryview(into))
    assert into == b"data"


def test_a_claim_of_a_killed_process_is_taken_over_in_time(tmp_path: Path) -> None:
    store, key = BlockStore(str(tmp_path), LEAST), f"{'ab' * 16}-0"
    store.claim([(key, 4)])
    [left] = Path(tmp_path, "ab").iterdir()
    os.utime(left, (time.time() - 700,) * 2)
    put(store, key, b"data")
    assert [path.name for path in Path(tmp_path, "ab").iterdir()] == [f"{key}.block"]


def test_nothing_is_left_claimed_when_the_store_fails(tmp_path: Path) -> None:
    remote, options = Remote(a=content(MIB)), Cache(str(tmp_path), max_bytes=LEAST)

    def fail(*_: Any) -> list[bytes]:
        raise KeyboardInterrupt

    ranges = CachedRanges("memory", info_of(remote, "a"), fail, lambda: None, options)
    with pytest.raises(KeyboardInterrupt):
        ranges.fetch([(0, MIB)])
    assert block_files(options) == []


SIZE = 48 * MIB
DATA = bytes(SIZE)


class SomeBlocks:
    """In place of a folder: holds some blocks, has room for some more."""

    def __init__(self, held: set[int], room: int) -> None:
        self.held, self.room, self.filled = held, room, set[int]()

    def read(self, key: str, into: memoryview) -> bool:
        return int(key.rpartition("-")[2]) in self.held

    def claim(self, blocks: Sequence[tuple[str, int]]) -> set[str]:
        return {key for key, _ in blocks[: self.room]}

    def fill(self, key: str, block: memoryview) -> None:
        self.filled.add(int(key.rpartition("-")[2]))


SPANS = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.sampled_from([1, 1000, 200_000, MIB, 5 * MIB, 20 * MIB])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(spans=SPANS, room=st.sampled_from([0, 1, 3, 20, 1000]), held=st.sets(st.integers(0, 96), max_size=20))
def test_requests_are_those_without_a_cache_or_fewer_bytes(
    spans: list[tuple[int, int]], room: int, held: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = [(start, min(start + size, SIZE)) for start, size in spans]
    asked: dict[bool, list[tuple[int, int]]] = {}
    options = Cache(str(tmp_path_factory.getbasetemp()), max_bytes=LEAST)
    for holds in (False, True):
        made: list[tuple[int, int]] = []

        def fetch(ranges: Sequence[tuple[int, int]], made: list[tuple[int, int]] = made) -> list[memoryview]:
            made += ranges
            return [memoryview(DATA)[start:stop] for start, stop in ranges]

        cached = CachedRanges("memory", DataFileInfo("a", SIZE, version="v"), fetch, lambda: None, options)
        cached._store = SomeBlocks(held if holds else set(), room)  # type: ignore[assignment]
        RangeFile("a", SIZE, cached.fetch, lambda: None, gap=0).prefetch(wanted)
        asked[holds] = made
    plain: list[tuple[int, int]] = []
    RangeFile("a", SIZE, lambda r: [plain.append(x) or DATA[x[0] : x[1]] for x in r], lambda: None).prefetch(wanted)  # type: ignore[func-returns-value]
    assert len(asked[False]) <= len(plain)
    if room == 0:
        assert asked[False] == plain
    touched = {byte for start, stop in wanted for byte in range(start, stop, 100_000)}
    edges = block_edges(SIZE)
    for start, stop in asked[True]:  # nothing of the blocks that are there, if a hole borders on it
        inside = [n for n in held if edges[n] >= start and edges[n + 1] <= stop]
        assert not [n for n in inside if any(edges[n] <= byte < edges[n + 1] for byte in touched)]
    assert sum(b - a for a, b in asked[False]) <= sum(b - a for a, b in plain) + 2 * cache.BLOCK * len(plain)
