import multiprocessing
import os
import pickle
import sys
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from torch_dataloader_utils.errors import DataNotFoundError, FileReadError, MissingExtraError, OptionError
from torch_dataloader_utils.redaction import printable, redact_errors
from torch_dataloader_utils.storage import Storage, Stored, open_storage


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
    stored = storage.look(path)
    assert stored is not None
    assert stored.size == 5
    assert storage.find("/s") == [stored]
    assert storage.look("/s/y") is None
    assert storage.look("/s") == Stored("/s", folder=True)
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
    return storage.client().fs.pid  # type: ignore[no-any-return]


def test_connections_are_made_once_per_process_and_never_travel() -> None:
    storage, _ = open_storage("chosen://a", {"token": "t0p-s3cret"})
    assert storage.client() is storage.client()
    assert storage.client().fs.token == "t0p-s3cret"
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


def test_threads_that_begin_together_share_one_connection() -> None:
    storage, _ = open_storage("chosen://b", {"token": "x"})
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda _: storage.client(), range(64)))
    assert len(set(map(id, clients))) == 1


def test_files_in_memory_are_of_one_process() -> None:
    assert open_storage("memory://x")[0].per_process
    assert open_storage("x", None, fsspec.filesystem("memory"))[0].per_process
    with fsspec.open("memory://a.zip", "wb") as file, zipfile.ZipFile(file, "w"):
        pass
    assert open_storage("zip://x::memory://a.zip")[0].per_process
    assert not open_storage("/x")[0].per_process
    assert not open_storage("http://host/x")[0].per_process


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3://b/x", "s3"), ("gs://b/x", "gcs"), ("abfs://c@h/x", "azure"), ("https://h/x", "http")],
)
def test_a_missing_client_names_the_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("s3fs", "gcsfs", "adlfs", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, module, None)
    for protocol in ("s3", "gs", "abfs", "https"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(MissingExtraError, match=rf"torch-dataloader-utils\[{extra}\]"):
        open_storage(url)


def test_unknown_protocols_and_filesystems_are_refused() -> None:
    with pytest.raises(OptionError, match="nope:// is an unknown protocol"):
        open_storage("nope://b/x")
    with pytest.raises(OptionError, match="filesystem=str: expected an fsspec or a pyarrow filesystem"):
        open_storage("x", None, "s3")


def test_errors_name_the_path_without_a_signed_urls_query() -> None:
    class Broken(MemoryFileSystem):  # type: ignore[misc]
        def info(self, path: str, **kwargs: Any) -> Any:
            raise PermissionError(f"denied: {path} and {secret}")

    signed, secret = (f"http://{word}" for word in ("h/x?signature=s3cret", "me:s3cret@h/x"))
    storage = Storage("http", filesystem=Broken())
    with pytest.raises(FileReadError) as caught:
        redact_errors(storage.look)(signed)
    expected = "http://h/x: cannot be read: PermissionError: denied: http://h/x and http://h/x"
    assert str(caught.value) == expected
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:s3cret@bucket/x",
        "s3://AKIA:s3/cret+s3cret@bucket/x",
        "simplecache::s3://AKIA:s3cret@bucket/x",
        "memory://me:s3cret@bucket/x",
    ],
)
def test_a_password_that_would_become_a_part_of_the_path_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(OptionError, match=r"bucket/x was given with a password, but .* storage_options=") as caught:
        open_storage(url)
    assert "3cret" not in "".join(traceback.format_exception(caught.value))


def test_a_given_filesystem_gets_no_password_as_a_part_of_the_path() -> None:
    with pytest.raises(OptionError, match="memory://bucket/x was given with a password"):
        open_storage("memory://me:s3cret@bucket/x", filesystem=MemoryFileSystem())


def test_a_password_that_its_client_takes_is_kept() -> None:
    pytest.importorskip("aiohttp")
    assert open_storage("http://me:s3cret@host/x")[1] == "http://me:s3cret@host/x"


def test_a_path_that_looks_like_a_password_is_a_path(tmp_path: Path) -> None:
    assert open_storage(tmp_path / "12:30@home")[1] == str(tmp_path / "12:30@home")
    assert open_storage("memory://folder/12:30@home")[1] == "/folder/12:30@home"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at s3://AKIA:s3/cret@b/x and http://:s3cret@h:80/x", "at s3://b/x and http://h:80/x"),
        ("http://host:8080/12:30@home", "http://host:8080/12:30@home"),
        ("abfss://container@account/x: no", "abfss://container@account/x: no"),
    ],
)
def test_passwords_of_urls_are_not_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_identity_tells_stores_apart_and_no_secret() -> None:
    options = {"key": "me", "secret": "s3cret", "client_kwargs": {"endpoint_url": "http://host:9000"}}
    assert open_storage("s3://b/x", options)[0].identity == "s3 http://host:9000"
    connection = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"
    azure = open_storage("az://c/x", {"connection_string": connection, "account_name": "me"})[0]
    assert azure.identity == "az me AccountName=me"
    assert open_storage("http://h/x")[0].identity == "http"


class Partial(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Lists by fsspec's own walk; one of its folders cannot be listed."""

    protocol = "partial"
    tree: ClassVar = {"d": ["d/closed", "d/open"], "d/open": ["d/open/x"]}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if path not in self.tree:
            raise PermissionError(f"{path}: denied")
        kinds = {name: "file" if name.endswith("x") else "directory" for name in self.tree[path]}
        return [{"name": name, "size": 1, "type": kind} for name, kind in kinds.items()] if detail else list(kinds)


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out() -> None:
    assert Partial().find("d") == ["d/open/x"]
    with pytest.raises(FileReadError, match="d: cannot be read: PermissionError: d/closed: denied"):
        Storage("partial", filesystem=Partial()).find("d")


def test_files_of_archives_are_read_by_chained_urls(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("d/x", bytes(range(256)) * 100)
    storage, path = open_storage(f"zip://d/x::file://{tmp_path}/a.zip")
    [stored] = storage.find("d")
    assert (stored.path, stored.size) == (path, 25600)
    with storage.open(path) as file:
        assert file.read_at(3, 300) == bytes([44, 45, 46])
    with pytest.raises(DataNotFoundError, match=r"gone.zip: there is no such archive"):
        open_storage(f"zip://d/x::file://{tmp_path}/gone.zip")
