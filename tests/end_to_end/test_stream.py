"""stream: one call for files and tables, whose loader is all that a user needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra.utils
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from omegaconf import OmegaConf
from pyiceberg.catalog.sql import SqlCatalog

from tests.iceberg.conftest import sql_config
from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import (
    Delta,
    DeltaDataset,
    Files,
    Follow,
    Iceberg,
    IcebergDataset,
    OptionError,
    StructuredDataset,
    StructuredLoader,
    UnknownOptionError,
    stream,
)

RANKS = {"num_ranks": 1, "rank": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "day=1").mkdir(parents=True)
    for number in range(2):
        table = pa.table({"id": range(number * 10, number * 10 + 10)})
        pq.write_table(table, tmp_path / "data" / "day=1" / f"{number}.parquet")
    return tmp_path / "data"


def ids(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["id"].tolist()]


def test_a_path_is_read_as_create_dataloader_reads_it(folder: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_ranks": 2, "rank": 1}
    loader = stream(folder, **options)
    same, dataset = StructuredDataset.create_dataloader(folder, **options)
    assert isinstance(loader, StructuredLoader)
    assert ids(loader) == ids(same) != []
    assert loader.dataset._options == dataset._options


@pytest.mark.parametrize("several", [False, True])
def test_paths_are_files_and_so_is_a_dict(folder: Path, several: bool) -> None:
    path: Any = [folder / "day=1" / "1.parquet", folder / "day=1" / "0.parquet"] if several else str(folder)
    expected = ids(stream(path, **RANKS))
    assert sorted(expected) == list(range(20))
    for same in (Files(path), {"kind": "files", "path": path}, {"kind": "Files", "path": path}):
        assert ids(stream(same, **RANKS)) == expected


def test_what_only_files_have_are_fields(folder: Path) -> None:
    assert "day" in next(iter(stream(folder, **RANKS)))
    assert "day" not in next(iter(stream(Files(folder, partitioning=None), **RANKS)))
    same, _ = StructuredDataset.create_dataloader(folder, partitioning=None, **RANKS)
    assert "day" not in next(iter(same))
    with pytest.raises(UnknownOptionError, match=r"stream\(Files\('.*data', partitioning=None\), "):
        stream(folder, partitioning=None)  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"'ref' belongs to a table: stream\(Iceberg\(table, ref=...\)\)"):
        stream(folder, ref="main")  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"Iceberg\(table, as_of=...\)\) or stream\(Delta"):
        stream(folder, as_of=5)  # type: ignore[call-arg]


def test_a_delta_table(tmp_path: Path) -> None:
    for first in (0, 10):
        write_deltalake(tmp_path / "t", pa.table({"id": range(first, first + 10)}), mode="append")
    assert sorted(ids(stream(Delta(tmp_path / "t"), **RANKS))) == list(range(20))
    loader = stream(Delta(tmp_path / "t", version=0), **RANKS)
    assert ids(loader) == list(range(10)) == ids(stream({"kind": "delta", "table": str(tmp_path / "t"), "version": 0}))
    assert isinstance(loader.dataset, DeltaDataset)
    with pytest.raises(UnknownOptionError, match=r"'filesystem' is not an option for Delta tables"):
        stream(Delta(tmp_path / "t"), filesystem=object())


def test_an_iceberg_table_that_is_followed(tmp_path: Path) -> None:
    config = {"name": "test", **sql_config(tmp_path)}
    with SqlCatalog(**config) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
        table.append(pa.table({"id": range(10)}))
        loader = stream(Iceberg("ns.t", catalog=config, follow=Follow(wait=0)), columns=["id"], **RANKS)
        assert ids(loader) == list(range(10))
        table.append(pa.table({"id": range(10, 15)}))
        assert ids(loader) == list(range(10, 15))
        plain = stream(Iceberg("ns.t", catalog=config, metadata_columns=["_pos"]), columns=["id"], **RANKS)
        assert set(next(iter(plain))) == {"id", "_pos"}
        table.append(pa.table({"id": [99]}))
        assert plain.advance(appended_only=True)
        assert ids(plain) == [99]
        same, _ = IcebergDataset.create_dataloader("ns.t", catalog_config=config, **RANKS)
        assert sorted(ids(same)) == sorted(ids(stream(Iceberg("ns.t", catalog=config), **RANKS)))
        assert "sqlite" not in repr(Iceberg("ns.t", catalog=config))


def test_a_table_of_any_format(tmp_path: Path) -> None:
    commit(tmp_path, 1, data_file(tmp_path, "a.parquet", range(10), [3]))
    assert ids(stream(LogTable(tmp_path), **RANKS)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_from_a_config_file(folder: Path) -> None:
    text = f"""
    _target_: torch_dataloader_utils.stream
    source: {{_target_: torch_dataloader_utils.Files, path: {folder}, partitioning: null}}
    batch_size: 5
    """
    loader = hydra.utils.instantiate(yaml.safe_load(text))
    assert set(next(iter(loader))) == {"id"}


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        ("{folder}", {"id", "day"}),
        (
            "{{kind: files, path: {folder}, partitioning: {{kind: hive, root: {folder}, schema: {{day: int8}}}}}}",
            {"id", "day"},
        ),
        ("{{_target_: torch_dataloader_utils.Files, path: {folder}, partitioning: {{root: {folder}/day=1}}}}", {"id"}),
        ("[{folder}/day=1/0.parquet, {folder}/day=1/1.parquet]", {"id", "day"}),
    ],
)
@pytest.mark.parametrize("convert", ["none", "all"])
def test_sources_of_a_config_file(folder: Path, source: str, columns: set[str], convert: str) -> None:
    text = f"_target_: torch_dataloader_utils.stream\n_convert_: {convert}\nsource: {source.format(folder=folder)}\n"
    loader = hydra.utils.instantiate(OmegaConf.create(text), num_ranks=1, rank=0)
    assert set(next(iter(loader))) == columns
    assert sorted(ids(loader)) == list(range(20))


@pytest.mark.parametrize("source", [None, 3, [], {"path": "x"}, object()])
def test_what_is_no_source_is_an_error(source: Any) -> None:
    with pytest.raises(OptionError, match=r"source=.*expected a path or a list of paths, Files\(\.\.\.\)"):
        stream(source)


def test_the_loader_is_all_that_is_needed(folder: Path, tmp_path: Path) -> None:
    loader = stream(folder, batch_size=4, strings="codes", **RANKS)
    events: list[Any] = []
    loader.on_event(events.append)
    assert loader.plan().rows == 20
    assert loader.plan(3, 0) == loader.dataset.plan(3, 0)
    assert loader.describe(1).epoch == 1
    assert loader.plan_page(tmp_path / "plan.html").stat().st_size > 1000
    assert loader.verdict() is None
    assert len(ids(loader)) == 20
    assert events
    assert loader.world == loader.dataset.world
    with pytest.raises(OptionError, match="only tables have snapshots"):
        loader.advance()
    loader.close()
    assert len(ids(loader)) == 20
