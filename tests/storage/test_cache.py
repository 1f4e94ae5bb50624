"""The local cache of remote byte ranges: right bytes, few requests, no more than its size."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.cache_helpers import (
    LEAST,
    MIB,
    Remote,
    block_files,
    content,
    forget,
    open_cached,
    put,
    stored_bytes,
    warnings_of,
)
from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import block_store, cache
from torch_dataloader_utils.storage.cache import can_cache, prepared

PACK = block_store._COUNT.pack


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def options(tmp_path: Path) -> Cache:
    checked = prepared(Cache(tmp_path / "cache", max_bytes="64MiB"))
    assert checked is not None
    return checked


# ------------------------------------------------------------------------------------------------------ reading


@given(size=st.integers(1, 5_000_000))
def test_blocks_tile_the_file_and_its_end_is_one_of_them(size: int) -> None:
    edges = cache.block_edges(size)
    assert edges[0] == 0
    assert edges[-1] == size
    lengths = np.diff(edges)
    assert (lengths > 0).all()
    assert (lengths <= cache.BLOCK).all()
    assert len(edges) == 2 or size - edges[-2] == cache.FOOTER


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    """A file's size, and what is done with it: (seek-and-read or prefetch, start, stop)."""
    size = draw(st.integers(1, 700))
    span = st.tuples(st.integers(0, size), st.integers(0, size + 10)).map(sorted)
    steps = st.lists(st.tuples(st.sampled_from(["read", "prefetch"]), span), max_size=12)
    return size, [(what, start, stop) for what, (start, stop) in draw(steps)]


@given(script=scripts())
def test_any_reads_give_the_files_bytes_and_ask_for_each_once(
    script: tuple[int, list[tuple[str, int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    size, steps = script
    options = Cache(str(tmp_path_factory.mktemp("cache")), max_bytes=LEAST)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCK", 64), ("FOOTER", 16), ("REQUEST", 150)):
            patch.setattr(cache, name, value)
        remote = Remote(a=content(size))
        for _ in range(2):  # the second time as another process
            with remote.open(options) as file:
                assert file.size() == size
                for what, start, stop in steps:
                    if what == "prefetch":
                        file.prefetch([(start, min(stop, size))])
                    else:
                        file.seek(start)
                        assert file.read(stop - start) == remote.files["a"][start:stop]
            forget()
        fetched = [byte for _, start, stop in remote.requests for byte in range(start, stop)]
        assert len(fetched) == len(set(fetched))
        assert all(0 < stop - start <= 150 for _, start, stop in remote.requests)
        touched = {n for _, start, stop in steps for n in range(start, min(stop, size))}
        assert touched <= set(fetched)


def wide_parquet(columns: int = 12, rows: int = 400_000, groups: int = 2) -> bytes:
    rng = np.random.default_rng(1)
    table = pa.table({f"c{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(columns)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows // groups, use_dictionary=False, compression="none")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_columns_that_are_not_read_are_not_fetched(options: Cache) -> None:
    remote = Remote(a=wide_parquet())
    names = ["c2", "c9"]
    expected = pq.read_table(pa.BufferReader(remote.files["a"]), columns=names)
    for _ in range(2):
        with remote.open(options) as source:
            assert pq.ParquetFile(source, pre_buffer=True).read(names) == expected
        forget()
    chunk = 200_000 * 4
    # Each of the four column chunks with the rest of its two outer blocks, and the footer.
    assert remote.fetched <= 4 * (chunk + 2 * cache.BLOCK) + 2 * cache.FOOTER
    assert len(remote.requests) <= 4 + 1


def test_a_footer_costs_one_small_request(options: Cache) -> None:
    remote = Remote(a=wide_parquet())
    with remote.open(options) as source:
        assert pq.ParquetFile(source).metadata.num_row_groups == 2
    assert remote.fetched == cache.FOOTER
    assert len(remote.requests) == 1


def test_prefetch_asks_for_all_runs_in_one_call_and_reads_then_ask_for_nothing(options: Cache) -> None:
    remote = Remote(a=content(40 * MIB))
    with remote.open(options) as file:
        file.prefetch([(MIB, 2 * MIB), (2 * MIB, 3 * MIB), (10 * MIB, 30 * MIB)])
        assert remote.calls == 1
        assert remote.requests == [("a", MIB, 3 * MIB), ("a", 10 * MIB, 20 * MIB), ("a", 20 * MIB, 30 * MIB)]
        for at in range(10 * MIB, 30 * MIB, MIB):
            assert file.read_at(MIB, at) == remote.files["a"][at : at + MIB]
        assert remote.calls == 1
        file.prefetch([(MIB, 3 * MIB)])
        assert remote.calls == 1


def test_reading_on_fetches_ahead_and_reading_about_does_not(options: Cache) -> None:
    remote = Remote(a=content(40 * MIB))
    with remote.open(options) as file:
        for at in (30 * MIB, 20 * MIB, 10 * MIB):
            assert file.read_at(MIB, at) == remote.files["a"][at : at + MIB]
        assert remote.fetched == 3 * MIB
        file.seek(0)
        assert all(file.read(MIB) == remote.files["a"][at : at + MIB] for at in range(0, 40 * MIB, MIB))
    assert remote.fetched == 40 * MIB
    assert len(remote.requests) <= 20


def test_what_was_fetched_ahead_is_there_even_if_nothing_can_be_kept(options: Cache) -> None:
    remote = Remote(a=content(30 * MIB))
    small = Cache(options.folder, max_bytes=LEAST)
    with remote.open(small) as file:
        file.prefetch([(0, 30 * MIB)])  # evicts its own first blocks
        assert file.read() == remote.files["a"]
    assert remote.fetched == 30 * MIB


def test_hits_and_misses_are_counted_in_blocks(options: Cache) -> None:
    remote = Remote(a=content(3 * cache.BLOCK + cache.FOOTER))
    for hits, misses in ((0, 4), (4, 0)):
        with recording() as noted:
            remote.read(options)
        work = noted.work()
        assert (work.cache_hits, work.cache_misses) == (hits, misses)


def test_errors_of_the_store_reach_the_reader_and_nothing_is_kept(options: Cache) -> None:
    remote = Remote(a=content(MIB))

    def fail(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        raise FileReadError("a: gone")

    def cut(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [data[:-1] for data in remote.read_ranges("a", ranges)]

    info = DataFileInfo("a", MIB, version="etag:1")
    with open_cached("memory", info, fail, options) as file, pytest.raises(FileReadError, match="a: gone"):
        file.read()
    with open_cached("memory", info, cut, options) as file, pytest.raises(FileReadError, match="the store sent"):
        file.read()
    assert block_files(options) == []


# ------------------------------------------------------------------------------------------ what a cached file is


def test_a_changed_object_never_gives_old_bytes(options: Cache) -> None:
    remote = Remote(a=content(MIB))
    old = remote.read(options, version="etag:1")
    remote.files["a"] = content(MIB, seed=1)
    assert remote.read(options, version="etag:2") == remote.files["a"] != old
    assert remote.read(options, version="etag:1") == old  # planned before the change, and kept


def test_other_stores_paths_and_sizes_are_other_files(options: Cache) -> None:
    files = [
        ("s3 http://a", "x", 1000),
        ("s3 http://b", "x", 1000),
        ("s3 http://a", "y", 1000),
        ("s3 http://a", "x", 999),
    ]
    for seed, (identity, path, size) in enumerate(files):
        remote = Remote(**{path: content(size, seed)})
        info = DataFileInfo(path, size, version="mtime:5")
        with open_cached(identity, info, partial(remote.read_ranges, path), options) as file:
            assert file.read() == remote.files[path]


def test_files_without_version_or_size_are_not_cached_and_one_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert can_cache("odd store 1", DataFileInfo("a", 5, version="etag:1"))
    assert warnings_of(caplog) == []
    for _ in range(2):
        assert not can_cache("odd store 1", DataFileInfo("a", 5))
        assert not can_cache("odd store 1", DataFileInfo("a", 0, version="etag:1"))
    [message] = warnings_of(caplog)
    assert "odd store 1" in message
    assert "without the cache" in message


def test_options_are_checked_at_construction(tmp_path: Path) -> None:
    checked = prepared(Cache(tmp_path / "new" / "cache"))
    assert checked == Cache(str(tmp_path / "new" / "cache"), max_bytes=10 << 30)
    assert pickle.loads(pickle.dumps(checked)) == checked
    assert list(Path(checked.folder).iterdir()) == []
    for value in (0, "1MiB", "many"):
        with pytest.raises(OptionError, match="max_bytes"):
            prepared(Cache(tmp_path, max_bytes=value))
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"cache=.*expected a writable folder"):
        prepared(Cache(tmp_path / "file" / "below"))


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    made = prepared(Cache(tmp_path / "made"))
    assert made is not None
    assert Path(made.folder).stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(OptionError, match=f"its mode is {mode:o}.*chmod 700"):
        prepared(Cache(tmp_path / "open"))
    (tmp_path / "open").chmod(0o755)
    assert prepared(Cache(tmp_path / "open")) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(OptionError, match="belongs to the user with the number 12345"):
        prepared(Cache(tmp_path / "theirs"))


def test_nothing_is_written_or_removed_behind_links_in_the_folder(
    options: Cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    store = block_store.BlockStore(options.folder, options.max_bytes)
    key = f"{'ab' * 16}-0"
    (outside / f"{key}.block").write_bytes(b"x" * 100)
    (Path(options.folder) / "ab").symlink_to(outside)
    put(store, f"{'ab' * 16}-1", b"data")
    block_store.BlockStore(options.folder, 0)  # evicts all
    assert [path.name for path in outside.iterdir()] == [f"{key}.block"]
    assert "is a link: remove it" in warnings_of(caplog)[0]
    (tmp_path / "victim").write_bytes(b"precious")
    (Path(options.folder) / "count").unlink()
    (Path(options.folder) / "count").symlink_to(tmp_path / "victim")
    put(block_store.BlockStore(options.folder, options.max_bytes), key, b"data")
    assert (tmp_path / "victim").read_bytes() == b"precious"


# --------------------------------------------------------------------------------------------- eviction and sizes


def test_the_size_cap_holds_and_evicted_blocks_are_fetched_again(tmp_path: Path) -> None:
    options = Cache(str(tmp_path), max_bytes=LEAST)
    remote = Remote(**{f"f{i}": content(5 * MIB, i) for i in range(8)})
    first = remote.open(options, "f0")
    first.prefetch([(0, 5 * MIB)])
    for path in remote.files:
        assert remote.read(options, path) == remote.files[path]
        assert stored_bytes(options) <= LEAST
    assert stored_bytes(options) > LEAST // 2
    first.prefetch([])  # from now on it knows only of blocks that others have evicted
    assert first.read() == remote.files["f0"]
    first.close()


def test_a_smaller_cap_shrinks_the_folder_when_it_is_next_opened(options: Cache) -> None:
    remote = Remote(a=content(40 * MIB), b=b"x")
    remote.read(options)
    assert stored_bytes(options) == 40 * MIB
    forget()
    remote.read(Cache(options.folder, max_bytes=LEAST), "b")
    assert stored_bytes(options) <= LEAST


def test_files_that_killed_writers_left_are_removed_and_no_others(options: Cache) -> None:
    remote = Remote(a=content(MIB))
    remote.read(options)
    forget()
    kept = block_files(options)
    left, young = (kept[0].with_name(kept[0].name.replace(".", f".{c}.", 1)) for c in "0f")
    stranger = kept[0].with_name("notes.txt")
    strange_block = kept[0].with_name("my own.block")
    for path in (left, young, stranger, strange_block):
        path.write_bytes(b"half a block")
    old = time.time() - 7200
    for path in (*kept, left, stranger, strange_block):
        os.utime(path, (old, old))
    counted = Path(options.folder, "count")
    total, *_ = block_store._COUNT.unpack(counted.read_bytes())
    counted.write_bytes(block_store._COUNT.pack(total, old, 0.0))
    assert remote.read(options) == remote.files["a"]
    assert set(kept[0].parent.iterdir()) == {*kept, young, stranger, strange_block}


@pytest.mark.parametrize("harm", [b"", b"no count" * 500, PACK(0, 0.0, 0.0), PACK(-1, math.nan, math.nan)])
def test_a_damaged_count_is_made_anew(harm: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = Cache(str(tmp_path), max_bytes=LEAST)
    remote = Remote(**{f"f{i}": content(5 * MIB, i) for i in range(8)})
    for path in remote.files:
        assert remote.read(options, path) == remote.files[path]
        Path(tmp_path, "count").write_bytes(harm)
        assert stored_bytes(options) <= LEAST
    assert warnings_of(caplog) == []


def test_blocks_of_the_caches_before_are_evicted(options: Cache) -> None:
    """They were named by a random word, too."""
    before = Path(options.folder, "ab", f"{'ab' * 16}-7.{'0f' * 8}.block")
    before.parent.mkdir(parents=True)
    before.write_bytes(content(MIB))
    os.utime(before, (0, 0))
    remote = Remote(a=content(MIB))
    assert remote.read(options) == remote.files["a"]
    assert not before.exists()


def test_keys_are_digests_that_show_nothing(options: Cache) -> None:
    remote = Remote(a=content(MIB))
    remote.read(options)
    identity = repr((2, cache.BLOCK, cache.FOOTER, "memory", "a", "etag:1", MIB))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    assert {path.name.partition("-")[0] for path in block_files(options)} == {digest}
