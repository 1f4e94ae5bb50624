from __future__ import annotations

import logging
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataNotFoundError, FileReadError, OptionError
from torch_dataloader_utils.formats import registry
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import FoundFile, find_files
from torch_dataloader_utils.sources.manifest import build_manifest
from torch_dataloader_utils.sources.selection import select_data
from torch_dataloader_utils.storage import Storage

NO_DATA = ("README.md", "part-0.parquet.crc", "dataset_info.json", "sub/photo.JPG", "a.metadata")


def touch(folder: Path, *names: str, content: bytes = b"PAR1") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def selected(path: object, name: str | None = None) -> tuple[str, list[str]]:
    """The format, and the relative paths of the data."""
    form, files = select_data(*find_files(path, ReadOptions()), name)  # type: ignore[arg-type]
    return form.name, [file.relative for file in files]


def detected(folder: Path, name: str | None = None) -> str:
    return selected(folder, name)[0]


def test_the_format_is_found_by_suffix_or_first_bytes(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.PARQ", "c.snappy.pq", content=b"anything")
    touch(tmp_path, "part-0", "part.1", content=b"PAR1...")
    assert selected(tmp_path) == ("parquet", ["a.parquet", "b.PARQ", "c.snappy.pq", "part-0", "part.1"])


UNFINISHED = (
    "b.parquet.tmp", "b.parquet.part", "b.PARTIAL", "b.parquet.filepart", "b.parquet.crdownload", "b.parquet.aria2",
    "b.parquet._COPYING_", "b.parquet.temp", "b.parquet.inprogress.12", "part-0.pending.1a-2b", "day=1/b.parquet.tmp",
)  # fmt: skip


@pytest.mark.parametrize("name", ["parquet", None])
@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_what_a_writer_has_not_finished_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unfinished: str, name: str | None
) -> None:
    touch(tmp_path, "a.parquet", unfinished)
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        assert selected(tmp_path, name) == ("parquet", ["a.parquet"])
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert f"left out 1 unfinished file(s), by their names: {tmp_path / unfinished}" in caplog.text


@pytest.mark.parametrize("unfinished", UNFINISHED[:-1])
def test_unfinished_files_alone_are_no_data_unless_they_are_named(tmp_path: Path, unfinished: str) -> None:
    touch(tmp_path, unfinished)
    with pytest.raises(DataNotFoundError, match=r"names are those of unfinished files: .*Files named by a path"):
        selected(tmp_path, "parquet")
    assert selected(tmp_path / unfinished, "parquet")[0] == "parquet"
    assert selected([tmp_path / unfinished])[0] == "parquet"


def test_a_glob_of_their_suffix_names_unfinished_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet.tmp", "b.parquet.tmp")
    assert selected(tmp_path / "*.tmp") == ("parquet", ["a.parquet.tmp", "b.parquet.tmp"])


@pytest.mark.parametrize("name", ["a.tmp.parquet", "tmp", "a.parts", "part.1", "a.pending2"])
def test_names_that_only_remind_of_unfinished_files_are_data(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name)
    assert selected(tmp_path) == ("parquet", [name])


@pytest.mark.parametrize(
    ("names", "content", "form"),
    [
        (("a.orc", "part-0"), b"ORC...", "orc"),
        (("a.csv", "b.CSV.gz", "c.tsv.zst", "d.csv.bz2"), b"x", "csv"),
        (("a.jsonl", "b.ndjson.gz", "c.jl"), b"x", "jsonl"),
        (("a.json", "b.json.gz"), b"x", "json"),
        (("a.arrow", "b.feather", "c.ipc"), b"x", "ipc"),
        (("part-0", "part-1"), b"ARROW1..", "ipc"),
        (("part-0", "part-1"), b"\xff\xff\xff\xff\x01", "ipc"),
        (("part-0",), b"PARE....", "parquet"),
    ],
)
def test_every_format_is_found(tmp_path: Path, names: tuple[str, ...], content: bytes, form: str) -> None:
    touch(tmp_path, *names, content=content)
    assert detected(tmp_path) == form


def test_a_folder_without_data_names_the_supported_formats(tmp_path: Path) -> None:
    touch(tmp_path, "a.xml", "b.parquet.gz", content=b"text")
    message = (
        r"found 2 of no known format: .*a\.xml, .*b\.parquet\.gz\. Supported: parquet \(\.parquet, \.parq, \.pq\);"
    )
    with pytest.raises(DataNotFoundError, match=message):
        detected(tmp_path)
    with pytest.raises(OptionError, match="format='avro': expected one of 'parquet', 'orc', 'csv'"):
        detected(tmp_path, "avro")


def test_two_formats_are_an_error_that_lists_what_was_found(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.parquet")
    touch(tmp_path, "README.md", "c.csv", content=b"# hello")
    message = r"1 of no known format: .*README\.md; 2 parquet: .*a\.parquet, .*b\.parquet; 1 csv: .*c\.csv.*format="
    with pytest.raises(OptionError, match=message):
        detected(tmp_path)
    assert selected(tmp_path, "csv") == ("csv", ["c.csv"])
    assert selected(tmp_path, "parquet") == ("parquet", ["a.parquet", "b.parquet"])


def test_a_file_that_goes_away_meanwhile_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileReadError, match="gone"):
        select_data(Storage(), [FoundFile(f"{tmp_path}/gone", 1, "gone")], None)


# ---------------------------------------------------------------------------------------------- files that are no data


@pytest.mark.parametrize(("name", "level"), [("parquet", logging.INFO), (None, logging.WARNING)])
def test_files_that_are_no_data_are_left_out_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str | None, level: int
) -> None:
    touch(tmp_path, "a.parquet", "sub/part-0")
    touch(tmp_path, *NO_DATA, content=b"text")
    with caplog.at_level(logging.INFO):
        assert selected(tmp_path, name) == ("parquet", ["a.parquet", "sub/part-0"])
    [record] = caplog.records
    assert record.levelno == level
    assert record.message.startswith(
        f"left out 5 of 7 files, which do not look like parquet data; the first is {tmp_path}/README.md."
    )
    assert ("format='parquet'" in record.message) == (name is None)


def test_nothing_is_logged_where_all_files_are_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.parquet", "b", "_SUCCESS", ".gitattributes")
    with caplog.at_level(logging.INFO):
        assert selected(tmp_path, "parquet")[1] == selected(tmp_path)[1] == ["a.parquet", "b"]
    assert not caplog.records


def test_compressed_text_and_files_without_a_suffix_are_data(tmp_path: Path) -> None:
    names = ["000000_0.gz", "a.csv", "b.csv.gz", "d.tsv", "events.2024-01-31", "part-0", "part.1"]
    touch(tmp_path, *names, "c.json", "e.csv.lock", "notes.txt.gz")
    assert selected(tmp_path, "csv") == ("csv", names)


def test_first_bytes_decide_where_the_suffix_is_unknown(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.v2", "c.snappy")
    touch(tmp_path, "d.v2", content=b"ORC")
    assert selected(tmp_path, "parquet")[1] == ["a.parquet", "b.v2", "c.snappy"]
    assert selected(tmp_path, "orc")[1] == ["d.v2"]


@pytest.mark.parametrize("entry", ["x.txt.gz", "*.gz", "*.txt.gz", "**/*.txt.gz", "[xy].txt.gz"])
def test_a_file_that_the_user_names_is_read_whatever_its_suffix_is(tmp_path: Path, entry: str) -> None:
    touch(tmp_path, "x.txt.gz", "sub/README.md", content=b"a\n1\n")
    assert len(selected(f"{tmp_path}/{entry}", "csv")[1]) == 1
    with pytest.raises(OptionError, match=r"1 of no known format: .*x\.txt\.gz"):
        selected(f"{tmp_path}/{entry}")


def test_a_named_file_beside_data_of_another_format_is_an_error_not_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "dataset_info.json")
    touch(tmp_path, "README.md", content=b"#")
    for name in ("dataset_info.json", "README.md"):
        with pytest.raises(OptionError, match=name):
            selected([tmp_path / "a.parquet", tmp_path / name])


@pytest.mark.parametrize("entry", ["*", "**", "[A-z]*", "*.*"])
def test_a_glob_that_names_no_suffix_reads_as_a_folder_does(tmp_path: Path, entry: str) -> None:
    touch(tmp_path, "x.csv", "README.md", content=b"a\n1\n")
    assert selected(f"{tmp_path}/{entry}", "csv")[1] == ["x.csv"]


def test_a_folder_without_data_is_an_error_that_says_how_to_read_it(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "b.txt", "c.json", content=b"a\n1\n")
    message = r"format='csv'.*suffix \.csv or \.tsv, or without one; found 3 others: .*a\.txt.*'folder/\*\.txt'"
    with pytest.raises(DataNotFoundError, match=message):
        selected(tmp_path, "csv")


def test_what_hugging_face_datasets_writes_beside_its_data_is_no_data(tmp_path: Path) -> None:
    touch(tmp_path, "dataset_dict.json", "train/dataset_info.json", "train/state.json", "train/data-0.arrow")
    assert selected(tmp_path) == ("ipc", ["train/data-0.arrow"])
    touch(tmp_path, "j/a.json", "j/dataset_infos.json", "j/sub/state.json")
    assert selected(tmp_path / "j") == selected(tmp_path / "j", "json") == ("json", ["a.json", "sub/state.json"])


def test_a_format_of_ones_own_has_its_suffixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = registry.FORMATS["parquet"].home
    own = registry.FormatEntry("own", parquet, (".own",))
    bare = registry.FormatEntry("bare", parquet, ())
    monkeypatch.setattr(registry, "FORMATS", {**registry.FORMATS, "own": own, "bare": bare})
    touch(tmp_path, "a.own", "b.csv", "c", "d.md", content=b"text")
    names = [file.relative for file in select_data(*find_files(tmp_path, ReadOptions()), "own")[1]]
    assert names == ["a.own", "c"]
    names = [file.relative for file in select_data(*find_files(tmp_path, ReadOptions()), "bare")[1]]
    assert names == ["c", "d.md"]  # nothing tells its files but that they are of no other format


def test_partition_columns_do_not_depend_on_files_that_are_no_data(tmp_path: Path) -> None:
    touch(tmp_path, "k=1/a.csv", "k=2/a.csv", content=b"x\n1\n")
    touch(tmp_path, "README.md", "k=1/notes.md", content=b"text")
    for name in ("csv", None):
        assert build_manifest(tmp_path, ReadOptions(format=name)).partition_names == ("k",)


def test_a_manifest_keeps_the_data_alone(tmp_path: Path) -> None:
    touch(tmp_path, "d/a.csv", "d/README.md", content=b"x\n1\n")
    read = ReadOptions(manifest=tmp_path / "kept")
    for _ in range(2):
        assert build_manifest(tmp_path / "d", read).file_count == 1


@given(
    names=st.sets(
        st.sampled_from(["a.csv", "b.csv.gz", "c", "d.md", "e.json", "f.1", "g.parquet", "h.zip"]), min_size=1
    ),
    data=st.data(),
)
def test_every_rank_selects_the_same_files_whatever_order_the_store_lists(names: set[str], data: st.DataObject) -> None:
    fs = fsspec.filesystem("memory")
    expected = sorted(names & {"a.csv", "b.csv.gz", "c", "f.1"})
    for _ in range(2):
        if fs.exists("/ranks"):
            fs.rm("/ranks", recursive=True)
        for name in data.draw(st.permutations(sorted(names))):
            fs.pipe(f"/ranks/{name}", b"text")
        try:
            assert selected("memory://ranks", "csv")[1] == expected
        except DataNotFoundError:
            assert not expected


def test_a_folder_saved_by_hugging_face_datasets_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset(pa.table({"x": range(5)})).save_to_disk(tmp_path / "d")
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "d", num_ranks=1, rank=0)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3, 4]]
