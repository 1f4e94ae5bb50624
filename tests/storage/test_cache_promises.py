"""What the cache promises about its folder: planted files are data at most, and it stays inside."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.cache_helpers import MIB, Remote, block_files, content, forget, warnings_of
from tests.storage.servers import Store
from tests.storage.test_cache_failures import holder  # noqa: F401 (a fixture)
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import block_store
from torch_dataloader_utils.storage.cache import prepared


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


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def test_planted_pickles_are_not_executed(options: Cache, tmp_path: Path) -> None:
    remote, made = Remote(a=content(2 * MIB)), tmp_path / "executed"
    remote.read(options)
    harm = pickle.dumps(Planted(str(made)))
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(Planted(str(tmp_path / "no" / "folder"))))  # it would be
    names = ["count", "cache.db", "meta.json", "index.pkl", "00/x.block"]
    for path in [*block_files(options), *(Path(options.folder) / name for name in names)]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(harm)
    forget()
    for _ in range(2):
        assert remote.read(options) == remote.files["a"]
    assert not made.exists()


def test_the_cache_imports_nothing_that_executes_what_it_reads() -> None:
    assert block_store.__file__ is not None
    nodes = ast.walk(ast.parse(Path(block_store.__file__).read_text()))
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "sqlite3", "diskcache"}


def sealed(path: Path, data: bytes) -> bytes:
    """A block's file with other bytes, and a checksum that fits them."""
    return data + block_store.seal_of(path.stem, memoryview(data))


def behind_a_link(path: Path, outside: Path) -> None:
    (outside / "block").write_bytes(sealed(path, b"x" * (path.stat().st_size - 8)))
    path.unlink()
    path.symlink_to(outside / "block")


def behind_a_linked_folder(path: Path, outside: Path) -> None:
    (outside / path.name).write_bytes(sealed(path, b"x" * (path.stat().st_size - 8)))
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to(outside)


def a_pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("plant", [behind_a_link, behind_a_linked_folder, a_pipe, a_folder])
def test_what_is_planted_for_a_block_is_not_read(
    plant: Callable[[Path, Path], None], options: Cache, tmp_path: Path
) -> None:
    remote, outside = Remote(a=b"a" * 1000), tmp_path / "outside"
    remote.read(options)
    outside.mkdir()
    [path] = block_files(options)
    plant(path, outside)
    before = {file: file.read_bytes() for file in outside.iterdir()}
    results: list[bytes] = []
    reader = threading.Thread(target=lambda: results.append(remote.read(options)), daemon=True)
    reader.start()
    reader.join(60)
    assert results == [remote.files["a"]]
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


NAMES = ("..", "../../x", "/etc/x", "a/../../b", "~", "count", "ab", "\0", "x\n", "a.block")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(NAMES) | st.text())
def test_no_name_of_an_object_leads_out_of_the_folder(name: str, options: Cache, tmp_path: Path) -> None:
    remote = Remote(**{name: b"a" * 100})
    assert remote.read(options, name) == b"a" * 100
    assert list(tmp_path.iterdir()) == [Path(options.folder)]
    for path in Path(options.folder).iterdir():
        assert path.name == "count" or len(path.name) == 2
        assert path.stat().st_mode & 0o077 == 0


def test_a_peer_that_is_stopped_with_the_lock_costs_seconds_and_no_row(
    holder: Any,  # noqa: F811
    moto_s3: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.kill(holder.pid, signal.SIGSTOP)
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"id": range(number * 100, number * 100 + 100)}), data / f"{number}.parquet")
    moto_s3.put(data, "stopped")
    began = time.monotonic()
    loader, _ = StructuredDataset.create_dataloader(
        moto_s3.url("stopped"),
        storage_options=moto_s3.storage_options,
        cache=tmp_path,
        batch_size=100,
        num_workers=2,
        num_ranks=1,
        rank=0,
    )
    for _ in range(2):
        assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(400))
    assert time.monotonic() - began < 6 * block_store._BUSY
    [message] = [message for message in warnings_of(caplog) if "cache" in message]
    assert "another process has held" in message
    assert "Reading continues from the store" in message


def test_pauses_grow_while_the_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(block_store.time, "monotonic", lambda: now[0])
    store = block_store.BlockStore(str(tmp_path), 1 << 24)
    tries: list[float] = []

    def fail() -> None:
        tries.append(now[0] - 1000)
        raise OSError("full")

    while now[0] < 20_000:
        store.attempt(fail)
        now[0] += 10
    assert tries[:4] == [0, 30, 90, 210]
    assert max(later - sooner for sooner, later in pairwise(tries)) == 3600
    now[0] += 3600
    store.attempt(lambda: None)
    assert store._pause == 30
