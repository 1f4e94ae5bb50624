import multiprocessing
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from torch_dataloader_utils.errors import FileReadError, MissingExtraError, OptionError
from torch_dataloader_utils.storage import Storage, open_storage


def test_local_paths_are_opened_straight_from_the_disk(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    for filesystem in (None, fsspec.filesystem("file"), pafs.LocalFileSystem()):
        storage, path = open_storage(tmp_path / "x", None, filesystem)
        assert storage.local
        assert path == f"{tmp_path}/x"
        with storage.open(path) as file:
            assert file.read() == b"hello"


@pytest.mark.parametrize(
    ("filesystem", "url"),
    [
        (None, "memory://s/x"),
        (fsspec.filesystem("memory"), "memory://s/x"),
        (fsspec.filesystem("memory"), "/s/x"),
        (pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory"))), "/s/x"),
    ],
)
def test_other_storages_are_read_through_their_filesystem(filesystem: Any, url: str) -> None:
    fsspec.filesystem("memory").pipe("/s/x", b"hello")
    storage, path = open_storage(url, None, filesystem)
    assert not storage.local
    assert storage.look(path).size == 5
    assert storage.find("/s") == [("/s/x", 5)]
    with storage.open(path) as file:
        assert file.read(2) == b"he"


def test_a_pyarrow_subtree_is_respected(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"hello")
    tree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    storage, path = open_storage("d/x", None, tree)
    assert not storage.local
    with storage.open(path) as file:
        assert file.read() == b"hello"


class Chosen(MemoryFileSystem):
    """A filesystem that tells which process made it."""

    protocol = "chosen"
    cachable = False

    def __init__(self, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.token = token
        self.pid = os.getpid()


fsspec.register_implementation("chosen", Chosen, clobber=True)


def handler_pid(storage: Storage) -> int:
    return storage.connect().handler.fs.pid  # type: ignore[no-any-return]


def test_connections_are_made_once_per_process_and_never_travel() -> None:
    storage, _ = open_storage("chosen://a", {"token": "t0p-s3cret"})
    assert storage.connect() is storage.connect()
    assert storage.connect().handler.fs.token == "t0p-s3cret"
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert open_storage("chosen://a", {"token": "other"})[0] != storage


def _report(storage: Storage, queue: Any) -> None:
    queue.put((handler_pid(storage), os.getpid()))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("given", [False, True])
def test_a_forked_child_makes_its_own_connection(given: bool) -> None:
    filesystem = Chosen(token="x") if given else None
    storage, _ = open_storage("chosen://a", None, filesystem)
    assert handler_pid(storage) == os.getpid()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_report, args=(storage, queue))
    child.start()
    made_in, pid = queue.get()
    child.join()
    assert made_in == pid != os.getpid()


def test_secrets_are_in_no_repr() -> None:
    options = {"token": "t0p-s3cret"}
    assert "s3cret" not in repr(open_storage("chosen://a", options))
    assert "s3cret" not in repr(open_storage("chosen://a", None, Chosen(**options)))


@pytest.mark.parametrize(("url", "extra"), [("s3://b/x", "s3"), ("gs://b/x", "gcs"), ("abfs://c@h/x", "azure")])
def test_a_missing_client_names_the_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    for protocol in ("s3", "gs", "abfs"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(MissingExtraError, match=rf"torch-dataloader-utils\[{extra}\]"):
        open_storage(url)


def test_unknown_protocols_and_filesystems_are_refused() -> None:
    with pytest.raises(OptionError, match="nope:// is no protocol known here"):
        open_storage("nope://b/x")
    with pytest.raises(OptionError, match="filesystem=str: expected an fsspec or a pyarrow filesystem"):
        open_storage("x", None, "s3")


def test_errors_name_the_path_without_a_signed_urls_query() -> None:
    class Broken(MemoryFileSystem):  # type: ignore[misc]
        def info(self, path: str, **kwargs: Any) -> Any:
            raise PermissionError("denied")

    storage = Storage("http", filesystem=Broken())
    with pytest.raises(FileReadError, match=r"^http://h/x: cannot be read: PermissionError: denied$"):
        storage.look("http://h/x?signature=s3cret")
