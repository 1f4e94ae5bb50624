"""A file replaced by one of the same size while it is open: an error, and nothing of it under the old file's key."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from tests.storage.cache_helpers import block_files, forget
from tests.storage.servers import Store
from tests.storage.test_changed_files import Place, place  # noqa: F401 (a fixture)
from torch_dataloader_utils import Shuffle, StructuredDataset
from torch_dataloader_utils.errors import FileChangedError
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import confirm_unchanged, open_storage
from torch_dataloader_utils.storage.cache import prepared
from torch_dataloader_utils.storage.clients import Opened
from torch_dataloader_utils.storage.storage import _KEPT, OpenedFiles
from torch_dataloader_utils.storage.versions import StoredFacts

SIZE = 1_000_000
ROWS, GROUP = 280_000, 70_000  # a task has at most 65,536 rows of small row groups, or one row group


def test_two_ranges_of_an_open_file_are_of_one_version(place: Place) -> None:  # noqa: F811
    place.write(b"a" * SIZE)
    storage, file = place.opened()
    with storage.open_data(file) as source:
        assert source.read_at(1000, 0) == b"a" * 1000
        confirm_unchanged(source)
        place.write(b"b" * SIZE)
        if storage.local:
            os.utime(file.path, ns=(0, 10**18))
        assert source.read_at(1000, SIZE - 1000) == b"b" * 1000
        with pytest.raises(FileChangedError, match="/x has changed since it was planned"):
            confirm_unchanged(source)


def test_without_a_planned_version_it_is_that_of_the_opening(place: Place) -> None:  # noqa: F811
    place.write(b"a" * SIZE)
    storage, planned = place.opened()
    file = DataFileInfo(planned.path, 0)
    if storage.local:
        pytest.skip("local files have versions")
    with storage.open_data(file) as source:
        place.write(b"b" * SIZE)
        source.read_at(1000, 0)
        with pytest.raises(FileChangedError):
            confirm_unchanged(source)


def test_a_pyarrow_filesystem_of_ones_own_is_checked(moto_s3: Store, tmp_path: Path) -> None:
    url = moto_s3.url(f"replaced-own{tmp_path}/x")
    moto_s3.filesystem.pipe(url, b"a" * SIZE)
    options = moto_s3.storage_options
    endpoint = options["endpoint_url"].removeprefix("http://")
    own = pafs.S3FileSystem(
        access_key=options["key"], secret_key=options["secret"], endpoint_override=endpoint, scheme="http"
    )
    storage, path = open_storage(url.removeprefix("s3://"), None, own)
    with storage.open_data(DataFileInfo(path, SIZE)) as source:
        moto_s3.filesystem.pipe(url, b"b" * SIZE)
        source.read_at(1000, 0)
        with pytest.raises(FileChangedError):
            confirm_unchanged(source)


def test_nothing_of_a_replaced_object_is_cached(moto_s3: Store, tmp_path: Path) -> None:
    url = moto_s3.url(f"replaced-cached{tmp_path}/x")
    moto_s3.filesystem.pipe(url, b"a" * SIZE)
    options = prepared(Cache(tmp_path / "cache", max_bytes="64MiB"))
    assert options is not None
    found, path = open_storage(url, moto_s3.storage_options)
    storage, stored = replace(found, cache=options), found.look(path)
    assert stored is not None
    file = DataFileInfo(path, SIZE, version=stored.version)
    with storage.open_data(file) as source:
        source.read_at(1000, 0)
        before = block_files(options)
        assert before
        moto_s3.filesystem.pipe(url, b"b" * SIZE)
        with pytest.raises(FileChangedError):
            source.read_at(1000, SIZE - 1000)  # of another block
    assert block_files(options) == before
    forget()


# --------------------------------------------------------------------------------------------------------- local files


def rows(first: int) -> pa.Table:
    return pa.table({"id": np.arange(first, first + ROWS), "x": np.full(ROWS, float(first))})


def write(path: Path, first: int) -> None:
    pq.write_table(rows(first), path, row_group_size=GROUP, compression="none", use_dictionary=False)


def by_rename(path: Path) -> None:
    """Another inode, and all else the same."""
    before = path.stat()
    write(path.with_name("other"), 10**6)
    os.utime(path.with_name("other"), ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(path.with_name("other"), path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def in_place(path: Path) -> None:
    """The same inode and size."""
    before = path.stat()
    write(path.with_name("other"), 10**6)
    with path.open("r+b") as file:
        file.write(path.with_name("other").read_bytes())
    path.with_name("other").unlink()
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)


@pytest.mark.parametrize("change", [by_rename, in_place])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 0, "shuffle": Shuffle(window_bytes=1)}])
def test_a_pass_over_a_local_file_replaced_while_it_is_read_ends(
    change: Callable[[Path], None], options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    write(path, 0)
    loader, _ = StructuredDataset.create_dataloader(
        path, batch_size=1000, split_rows=GROUP, num_ranks=1, rank=0, **options
    )
    batches = iter(loader)
    seen: list[Any] = [next(batches)["id"]]
    change(path)
    with pytest.raises(FileChangedError, match=r"x\.parquet (has changed since it was planned|was replaced)"):
        seen += [batch["id"] for batch in batches]
    assert max(int(ids.max()) for ids in seen) < ROWS  # no row of the other file


@pytest.mark.parametrize("name", ["csv", "csv.gz", "jsonl", "arrow", "orc"])
def test_readers_of_all_formats_notice(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{name}"
    table = pa.table({"id": range(1000)})
    if name.startswith("csv"):
        import pyarrow.csv

        with pa.CompressedOutputStream(path, "gzip") if name.endswith("gz") else path.open("wb") as sink:
            pyarrow.csv.write_csv(table, sink)
    elif name == "jsonl":
        path.write_text("".join(f'{{"id": {i}}}\n' for i in range(1000)))
    elif name == "orc":
        import pyarrow.orc

        pyarrow.orc.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    storage, inner = open_storage(path)
    [stored] = [storage.look(inner)]
    assert stored is not None
    file = DataFileInfo(inner, stored.size, version=stored.version)
    form = format_named({"arrow": "ipc"}.get(name, name.partition(".")[0]))
    layout, schema = form.layout(file, storage, {})
    reader = form.open(file, layout, storage, {}, schema)
    try:
        numbers = [segment.number for segment in layout.segments]
        reader.read(numbers, ["id"])
        reader.confirm()
        os.utime(path, ns=(0, 10**18))
        with pytest.raises(FileChangedError):
            reader.confirm()
    finally:
        reader.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_place_of_a_planned_one_is_not_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", 0)
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "x.parquet", num_workers=0, num_ranks=1, rank=0)
    (tmp_path / "x.parquet").unlink()
    make(tmp_path / "x.parquet")  # reading from a pipe would wait without end
    with pytest.raises(FileChangedError, match=r"x\.parquet was replaced"):
        list(loader)


def test_the_opened_file_is_checked_and_not_what_its_path_names_later(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    storage, inner = open_storage(path)
    stored = storage.look(inner)
    assert stored is not None
    with storage.open_data(DataFileInfo(inner, 3, version=stored.version)) as source:
        path.unlink()
        with pytest.raises(FileChangedError, match="has disappeared since it was planned"):
            confirm_unchanged(source)


# ------------------------------------------------------------------------------------------------- a pass over objects


@pytest.mark.parametrize("options", [{}, {"requester_pays": True}])  # read by pyarrow's client, and by s3fs
@pytest.mark.parametrize("cached", [False, True])
def test_a_pass_over_an_object_replaced_while_it_is_read_ends(
    options: dict[str, Any], cached: bool, moto_s3: Store, tmp_path: Path
) -> None:
    name = f"pass{len(options)}{cached}"
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "x.parquet", 0)
    moto_s3.put(tmp_path / "data", name)
    loader, _ = StructuredDataset.create_dataloader(
        moto_s3.url(name),
        storage_options={**moto_s3.storage_options, **options},
        batch_size=1000,
        split_rows=GROUP,
        num_workers=0,
        num_ranks=1,
        rank=0,
        cache=tmp_path / "cache" if cached else None,
    )
    batches = iter(loader)
    seen: list[Any] = [next(batches)["id"]]
    write(tmp_path / "data" / "x.parquet", 10**6)
    moto_s3.put(tmp_path / "data", name)
    with pytest.raises(FileChangedError, match=r"x\.parquet has changed since it was planned"):
        seen += [batch["id"] for batch in batches]
    assert max(int(ids.max()) for ids in seen) < ROWS
    if cached:
        forget()


# ----------------------------------------------------------------------------------------------------- files kept open


class Any_:
    """An open file."""

    parallel, facts = True, StoredFacts(1)

    def __init__(self, reusable: bool) -> None:
        self.reusable = reusable

    read: Any
    now: Any
    close: Any


def test_reusable_files_are_kept_up_to_a_number_and_others_while_they_are_read() -> None:
    opened = OpenedFiles()
    used: Opened = Any_(reusable=False)
    opened.add(("used",), used)
    for number in range(_KEPT + 1):
        opened.add((number,), Any_(reusable=True))
    assert opened.get(("used",)) is used
    del used
    assert opened.get(("used",)) is None
    assert opened.get((0,)) is None
    assert opened.get((1,)) is not None
