"""Random changes of rows: what they may make of images and numbers, and how often."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.transforms.test_images import png
from torch_dataloader_utils import OptionError, RowGenerator, Transform, UnsupportedTypeError, stream
from torch_dataloader_utils.transforms import (
    ColumnDropout,
    DecodeImages,
    GaussianNoise,
    RandomCrop,
    RandomFlip,
)

SHAPE = (3, 5, 7)


def images(rows: int = 40, dtype: Any = np.uint8, nulls: tuple[int, ...] = ()) -> tuple[pa.RecordBatch, Any]:
    """Tensors of different numbers, and these."""
    pixels = np.random.default_rng(0).integers(0, 200, (rows, *SHAPE)).astype(dtype)
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), SHAPE, dim_names=["C", "H", "W"])
    mask = pa.array([row in nulls for row in range(rows)]) if nulls else None
    storage = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), type=kind.storage_type, mask=mask)
    batch = pa.record_batch({"id": pa.array(range(rows)), "image": pa.ExtensionArray.from_storage(kind, storage)})
    return batch, pixels


def pixels_of(batch: pa.RecordBatch) -> Any:
    column = batch.column("image")
    return column.storage.values.to_numpy().reshape(-1, *column.type.shape)


def seeded(rows: int = 40) -> RowGenerator:
    return RowGenerator.seeded(7, rows)


@pytest.mark.parametrize("vertical", [False, True])
def test_some_images_are_flipped(vertical: bool) -> None:
    batch, before = images(1000)
    after = pixels_of(RandomFlip("image", 0.3, vertical)(batch, seeded(1000)))
    flipped = before[:, :, ::-1] if vertical else before[..., ::-1]
    of_each = [(after[row] == flipped[row]).all() for row in range(1000)]
    assert 230 < sum(of_each) < 370
    assert all((after[row] == before[row]).all() for row in range(1000) if not of_each[row])
    assert (pixels_of(RandomFlip("image", 1.0, vertical)(batch, seeded(1000))) == flipped).all()
    assert (pixels_of(RandomFlip("image", 0)(batch, seeded(1000))) == before).all()


@pytest.mark.parametrize("padding", [0, 2])
def test_parts_of_images_lie_anywhere(padding: int) -> None:
    batch, before = images(400)
    made = RandomCrop("image", (3, 4), padding)(batch, seeded(400))
    assert made.column("image").type.shape == [3, 3, 4]
    assert made.column("image").type.dim_names == ["C", "H", "W"]
    padded = np.pad(before, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    places = set()
    for row, part in enumerate(pixels_of(made)):
        windows = np.lib.stride_tricks.sliding_window_view(padded[row], (3, 4), (1, 2)).transpose(1, 2, 0, 3, 4)
        found = np.argwhere((windows == part).all(axis=(2, 3, 4)))
        assert len(found) >= 1
        places.add(tuple(found[0]))
    assert len(places) == (3 + 2 * padding) * (4 + 2 * padding)


def test_a_part_of_the_whole_size_is_the_image() -> None:
    batch, before = images()
    assert (pixels_of(RandomCrop("image", (5, 7))(batch, seeded())) == before).all()
    with pytest.raises(OptionError, match=r"images of 5 x 7 pixels"):
        RandomCrop("image", 6)(batch, seeded())
    assert RandomCrop("image", 6, padding=1)(batch, seeded()).column("image").type.shape == [3, 6, 6]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_noise_has_its_scale_and_pixels_stay_pixels(dtype: Any) -> None:
    batch, before = images(300, dtype)
    after = pixels_of(GaussianNoise("image", 10.0)(batch, seeded(300)))
    assert after.dtype == dtype
    noise = (after.astype(float) - before)[(before > 60) & (before < 190)]
    assert abs(noise.mean()) < 0.5
    assert abs(noise.std() - 10) < 0.2
    assert after.min() >= 0 or dtype == np.float32


def test_noise_of_columns_is_of_each_column_and_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch(
        {
            "x": pa.array([1.0, None, 3.0, 4.0]),
            "y": pa.array([1.0, 2.0, 3.0, 4.0], pa.float32()),
            "v": pa.array([[1.0, 2.0], [3.0, 4.0], None, [5.0, 6.0]], pa.list_(pa.float64(), 2)),
        }
    )
    noise = GaussianNoise(["x", "y", "v"], 0.1)
    made = noise(batch, seeded(4))
    assert made.schema.equals(batch.schema)
    assert [column.null_count for column in made.columns] == [1, 0, 1]
    assert len({round(x - y, 12) for x, y in zip([1.0, 3.0, 4.0], made["x"].drop_null().to_pylist(), strict=True)}) == 3
    assert made["x"][0].as_py() != made["y"][0].as_py()
    monkeypatch.setattr("torch_dataloader_utils.transforms.augmentation._VALUES", 3)
    assert noise(batch, seeded(4)).equals(made)
    sliced = noise(batch.slice(2), seeded(4).take(slice(2, 4)))
    assert sliced.equals(made.slice(2))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.float16()])
def test_noise_stays_within_the_type(kind: pa.DataType) -> None:
    ends = [0.0] * 8 if pa.types.is_floating(kind) else [0, np.iinfo(kind.to_pandas_dtype()).max] * 4
    batch = pa.record_batch({"x": pa.array(np.array(ends, kind.to_pandas_dtype()), kind)})
    assert GaussianNoise("x", 1000.0)(batch, seeded(8)).column("x").type.equals(kind)


def test_values_of_columns_are_left_out() -> None:
    batch = pa.record_batch({"id": range(2000), "a": range(2000), "b": [str(row) for row in range(2000)]})
    made = ColumnDropout(["a", "b"], 0.2)(batch, seeded(2000))
    missing = [np.asarray(made[name].is_null()) for name in ("a", "b")]
    assert all(320 < each.sum() < 480 for each in missing)
    assert 50 < (missing[0] & missing[1]).sum() < 110  # of each column on its own
    assert made["id"].null_count == 0
    assert made.schema.equals(batch.schema)
    zeros = ColumnDropout("a", 0.2, value=-1)(batch, seeded(2000))["a"].to_pylist()
    assert all(value in (row, -1) for row, value in enumerate(zeros))
    assert 320 < zeros.count(-1) < 480
    words = pa.record_batch({"a": pa.array(["x", "y"] * 1000).dictionary_encode()})
    assert 320 < ColumnDropout("a", 0.2)(words, seeded(2000))["a"].null_count < 480
    with pytest.raises(OptionError, match="column 'a' holds int64"):
        ColumnDropout("a", 0.2, value="x")(batch, seeded(2000))


EACH: list[Callable[..., Any]] = [
    RandomFlip("image"),
    RandomCrop("image", 4),
    GaussianNoise("image", 2.0),
    ColumnDropout("image", 0.5),
]


@pytest.mark.parametrize("transform", EACH, ids=lambda one: type(one).__name__)
def test_each_survives_pickling_keeps_nulls_and_takes_no_rows(transform: Any) -> None:
    assert pickle.loads(pickle.dumps(transform)) == transform
    batch, _ = images(nulls=(3, 17))
    made = transform(batch, seeded())
    assert {3, 17} <= set(np.flatnonzero(np.asarray(made["image"].is_null())).tolist())
    assert transform(batch.slice(0, 0), seeded(0)).schema.equals(made.schema)
    assert made["id"].equals(batch["id"])


@pytest.mark.parametrize("transform", EACH[:3], ids=lambda one: type(one).__name__)
def test_columns_of_other_types_are_refused(transform: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="column 'image' holds string"):
        transform(pa.record_batch({"image": ["a"]}), seeded(1))


def test_tensors_stored_in_another_order_are_refused() -> None:
    kind = pa.fixed_shape_tensor(pa.uint8(), (2, 3), permutation=[1, 0])
    storage = pa.array([[0] * 6], pa.list_(pa.uint8(), 6))
    with pytest.raises(UnsupportedTypeError, match="another order"):
        RandomFlip("x")(pa.record_batch({"x": pa.ExtensionArray.from_storage(kind, storage)}), seeded(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomFlip("", 0.5),
        lambda: RandomFlip("x", 1.5),
        lambda: RandomFlip("x", True),
        lambda: RandomCrop("x", 0),
        lambda: RandomCrop("x", 2, -1),
        lambda: GaussianNoise([], 1.0),
        lambda: GaussianNoise("x", 0),
        lambda: GaussianNoise("x", float("nan")),
        lambda: ColumnDropout([1], 0.5),  # type: ignore[list-item]
        lambda: ColumnDropout("x", "0.5"),  # type: ignore[arg-type]
    ],
)
def test_other_arguments_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(OptionError):
        make()


def test_a_loader_draws_after_it_decodes(tmp_path: Path) -> None:
    table = pa.table({"id": range(60), "image": [png(row, (8, 8)) for row in range(60)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    chain: list[Any] = [
        DecodeImages("image", (8, 8)),
        RandomCrop("image", (6, 6)),
        RandomFlip("image"),
        GaussianNoise("image", 1.0),
    ]

    def epoch(number: int, **options: Any) -> dict[int, Any]:
        loader = stream(tmp_path, transform=Transform(chain, random=True), batch_size=11, **options)
        loader.set_epoch(number)
        found: dict[int, Any] = {}
        for batch in loader:
            found |= dict(zip(batch["id"].tolist(), batch["image"].numpy(), strict=True))
        return found

    plain = epoch(0)
    assert len(plain) == 60
    assert plain[0].shape == (3, 6, 6)
    again, later = epoch(0, shuffle=True, num_workers=2, split_rows=14), epoch(1)
    assert all((again[row] == plain[row]).all() for row in range(60))
    assert not any((later[row] == plain[row]).all() for row in range(60))
    with pytest.raises(OptionError, match=r"draws, as f\(rows, rng\)"):
        stream(tmp_path, transform=chain)
