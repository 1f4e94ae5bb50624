"""Columns from folders named `key=value`, and `Hive`, which says which of them count."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Files, Hive, StructuredDataset, stream
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, SchemaMismatchError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import FoundFile, find_files
from torch_dataloader_utils.sources.partitions import partition_values
from torch_dataloader_utils.values import Value

RANKS = {"num_ranks": 1, "rank": 0}


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [1, 2]}), folder / name)


def parsed(*relative: str, partitioning: Any = "auto") -> list[dict[str, str | None]]:
    return partition_values(
        [FoundFile(f"/root/{name}", 1, name) for name in relative], ReadOptions(partitioning=partitioning)
    )


def test_partition_values_are_decoded() -> None:
    values = parsed("y=2024/c=a%20b%2Fc/x", "y=2023/c=__HIVE_DEFAULT_PARTITION__/x", "c=/y=1/plain/k=v.parquet")
    assert values == [{"y": "2024", "c": "a b/c"}, {"y": "2023", "c": None}, {"c": "", "y": "1"}]
    assert parsed("y=1/x", partitioning=None) == [{}]


def test_files_that_disagree_about_keys_have_no_partitions_or_are_an_error() -> None:
    assert parsed("y=1/x", "z=1/x") == [{}, {}]
    assert parsed("y=1/x", "x") == [{}, {}]
    for partitioning in ("hive", Hive(), Hive("/root")):
        with pytest.raises(OptionError, match=r"/root/z=1/x has the keys \['z'\], but /root/y=1/x has \['y'\]"):
            parsed("y=1/x", "z=1/x", partitioning=partitioning)


def test_partition_columns_are_the_same_however_the_path_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "run=3/t/k=0/y=1/x.parquet", "run=3/t/k=0/y=2/x.parquet", "run=3/t/k=1/y=1/x.parquet")
    root = f"{tmp_path}/run=3/t"
    monkeypatch.chdir(root)
    spellings: list[str | list[str]] = [
        *(str(tmp_path), root, f"{root}/", f"{root}/k=0", f"{root}/k=0/y=1", f"{root}/k=0/y=1/x.parquet"),
        *(f"{root}/**", f"{root}/*/*/*.parquet", f"{root}/k=0/y=*/*.parquet", f"{root}/k=1/../k=0", f"{root}//k=0/."),
        *(".", "k=0", "./k=0/y=2/x.parquet", f"file://{root}/k=0", f"file:{root}/k=0/y=1", f"local://{root}/k=1"),
        [f"{root}/k=0", f"{root}/k=1/y=1", f"{root}/k=0/y=1/x.parquet"][:2],
    ]
    for path in spellings:
        for partitioning in ("auto", "hive"):
            files = find_files(path, ReadOptions())[1]
            for file, values in zip(
                files, partition_values(files, ReadOptions(partitioning=partitioning)), strict=True
            ):
                folders = dict(part.split("=") for part in Path(file.path).resolve().parts if "=" in part)
                assert values == folders, path
                assert set(values) == {"run", "k", "y"}, path


def test_links_give_the_keys_of_their_own_names(tmp_path: Path) -> None:
    touch(tmp_path, "store/v=1/x.parquet")
    (tmp_path / "day=5").symlink_to(tmp_path / "store" / "v=1")
    read = ReadOptions(partitioning="hive")
    assert partition_values(find_files(tmp_path / "day=5", read)[1], read) == [{"day": "5"}]


def test_keys_in_urls_of_web_servers_are_those_of_the_servers_folders() -> None:
    def keys(url: str) -> dict[str, str | None]:
        return partition_values([FoundFile(url, 1, "x")], ReadOptions())[0]

    # As folders are called on the server: c=a%20b and d=x.
    assert keys("http://me=you@host/c=a%2520b/d=x/f.csv") == {"c": "a b", "d": "x"}
    assert keys("https://host/c%3Da%2520b/d%3Dx/f.csv") == {"c": "a b", "d": "x"}  # as Python's server lists them
    assert keys("http://host/k=b%2Fc/f.csv") == {"k": "b/c"}
    assert keys("http://host/k=1/f.csv?Signature=se/cret=1/x#a=b/c") == {"k": "1"}


# The spellings of a root and of paths below it: on the local disk, relative to the folder above the root.
ROOTS = (
    "{top}/run=3/t",
    "{top}/run=3/t/",
    "run=3/t",
    "./run=3/../run=3//t",
    "file://{top}/run=3/t",
    "local://{top}/run=3/t/",
)
PATHS = (
    *("{top}", "{top}/run=3/t", "{top}/run=3/t/", "{top}/run=3/t/k=0", "{top}/run=3/t/k=0/y=1/x.parquet"),
    *("{top}/run=3/**", "{top}/run=3/t/*/*/*.parquet", "run=3/t/k=1/../k=0", "run=3//t/k=0/.", "run=3/t/k=1"),
    *("file://{top}/run=3/t/k=0", "local://{top}/run=3/t"),
)


@pytest.mark.parametrize("root", ROOTS)
def test_below_a_root_columns_are_the_same_however_root_and_path_are_spelled(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "run=3/t/k=0/y=1/x.parquet", "run=3/t/k=0/y=2/x.parquet", "run=3/t/k=1/y=1/x.parquet")
    monkeypatch.chdir(tmp_path)
    read = ReadOptions(partitioning=Hive(root.format(top=tmp_path)))
    paths: list[Any] = [path.format(top=tmp_path) for path in PATHS]
    for path in (*paths, [f"{tmp_path}/run=3/t/k=0", "run=3/t/k=1/y=1"], tmp_path / "run=3" / "t"):
        files = find_files(path, read)[1]
        for file, values in zip(files, partition_values(files, read), strict=True):
            folders = dict(part.split("=") for part in Path(file.path).resolve().parts if "=" in part)
            assert folders.pop("run") == "3"
            assert values == folders, path
            assert set(values) == {"k", "y"}, path


@pytest.mark.parametrize(
    ("root", "path", "keys"),
    [
        ("s3://b/t", "s3://b/t/year=2020/", {"year": "2020"}),
        ("s3://b/t/", "s3a://b/t/year=2020/*.parquet", {"year": "2020"}),
        ("s3a://b/a=1", "s3://b/a=1/year=2020/x.parquet", {"year": "2020"}),
        ("s3://b", "s3://b/a=1/year=2020", {"a": "1", "year": "2020"}),
        ("s3://b/a=1/year=2020", "s3://b/a=1/year=2020", {}),
        (None, "s3://b/a=1/year=2020", {"a": "1", "year": "2020"}),
    ],
)
def test_a_root_in_a_store(root: str | None, path: str, keys: dict[str, str]) -> None:
    read = ReadOptions(partitioning=Hive(root))
    inner = path.partition("://")[2].rstrip("/").removesuffix("/*.parquet").removesuffix("/x.parquet")
    assert partition_values([FoundFile(f"{inner}/x.parquet", 1, "x.parquet")], read) == [keys]


@pytest.mark.parametrize("root", ["memory://b/run=3/t", "memory://b/run=3/t/", "memory:///b/run=3/t"])
@pytest.mark.parametrize("path", ["memory://b", "memory://b/run=3/t/year=2020/", "memory://b/run=3/*/*/*.parquet"])
def test_a_loader_reads_the_columns_below_a_root(root: str, path: str) -> None:
    with fsspec.open("memory://b/run=3/t/year=2020/x.parquet", "wb") as file:
        pq.write_table(pa.table({"x": [1, 2]}), file)
    loader = stream(Files(path, partitioning=Hive(root)), **RANKS)
    assert {name: column.tolist() for name, column in next(iter(loader)).items()} == {"x": [1, 2], "year": [2020] * 2}


def test_a_root_on_a_web_server_or_in_a_repository() -> None:
    def keys(path: str, root: str) -> dict[str, str | None]:
        return partition_values([FoundFile(path, 1, "x")], ReadOptions(partitioning=Hive(root)))[0]

    assert keys("http://host/a%3D1/c=a%2520b/f.csv?x=/y=1", "https://host/a=1/") == {"c": "a b"}
    with pytest.raises(OptionError, match="is not below the root"):
        keys("http://host/a/c=1/f.csv", "http://other/a")


def test_a_file_that_is_not_below_the_root_is_an_error_whose_remedy_works(tmp_path: Path) -> None:
    touch(tmp_path, "t/k=0/x.parquet", "tt/k=1/x.parquet")
    with pytest.raises(
        OptionError, match=rf"{tmp_path}/tt/k=1/x\.parquet is not below the root of .*Hive\('.*/t'"
    ) as caught:
        stream(Files(tmp_path, partitioning=Hive(tmp_path / "t")), **RANKS)
    (remedy,) = caught.value.remedies
    assert "k" in next(iter(stream(Files(tmp_path, **remedy.given), **RANKS)))


def test_keys_above_the_root_may_differ(tmp_path: Path) -> None:
    touch(tmp_path, "a=1/t/k=0/x.parquet", "a=1/t/k=1/x.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, partitioning=Hive(tmp_path / "a=1"), **RANKS)
    assert set(next(iter(loader))) == {"x", "k"}


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"day": pa.date32(), "k": pa.string()}),
        {"day": pa.date32(), "k": "string"},
        [("day", pa.date32()), ("k", pa.string())],
    ],
)
def test_a_schema_gives_types(tmp_path: Path, schema: Any) -> None:
    touch(tmp_path, "day=2024-01-02/k=01/n=7/x.parquet")
    partitioning = Hive(schema=schema)
    assert partitioning == Value.from_dict(partitioning.to_dict())
    assert repr(partitioning) == "Hive(schema={'day': 'date32[day]', 'k': 'string'})"
    loader = stream(Files(tmp_path, partitioning=partitioning), output_format="dict", **RANKS)
    types = {"x": pa.int64(), "day": pa.date32(), "k": pa.string(), "n": pa.int32()}
    assert loader.dataset.schema == pa.schema(types)
    assert next(iter(loader))["day"] == [date(2024, 1, 2)] * 2
    written = {"kind": "hive", "schema": {"day": "date32", "k": "string"}}
    assert stream(Files(tmp_path, partitioning=written), **RANKS).dataset.schema == pa.schema(types)


def test_a_schema_gives_types_of_columns_that_files_have_too(tmp_path: Path) -> None:
    (tmp_path / "x=5").mkdir()
    touch(tmp_path, "x=5/x.parquet")
    loader = stream(Files(tmp_path, partitioning=Hive(schema={"x": "int8"})), output_format="arrow", **RANKS)
    assert next(iter(loader)).schema == pa.schema({"x": pa.int8()})


def test_types_of_no_zone_or_scale_have_no_name_and_stay() -> None:
    schema = {"at": pa.timestamp("us", "UTC"), "sum": pa.decimal128(9, 2)}
    assert Hive(schema=pa.schema(schema)).schema == schema
    with pytest.raises(OptionError, match=r"Hive: schema is .*cannot hold"):
        Hive(schema=schema).to_dict()


@pytest.mark.parametrize(
    "schema", ["int8", 3, {"a": "int5"}, {"a": 3}, {"a": pa.list_(pa.int8())}, [("a", "int8")] * 2]
)
def test_what_is_no_schema_is_an_error(schema: Any) -> None:
    with pytest.raises(OptionError, match=r"Hive: schema=.*expected a pyarrow\.Schema, or a dict"):
        Hive(schema=schema)


def test_a_schema_of_columns_or_values_that_folders_do_not_have_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "day=2024-01-02/x.parquet")
    with pytest.raises(ColumnNotFoundError, match=r"Hive\(schema=.* has a column 'k' that no file has: .*\['day'\]"):
        stream(Files(tmp_path, partitioning=Hive(schema={"k": "int8"})), **RANKS)
    with pytest.raises(
        SchemaMismatchError, match=r"day=2024-01-02 has no value .* int8.*Hive\(schema=\{'day': 'string'\}\)"
    ):
        stream(Files(tmp_path, partitioning=Hive(schema={"day": "int8"})), **RANKS)
    loader = stream(Files(tmp_path, partitioning=Hive(schema={"day": "string"})), **RANKS)
    assert next(iter(loader))["day"] == ["2024-01-02"] * 2


def test_one_schema_gives_the_types_and_each_remedy_works(tmp_path: Path) -> None:
    touch(tmp_path, "k=1/x.parquet")
    given: dict[str, Any] = {"schema": pa.schema({"k": pa.int64()}), "partitioning": Hive(schema={"k": "int8"})}
    with pytest.raises(
        OptionError, match=r"schema= with partitioning=Hive\(.*Use partitioning=Hive\(\), or leave out schema"
    ):
        Files(tmp_path, **given)
    assert stream(Files(tmp_path, **{**given, "partitioning": Hive()}), **RANKS).dataset.schema == given["schema"]
    assert (
        stream(Files(tmp_path, partitioning=given["partitioning"]), **RANKS).dataset.schema.field("k").type == pa.int8()
    )


def test_the_word_is_the_value_and_a_dict_may_leave_out_its_kind() -> None:
    assert Files("x", partitioning="hive") == Files("x", partitioning=Hive())
    assert Files("x", partitioning={"root": "x"}) == Files("x", partitioning=Hive("x"))
    with pytest.raises(OptionError, match=r"partitioning=3: expected one of 'auto', 'hive', None, or Hive\(\.\.\.\)"):
        Files("x", partitioning=3)  # type: ignore[arg-type]
