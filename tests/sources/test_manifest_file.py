"""The manifest file alone: what it keeps, when it is used, and what is refused."""

import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import DataNotFoundError, FileReadError, OptionError
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import lists
from torch_dataloader_utils.sources.manifest_file import (
    VERSION,
    Asked,
    Inspected,
    InspectedFile,
    asked_of,
    kept_inspection,
    pack_manifest,
    stale_remedy,
    unpack_manifest,
    write_manifest,
)
from torch_dataloader_utils.storage import Storage, open_storage

ASKED = Asked(("/data",), None, {})
PARQUET = format_named("parquet")


def inspected(folder: Path, files: int = 3, rows: int = 10) -> Inspected:
    """Parquet files as they are inspected, each with rows of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        table = pa.table({"x": range(number, number + rows), "s": ["a"] * rows})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=4)
    return look(folder)


def look(folder: Path) -> Inspected:
    found = []
    for path in sorted(folder.glob("*.parquet")):
        size = path.stat().st_size
        layout, schema = PARQUET.layout(DataFileInfo(str(path), size), Storage(), {})
        found.append(InspectedFile(str(path), size, path.name, f"mtime:{path.stat().st_mtime_ns}", layout, schema))
    return Inspected("parquet", tuple(found))


class Looked:
    """An `inspect` that counts its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.times = folder, 0

    def __call__(self) -> Inspected:
        self.times += 1
        return look(self.folder)


def never() -> Inspected:
    raise AssertionError("inspected although there is a manifest")


def values(found: Inspected) -> list[int]:
    """Column x of all files, read without their footers."""
    seen: list[int] = []
    for file in found.files:
        info = DataFileInfo(file.path, file.size)
        reader = PARQUET.open(info, file.layout, Storage(), {}, file.schema)
        seen += reader.read([segment.number for segment in file.layout.segments], ["x"])[0].to_pylist()
        reader.close()
    return seen


# ------------------------------------------------------------------------------------------------------ round trip


def test_what_is_unpacked_is_what_was_packed_and_reads_without_footers(tmp_path: Path) -> None:
    found = inspected(tmp_path / "data")
    back = unpack_manifest(pack_manifest(found, ASKED), ASKED, "m")
    assert back == found
    assert [len(file.layout.segments) for file in back.files] == [3, 3, 3]
    assert values(back) == [*range(10), *range(1, 11), *range(2, 12)]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> InspectedFile:
    return inspected(tmp_path_factory.mktemp("one"), files=1).files[0]


@given(
    entries=st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.integers(0, 2**62),
            st.text(st.characters(exclude_categories=["Cs"])),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_path_size_and_version_comes_back(one: InspectedFile, entries: list[tuple[str, int, str]]) -> None:
    files = tuple(
        replace(one, path=f"/d/{path}", size=size, relative=path, version=version) for path, size, version in entries
    )
    assert unpack_manifest(pack_manifest(Inspected("parquet", files), ASKED), ASKED, "m").files == files


def test_the_manifest_is_a_parquet_file_that_says_what_it_is(tmp_path: Path) -> None:
    data = pack_manifest(inspected(tmp_path / "data"), Asked(("/data",), None, {"page_checksums": False}))
    table = pq.read_table(pa.BufferReader(data))
    assert table.column("relative").to_pylist() == ["0.parquet", "1.parquet", "2.parquet"]
    header = json.loads(table.schema.metadata[b"torch_dataloader_utils.manifest"])
    assert header == {
        "version": VERSION,
        "checksum": header["checksum"],
        "format": "parquet",
        "skipped": [],
        "asked": {"path": ["/data"], "format": None, "format_options": {"page_checksums": False}},
    }


def test_footers_that_are_alike_take_little_room(tmp_path: Path) -> None:
    (file, *_) = inspected(tmp_path / "data", files=1).files
    many = Inspected("parquet", tuple(replace(file, path=f"/data/{number}") for number in range(2_000)))
    footer = len(PARQUET.pack(file.layout, file.schema))
    assert len(pack_manifest(many, ASKED)) < 2_000 * footer / 20


# ------------------------------------------------------------------------------------------------------------ use


@pytest.mark.parametrize(
    "manifest", ["{}/m.parquet", "file://{}/m.parquet", "{}/new/folder/m", "memory://{}/m.parquet"]
)
def test_a_manifest_is_made_once_and_then_used_until_it_is_deleted(tmp_path: Path, manifest: str) -> None:
    inspected(tmp_path / "data")
    place, asked = manifest.format(tmp_path), Asked((str(tmp_path / "data"),), None, {})
    inspect = Looked(tmp_path / "data")
    first = kept_inspection(place, ReadOptions(), lambda: asked, inspect)
    assert kept_inspection(place, ReadOptions(), lambda: asked, never) == first == look(tmp_path / "data")
    assert inspect.times == 1
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data" / "9.parquet")
    assert kept_inspection(place, ReadOptions(), lambda: asked, never) == first  # added files are not seen
    fs, path = fsspec.url_to_fs(place)
    fs.rm(path)
    assert len(kept_inspection(place, ReadOptions(), lambda: asked, inspect).files) == 4
    assert inspect.times == 2


def test_the_manifest_lies_on_the_given_filesystem_unless_its_path_says_otherwise(tmp_path: Path) -> None:
    inspected(tmp_path / "data")
    memory = fsspec.filesystem("memory")
    kept_inspection("/kept/m", ReadOptions(filesystem=memory), lambda: ASKED, Looked(tmp_path / "data"))
    assert memory.exists("/kept/m")
    kept_inspection(f"file://{tmp_path}/m", ReadOptions(filesystem=memory), lambda: ASKED, Looked(tmp_path / "data"))
    assert (tmp_path / "m").exists()


def test_a_failure_to_inspect_leaves_no_manifest(tmp_path: Path) -> None:
    def fail() -> Inspected:
        raise DataNotFoundError("nothing there")

    with pytest.raises(DataNotFoundError, match="nothing there"):
        kept_inspection(tmp_path / "m", ReadOptions(), lambda: ASKED, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    inspected(tmp_path / "data")
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"manifest=.*/file/m: it cannot be written: .*Leave out manifest"):
        write_manifest(Storage(), f"{tmp_path}/file/m", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="cannot be written"):
        write_manifest(Storage(), f"{tmp_path}/folder", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "folder"]


def test_readers_meet_whole_manifests_only_while_others_write_them(tmp_path: Path) -> None:
    place, data = f"{tmp_path}/m", pack_manifest(inspected(tmp_path / "data", 20), ASKED)
    write_manifest(Storage(), place, data)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_manifest(Storage(), place, data)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(50):
            assert len(kept_inspection(place, ReadOptions(), lambda: ASKED, never).files) == 20
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m"]


# -------------------------------------------------------------------------------------------------------- refused


def _plain(good: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    return bytes(sink.getvalue())


def _of_version(version: int, good: bytes) -> bytes:
    table = pq.read_table(pa.BufferReader(good))
    header = {**json.loads(table.schema.metadata[b"torch_dataloader_utils.manifest"]), "version": version}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"torch_dataloader_utils.manifest": json.dumps(header)}), sink)
    return bytes(sink.getvalue())


def _bad_footer(good: bytes) -> bytes:
    table = pq.read_table(pa.BufferReader(good))
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(4, "footer", [pa.array([b"PAR1"] * len(table), pa.large_binary())]), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda good: b"", "damaged, or not a manifest"),
        (lambda good: b"id,x\n1,2\n", "damaged, or not a manifest"),
        (lambda good: good[: len(good) // 2], "damaged, or not a manifest"),
        (lambda good: good[:-1], "damaged, or not a manifest"),
        (lambda good: good[1000:], "damaged, or not a manifest"),
        (_bad_footer, "damaged, or not a manifest"),
        (_plain, "this Parquet file is not a manifest"),
        (
            partial(_of_version, VERSION - 1),
            f"it has version {VERSION - 1}, but this package reads version {VERSION}",
        ),
        (partial(_of_version, VERSION + 1), f"it has version {VERSION + 1}.* Delete it to create a new one"),
    ],
)
def test_what_is_no_whole_manifest_of_this_version_is_named_and_kept(
    tmp_path: Path, broken: Callable[[bytes], bytes], message: str
) -> None:
    place = tmp_path / "m.parquet"
    bad = broken(pack_manifest(inspected(tmp_path / "data"), ASKED))
    place.write_bytes(bad)
    with pytest.raises(FileReadError, match=message) as caught:
        kept_inspection(place, ReadOptions(), lambda: ASKED, never)
    assert f"manifest={place}: " in str(caught.value)
    assert place.read_bytes() == bad


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"path": ("/data", "/more")}, r"path=\['/data'\], not for path=\['/data', '/more'\]\. Delete it"),
        ({"format": "csv"}, "format=None, not for format='csv'"),
        (
            {"format_options": {"page_checksums": False}},
            r"format_options=\{'page_checksums': True\}, not for format_options=\{'page_checksums': False\}",
        ),
        ({"format_options": {"delimiter": ";"}}, "parquet takes page_checksums"),
    ],
)
def test_a_manifest_made_for_something_else_is_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    data = pack_manifest(inspected(tmp_path), ASKED)
    with pytest.raises(OptionError, match=message):
        unpack_manifest(data, replace(ASKED, **other), "m")


def test_what_is_spelled_otherwise_but_asks_for_the_same_is_served(tmp_path: Path) -> None:
    found = inspected(tmp_path)
    data = pack_manifest(found, ASKED)
    assert unpack_manifest(data, replace(ASKED, format="parquet"), "m") == found
    assert unpack_manifest(data, replace(ASKED, format_options={"page_checksums": True}), "m") == found
    forced = pack_manifest(found, replace(ASKED, format="parquet"))
    with pytest.raises(OptionError, match="format='parquet', not for format=None"):
        unpack_manifest(forced, ASKED, "m")


def test_no_flipped_byte_makes_another_list_of_files(tmp_path: Path) -> None:
    found = inspected(tmp_path, files=2)
    good = pack_manifest(found, ASKED)
    caught = 0
    for place in range(0, len(good), 5):
        bad = good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :]
        try:
            back = unpack_manifest(bad, ASKED, "m")
        except (FileReadError, OptionError):
            caught += 1
        else:
            assert [(f.path, f.size, f.version) for f in back.files] == [
                (f.path, f.size, f.version) for f in found.files
            ]
            assert [packed(file) for file in back.files] == [packed(file) for file in found.files]
    assert caught > 100


def packed(file: InspectedFile) -> bytes:
    return PARQUET.pack(file.layout, file.schema)


def asked(path: str, **read: Any) -> Asked:
    storage, inner = open_storage(path, **read)
    return asked_of([(path, inner)], storage, None, {})


def test_paths_are_spelled_so_that_they_begin_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("data/") == asked(f"{tmp_path}/data") == asked(f"file://{tmp_path}/data")
    assert asked("data/").path == (f"{tmp_path}/data",)
    assert asked("memory://data/").path == ("memory://data",)
    assert asked("/data", filesystem=fsspec.filesystem("memory")).path == ("memory://data",)
    # Two archives hold files of the same names.
    assert asked(f"zip://*.parquet::file://{_archive(tmp_path / 'a.zip')}") != asked(
        f"zip://*.parquet::file://{_archive(tmp_path / 'b.zip')}"
    )


def _archive(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.parquet", b"x")
    return path


@pytest.mark.parametrize(
    "link",
    [
        "https://host/a.parquet?X-Amz-Signature=s3cret",
        "https://user:s3cret@host/a.parquet",
        "simplecache::https://host/a.parquet?token=s3cret",
    ],
)
def test_links_that_may_hold_secrets_are_refused(tmp_path: Path, link: str) -> None:
    with pytest.raises(OptionError, match="a manifest cannot hold URLs with a query or a password") as caught:
        asked_of([(link, link)], Storage("https", filesystem=fsspec.filesystem("memory")), None, {})
    assert "s3cret" not in str(caught.value)
    (file, *_) = inspected(tmp_path, files=1).files
    with pytest.raises(OptionError, match="a manifest cannot hold URLs") as caught:
        pack_manifest(Inspected("parquet", (replace(file, path=link),)), ASKED)
    assert "s3cret" not in str(caught.value)


def test_globs_with_a_question_mark_are_no_links() -> None:
    assert asked("memory://data/part-?.parquet").path == ("memory://data/part-?.parquet",)


@pytest.mark.parametrize(
    ("entry", "place", "lies_among"),
    [
        ("/data", "/data/m.parquet", True),
        ("/data", "/data/a/m.parquet", True),
        ("/data", "/data", True),
        ("/data", "/data/_m.parquet", False),
        ("/data", "/data/.cache/m.parquet", False),
        ("/_data", "/_data/m.parquet", True),
        ("/_data", "/_data/_m.parquet", False),
        ("/data", "/database/m.parquet", False),
        ("/data", "/data/_day=1/m.parquet", True),
        ("/data", "/data/a_$folder$", False),
        ("/data/*.parquet", "/data/m.parquet", True),
        ("/data/*.parquet", "/data/m", False),
        ("/data/*.parquet", "/data/_m.parquet", False),
        ("/data/_*.parquet", "/data/_m.parquet", True),
        ("/data/**/*.parquet", "/data/a/b/m.parquet", True),
        ("/data/a.parquet", "/data/m.parquet", False),
        ("memory://data", "memory://data/m.parquet", True),
        ("s3://bucket/data", "/data/m.parquet", False),
    ],
)
def test_a_manifest_that_would_be_listed_as_data_is_refused(entry: str, place: str, lies_among: bool) -> None:
    assert lists(entry, place) is lies_among


def test_a_manifest_among_the_data_is_refused_before_anything_is_inspected(tmp_path: Path) -> None:
    asked = Asked((str(tmp_path),), None, {})
    with pytest.raises(OptionError, match=r"m\.parquet lies among the data of .*Use manifest='.*_m"):
        kept_inspection(tmp_path / "m.parquet", ReadOptions(), lambda: asked, never)
    assert list(tmp_path.iterdir()) == []


def test_a_stale_file_is_explained_without_secrets() -> None:
    assert stale_remedy("https://host/m?sig=s3cret") == (
        "It was planned from manifest=https://host/m: delete the manifest, and the next run creates a new one."
    )


def test_a_manifest_made_with_one_engine_serves_another(tmp_path: Path) -> None:
    found, by_pyarrow = inspected(tmp_path), replace(ASKED, format_options={"engine": "pyarrow"})
    for made, asked in ((ASKED, by_pyarrow), (by_pyarrow, ASKED)):
        assert unpack_manifest(pack_manifest(found, made), asked, "m") == found
