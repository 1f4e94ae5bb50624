"""A file that goes, shrinks or changes after it was planned is an error that names it; never other rows, or fewer."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.servers import Store
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileChangedError, FileReadError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import find_files
from torch_dataloader_utils.storage import Storage, confirm_unchanged, open_storage
from torch_dataloader_utils.storage.versions import StoredFacts, check_unchanged, facts_of

FIRST, OTHER = b"first content", b"other content"  # of one length


class Place:
    """A store to write to, and a file in it."""

    def __init__(self, url: str, filesystem: Any, options: dict[str, Any]) -> None:
        self.filesystem, self.options, self.url = filesystem, options, url

    def write(self, data: bytes) -> None:
        self.filesystem.pipe(self.url, data)

    def remove(self) -> None:
        self.filesystem.rm(self.url)

    def opened(self) -> tuple[Storage, DataFileInfo]:
        """The storage, and the file as a listing of its folder tells of it."""
        storage, folder = open_storage(self.url.rpartition("/")[0], self.options)
        [stored] = storage.find(folder)
        return storage, DataFileInfo(stored.path, stored.size, version=stored.version)


@pytest.fixture(params=["local", "memory", "moto_s3", "fake_gcs", "azurite", "http_server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    import fsspec

    if request.param == "local":
        return Place(str(tmp_path / "x"), fsspec.filesystem("file", auto_mkdir=True), {})
    if request.param == "memory":
        return Place(f"memory:/{tmp_path}/x", fsspec.filesystem("memory"), {})
    store: Store = request.getfixturevalue(request.param)
    name = f"changed{tmp_path}/x"
    if store.folder is None:
        return Place(store.url(name), store.filesystem, dict(store.storage_options))
    (store.folder / name).parent.mkdir(parents=True)
    served = Place(store.url(name), fsspec.filesystem("file"), {})
    served.write = lambda data: (store.folder / name).write_bytes(data)  # type: ignore[method-assign]
    served.remove = lambda: (store.folder / name).unlink()  # type: ignore[method-assign]

    def opened() -> tuple[Storage, DataFileInfo]:
        storage, path = open_storage(served.url)
        stored = storage.look(path)  # its listings have no sizes
        assert stored is not None
        return storage, DataFileInfo(path, stored.size, version=stored.version)

    served.opened = opened  # type: ignore[method-assign]
    return served


def read_and_confirm(storage: Storage, file: DataFileInfo) -> bytes:
    with storage.open_data(file) as source:
        data: bytes = source.read()
        confirm_unchanged(source)
    return data


def test_a_file_that_has_not_changed_is_read(place: Place) -> None:
    place.write(FIRST)
    storage, file = place.opened()
    assert file.version
    for open_file in (storage.open_data, storage.open_footer):
        with open_file(file) as source:
            assert source.read() == FIRST
            confirm_unchanged(source)


@pytest.mark.parametrize("data", [OTHER, FIRST[:-1], FIRST + b"more"])
def test_a_file_that_was_overwritten_is_not_read(place: Place, data: bytes) -> None:
    place.write(FIRST)
    storage, file = place.opened()
    place.write(data)
    if storage.local:
        os.utime(file.path, ns=(0, 10**18))
    with pytest.raises(FileChangedError, match=r"/x has changed since it was planned: it was .* and is now") as caught:
        read_and_confirm(storage, file)
    assert file.path in str(caught.value)
    assert isinstance(caught.value, FileReadError)


def test_a_file_that_has_gone_is_named(place: Place) -> None:
    place.write(FIRST)
    storage, file = place.opened()
    place.remove()
    with pytest.raises(FileReadError, match=r"/x has disappeared since it was planned") as caught:
        read_and_confirm(storage, file)
    assert file.path in str(caught.value)


@pytest.mark.parametrize("left", [10, 100_000])  # less than what is read first of a footer, and more
def test_a_file_that_was_cut_before_its_footer_was_read_has_changed(place: Place, left: int) -> None:
    place.write(FIRST * 20_000)
    storage, file = place.opened()
    place.write((FIRST * 20_000)[:left])
    for name in ("parquet", "orc"):
        with (
            recording() as noted,
            pytest.raises(FileChangedError, match=f"was 260000 bytes and is now {left} bytes") as caught,
        ):
            format_named(name).layout(file, storage, {})
        assert caught.value.size == left
        assert file.path in str(caught.value)
        assert noted.work().retries == 0


def test_a_file_that_is_cut_while_it_is_open_is_named(place: Place) -> None:
    place.write(FIRST * 1000)
    storage, file = place.opened()
    with storage.open_data(file) as source:
        place.write(FIRST)
        if storage.local:
            assert source.read_at(100, 5000) == b""  # the decoder notices, and `Naming` names
        else:
            with pytest.raises(FileChangedError, match=r"/x has changed since it was planned"):
                source.read_at(100, 5000)


def test_a_format_names_a_local_file_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(100_000)}), path, row_group_size=10_000)
    storage, [stored] = find_files(path, ReadOptions())
    file = DataFileInfo(stored.path, stored.size, version=stored.version)
    form = format_named("parquet")
    layout, schema = form.layout(file, storage, {})
    reader = form.open(file, layout, storage, {}, schema)
    os.truncate(path, stored.size // 2)
    with pytest.raises(FileReadError, match=f"{path}, row group 9, column x"):
        reader.read([9], ["x"])


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 100), lambda path: path.unlink()])
def test_a_pass_ends_by_the_name_of_the_file(change: Callable[[Path], None], tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"x": [number] * 100}), tmp_path / f"{number}.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=10)
    change(tmp_path / "1.parquet")
    with pytest.raises(FileChangedError, match=r"1\.parquet has (changed|disappeared) since it was planned"):
        list(loader)


# --------------------------------------------------------------------------------------------------- what clients say


@pytest.mark.parametrize(
    ("info", "facts"),
    [
        ({"ETag": '"abc"', "size": 5}, StoredFacts(5, "abc")),
        ({b"etag": b'W/"abc"', b"Content-Length": b"5"}, StoredFacts(5, "abc")),
        ({"etag": "1", "mtime": datetime(2026, 1, 1, tzinfo=UTC)}, StoredFacts(None, "1", 1767225600 * 10**9)),
        ({"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, StoredFacts(mtime=1767225600 * 10**9)),
        ({"updated": "2026-01-01T00:00:00.25Z"}, StoredFacts(mtime=1767225600 * 10**9 + 25 * 10**7)),
        ({"mtime": datetime(2026, 1, 1)}, StoredFacts(mtime=1767225600 * 10**9)),
        ({"mtime": 1767225600.000001}, StoredFacts(mtime=1767225600 * 10**9 + 1000)),
        ({"mtime": "never", "etag": ""}, StoredFacts()),
    ],
)
def test_what_clients_report_is_understood(info: dict[Any, Any], facts: StoredFacts) -> None:
    assert facts_of(info) == facts


def test_only_what_both_sides_know_is_compared() -> None:
    def differs(version: str, now: StoredFacts, size: int = 0) -> bool:
        try:
            check_unchanged(DataFileInfo("x", size, version=version), now)
        except FileChangedError:
            return True
        return False

    assert not differs("etag:1", StoredFacts(5, None, 10**18), 5)
    assert not differs("", StoredFacts(5, "1", 1), 5)
    assert not differs("etag:1", StoredFacts(None, "1"), 5)
    assert differs("etag:1", StoredFacts(5, "2"), 5)
    assert differs("etag:1", StoredFacts(6, "1"), 5)
    assert differs("mtime:1000000001", StoredFacts(5, "1", 1000000002))
    assert not differs("mtime:1000000001", StoredFacts(5, "1", 1000000000))  # a header tells whole seconds
    assert differs("mtime:1000000001", StoredFacts(5, "1", 2000000000))
