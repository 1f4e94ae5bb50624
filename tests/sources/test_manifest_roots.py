"""A manifest that names files elsewhere than `path` is refused: its writer must not choose what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import FoundFile
from torch_dataloader_utils.sources.inspection import asked_by, found_and_inspected
from torch_dataloader_utils.sources.manifest_changes import manifest_changes
from torch_dataloader_utils.sources.manifest_file import check_roots, pack_manifest, plain_path
from torch_dataloader_utils.sources.skipped import SkippedFile


@pytest.mark.parametrize(
    ("entry", "path", "inside"),
    [
        ("/data", "/data/x.parquet", True),
        ("/data", "/data/day=1/x.parquet", True),
        ("/data/", "/data/x.parquet", True),
        ("/", "/x.parquet", True),
        ("/data/x.parquet", "/data/x.parquet", True),
        ("/data/x.parquet", "/data/y.parquet", False),
        ("/data", "/data2/x.parquet", False),
        ("/data", "/data/../etc/x.parquet", False),
        ("/data", "/data\\..\\etc\\x.parquet", False),
        ("/data", "data/x.parquet", False),
        ("/data", "http://host/data/x.parquet", False),
        ("/data/*/x.parquet", "/data/a/x.parquet", True),
        ("/data/*/x.parquet", "/data/a/y.parquet", False),
        ("/data/**", "/data/a/../../x.parquet", False),
        ("/data/../b", "/data/../b/x.parquet", True),
        ("/data/../b", "/data/../b/../x.parquet", False),
        ("/data/../*.parquet", "/data/../x.parquet", True),
        ("/data/../**", "/data/../x/../y.parquet", False),
        ("//data/./b", "/data/b/x.parquet", True),
        ("/data/b", "//data///b/./x.parquet", True),
        ("bucket/data", "bucket//data/x.parquet", False),
        ("/per%20cent", "/per%20cent/a b%2F.parquet", True),
        ("/per%20cent", "/per cent/x.parquet", False),
        ("/caf\u00e9", "/cafe\u0301/x.parquet", False),
        ("/data[1]", "/data[1]/x.parquet", True),
        ("bucket/data", "bucket/data/x.parquet", True),
        ("bucket/data", "other/data/x.parquet", False),
        ("http://host/data/", "http://host/data/x.parquet", True),
        ("http://host/data/", "https://host/data/x.parquet", True),
        ("http://host/data/", "http://evil/data/x.parquet", False),
        ("http://host/data/", "http://host:81/data/x.parquet", False),
        ("http://host/data/", "http://host/data/%2e%2e/x.parquet", False),
        ("http://host/data", "http://host/data@evil/x.parquet", False),
    ],
)
def test_what_is_below_a_path(entry: str, path: str, inside: bool) -> None:
    files = [FoundFile(path, 1, "x")]
    if inside:
        check_roots(files, [entry], "m")
    else:
        with pytest.raises(FileReadError, match=r"manifest=m: it names .* which is not below path="):
            check_roots(files, [entry], "m")


@given(parts=st.lists(st.sampled_from(["a", "..", ".", "", "%2e%2e", "b c"]), max_size=6))
def test_no_path_that_is_accepted_leads_out(parts: list[str]) -> None:
    import posixpath

    path = "/".join(["/data", *parts])
    try:
        check_roots([FoundFile(path, 1, "x")], ["/data"], "m")
    except FileReadError:
        return
    assert f"{posixpath.normpath(path)}/".startswith("/data/")


def rows_of(path: object, manifest: Path) -> list[int]:
    loader, _ = StructuredDataset.create_dataloader(
        path, manifest=manifest, batch_size=10, num_workers=0, num_ranks=1, rank=0
    )
    return [row for batch in loader for row in batch["x"].tolist()]


def test_a_path_may_be_spelled_in_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "a b%20" / "dat\u00e9"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), data / "e\u0301 %2F.parquet")
    (tmp_path / "link").symlink_to(data.parent)
    monkeypatch.chdir(tmp_path)
    same = [
        data,
        f"{data}/",
        f"file://{data}",
        "a b%20/dat\u00e9",
        "./a b%20/dat\u00e9",
        f"{tmp_path}//a b%20/./dat\u00e9",
    ]
    for first in same:
        manifest = tmp_path / f"m{same.index(first)}"
        for path in (first, *same):
            assert rows_of(path, manifest) == [1], (first, path)
    for path in ("link/dat\u00e9", "a b%20/../a b%20/dat\u00e9"):
        (tmp_path / "m").unlink(missing_ok=True)
        assert rows_of(path, tmp_path / "m") == rows_of(path, tmp_path / "m") == [1]


def test_clients_of_one_store_may_be_named_in_other_ways(tmp_path: Path) -> None:
    made, ours = ["s3://b/x", "gs://b/x"], ["s3a://b/x", "gcs://b/x"]
    assert [plain_path(path) for path in made] == [plain_path(path) for path in ours]
    assert plain_path("s3://b/x") != plain_path("gs://b/x")


def test_links_are_followed_as_in_a_listing(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data, other):
        folder.mkdir()
        pq.write_table(pa.table({"x": [1]}), folder / "x.parquet")
    (data / "to-other").symlink_to(other)
    (data / "up").symlink_to("..")
    (other / "back").symlink_to(tmp_path)
    assert rows_of(data, tmp_path / "m") == rows_of(data, tmp_path / "m") == [1, 1]
    pq.write_table(pa.table({"x": [2]}), tmp_path / "secret.parquet")
    for path in ("up/secret.parquet", "to-other/back/secret.parquet"):
        check_roots([FoundFile(str(data / path), 1, "x")], [str(data)], "m")  # as if it were in a store
        for entry in (data, f"{data}/", f"{data}/**"):
            with pytest.raises(FileReadError, match=r"secret\.parquet, which is not below path="):
                check_roots([FoundFile(str(data / path), 1, "x")], [str(entry)], "m", local=True)


def forged(folder: Path, elsewhere: Path, manifest: Path) -> None:
    """A manifest of the folder that names a file elsewhere."""
    read = ReadOptions()
    _, inspected = found_and_inspected(folder, read)
    [file] = inspected.files
    other = replace(file, path=str(elsewhere), size=elsewhere.stat().st_size, version="")
    manifest.write_bytes(pack_manifest(replace(inspected, files=(other,)), asked_by(folder, read)))


def test_a_forged_manifest_is_refused_before_its_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data" / "x.parquet")
    pq.write_table(pa.table({"x": [2]}), tmp_path / "secret.parquet")
    forged(tmp_path / "data", tmp_path / "secret.parquet", tmp_path / "m")
    with pytest.raises(FileReadError, match=r"it names .*secret\.parquet, which is not below path=: .*/data"):
        StructuredDataset.create_dataloader(tmp_path / "data", manifest=tmp_path / "m", batch_size=1)
    with pytest.raises(FileReadError, match=r"it names .*secret\.parquet"):
        manifest_changes(tmp_path / "data", tmp_path / "m", ReadOptions())


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_forged_damaged_file_is_refused_before_it_is_looked_up(tmp_path: Path, on_error: str) -> None:
    data, manifest = tmp_path / "data", tmp_path / "m.parquet"
    data.mkdir()
    pq.write_table(pa.table({"id": [1]}), data / "x.parquet")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "secret.parquet")
    read = ReadOptions(manifest=str(manifest))
    _, inspected = found_and_inspected(str(data), read)
    forged = SkippedFile(str(tmp_path / "secret.parquet"), 1, "mtime:1", "it is damaged", place=1, relative="y.parquet")
    manifest.write_bytes(pack_manifest(replace(inspected, skipped=(forged,)), asked_by(str(data), read)))
    with pytest.raises(FileReadError, match=r"it names .*secret\.parquet, which is not below path="):
        StructuredDataset.create_dataloader(str(data), manifest=str(manifest), on_error=on_error)
