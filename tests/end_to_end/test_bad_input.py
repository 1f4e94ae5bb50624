"""Bad input, as a new user gives it: an error of ours and of Python's, that says what was given and what to do."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
import subprocess
import sys
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.registry import _registry

from torch_dataloader_utils import DataLoaderUtilsError, IcebergDataset, Processes, RowErrors, StructuredDataset

GOOD = pa.table({"a": range(2000), "b": [None] + [1.0] * 1999, "c": ["x"] * 2000})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of folders, each with its own fault."""
    root = tmp_path_factory.mktemp("input")
    for name in (
        "good",
        "empty",
        "marker",
        "truncated",
        "text",
        "corrupt",
        "nulls",
        "unproven",
        "zero",
        "mixed",
        "xml",
    ):
        (root / name).mkdir()
    pq.write_table(GOOD, root / "good" / "f.parquet")
    data = (root / "good" / "f.parquet").read_bytes()
    (root / "good" / "_SUCCESS").touch()
    (root / "marker" / "_SUCCESS").touch()
    (root / "truncated" / "t.parquet").write_bytes(data[: len(data) // 2])
    (root / "text" / "t.parquet").write_text("this is a text, not a Parquet file")
    (root / "corrupt" / "c.parquet").write_bytes(data[:100] + bytes(range(256)) * 8 + data[100 + 256 * 8 :])
    pq.write_table(pa.table({"a": [1, None, 3]}), root / "nulls" / "n.parquet")
    pq.write_table(pa.table({"a": [1, None, 3]}), root / "unproven" / "n.parquet", write_statistics=False)
    pq.write_table(GOOD.slice(0, 0), root / "zero" / "z.parquet")
    (root / "mixed" / "a.parquet").write_bytes(data)
    (root / "mixed" / "b.csv").write_text("a,b")
    (root / "xml" / "b.xml").write_text("<a/>")
    (root / "times").mkdir()
    times = pa.array([datetime(2024, 1, 2)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"t": times}), root / "times" / "t.parquet")
    (root / "drift").mkdir()
    pq.write_table(pa.table({"a": [1]}), root / "drift" / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), root / "drift" / "2.parquet")
    return root


# name -> (path below the root, options, builtin, words of the message)
AT_CONSTRUCTION: dict[str, tuple[str, dict[str, Any], type[Exception], list[str]]] = {
    "no such path": ("nowhere", {}, FileNotFoundError, ["nowhere", "no such file or folder"]),
    "a glob of nothing": ("good/*.csv", {}, FileNotFoundError, ["good/*.csv"]),
    "empty directory": ("empty", {}, FileNotFoundError, ["empty", "no data files"]),
    "only markers": ("marker", {}, FileNotFoundError, ["_SUCCESS"]),
    "truncated": ("truncated", {}, OSError, ["t.parquet", "footer"]),
    "not Parquet": ("text", {}, OSError, ["t.parquet"]),
    "no rows": ("zero", {}, ValueError, ["hold no rows"]),
    "mixed formats": ("mixed", {}, ValueError, ["a.parquet", "b.csv", "glob"]),
    "unsupported format": ("xml", {}, FileNotFoundError, ["b.xml", "parquet", "orc", "csv"]),
    "unknown format": ("good", {"format": "xml"}, ValueError, ["xml", "parquet"]),
    "drift": ("drift", {}, ValueError, ["2.parquet", "'a'", "string", "int64"]),
    "wrong column": ("good", {"columns": ["aa"]}, KeyError, ["'aa'", "did you mean 'a'", "a, b, c"]),
    "columns is a word": ("good", {"columns": "a"}, ValueError, ["['a']"]),
    "column twice": ("good", {"columns": ["a", "a"]}, ValueError, ["twice"]),
    "wrong filter column": ("good", {"filters": [("zz", ">", 1)]}, KeyError, ["'zz'", "a, b, c"]),
    "wrong expression column": ("good", {"filters": pc.field("zz") > 1}, KeyError, ["zz", "a, b, c"]),
    "filter of another type": ("good", {"filters": [("a", ">", "x")]}, ValueError, ["('a', '>', 'x')", "int64"]),
    "a time without a zone": (
        "times",
        {"filters": [("t", ">", datetime(2024, 1, 1))]},
        ValueError,
        ["('t', '>', datetime", "timezone"],
    ),
    "an expression of a time without a zone": (
        "times",
        {"filters": pc.field("t") > datetime(2024, 1, 1)},
        ValueError,
        ["filters: (t >", "timezone"],
    ),
    "filter that is no SQL": ("good", {"filters": "a >> 1"}, ValueError, ["a >> 1"]),
    "filter of another column": ("good", {"filters": "zz > 1"}, KeyError, ["zz", "a, b, c"]),
    "rank 2 of 2": ("good", {"rank": 2, "num_ranks": 2}, ValueError, ["rank=2", "num_ranks=2", "[0, 2)"]),
    "rank alone": ("good", {"rank": 1}, ValueError, ["num_ranks=None", "both"]),
    "no ranks": ("good", {"rank": 0, "num_ranks": 0}, ValueError, ["num_ranks=0"]),
    "batch_size=0": ("good", {"batch_size": 0}, ValueError, ["batch_size=0", "at least 1"]),
    "batch_size=1.5": ("good", {"batch_size": 1.5}, ValueError, ["batch_size=1.5"]),
    "proven int nulls": ("nulls", {}, ValueError, ["'a'", "n.parquet", "mask", "Fill", "drop"]),
    "nulls of another word": ("good", {"nulls": "ignore"}, ValueError, ["'ignore'", "'mask'"]),
    "options that are no dict": ("good", {"storage_options": "key"}, ValueError, ["storage_options", "dict"]),
    "typo": ("good", {"batchsize": 3}, TypeError, ["did you mean 'batch_size'"]),
    "torch's drop_last": ("good", {"drop_last": True}, TypeError, ["last_batch", "even"]),
    "torch's sampler": ("good", {"sampler": None}, TypeError, ["shuffle"]),
    "no strategy": ("good", {"split_strategy": 3}, ValueError, ["split_strategy=3", "generate"]),
    "transform of nothing": ("good", {"transform": lambda batch: None}, TypeError, ["NoneType", "RecordBatch"]),
    "stack of unequal dtypes": ("good", {"stack": {"x": ["a", "b"]}}, ValueError, ["int64", "float64"]),
    "columns in a set": ("good", {"columns": {"a", "b"}}, ValueError, ["columns=", "list", "order"]),
    "columns of numbers": ("good", {"columns": [1]}, ValueError, ["columns=[1]", "name"]),
    "no columns": ("good", {"columns": []}, ValueError, ["columns=[]", "at least one"]),
    "dtypes in a list": ("good", {"dtypes": ["float32"]}, ValueError, ["dtypes=", "dict"]),
    "no fill value": ("good", {"nulls": {"a": {"kind": "fill"}}}, ValueError, ["Fill", "value is missing"]),
    "stack in a list": ("good", {"stack": ["a"]}, ValueError, ["stack=", "dict", 'such as {"x": ["a", "b"]}']),
    "a share as limit": ("good", {"limit": 0.1}, ValueError, ["limit=0.1", "Use fraction=0.1"]),
    "rows as fraction": ("good", {"fraction": 10}, ValueError, ["share=10", "use limit="]),
    "format_options in a word": ("good", {"format_options": "x"}, ValueError, ["format_options='x'", "dict"]),
    "a dtype of two sizes": ("good", {"dtypes": {"b": "float"}}, ValueError, ["'float'", "float32", "float64"]),
    "strategy in a word": ("good", {"split_strategy": "x"}, ValueError, ["split_strategy='x'", "generate"]),
    "sharding by number": ("good", {"sharding": 5}, ValueError, ["sharding=5", "policy", "Rotate"]),
    "torch's seed": ("good", {"seed": 1}, TypeError, ["shuffle_seed"]),
    "a launcher's world size": ("good", {"world_size": 2}, TypeError, ["num_ranks"]),
    "a local rank": ("good", {"local_rank": 0}, TypeError, ["global"]),
    "a transform that cannot be sent": (
        "good",
        {"transform": lambda batch: batch, "worker_mode": "processes", "num_workers": 1},
        ValueError,
        ["transform=", "top level of a module", "thread"],
    ),
    "prefetch_bytes": ("good", {"prefetch_bytes": "lots"}, ValueError, ["'lots'", "'128MiB'"]),
    "unknown protocol": ("zz://bucket/data", {}, ValueError, ["zz://"]),
}


def test_a_missing_backend_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match=r"torch-dataloader-utils\[s3\]") as caught:
        StructuredDataset.create_dataloader("s3://bucket/data")
    assert isinstance(caught.value, DataLoaderUtilsError)


@pytest.mark.parametrize("name", AT_CONSTRUCTION)
def test_at_construction(root: Path, name: str) -> None:
    path, options, builtin, words = AT_CONSTRUCTION[name]
    with pytest.raises(builtin) as caught:
        StructuredDataset.create_dataloader(path if "://" in path else str(root / path), **options)
    assert isinstance(caught.value, DataLoaderUtilsError)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, [], [None], ""])
def test_a_path_that_is_none(path: Any) -> None:
    with pytest.raises(ValueError, match="path") as caught:
        StructuredDataset.create_dataloader(path)
    assert isinstance(caught.value, DataLoaderUtilsError)


def test_rows_in_memory_are_no_path() -> None:
    with pytest.raises(ValueError, match=r"^path is a Table: expected a path or URL.* Write its rows to a file"):
        StructuredDataset.create_dataloader(GOOD)


@pytest.mark.parametrize(
    ("filters", "place"),
    [
        ("a >> 1", "character 1, 'a >> 1'"),
        ("a == 5 && b > 3", "character 8, '&& b > 3'"),
        ("", "its end"),
        ('c = "x"', "character 1, 'c = \"x\"'. Strings are in single quotes; double quotes are for columns"),
    ],
)
def test_a_fault_in_sql_is_shown_by_its_place(root: Path, filters: str, place: str) -> None:
    with pytest.raises(ValueError, match="expected a condition as in SQL") as caught:
        StructuredDataset.create_dataloader(str(root / "good"), filters=filters)
    assert str(caught.value).endswith(f"it cannot be read from {place}.")
    assert len("".join(traceback.format_exception(caught.value)).splitlines()[-1]) < 400  # not the grammar
    assert caught.value.__suppress_context__


def test_a_method_for_frameworks_is_not_one_of_the_loader(root: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / "good"))
    for name in ("propose_epoch", "accelerate"):
        assert not hasattr(loader, name)
        with pytest.raises(
            AttributeError, match=rf"no attribute '{name}'. Its dataset has it: loader\.dataset\.{name}$"
        ):
            getattr(loader, name)
    for name in ("nothing", "_options", "__deepcopy__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(loader, name)
    assert len(list(copy.deepcopy(loader))) == len(list(pickle.loads(pickle.dumps(loader)))) == 2


def test_a_loader_in_another_loader_says_what_to_do(root: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(str(root / "good"))
    with pytest.raises(TypeError, match="do not pass it to another one"):
        next(iter(torch.utils.data.DataLoader(loader)))
    with pytest.raises(TypeError, match=r"StructuredDataset streams its rows.*iterate over the loader"):
        dataset[0]


@pytest.mark.parametrize("workers", [0, None])
@pytest.mark.parametrize(
    ("path", "builtin", "words"),
    [
        ("unproven", ValueError, ["'a'", "n.parquet, row group 0", "row 1", "mask"]),
        ("corrupt", OSError, ["c.parquet, row group 0, column "]),
    ],
)
def test_what_only_reading_shows(
    root: Path, path: str, builtin: type[Exception], words: list[str], workers: int | None
) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / path), num_workers=workers)
    with pytest.raises(builtin) as caught:
        list(loader)
    assert isinstance(caught.value, DataLoaderUtilsError)
    for word in words:
        assert word in str(caught.value)


def test_markers_are_not_data(root: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / "good"), columns=["a"], batch_size=2000)
    assert [batch["a"].tolist() for batch in loader] == [list(range(2000))]


@pytest.mark.parametrize("filters", [[("a", ">", 5000)], pc.field("a") + 0 > 5000])
def test_a_filter_that_matches_nothing(root: Path, filters: Any, caplog: pytest.LogCaptureFixture) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / "good"), filters=filters)
    with caplog.at_level(logging.WARNING):
        assert list(loader) == []
        assert list(loader) == []
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1


def test_errors_pickle() -> None:
    for error in set(DataLoaderUtilsError.__subclasses__()) - {RowErrors}:  # which is made of errors
        again = pickle.loads(pickle.dumps(error("what and why")))
        assert type(again) is error
        assert str(again) == "what and why"


def test_secrets_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"a": np.arange(3)}), tmp_path / "f.parquet")
    secret = "hunter2"
    with caplog.at_level(logging.DEBUG):
        loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), storage_options={"password": secret})
        list(loader)
    shown = caplog.text + repr(loader) + repr(dataset) + repr(dataset._options) + repr(dataset._source)
    assert secret not in shown
    with pytest.raises(DataLoaderUtilsError) as caught:
        StructuredDataset.create_dataloader(f"{tmp_path}/none", storage_options={"password": secret})
    assert secret not in str(caught.value) + repr(caught.value)


def test_numbers_of_numpy_and_columns_in_any_order_are_fine(root: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        str(root / "good"), batch_size=np.int64(500), shuffle=np.bool_(True), columns=np.array(["c", "a"])
    )
    assert type(dataset._options.batch.batch_size) is int
    assert [list(batch) for batch in loader] == [["c", "a"]] * 4


@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        (StructuredDataset, ("data/",), {}),
        (StructuredDataset, (), {"path": "data/", "batch_size": 3}),
        (IcebergDataset, ("db.table",), {"catalog_config": {}}),
    ],
)
def test_a_dataset_made_directly(kind: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"use {kind.__name__}.create_dataloader") as caught:
        kind(*given, **options)
    assert isinstance(caught.value, DataLoaderUtilsError)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_batches(root: Path, workers: int) -> None:
    _, dataset = StructuredDataset.create_dataloader(str(root / "good"), batch_size=500)
    for options in ({}, {"batch_size": 4}):
        with pytest.raises(ValueError, match="batch_size=None"):
            list(torch.utils.data.DataLoader(dataset, num_workers=workers, **options))
    assert len(list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers))) == 4


def test_a_transform_of_an_interactive_session(root: Path) -> None:
    program = f"""
from torch_dataloader_utils import StructuredDataset

def transform(batch):
    return batch

options = {{"transform": transform, "num_workers": 1, "worker_mode": "processes"}}
try:
    StructuredDataset.create_dataloader({str(root / "good")!r}, **options)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=120)
    assert "was defined interactively" in done.stdout, done.stderr
    assert "top level of a module" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batch_size": 5000, "last_batch": "drop"},
            "last_batch='drop' leaves out its rows, which are fewer than batch_size=5000",
        ),
        (
            {"num_ranks": 2, "rank": 1},
            "epoch 0: rank 1 has no batch: it got no split, because there is 1 split for 2 ranks. Use even='drop'",
        ),
    ],
)
def test_a_rank_with_nothing_to_deliver_says_so_once(
    root: Path, options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / "good"), **options)
    assert list(loader) == list(loader) == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert words in warning


class Counting:
    """A transform that counts its calls over all worker processes."""

    def __init__(self, context: multiprocessing.context.BaseContext) -> None:
        self.calls = context.Value("i", 0)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self.calls.get_lock():
            self.calls.value += 1
        return batch


def test_a_transform_that_shares_memory_with_its_workers(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    transform = Counting(context)
    loader, dataset = StructuredDataset.create_dataloader(
        str(root / "good"), transform=transform, num_workers=1, worker_mode=Processes(context=context)
    )
    before = transform.calls.value
    assert sum(len(batch["a"]) for batch in loader) == 2000
    assert transform.calls.value > before
    dataset.close()


def test_a_filter_beside_columns_that_cannot_be_filtered(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([1.0]))
    views = pa.array([[1], None], pa.list_view(pa.int64()))
    table = pa.table({"a": [1, 2], "runs": runs, "views": views, "other": [3, 4]})
    with pa.ipc.new_file(tmp_path / "f.arrow", table.schema) as to:
        to.write_table(table)
    filters = [[("a", ">", 1), ("other", "=", 4)], [("a", "=", 7)]]
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "f.arrow"), filters=filters, columns=["a"])
    assert [batch["a"].tolist() for batch in loader] == [[2]]


def test_a_length_that_only_reading_tells_names_the_remedies(root: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(str(root / "good"), filters=[("a", ">", 3)])
    with pytest.raises(TypeError, match=r"count_rows=True.*\n?.*steps_per_epoch"):
        len(loader)


def test_repr_tells_the_size_and_no_path(root: Path) -> None:
    _, dataset = StructuredDataset.create_dataloader(str(root / "good"))
    assert repr(dataset) == "<StructuredDataset: files 1, splits 1, rows 2,000; batch_size 1,024>"
    _, filtered = StructuredDataset.create_dataloader(str(root / "good"), filters=[("a", ">", 3)], count_rows=True)
    assert repr(filtered) == "<StructuredDataset: files 1, splits 1, rows 1,996; batch_size 1,024>"
