import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import DataNotFoundError, OptionError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import FoundFile, find_files, lists


def touch(folder: Path, *names: str, content: bytes = b"PAR1") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def found(path: object, folder: Path, **read: object) -> list[str]:
    _, files = find_files(path, ReadOptions(**read))  # type: ignore[arg-type]
    return [os.path.relpath(file.path, folder) for file in files]


def test_a_folder_is_read_with_all_folders_below_sorted_by_relative_path(tmp_path: Path) -> None:
    touch(tmp_path, "b.parquet", "a/z.parquet", "a/b/c.parquet", "a.parquet")
    expected = ["a.parquet", "a/b/c.parquet", "a/z.parquet", "b.parquet"]
    assert found(tmp_path, tmp_path) == expected
    assert found(f"{tmp_path}/", tmp_path) == expected
    assert found(f"file://{tmp_path}", tmp_path) == expected
    assert found([str(tmp_path)], tmp_path) == expected


def test_sizes_and_relative_paths_are_told(tmp_path: Path) -> None:
    touch(tmp_path, "d/x.parquet", content=b"12345")
    _, files = find_files(tmp_path / "d", ReadOptions())
    version = f"mtime:{(tmp_path / 'd' / 'x.parquet').stat().st_mtime_ns}"
    assert files == [FoundFile(f"{tmp_path}/d/x.parquet", 5, "x.parquet", version)]
    _, files = find_files(tmp_path / "d" / "x.parquet", ReadOptions())
    assert files == [FoundFile(f"{tmp_path}/d/x.parquet", 5, f"{tmp_path}/d/x.parquet", version, named=True)]


def test_entries_stay_in_the_order_given(tmp_path: Path) -> None:
    touch(tmp_path, "b/2", "b/1", "a/4", "a/3")
    assert found([tmp_path / "b", tmp_path / "a" / "4", tmp_path / "a" / "3"], tmp_path) == ["b/1", "b/2", "a/4", "a/3"]


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "d/x.parquet")
    monkeypatch.chdir(tmp_path)
    _, files = find_files("d", ReadOptions())
    assert files[0].path == f"{tmp_path}/d/x.parquet"
    assert found("d/*.parquet", tmp_path) == ["d/x.parquet"]
    assert found("*/x.parquet", tmp_path) == ["d/x.parquet"]


def test_hidden_files_and_folders_are_left_out_unless_named(tmp_path: Path) -> None:
    touch(tmp_path, "x", "_SUCCESS", ".crc", "_temporary/y", ".git/z", "a/_metadata", "marker_$folder$")
    assert found(tmp_path, tmp_path) == ["x"]
    assert found(tmp_path / "_SUCCESS", tmp_path) == ["_SUCCESS"]
    assert found(tmp_path / "_temporary", tmp_path) == ["_temporary/y"]
    assert found(f"{tmp_path}/_*/*", tmp_path) == ["_temporary/y"]
    assert found(f"{tmp_path}/*", tmp_path) == ["x"]


def test_partition_folders_whose_key_begins_with_an_underscore_are_read(tmp_path: Path) -> None:
    touch(tmp_path, "_day=1/x", "_day=2/y", "_other/z")
    assert found(tmp_path, tmp_path) == ["_day=1/x", "_day=2/y"]


@pytest.mark.parametrize(
    "entry", ["", "/*.parquet", "/**", "/**/*.parquet", "/_*/*.parquet", "/_day=*/x.parquet", "/a/[.x]*"]
)
def test_what_an_entry_lists_is_known_without_listing(tmp_path: Path, entry: str) -> None:
    folders = ["", "a/", "_a/", "_day=1/", ".a/", "a/_day=2/b/"]
    paths = [tmp_path / f"{folder}{name}" for folder in folders for name in ("x.parquet", "_x.parquet", ".x.parquet")]
    for path in [*paths, tmp_path / "a" / "b_$folder$"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    entry = f"{tmp_path}{entry}"
    found = {file.path for file in find_files(entry, ReadOptions())[1]}
    assert found == {str(path) for path in tmp_path.rglob("*") if path.is_file() and lists(entry, str(path))}


def test_globs(tmp_path: Path) -> None:
    touch(tmp_path, "a1/x.parquet", "a2/y.parquet", "a2/deep/z.parquet", "b/x.parquet", "a1/x.csv")
    assert found(f"{tmp_path}/a*/*.parquet", tmp_path) == ["a1/x.parquet", "a2/y.parquet"]
    assert found(f"{tmp_path}/a[2-9]/?.parquet", tmp_path) == ["a2/y.parquet"]
    assert found(f"{tmp_path}/a2/**/*.parquet", tmp_path) == ["a2/deep/z.parquet", "a2/y.parquet"]
    assert found(f"{tmp_path}/a2/**", tmp_path) == ["a2/deep/z.parquet", "a2/y.parquet"]
    with pytest.raises(OptionError, match=r"a2/\*\*\.parquet.*expected a glob"):
        found(f"{tmp_path}/a2/**.parquet", tmp_path)
    touch(tmp_path, "odd[1].parquet")
    assert found(f"{tmp_path}/odd[1].parquet", tmp_path) == ["odd[1].parquet"]


def test_no_files_is_an_error_that_says_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="gone: there is no such file or folder"):
        find_files(tmp_path / "gone", ReadOptions())
    with pytest.raises(DataNotFoundError, match=r"no data files; found nothing\."):
        find_files(tmp_path, ReadOptions())
    touch(tmp_path, "_SUCCESS", "_x/1", ".c")
    with pytest.raises(DataNotFoundError, match=r"found 3 files, all hidden: \.c, _SUCCESS, _x/1"):
        find_files(tmp_path, ReadOptions())
    with pytest.raises(DataNotFoundError, match=r"\*\.parquet \(a glob\): no data files"):
        find_files(f"{tmp_path}/*.parquet", ReadOptions())
    with pytest.raises(DataNotFoundError, match="there is no folder"):
        find_files(f"{tmp_path}/gone/*.parquet", ReadOptions())
    touch(tmp_path, "full/x.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataNotFoundError, match="empty: no data files"):
        find_files([tmp_path / "full", tmp_path / "empty"], ReadOptions())


def test_a_file_met_twice_is_an_error_that_names_it(tmp_path: Path) -> None:
    touch(tmp_path, "x.parquet", "y.parquet")
    with pytest.raises(OptionError, match=r"y\.parquet is listed 2 times"):
        find_files([tmp_path, tmp_path / "y.parquet"], ReadOptions())


def test_entries_on_two_storages_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "x.parquet")
    fsspec.filesystem("memory").pipe("/two/x.parquet", b"PAR1")
    with pytest.raises(OptionError, match=r"/two/x.parquet is on another storage than .*x\.parquet"):
        find_files([tmp_path / "x.parquet", "memory://two/x.parquet"], ReadOptions())


@pytest.mark.parametrize("entry", ["", "/events", "/**", "/events/metadata/v2.metadata.json"])
def test_an_iceberg_table_is_refused_and_its_dataset_named(tmp_path: Path, entry: str) -> None:
    touch(tmp_path, "events/data/x.parquet", "events/metadata/v2.metadata.json", "events/metadata/snap-1.avro")
    message = rf"IcebergDataset.create_dataloader\('{tmp_path}/events', ...\)"
    with pytest.raises(OptionError, match=f"{tmp_path}/events is an Iceberg table.*rows that were deleted.*{message}"):
        find_files(f"{tmp_path}{entry}", ReadOptions())
    assert found(f"{tmp_path}/events/data/*.parquet", tmp_path) == ["events/data/x.parquet"]


def test_an_iceberg_table_of_a_store_is_named_by_its_url() -> None:
    fsspec.filesystem("memory").pipe({"/ice/t/metadata/a.gz.metadata.json": b"", "/ice/t/data/x.parquet": b""})
    with pytest.raises(OptionError, match=r"create_dataloader\('memory://ice/t', ...\)"):
        find_files("memory://ice/t", ReadOptions())


@pytest.mark.parametrize("path", [[], "", None, 3, [None]])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(OptionError, match="path="):
        find_files(path, ReadOptions())  # type: ignore[arg-type]


@given(names=st.sets(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=6), data=st.data())
def test_the_order_is_that_of_the_names_not_that_of_the_storage(names: set[str], data: st.DataObject) -> None:
    fs = fsspec.filesystem("memory")
    folder = "/order"
    if fs.exists(folder):
        fs.rm(folder, recursive=True)
    for name in data.draw(st.permutations(sorted(names))):
        fs.pipe(f"{folder}/{name}", b"1")
    _, files = find_files(f"memory:/{folder}", ReadOptions())
    assert [file.relative for file in files] == sorted(names)


@pytest.mark.parametrize(
    ("pattern", "wider"),
    [
        ("d=*", "d=*/**/*.parquet"),
        ("d=*/", "d=*/**/*.parquet"),
        ("d=*/h=*", "d=*/h=*/*.parquet"),
        ("*/h=1/", "*/h=1/*.parquet"),
        ("d=[12]", "d=[12]/**/*.parquet"),
        ("bare*", "bare*/*"),
    ],
)
def test_a_glob_that_matches_folders_alone_names_the_glob_of_their_files(
    tmp_path: Path, pattern: str, wider: str
) -> None:
    touch(tmp_path, "d=1/h=1/a.parquet", "d=2/h=1/b.parquet", "d=1/h=1/_SUCCESS", "bare/part-0")
    with pytest.raises(DataNotFoundError, match=r"it matches folders, such as .*, and no files") as caught:
        find_files(f"{tmp_path}/{pattern}", ReadOptions())
    assert str(caught.value).endswith(f" Add the files in them: {tmp_path}/{wider}")
    _, files = find_files(f"{tmp_path}/{wider}", ReadOptions())
    assert len(files) == 1 + ("d=" in pattern or "h=" in pattern)


def test_a_glob_that_matches_nothing_says_so(tmp_path: Path) -> None:
    touch(tmp_path, "a/b.parquet")
    with pytest.raises(DataNotFoundError, match=r"c\* \(a glob\): no data files; found nothing that matches"):
        find_files(f"{tmp_path}/c*", ReadOptions())
