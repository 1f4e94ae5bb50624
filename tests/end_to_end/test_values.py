"""Options that shape values, from files to batches."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import Fill, Shard, Split, StructuredDataset, Transform
from torch_dataloader_utils.errors import OptionError, SchemaMismatchError, UnsupportedTypeWarning


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("values")
    for number, color in enumerate(["red", "blue"]):
        (root / f"color={color}").mkdir()
        ids = np.arange(number * 10, number * 10 + 10)
        table = pa.table(
            {
                "id": ids,
                "maybe": pa.array([None if i % 3 == 0 else int(i) for i in ids], pa.int64()),
                "point": pa.array([{"x": float(i), "y": None if i % 4 == 0 else int(i)} for i in ids]),
                "f0": ids.astype(np.float32),
                "f1": ids.astype(np.float32) * 2,
                "items": [list(range(i % 3)) for i in ids],
            }
        )
        pq.write_table(table, root / f"color={color}" / "part.parquet", row_group_size=4)
    return str(root)


def read(folder: str, **options: Any) -> dict[str, Any]:
    """All rows as one batch."""
    loader, _ = StructuredDataset.create_dataloader(folder, **{"batch_size": 100, **options})
    (batch,) = list(loader)
    return dict(batch)


FILE_ORDER = [*range(10, 20), *range(10)]  # color=blue sorts before color=red


def test_partition_columns_and_order_of_keys(folder: str) -> None:
    batch = read(folder, columns=["color", "id"])
    assert list(batch) == ["color", "id"]
    assert batch["id"].tolist() == FILE_ORDER
    assert batch["color"] == ["blue"] * 10 + ["red"] * 10


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        (["f?", "id"], ["f0", "f1", "id"]),
        (["c*", "point.*"], ["color", "point.x", "point.y"]),
        (["p*"], ["point.x", "point.y"]),
    ],
)
def test_columns_are_found_by_patterns(folder: str, columns: list[str], keys: list[str]) -> None:
    batch = read(folder, columns=columns, nulls="mask", filters=[("maybe", ">", 15)])
    assert [key for key in batch if not key.endswith("_valid")] == keys
    assert len(batch[keys[0]]) == 3


def test_filter_on_a_partition_prunes_its_files(folder: str) -> None:
    batch = read(folder, columns=["id"], filters=[("color", "=", "red")])
    assert batch["id"].tolist() == list(range(10))


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_nulls_drop(folder: str, workers: int | None) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        folder, columns=["id", "maybe", "point.y"], nulls={"maybe": "drop", "point.y": "drop"}, num_workers=workers
    )
    ids = [row for batch in loader for row in batch["id"].tolist()]
    assert sorted(ids) == [row for row in range(20) if row % 3 and row % 4]
    with pytest.raises(TypeError):
        len(loader)


def test_nulls_mask_and_fill(folder: str) -> None:
    batch = read(folder, columns=["maybe"], nulls="mask")
    assert batch["maybe"].dtype == torch.int64
    assert batch["maybe_valid"].tolist() == [row % 3 != 0 for row in FILE_ORDER]
    filled = read(folder, columns=["maybe"], nulls=Fill({"maybe": -1}))
    assert filled["maybe"].tolist() == [row if row % 3 else -1 for row in FILE_ORDER]


def test_drop_with_a_filter_on_another_column(folder: str) -> None:
    batch = read(folder, columns=["id"], filters=(pc.field("f1") > 10) & (pc.field("maybe") != 8))
    assert batch["id"].tolist() == [row for row in FILE_ORDER if row * 2 > 10 and row % 3 and row != 8]


def test_structs_flatten_and_their_fields_can_be_selected(folder: str) -> None:
    batch = read(folder, columns=["point"], nulls={"point.y": "mask"})
    assert list(batch) == ["point.x", "point.y", "point.y_valid"]
    assert batch["point.x"].tolist() == FILE_ORDER
    assert list(read(folder, columns=["point.x"])) == ["point.x"]


def test_stack_and_dtypes(folder: str) -> None:
    batch = read(folder, columns=["f1", "id", "f0"], stack={"x": ["f0", "f1"]}, dtypes={"id": torch.float32})
    assert set(batch) == {"x", "id"}
    assert batch["x"].tolist() == [[row, row * 2.0] for row in FILE_ORDER]
    assert batch["x"].is_contiguous()
    assert batch["id"].dtype == torch.float32


@pytest.mark.parametrize(("output_format", "float32"), [("torch", torch.float32), ("numpy", np.float32)])
def test_one_dtype_for_all_floats(folder: str, output_format: str, float32: Any) -> None:
    batch = read(folder, output_format=output_format, dtypes="float32", nulls="mask", columns=["point", "f0", "id"])
    assert [batch[key].dtype == float32 for key in ("point.x", "f0", "point.y", "id")] == [True, True, False, False]
    assert batch["point.x"].tolist() == FILE_ORDER


def test_types_cast_by_name_fit_together_in_a_stack(folder: str) -> None:
    asked = {"float32": "float64", "id": "float64"}
    batch = read(folder, columns=["f0", "id", "f1"], dtypes=asked, stack={"x": ["f0", "f1", "id"]})
    assert batch["x"].dtype == torch.float64
    assert batch["x"].tolist() == [[i, 2 * i, i] for i in FILE_ORDER]


@pytest.mark.parametrize("size", [7, 20])
def test_lists_in_each_layout(folder: str, size: int) -> None:
    rows = [list(range(row % 3)) for row in FILE_ORDER]
    options: dict[str, Any] = {"columns": ["items"], "batch_size": size}
    for layout in ("ragged", "padded", "nested"):
        loader, _ = StructuredDataset.create_dataloader(folder, lists=layout, **options)
        got = []
        for batch in loader:
            items = batch["items"]
            if layout == "nested":
                got += [row.tolist() for row in items.unbind()]
            elif layout == "padded":
                got += [row[:length].tolist() for row, length in zip(items["values"], items["lengths"], strict=True)]
            else:
                assert items["offsets"][0] == 0
                got += [row.tolist() for row in torch.tensor_split(items["values"], items["offsets"][1:-1])]
        assert got == rows


def test_transform_sees_filtered_rows_and_may_make_columns(folder: str) -> None:
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert all(row >= 5 for row in batch.column("id").to_pylist())
        return pa.RecordBatch.from_pydict({"sum": pc.add(batch["f0"], batch["f1"]), "id": batch["id"]})

    batch = read(folder, columns=["id", "f0", "f1"], filters=[("id", ">=", 5)], transform=transform)
    assert list(batch) == ["sum", "id"]
    assert batch["sum"].tolist() == [row * 3.0 for row in FILE_ORDER if row >= 5]


def test_a_transform_whose_columns_are_not_ours_is_copied(folder: str) -> None:
    constant = pa.array(np.arange(4, dtype=np.int64))

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        own = constant.slice(0, batch.num_rows)
        return pa.RecordBatch.from_pydict({"a": batch["id"], "b": batch["id"], "own": own})

    loader, _ = StructuredDataset.create_dataloader(
        folder, columns=["id"], transform=transform, split_rows=4, batch_size=2, filters=pc.field("id") < 4
    )
    for batch in loader:
        before = batch["b"].tolist()
        batch["a"].zero_()
        batch["own"].zero_()
        assert batch["b"].tolist() == before
    assert constant.to_pylist() == [0, 1, 2, 3]


def test_transform_rows_any(folder: str) -> None:
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": pa.concat_arrays([batch["id"], batch["id"]])})

    with pytest.raises(SchemaMismatchError, match=r"Use transform=Transform\(twice, rows='any'\)"):
        read(folder, columns=["id"], transform=twice)
    batch = read(folder, columns=["id"], transform=Transform(twice, rows="any"))
    assert sorted(batch["id"].tolist()) == sorted([*range(20)] * 2)


def test_a_transform_whose_types_depend_on_rows_is_refused(folder: str) -> None:
    def unsteady(batch: pa.RecordBatch) -> pa.RecordBatch:
        kind = pa.int64() if batch.num_rows else pa.int32()
        return pa.RecordBatch.from_pydict({"id": batch["id"].cast(kind)})

    with pytest.raises(SchemaMismatchError, match="must not depend on the rows"):
        read(folder, columns=["id"], transform=unsteady)


@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
def test_output_formats(folder: str, output_format: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        folder, columns=["id", "maybe"], output_format=output_format, nulls={"maybe": "mask"}, batch_size=8
    )
    batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [8, 8, 4]
    kind = {"numpy": dict, "arrow": pa.RecordBatch, "dict": dict}[output_format]
    assert all(isinstance(batch, kind) for batch in batches)
    if output_format == "numpy":
        assert np.concatenate([batch["id"] for batch in batches]).tolist() == FILE_ORDER
        assert set(batches[0]) == {"id", "maybe", "maybe_valid"}
        batches[0]["id"][:] = 0
    else:
        maybe = [
            row for batch in batches for row in (batch["maybe"].to_pylist() if kind is not dict else batch["maybe"])
        ]
        assert maybe == [row if row % 3 else None for row in FILE_ORDER]


def test_collate_fn_gets_the_final_batch(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        folder, columns=["id"], batch_size=8, collate_fn=lambda batch: len(batch["id"])
    )
    assert list(loader) == [8, 8, 4]
    assert len(loader) == 3


def test_in_place_under_autograd(folder: str) -> None:
    weight = torch.full((), 2.0, requires_grad=True)
    loader, _ = StructuredDataset.create_dataloader(folder, columns=["f0"], batch_size=6)
    total = torch.zeros(())
    for batch in loader:
        batch["f0"].mul_(weight)
        total = total + batch["f0"].sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.item() == sum(range(20))


class ByFile:
    """A strategy that makes the shards itself: a shard a file."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        mine = list(files)[rank::num_ranks]
        return [Shard(i, (Split(file, (0, file.record_count)),)) for i, file in enumerate(mine)]


class ThreeArguments:
    """The older form, which knows nothing of ranks."""

    def generate(self, files: Any, num_workers: int, epoch: int) -> list[Shard]:
        return [Shard(0, tuple(Split(file, (0, file.record_count)) for file in files))]


def test_generate_strategies(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"columns": ["id"], "batch_size": 3, "num_ranks": 2}
    for rank, rows in ((0, FILE_ORDER[:10]), (1, FILE_ORDER[10:])):
        loader, _ = StructuredDataset.create_dataloader(folder, split_strategy=ByFile(), rank=rank, **options)
        assert [row for batch in loader for row in batch["id"].tolist()] == rows
        assert len(loader) == 4
    for rank in (0, 1):  # the first warns for all
        loader, _ = StructuredDataset.create_dataloader(folder, split_strategy=ThreeArguments(), rank=rank, **options)
        for _ in range(2):
            assert [row for batch in loader for row in batch["id"].tolist()] == FILE_ORDER
    assert caplog.text.count("each of the 2 ranks reads all rows") == 1


class HalfFiles:
    """A split strategy of the user: each file in two."""

    def split(self, files: Any) -> list[Split]:
        return [Split(file.info, rows) for file in files for rows in ((0, 5), (5, file.info.record_count))]


def test_split_strategy_of_the_user(folder: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(folder, columns=["id"], split_strategy=HalfFiles())
    assert [row for batch in loader for row in batch["id"].tolist()] == FILE_ORDER
    assert dataset.plan().num_splits == 4

    class FirstHalf:
        def split(self, files: Any) -> list[Split]:
            return [Split(files[0].info, (0, 5))]

    with pytest.raises(OptionError, match="left out rows"):
        StructuredDataset.create_dataloader(folder, columns=["id"], split_strategy=FirstHalf())


def test_pin_memory_without_an_accelerator_says_so(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    batch = read(folder, columns=["id"], pin_memory=True)
    assert batch["id"].tolist() == FILE_ORDER
    assert "without an accelerator" in caplog.text


def test_set_epoch_reads_no_footer_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, dataset = StructuredDataset.create_dataloader(folder, columns=["id"], shuffle=True)
    opened = []
    real = pq.ParquetFile.__init__

    def counting(self: Any, source: Any, *given: Any, metadata: Any = None, **options: Any) -> None:
        if not isinstance(source, pa.BufferReader):  # a footer that was kept, parsed from memory
            opened.append(metadata)
        real(self, source, *given, metadata=metadata, **options)

    monkeypatch.setattr(pq.ParquetFile, "__init__", counting)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        list(loader)
    assert opened
    assert all(metadata is not None for metadata in opened)


# Columns that fit no tensor: one warning for all of them, which may be made an error.


@pytest.fixture
def objects(tmp_path: Any) -> str:
    words = pa.array([["a"], [], None], pa.list_(pa.string()))
    days = pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8()))
    pq.write_table(pa.table({"id": [1, 2, 3], "words": words, "days": days}), tmp_path / "data.parquet")
    return str(tmp_path / "data.parquet")


def make(path: str, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(path, num_ranks=1, rank=0, **options)


def test_one_warning_names_all_and_says_what_to_do(objects: str) -> None:
    with pytest.warns(UnsupportedTypeWarning) as caught:
        loader, dataset = make(objects)
    (warning,) = caught
    assert str(warning.message) == (
        "no tensors for 'words' (list<element: string>), 'days' (map<string, int8>): batches hold lists of Python "
        "objects. Leave such columns out with columns=, or convert them to numbers, strings or lists of numbers in "
        "transform."
    )
    assert dataset.describe().object_columns == ("words", "days")
    assert next(iter(loader))["words"] == [["a"], [], None]


@pytest.mark.parametrize("options", [{"columns": ["id"]}, {"output_format": "arrow"}, {"output_format": "dict"}])
def test_without_such_columns_or_tensors_there_is_none(objects: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsupportedTypeWarning)
        assert make(objects, **options)[1].describe().object_columns == ()


def test_as_an_error_it_refuses_them(objects: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsupportedTypeWarning)
        with pytest.raises(UnsupportedTypeWarning, match="no tensors for 'words'"):
            make(objects)


def test_the_filter_that_its_retired_keyword_names_makes_it_an_error(objects: str) -> None:
    code = (
        "import warnings; from torch_dataloader_utils import UnsupportedTypeWarning, stream; "
        f"warnings.simplefilter('error', UnsupportedTypeWarning); stream({objects!r})"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "UnsupportedTypeWarning: no tensors for 'words'" in found.stderr
