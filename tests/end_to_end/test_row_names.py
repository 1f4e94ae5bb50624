"""`_file` and `_pos` name a row as it lies in its file, however rows are chosen, ordered, shared and delivered."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

import torch_dataloader_utils as tdu
from tests.delta.by_hand import delete_rows, live, require
from tests.end_to_end.test_formats import WRITERS
from tests.iceberg.conftest import sql_config
from tests.packing.helpers import LENGTH, write_documents
from tests.resume.helpers import batches, pass_with_states
from torch_dataloader_utils import (
    Appended,
    CountsRequiredError,
    Delta,
    Files,
    FileSnapshot,
    Follow,
    Iceberg,
    OptionError,
    Pack,
    SnapshotCursor,
    Subsets,
    TableDataset,
    TableFile,
    Transform,
    named_rows,
)
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.sources.row_names import file_name
from torch_dataloader_utils.storage import Storage

stream: Any = tdu.stream  # with options of any type
combine: Any = tdu.combine
NAMES = ("_file", "_pos")
ROWS, FILES, GROUP = 250, 3, 60  # rows of a file and of a row group
Name = tuple[str, int]


def table_of(file: int) -> pa.Table:
    ids = np.arange(file * ROWS, (file + 1) * ROWS)
    return pa.table({"id": ids, "name": [f"name {row % 7}" for row in ids]})


def write(folder: Path, suffix: str = "parquet") -> dict[int, Name]:
    """Files of rows, and the name of each row by its id."""
    for file in range(FILES):
        path = folder / f"{file}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table_of(file), path, row_group_size=GROUP)
        else:
            WRITERS[suffix](table_of(file), path)
    return {row: (str(folder / f"{row // ROWS}.{suffix}"), row % ROWS) for row in range(FILES * ROWS)}


def names_of(loader: Any, keys: tuple[str, str] = NAMES) -> dict[int, Name]:
    """The names of the rows of a pass by their ids, none of which is there twice."""
    found: dict[int, Name] = {}
    for batch in loader:
        values = batch.to_pydict() if isinstance(batch, pa.RecordBatch) else batch
        ids, files, numbers = (np.asarray(values[key]).tolist() for key in ("id", *keys))
        if files and not isinstance(files[0], str):
            listed = loader.vocabulary("_file")
            files = [listed[code] for code in files]
        assert found.keys().isdisjoint(ids)
        assert len(set(ids)) == len(ids)
        found |= dict(zip(ids, zip(files, numbers, strict=True), strict=True))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("named")
    write(made)
    return made


@pytest.fixture(scope="module")
def truth(folder: Path) -> dict[int, Name]:
    return {row: (str(folder / f"{row // ROWS}.parquet"), row % ROWS) for row in range(FILES * ROWS)}


SMALL: dict[str, Any] = {"columns": ["id"], "batch_size": 7}
WAYS: dict[str, dict[str, Any]] = {
    "as stored": {},
    "shuffled": {"shuffle": True, "shuffle_buffer_size": 50, "split_rows": 15},
    "splits within row groups": {"split_rows": 7},
    "threads": {"num_workers": 3, "split_rows": 20},
    "processes": {"num_workers": 2, "worker_mode": "processes", "shuffle": True, "shuffle_buffer_size": 40},
    "pyarrow": {"format_options": {"engine": "pyarrow"}},
    "pyarrow, shuffled": {"format_options": {"engine": "pyarrow"}, "shuffle": True},
    "arrow": {"output_format": "arrow"},
    "dict": {"output_format": "dict", "shuffle": True},
    "numpy": {"output_format": "numpy"},
    "text": {"strings": {"_file": "list"}},
    "all codes": {"strings": "codes", "columns": ["id", "name"]},
}
CHOICES: dict[str, tuple[dict[str, Any], Callable[[int, Name], bool]]] = {
    "filter": ({"filters": [("name", "==", "name 3")]}, lambda row, name: row % 7 == 3),
    "few rows": ({"filters": [("id", "in", [5, 44, 45, 200])]}, lambda row, name: row in (5, 44, 45, 200)),
    "filter, counted": ({"filters": [("name", "==", "name 3")], "count_rows": True}, lambda row, name: row % 7 == 3),
    "by number": ({"filters": [("_pos", ">=", 75)]}, lambda row, name: name[1] >= 75),
    "by number and value": (
        {"filters": [[("_pos", "<", 3)], [("id", ">", 250), ("_pos", "!=", 80)]]},
        lambda row, name: name[1] < 3 or (row > 250 and name[1] != 80),
    ),
    "limit": ({"limit": 133}, lambda row, name: row < 133),
    "limit of a filter": (
        {"filters": [("name", "==", "name 3")], "limit": 20, "count_rows": True},
        lambda row, name: row % 7 == 3 and row < 7 * 20,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_have_the_names_of_their_places(folder: Path, truth: dict[int, Name], way: str) -> None:
    loader = stream(Files(folder, metadata_columns=NAMES), **{**SMALL, **WAYS[way]})
    assert names_of(loader) == truth
    loader.dataset.close()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("way", ["as stored", "shuffled", "pyarrow", "arrow"])
def test_what_leaves_rows_out_renames_none(folder: Path, truth: dict[int, Name], choice: str, way: str) -> None:
    options, holds = CHOICES[choice]
    loader = stream(Files(folder, metadata_columns=NAMES), **{**SMALL, **WAYS[way], **options})
    assert names_of(loader) == {row: name for row, name in truth.items() if holds(row, name)}


def test_a_file_is_chosen_by_its_name_without_reading_others(folder: Path, truth: dict[int, Name]) -> None:
    path = truth[ROWS][0]
    for filters in ([("_file", "==", path)], [("_file", "in", [path])]):
        loader = stream(Files(folder, metadata_columns=NAMES), filters=filters, **SMALL)
        assert names_of(loader) == {row: name for row, name in truth.items() if name[0] == path}
        assert loader.describe().files == 1
    loader = stream(Files(folder, metadata_columns=NAMES), filters=[("_file", "==", path), ("id", "<", 260)], **SMALL)
    assert f"(of {GROUP})" in repr(loader.dataset)  # by statistics, too
    loader = stream(Files(folder, metadata_columns=["_pos"]), filters=[("_pos", "<", 5)], **SMALL)
    assert f"(of {3 * GROUP})" in repr(loader.dataset)  # the other row groups are ruled out


def test_subsets_have_the_same_rows_and_names(folder: Path, truth: dict[int, Name]) -> None:
    parts = Subsets({"a": 0.4, "b": 0.6})
    found: dict[int, Name] = {}
    for name in ("a", "b"):
        plain = [row for batch in stream(folder, subset=parts[name], **SMALL) for row in batch["id"].tolist()]
        own = names_of(stream(Files(folder, metadata_columns=NAMES), subset=parts[name], **SMALL))
        assert list(own) == plain
        found |= own
    assert found == truth


@given(
    size=st.integers(1, 40),
    split=st.integers(1, 40),
    buffer=st.integers(2, 80),
    seed=st.integers(0, 9),
    few=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_order_keeps_names(folder: Path, size: int, split: int, buffer: int, seed: int, few: bool) -> None:
    options = {"shuffle": True, "shuffle_buffer_size": buffer, "shuffle_seed": seed, "split_rows": split}
    chosen = {"filters": [("name", "==", "name 2")]} if few else {}
    loader = stream(Files(folder, metadata_columns=NAMES), columns=["id"], batch_size=size, **options, **chosen)
    found = names_of(loader)
    assert len(found) == sum(row % 7 == 2 or not few for row in range(FILES * ROWS))
    assert all(name == (str(folder / f"{row // ROWS}.parquet"), row % ROWS) for row, name in found.items())


@pytest.mark.parametrize("suffix", ["feather", "arrows", "orc", "csv", "csv.gz", "jsonl", "json"])
def test_each_format_numbers_its_rows(tmp_path: Path, suffix: str) -> None:
    truth = write(tmp_path, suffix)
    assert names_of(stream(Files(tmp_path, metadata_columns=NAMES), shuffle=True, **SMALL)) == truth


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_ranges_of_text_are_numbered_by_a_scan(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    truth, form = write(tmp_path, suffix), format_named(suffix)
    module = sys.modules[type(form).__module__]
    monkeypatch.setattr(module, "FORMAT", replace(module.FORMAT, range_bytes=200))
    files = Files(tmp_path, metadata_columns=NAMES)
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        stream(files, **SMALL)
    assert names_of(stream(files.replace(metadata_columns=["_file"]), **SMALL), ("_file", "id")).keys() == truth.keys()
    ways: list[dict[str, Any]] = [{}, {"shuffle": True}, {"num_workers": 2, "worker_mode": "processes"}]
    for options in ways:
        loader = stream(files, count_rows=True, **options, **SMALL)
        assert names_of(loader) == truth
        loader.dataset.close()
    choices: list[dict[str, Any]] = [
        {"filters": [("name", "==", "name 3")]},
        {"subset": Subsets({"a": 0.4, "b": 0.6})["a"]},
    ]
    for few in choices:
        plain = [row for batch in stream(tmp_path, count_rows=True, **few, **SMALL) for row in batch["id"].tolist()]
        found = names_of(stream(files, count_rows=True, **few, **SMALL))
        assert found == {row: truth[row] for row in plain}
        assert 0 < len(plain) < len(truth)


# ------------------------------------------------------------------------------------------------------------- codes


def test_codes_are_in_the_order_of_the_plan(folder: Path, truth: dict[int, Name]) -> None:
    paths = [folder / f"{file}.parquet" for file in (2, 0, 1)]
    loader = stream(Files(paths, metadata_columns=NAMES), **SMALL)
    assert loader.vocabulary("_file") == list(map(str, paths))
    batch = next(iter(loader))
    assert (batch["_file"].dtype, batch["_pos"].dtype) == (torch.int64, torch.int64)
    arrow = stream(Files(paths, metadata_columns=NAMES), output_format="arrow", **SMALL)
    assert next(iter(arrow)).schema.field("_file").type == pa.dictionary(pa.int32(), pa.string())


def test_parts_of_a_combination_have_one_list(folder: Path, truth: dict[int, Name]) -> None:
    one = Files(folder / "1.parquet", metadata_columns=NAMES)
    others = stream(Files([folder / "2.parquet", folder / "0.parquet"], metadata_columns=NAMES), **SMALL)
    paths = [str(folder / f"{file}.parquet") for file in (1, 2, 0)]
    shuffled: dict[str, Any] = {"shuffle": True, "source_key": "of"}
    for options in ({}, shuffled):
        loader = combine([one, others], columns=["id"], batch_size=7, **options)
        assert loader.vocabulary("_file") == paths
        assert names_of(loader) == truth
    assert others.vocabulary("_file") == paths[1:]
    nested = combine({"x": combine([one, others], columns=["id"])}, batch_size=5)
    assert names_of(nested) == truth


def shouted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Every second row, whose name says what the transform saw."""
    seen = [
        f"{file.rsplit('/')[-1]} {row}" for file, row in zip(*(rows.column(n).to_pylist() for n in NAMES), strict=True)
    ]
    return rows.append_column("seen", pa.array(seen, pa.string())).take(
        pa.array(range(0, rows.num_rows, 2), pa.int64())
    )


def test_transforms_get_names_and_carry_them(folder: Path, truth: dict[int, Name]) -> None:
    loader = stream(
        Files(folder, metadata_columns=NAMES), transform=Transform(shouted, rows="any"), num_workers=1, **SMALL
    )
    found, listed = {}, loader.vocabulary("_file")
    for batch in loader:
        for row, code, number, seen in zip(*(batch[key] for key in ("id", *NAMES, "seen")), strict=True):
            found[int(row)] = listed[code], int(number)
            assert seen == f"{int(row) // ROWS}.parquet {int(number)}"
    assert found.items() <= truth.items()
    assert FILES * ROWS // 2 <= len(found) < FILES * ROWS


# ----------------------------------------------------------------------------------------------------------- packing

LENGTHS = np.random.default_rng(0).integers(0, 24, 45).tolist()
TOKENS = Pack(LENGTH, columns=["input_ids"])


def named_documents(batch: Any, listed: list[str]) -> list[tuple[int, str, int]]:
    """The documents of a batch, as `document_ids` cuts them: the number of each, its file, and its number there."""
    held = {key: np.asarray(value) for key, value in batch.items()}
    numbers = [
        int(tokens[ids == document][0]) // 1000
        for tokens, ids in zip(held["input_ids"], held["document_ids"], strict=True)
        for document in range(ids.max() + 1)
    ]
    files = [listed[code] for code in held["document_file"]]
    return list(zip(numbers, files, held["document_pos"].tolist(), strict=True))


@pytest.mark.parametrize("pack", [TOKENS, TOKENS.replace(long="truncate"), TOKENS.replace(method="wrap")], ids=str)
def test_documents_have_the_names_of_their_rows(tmp_path: Path, pack: Pack) -> None:
    path = write_documents(tmp_path, LENGTHS, row_group_size=4)
    files = Files(path, metadata_columns=NAMES)
    options: dict[str, Any] = {"pack": pack, "batch_size": 2, "split_rows": 40, "num_ranks": 1, "rank": 0}
    shuffled = {"shuffle": True, "shuffle_buffer_size": 8}
    loaders: list[Any] = [
        stream(files, **options, num_workers=0),
        stream(files, **options, **shuffled, num_workers=2, worker_mode="processes"),
        stream(files, **options, **shuffled, last_batch="pad", output_format="numpy"),
        combine([Files(path, metadata_columns=NAMES)], **options, **shuffled),
    ]
    for loader in loaders:
        listed, seen = loader.vocabulary("_file"), set()
        for batch in loader:
            for number, file, position in named_documents(batch, listed):
                assert (file, position) == (f"{path}/{number // 15}.parquet", number % 15)
                seen.add(number)
        assert seen == {number for number, length in enumerate(LENGTHS) if length}
        loader.dataset.close()


@pytest.mark.parametrize("pack", [TOKENS, TOKENS.replace(method="wrap")], ids=str)
def test_names_of_documents_resume(tmp_path: Path, pack: Pack) -> None:
    files = Files(write_documents(tmp_path, LENGTHS, row_group_size=4), metadata_columns=NAMES)
    options: dict[str, Any] = {"pack": pack, "batch_size": 2, "split_rows": 40, "shuffle": True, "num_workers": 2}
    expected, states = pass_with_states(stream(files, num_ranks=1, rank=0, **options))
    for step, state in enumerate(states):
        resumed = stream(files, num_ranks=1, rank=0, **options)
        resumed.load_state_dict(state)
        assert batches(resumed) == expected[step:]


def test_batches_for_a_model_have_no_names(tmp_path: Path) -> None:
    files = Files(write_documents(tmp_path, LENGTHS), metadata_columns=NAMES)
    pack = TOKENS.replace(labels="input_ids", keys="hf")
    with pytest.raises(OptionError, match="no names of documents") as caught:
        stream(files, pack=pack)
    assert "document_file" in next(iter(stream(files, **caught.value.remedies[0].given)))
    assert "document_file" not in next(iter(stream(files.replace(metadata_columns=[]), pack=pack)))


# ------------------------------------------------------------------------------------------------------------ tables


def test_rows_of_delta_have_the_numbers_of_their_files(tmp_path: Path) -> None:
    for first in range(0, 60, 20):
        rows = pa.table({"id": range(first, first + 20), "day": ["a b%", "c"] * 10})
        write_deltalake(tmp_path, rows, mode="append", partition_by=["day"])
    require(tmp_path, "deletionVectors")
    delete_rows(tmp_path, {path: [0, 3] for path in live(tmp_path)})
    truth = {}
    for path in map(str, tmp_path.glob("*/*.parquet")):
        for number, row in enumerate(pq.ParquetFile(path).read(["id"])["id"].to_pylist()):
            truth[row] = path, number
    left = {row: name for row, name in truth.items() if name[1] not in (0, 3)}
    table = Delta(tmp_path, metadata_columns=NAMES)
    for options in ({}, {"shuffle": True}, {"output_format": "arrow"}, {"split_rows": 3, "num_workers": 2}):
        assert names_of(stream(table, **{**SMALL, **options})) == left
    path = truth[7][0]
    loader = stream(table, filters=[("_file", "==", path), ("_pos", ">", 4), ("id", ">=", 0)], **SMALL)
    assert names_of(loader) == {row: name for row, name in left.items() if name[0] == path and name[1] > 4}
    assert loader.describe().files == 1


def test_rows_of_a_table_of_ones_own_have_names_too(folder: Path, truth: dict[int, Name]) -> None:
    class Own:
        pinned = None
        asks = True

        def newest(self, options: Any) -> SnapshotCursor:
            return SnapshotCursor(1)

        def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
            paths = sorted(folder.glob("*.parquet"))
            files = [TableFile(path.name, path.stat().st_size, [1, 50]) for path in paths]
            return (FileSnapshot if self.asks else Nameless)("own", SnapshotCursor(1), str(folder), files)

    class Nameless(FileSnapshot):
        def manifest(self, options: Any) -> Any:
            return super().manifest(replace(options, read=replace(options.read, metadata_columns=())))

    loader, _ = TableDataset.create_dataloader(Own(), metadata_columns=NAMES, shuffle=True, **SMALL)
    assert names_of(loader) == {row: name for row, name in truth.items() if name[1] not in (1, 50)}
    other = Own()
    other.asks = False
    with pytest.raises(OptionError, match=r"own has no such column.*Leave out metadata_columns"):
        TableDataset.create_dataloader(other, metadata_columns=NAMES)
    TableDataset.create_dataloader(other)


def test_codes_of_a_table_that_grows_keep_their_meaning(tmp_path: Path) -> None:
    with SqlCatalog("test", **sql_config(tmp_path)) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
        table.append(pa.table({"id": range(10)}))
        start = table.metadata.current_snapshot_id
        source = Iceberg("ns.t", catalog=catalog, metadata_columns=NAMES)
        following = stream(source.replace(follow=Follow(wait=0)), batch_size=4)
        moving = stream(source, batch_size=4)
        seen = names_of(following)
        assert seen == names_of(moving)
        assert sorted(seen) == list(range(10))
        lists = [following.vocabulary("_file")]
        for first in (10, 20):
            table.append(pa.table({"id": range(first, first + 10)}))
            assert sorted(names_of(following)) == list(range(first, first + 10))
            lists.append(following.vocabulary("_file"))
        assert [len(each) for each in lists] == [1, 2, 3]
        assert lists[2][:2] == lists[1]
        assert lists[1][:1] == lists[0]
        assert moving.advance()
        assert len(names_of(moving)) == 30
        assert moving.vocabulary("_file") == lists[2]
        one = stream(source, filters=f"_file = '{lists[2][1]}' and _pos > 3 and id > 15", **SMALL)
        assert names_of(one) == {row: (lists[2][1], row - 10) for row in range(16, 20)}
        assert one.describe().files == 1
        fresh = stream(source.replace(appended=Appended(start)), batch_size=4)
        assert len(fresh.vocabulary("_file")) == 2


# ---------------------------------------------------------------------------------------------------------- spelling


def test_files_are_named_as_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b%20").mkdir()
    pq.write_table(table_of(0), tmp_path / "a b%20" / "x.parquet")
    monkeypatch.chdir(tmp_path)
    assert stream(Files("a b%20", metadata_columns=NAMES)).vocabulary("_file") == [
        str(tmp_path / "a b%20" / "x.parquet")
    ]
    memory = fsspec.filesystem("memory")
    with memory.open("/named/y.parquet", "wb") as file:
        pq.write_table(table_of(0), file)
    assert stream(Files("memory://named", metadata_columns=NAMES)).vocabulary("_file") == ["memory:///named/y.parquet"]


def test_names_are_text_without_secrets(tmp_path: Path) -> None:
    pq.write_table(table_of(0), tmp_path / "x.parquet")
    os.rename(tmp_path / "x.parquet", os.fsencode(tmp_path) + b"/x\xff.parquet")
    loader = stream(Files(tmp_path, metadata_columns=NAMES), output_format="dict", **SMALL)
    assert next(iter(loader))["_file"][0] == f"{tmp_path}/x\\udcff.parquet"
    signed = "https://store/x.parquet?X-Amz-Signature=0123456789abcdef&part=1"
    name = file_name(signed, Storage("https", filesystem=object()))
    assert name.startswith("https://store/x.parquet")
    assert "0123456789abcdef" not in name


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_column_of_that_name_is_not_hidden(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "_pos": [5]}), tmp_path / "x.parquet")
    write_deltalake(tmp_path / "delta", pa.table({"id": [1], "_pos": [5]}))
    for source in (
        Files(tmp_path / "x.parquet", metadata_columns=NAMES),
        Delta(tmp_path / "delta", metadata_columns=NAMES),
    ):
        with pytest.raises(OptionError, match=r"'_pos' is a column .* metadata_columns=\['_file'\]") as caught:
            stream(source)
        (remedy,) = caught.value.remedies
        mended = stream(source.replace(**remedy.given))
        assert next(iter(mended))["_pos"].tolist() == [5]
    assert next(iter(stream(tmp_path / "x.parquet")))["_pos"].tolist() == [5]


@pytest.mark.parametrize("kind", [Files, Delta])
def test_what_files_and_delta_do_not_have_is_named(kind: Any) -> None:
    with pytest.raises(OptionError, match=r"'_row_id'.*'_file' and '_pos'"):
        kind("data", metadata_columns=["_row_id"])


def test_skipped_lines_have_no_numbers(tmp_path: Path) -> None:
    write(tmp_path, "csv")
    files = Files(tmp_path, metadata_columns=NAMES)
    with pytest.raises(OptionError, match="leaves some out"):
        stream(files, format_options={"on_bad_lines": "skip"})
    stream(files.replace(metadata_columns=["_file"]), format_options={"on_bad_lines": "skip"})


# -------------------------------------------------------------------------------------------------------- named_rows


def test_predictions_become_a_table_with_names(folder: Path, truth: dict[int, Name]) -> None:
    loader = stream(Files(folder, metadata_columns=NAMES), shuffle=True, **SMALL)
    parts: dict[str, list[Any]] = {"_file": [], "_pos": [], "score": [], "embedding": []}
    for batch in loader:
        parts["_file"].append(batch["_file"])
        parts["_pos"].append(batch["_pos"])
        parts["score"].append(batch["id"] * 0.5)
        parts["embedding"].append(torch.stack([batch["id"], -batch["id"]], 1).to(torch.bfloat16))
    table = named_rows(loader, {key: torch.cat(values) for key, values in parts.items()})
    assert table.schema.field("_file").type == pa.string()
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 2)
    found = {int(2 * row["score"]): (row["_file"], row["_pos"]) for row in table.to_pylist()}
    assert found == truth
    as_numpy = {key: torch.cat(values).float().numpy() for key, values in parts.items() if key == "score"}
    text = named_rows(loader, {"_file": ["x"] * len(table), **as_numpy})
    assert text["_file"].to_pylist() == ["x"] * len(table)


def test_rows_that_do_not_fit_are_errors(folder: Path) -> None:
    loader = stream(Files(folder, metadata_columns=NAMES), **SMALL)
    for code in (-1, 3):
        with pytest.raises(OptionError, match=f"'_file' has {code} in row 1"):
            named_rows(loader, {"_file": np.array([0, code])})
    with pytest.raises(OptionError, match="different lengths"):
        named_rows(loader, {"_file": np.array([0]), "_pos": np.array([0, 1])})
    with pytest.raises(OptionError, match="an entry for each row"):
        named_rows(loader, {"_pos": torch.tensor(1)})


def test_names_are_no_columns_by_which_data_are_sorted(folder: Path) -> None:
    text = str(stream(Files(folder, metadata_columns=NAMES), columns=["name"]).describe())
    assert "sorted" not in text
    assert "_pos" in text
