import datetime
import logging
import pickle
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    FileReadError,
    OptionError,
    SchemaMismatchError,
)
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import find_files
from torch_dataloader_utils.sources.inspection import inspect_files
from torch_dataloader_utils.sources.manifest import FileManifest, Pruned, build_manifest


def write(path: Path, columns: dict[str, Any], rows: int = 1_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows)


def manifest(path: object, **read: Any) -> FileManifest:
    return build_manifest(path, ReadOptions(**read))  # type: ignore[arg-type]


def segments(made: FileManifest) -> list[list[int]]:
    return [[segment.number for segment in file.layout.segments] for file in made.files]


def test_a_manifest_holds_files_segments_and_one_schema(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": pa.array(range(10), pa.int32()), "s": ["t"] * 10}, 4)
    write(tmp_path / "b.parquet", {"y": [1.5] * 3, "x": pa.array(range(3), pa.int64())})
    made = manifest(tmp_path)
    assert [file.info.path for file in made.files] == [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"]
    assert [file.info.record_count for file in made.files] == [10, 3]
    assert made.files[0].info.file_size == (tmp_path / "a.parquet").stat().st_size
    assert segments(made) == [[0, 1, 2], [0]]
    assert made.schema == pa.schema({"x": pa.int64(), "s": pa.string(), "y": pa.float64()})
    assert (made.opener, made.partition_names, made.file_count) == (format_named("parquet"), (), 2)
    assert made.pruned == Pruned(2, 2, 4, 4)


def test_files_with_equal_schemas_share_one_object(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.parquet", {"x" if name < "c" else "y": range(10)})
    storage, files = find_files(tmp_path, ReadOptions())
    one, same, other = inspect_files(storage, format_named("parquet"), files, None).files
    assert one.schema is same.schema
    assert other.schema.names == ["y"]


def test_a_pickled_manifest_reads_without_its_footers(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": range(10)}, 5)
    made = manifest(tmp_path)
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    (file,) = copy.files
    reader = copy.opener.open(file.info, file.layout, copy.storage, {}, copy.schema)
    assert reader.read([1], ["x"])[0].to_pylist() == [5, 6, 7, 8, 9]
    reader.close()


def test_files_without_rows_are_read_and_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
    write(tmp_path / "b.parquet", {"x": [1]})
    made = manifest(tmp_path)
    assert [Path(file.info.path).name for file in made.files] == ["b.parquet"]
    assert (made.file_count, made.has_rows) == (2, True)
    assert made.pruned == Pruned(1, 1, 1, 1)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_a_damaged_file_is_named_and_never_skipped(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.parquet", {"x": [1]})
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(FileReadError, match=r"b\.parquet, footer: cannot be read") as caught:
        manifest(tmp_path)
    assert isinstance(caught.value.__cause__, ValueError)


def test_files_that_disagree_are_an_error_unless_a_schema_is_given(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": [1], "y": [1]})
    write(tmp_path / "b.parquet", {"x": ["2"]})
    with pytest.raises(SchemaMismatchError, match=r"b\.parquet: column 'x' is string, but int64 in .*a\.parquet"):
        manifest(tmp_path)
    assert manifest(tmp_path, schema=pa.schema({"x": pa.int16()})).schema == pa.schema({"x": pa.int16()})
    with pytest.raises(ColumnNotFoundError, match=r"column 'z' that no file has: expected some of \['x', 'y'\]"):
        manifest(tmp_path, schema=pa.schema({"x": pa.int16(), "z": pa.int8()}))


def test_format_options_reach_the_format(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": [1]})
    with pytest.raises(OptionError, match="parquet takes page_checksums"):
        manifest(tmp_path, format_options={"page_checksum": True})


# ------------------------------------------------------------------------------------------------------- partitions


def constants(made: FileManifest) -> list[dict[str, Any]]:
    return [dict(file.partition) for file in made.files]


def test_partition_columns_follow_the_files_columns_with_types_found_over_all_files(tmp_path: Path) -> None:
    for folder in ("n=1/big=1/t=1", "n=-2/big=3000000000/t=b%20c", "n=03/big=__HIVE_DEFAULT_PARTITION__/t=4"):
        write(tmp_path / folder / "f.parquet", {"x": [1]})
    made = manifest(tmp_path)
    assert made.schema == pa.schema({"x": pa.int64(), "n": pa.int32(), "big": pa.int64(), "t": pa.string()})
    assert made.partition_names == ("n", "big", "t")
    assert sorted(constants(made), key=str) == [
        {"n": -2, "big": 3_000_000_000, "t": "b c"},
        {"n": 1, "big": 1, "t": "1"},
        {"n": 3, "big": None, "t": "4"},
    ]
    assert "n" not in manifest(tmp_path, partitioning=None).schema.names


def test_partitions_are_those_that_pyarrow_wrote(tmp_path: Path) -> None:
    table = pa.table({"x": range(6), "k": [1, 1, 2, 2, 3, None], "c": ["a/b", "ä =", "%", "x", "x", "y"]})
    ds.write_dataset(table, tmp_path, format="parquet", partitioning=["k", "c"], partitioning_flavor="hive")
    theirs = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("x")
    made = manifest(tmp_path)
    assert made.schema == theirs.schema
    assert sorted(constants(made), key=str) == sorted(theirs.select(["k", "c"]).to_pylist(), key=str)


def test_a_declared_schema_types_partitions_and_leaves_out_what_it_does_not_name(tmp_path: Path) -> None:
    write(tmp_path / "day=2024-01-02" / "k=1" / "f.parquet", {"x": [1]})
    made = manifest(tmp_path, schema=pa.schema({"day": pa.date32(), "x": pa.int8()}))
    assert made.schema == pa.schema({"day": pa.date32(), "x": pa.int8()})
    assert constants(made) == [{"day": datetime.date(2024, 1, 2)}]
    with pytest.raises(SchemaMismatchError, match=r"f\.parquet: the folder day=2024-01-02 has no value .* int32"):
        manifest(tmp_path, schema=pa.schema({"day": pa.int32()}))


def test_the_path_takes_precedence_over_a_column_of_that_name_whose_type_and_place_it_keeps(tmp_path: Path) -> None:
    write(tmp_path / "day=2024-01-02" / "f.parquet", {"day": pa.array([None, None], pa.date32()), "x": [1, 2]})
    made = manifest(tmp_path)
    assert made.schema == pa.schema({"day": pa.date32(), "x": pa.int64()})
    assert constants(made) == [{"day": datetime.date(2024, 1, 2)}]
    assert made.partition_names == ("day",)
    assert made.null_evidence == {}
    assert manifest(tmp_path, filters=[("day", "=", "2024-01-02")]).pruned.files_after == 1
    assert manifest(tmp_path, filters=[("day", "=", "2024-01-03")]).pruned.files_after == 0


def test_the_folders_value_wins_over_the_files_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a=1" / "b=x" / "f.parquet", {"a": [1, 1], "b": ["x", "x"], "c": [1, 2]})
    write(tmp_path / "a=2" / "b=x" / "f.parquet", {"a": [7, 8], "b": ["x", "x"], "c": [1, 2]})
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=4)
    assert next(iter(loader))["a"].tolist() == [1, 1, 2, 2]
    lines = [record.getMessage() for record in caplog.records if "the name of the folder" in record.getMessage()]
    assert len(lines) == 1
    assert "column 'a'" in lines[0]
    assert "a=2/b=x/f.parquet" in lines[0]
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=4, partitioning=None)
    assert next(iter(loader))["a"].tolist() == [1, 1, 7, 8]


def test_a_line_says_why_folders_are_no_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a=1" / "f.parquet", {"x": [1]})
    write(tmp_path / "g.parquet", {"x": [1]})
    StructuredDataset.create_dataloader(tmp_path, batch_size=1)
    (line,) = [record.getMessage() for record in caplog.records if "key=value" in record.getMessage()]
    assert f"{tmp_path}/g.parquet has the keys []" in line
    assert "['a']" in line
    assert "partitioning=None" in line
    caplog.clear()
    StructuredDataset.create_dataloader(tmp_path, batch_size=1, partitioning=None)
    assert "key=value" not in caplog.text


# ---------------------------------------------------------------------------------------------------------- filters


def test_filters_prune_row_groups_and_files(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", {"x": range(100)}, 10)
    write(tmp_path / "k=2" / "b.parquet", {"x": range(100)}, 10)
    made = manifest(tmp_path, filters=[("k", "=", 2), ("x", "<", 15)])
    assert [Path(file.info.path).name for file in made.files] == ["b.parquet"]
    assert segments(made) == [[0, 1]]
    assert made.files[0].info.record_count == 100
    assert made.pruned == Pruned(1, 1, 10, 2)  # k=1 is not listed
    assert manifest(tmp_path, filters=pc.field("x") > 1000).files == ()


def test_filters_on_columns_that_some_files_lack_take_them_as_null(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": [1, 2]})
    write(tmp_path / "b.parquet", {"x": pa.array([1, 2], pa.int8()), "y": [5, 6]})
    assert len(manifest(tmp_path, filters=[("y", ">", 1)]).files) == 1
    assert len(manifest(tmp_path, filters=[("y", "is null")]).files) == 1
    assert len(manifest(tmp_path, filters=[[("y", ">", 1)], [("x", "=", 1)]]).files) == 2


def test_filters_are_checked_against_all_columns(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", {"x": [1]})
    with pytest.raises(ColumnNotFoundError, match="no column 'xx': did you mean 'x'"):
        manifest(tmp_path, filters=[("xx", "=", 1)])
    with pytest.raises(OptionError, match="cannot be compared"):
        manifest(tmp_path, filters=[("k", "=", "one")])


def test_null_evidence_names_a_file_for_each_column_that_holds_nulls(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", {"x": [1, 2], "y": [1, 2], "z": [1, 2]})
    write(tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "b.parquet", {"x": [1, None], "z": [1, 2]})
    write(tmp_path / "k=2" / "empty.parquet", {"x": pa.array([], pa.int64())})
    made = manifest(tmp_path)
    b = f"{tmp_path}/k=__HIVE_DEFAULT_PARTITION__/b.parquet"
    assert made.null_evidence == {"x": b, "y": f"{b}, which has no such column", "k": b}
    assert manifest(tmp_path, filters=[("k", "=", 1)]).null_evidence == {}


def test_missing_columns_are_counted_over_the_files_that_are_read(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", {"x": [1], "y": [1]})
    write(tmp_path / "k=2" / "b.parquet", {"x": [1], "z": [1.5]})
    write(tmp_path / "k=3" / "c.parquet", {"x": [1]})
    write(tmp_path / "k=4" / "empty.parquet", {"w": pa.array([], pa.int64())})
    a, b, c = (f"{tmp_path}/k={i}/{name}.parquet" for i, name in ((1, "a"), (2, "b"), (3, "c")))
    assert manifest(tmp_path).missing == {"w": (3, a), "y": (2, b), "z": (2, a)}
    assert manifest(tmp_path, filters=[("k", ">", 2)]).missing == {"w": (1, c)}  # of files that are listed
    assert manifest(tmp_path, filters=[("k", ">", 2)], columns=["x", "y"]).missing == {
        "w": (1, c), "y": (1, c), "z": (1, c)
    }  # fmt: skip


def test_one_line_names_the_columns_that_are_missing_from_some_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.parquet", {"x": [1], "y": [1.5]})
    write(tmp_path / "b.parquet", {"x": [1]})
    write(tmp_path / "c.parquet", {"x": [1], **{f"z{i}": [1.5] for i in range(6)}})

    def lines(**options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
            StructuredDataset.create_dataloader(tmp_path, **options)
        assert all(record.levelno == logging.INFO for record in caplog.records)
        return [record.message for record in caplog.records if "missing" in record.message]

    first = f"'y' (2 of 3 files, the first is {tmp_path}/b.parquet)"
    assert lines(columns=["y"]) == [f"{tmp_path}: columns missing from some files are null there: {first}"]
    [line] = lines()
    assert first in line
    assert line.endswith(f"'z3' (2 of 3 files, the first is {tmp_path}/a.parquet); and 2 more columns")
    assert lines(columns=["x"]) == []


def test_what_a_sample_of_text_lacks_is_told_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 1.5}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n')
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        StructuredDataset.create_dataloader(tmp_path)
    assert (
        "missing from some files (judged by their first MiB) are null there: 'y' (1 of 2 files, the first"
        in caplog.text
    )


# ----------------------------------------------------------------------------------------------------- other storage

TOKEN = "t0p-s3cret"


class Guarded(MemoryFileSystem):
    """A memory filesystem that answers only with the right token, and counts requests for data."""

    protocol = "guarded"
    store: ClassVar[dict[str, Any]] = {}  # shared by all instances, as in the parent
    pseudo_dirs: ClassVar[list[str]] = [""]
    read: ClassVar[Counter[str]] = Counter()

    def __init__(self, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.token = token

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("guarded://", "memory://")))

    def _check(self) -> None:
        if self.token != TOKEN:
            raise PermissionError("wrong token")

    def info(self, path: str, **kwargs: Any) -> Any:
        self._check()
        return super().info(path, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._check()
        return super().ls(path, detail, **kwargs)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self._check()
        return super()._open(path, mode, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> Any:
        self._check()
        self.read[path] += 1
        return super().cat_file(path, start, end, **kwargs)


fsspec.register_implementation("guarded", Guarded, clobber=True)


@pytest.fixture
def guarded() -> Guarded:
    fs = Guarded(token=TOKEN)
    Guarded.store.clear()
    Guarded.read.clear()
    for name in ("a.parquet", "k/b.parquet"):
        with fs.open(f"/data/{name}", "wb") as file:
            pq.write_table(pa.table({"x": range(20)}), file, row_group_size=5)
    return fs


def read_all(made: FileManifest) -> list[int]:
    form = made.opener
    values: list[int] = []
    for file in made.files:
        reader = form.open(file.info, file.layout, made.storage, {}, made.schema)
        values += reader.read([segment.number for segment in file.layout.segments], ["x"])[0].to_pylist()
        reader.close()
    return values


@pytest.mark.parametrize("path", ["guarded://data", "guarded://data/**/*.parquet"])
def test_storage_options_reach_listing_footers_and_opens(guarded: Guarded, path: str) -> None:
    made = manifest(path, storage_options={"token": TOKEN})
    assert read_all(pickle.loads(pickle.dumps(made))) == [*range(20), *range(20)]
    with pytest.raises(FileReadError, match=r"/data.*wrong token") as caught:
        manifest(path, storage_options={"token": "wr0ng"})
    assert "wr0ng" not in str(caught.value)
    assert TOKEN not in repr(made)


def test_a_ready_filesystem_is_used_as_it_is(guarded: Guarded) -> None:
    made = manifest("/data", filesystem=guarded)
    assert read_all(made) == [*range(20), *range(20)]
    assert TOKEN not in repr(made)


def test_each_footer_is_read_once_and_pruning_and_readers_read_none(guarded: Guarded) -> None:
    made = manifest("guarded://data", storage_options={"token": TOKEN}, filters=[("x", "<", 12)])
    assert segments(made) == [[0, 1, 2], [0, 1, 2]]
    assert Guarded.read == {"/data/a.parquet": 1, "/data/k/b.parquet": 1}
    read_all(made)  # the row groups of each file in one request
    assert Guarded.read == {"/data/a.parquet": 2, "/data/k/b.parquet": 2}
