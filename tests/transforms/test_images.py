"""What DecodeImages makes of encoded images, and which it refuses."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import hydra.utils
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from torch_dataloader_utils import (
    ColumnNotFoundError,
    FileReadError,
    MissingExtraError,
    NullValueError,
    OptionError,
    RowErrors,
    StructuredDataset,
    Transform,
    UnsupportedTypeError,
)
from torch_dataloader_utils.events import BlockEvent
from torch_dataloader_utils.model import DataFileInfo, Piece, Split, Task
from torch_dataloader_utils.planning import tasks
from torch_dataloader_utils.rows import Rows
from torch_dataloader_utils.transforms import DecodeImages

SIZE = (6, 8)
ROWS = 50
HF = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def pixels_of(number: int, size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)


def encoded(image: Image.Image, format: str = "png", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def png(number: int, size: tuple[int, int] = SIZE) -> bytes:
    return encoded(Image.fromarray(pixels_of(number, size)))


def batch_of(values: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"image": pa.array(values, kind or pa.binary())})


def decoded(values: list[Any], size: Any = SIZE, kind: pa.DataType | None = None, **options: Any) -> Any:
    column = DecodeImages("image", size, **options)(batch_of(values, kind)).column("image")
    return column.to_numpy_ndarray()


def written(path: Path, images: list[bytes | None], groups: int = 8) -> str:
    table = pa.table({"image": pa.array(images, pa.binary()), "id": range(len(images))})
    pq.write_table(table, path, row_group_size=groups)
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("images") / "images.parquet", [png(number) for number in range(ROWS)])


# -------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_pixels_are_those_that_were_encoded(kind: pa.DataType) -> None:
    images = decoded([png(1), png(2)], kind=kind)
    assert images.dtype == np.uint8
    assert np.array_equal(images, np.stack([pixels_of(n).transpose(2, 0, 1) for n in (1, 2)]))


def test_structs_of_hugging_face_datasets_are_decoded_also_from_a_slice() -> None:
    rows = [{"bytes": png(n), "path": None if n % 2 else "a.png"} for n in range(4)]
    sliced = batch_of(rows, HF).slice(1, 2)
    column = DecodeImages("image", SIZE)(sliced).column("image")
    assert np.array_equal(column.to_numpy_ndarray()[0], pixels_of(1).transpose(2, 0, 1))
    assert len(column) == 2


@pytest.mark.parametrize("format", ["jpeg", "webp", "gif", "png"])
def test_formats(format: str) -> None:
    grey = Image.new("L", (40, 20), 77)
    assert np.abs(decoded([encoded(grey, format)], 10).astype(int) - 77).max() <= 2


@pytest.mark.parametrize("format", ["bmp", "tiff"])
def test_formats_without_loss(format: str) -> None:
    assert np.array_equal(decoded([encoded(Image.fromarray(pixels_of(3)), format)])[0], pixels_of(3).transpose(2, 0, 1))


@pytest.mark.parametrize("format", ["eps", "ppm", "icns", "pcx", "jpeg2000", "tga", "pdf"])
def test_other_formats_are_not_even_opened(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts Ghostscript for EPS: a program of its name here says when it is started."""
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    data = encoded(Image.fromarray(pixels_of(1, (16, 16))), format)
    with pytest.raises(RowErrors, match=r"row 1: FileReadError: .*not JPEG, PNG, .*TIFF"):
        decoded([png(1), data])
    assert not started.exists()
    assert DecodeImages("image", SIZE, damaged="null")(batch_of([data])).column("image").null_count == 1


def test_an_image_of_too_many_pixels_is_an_error_that_names_the_limit(tmp_path: Path) -> None:
    bomb = encoded(Image.new("L", (10_000, 5_000)))
    assert len(bomb) < 50_000
    path = written(tmp_path / "bomb.parquet", [png(0), bomb])
    with pytest.raises(
        RowErrors,
        match=r"row 1 of .*bomb.parquet: FileReadError: column 'image': the image is 5000 x 10000 pixels "
        r".*more than max_pixels=40000000.*DecodeImages\(max_pixels=50000000\)",
    ):
        list(StructuredDataset.create_dataloader(
            path, transform=DecodeImages("image", 8, max_pixels=40_000_000), batch_size=2, num_workers=0
        )[0])  # fmt: skip
    transform = DecodeImages("image", 8, max_pixels=50_000_000)
    loader, _ = StructuredDataset.create_dataloader(path, transform=transform, batch_size=2)
    assert next(iter(loader))["image"].shape == (2, 3, 8, 8)


def test_too_many_pixels_are_a_null_where_damage_is(tmp_path: Path) -> None:
    transform = DecodeImages("image", SIZE, damaged="null", max_pixels=100)
    column = transform(batch_of([png(0), png(1, (10, 11))])).column("image")
    assert column.is_valid().to_pylist() == [True, False]


@pytest.mark.parametrize(("options", "whole"), [({}, False), ({"progressive": True}, True)])
def test_the_pixels_of_a_jpeg_are_those_that_its_decoder_keeps(options: dict[str, Any], whole: bool) -> None:
    data = encoded(Image.new("RGB", (1600, 1600)), "jpeg", **options)
    transform = DecodeImages("image", 100, max_pixels=500_000)  # a baseline JPEG is decoded at a quarter of its size
    if whole:
        with pytest.raises(RowErrors, match="1600 x 1600"):
            transform(batch_of([data]))
    else:
        assert len(transform(batch_of([data]))) == 1


def test_the_default_limit_stops_what_pillow_only_warns_of() -> None:
    bomb = encoded(Image.new("1", (10_000, 8_000)))
    assert len(bomb) < 20_000
    with pytest.raises(RowErrors, match=r"8000 x 10000 pixels .* more than max_pixels=67108864"):
        decoded([bomb])
    with pytest.raises(RowErrors, match=r"too large for Pillow: .*MAX_IMAGE_PIXELS"):
        decoded([encoded(Image.new("1", (20_000, 10_000)))])


def test_an_int_is_a_square_and_gray_has_one_channel() -> None:
    kind = DecodeImages("image", 5, mode="GRAY")(batch_of([])).schema.field("image").type
    assert kind == pa.fixed_shape_tensor(pa.uint8(), (1, 5, 5), dim_names=["C", "H", "W"])
    assert (decoded([encoded(Image.new("L", (9, 9), 77))], 5, mode="GRAY") == 77).all()


def test_stretch_resizes_as_pillow_does() -> None:
    image = Image.fromarray(pixels_of(3, (30, 50)))
    expected = np.asarray(image.resize((8, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(decoded([encoded(image)])[0], expected)


def test_crop_keeps_the_proportions_and_the_middle() -> None:
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200  # the middle square
    assert (decoded([encoded(Image.fromarray(image))], 10, fit="crop") == 200).all()


def test_transparency_and_palettes_become_rgb() -> None:
    transparent = encoded(Image.new("RGBA", (8, 6), (1, 2, 3, 128)))
    palette = encoded(Image.new("RGB", (8, 6), (1, 2, 3)).convert("P", palette=Image.Palette.ADAPTIVE))
    images = decoded([transparent, palette])
    assert (images == np.array([1, 2, 3])[:, None, None]).all()


def test_images_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    stored = pixels_of(4, (8, 6))
    images = decoded([encoded(Image.fromarray(stored), exif=exif)])
    assert np.array_equal(images[0], np.rot90(stored, -1).transpose(2, 0, 1))


def test_large_jpegs_are_decoded_close_to_a_resize_from_full_size() -> None:
    smooth = Image.fromarray(pixels_of(5, (4, 4))).resize((800, 600), Image.Resampling.BICUBIC)
    expected = np.asarray(smooth.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
    assert np.abs(decoded([encoded(smooth, "jpeg", quality=95)], 32)[0] - expected).mean() < 2


# ------------------------------------------------------------------------------------------------------- nulls, errors


@pytest.mark.parametrize(
    ("values", "kind"),
    [([png(0), None], pa.binary()), ([{"bytes": png(0)}, None], HF), ([{"bytes": png(0)}, {"bytes": None}], HF)],
    ids=["null bytes", "null struct", "struct of nulls"],
)
def test_nulls_stay_nulls(values: list[Any], kind: pa.DataType) -> None:
    column = DecodeImages("image", SIZE)(batch_of(values, kind)).column("image")
    assert column.is_valid().to_pylist() == [True, False]


def test_nulls_follow_the_null_policy(tmp_path: Path) -> None:
    path = written(tmp_path / "nulls.parquet", [png(0), None, png(2), None])

    def batch(nulls: Any) -> Any:
        made, _ = StructuredDataset.create_dataloader(path, transform=DecodeImages("image", SIZE), nulls=nulls)
        return next(iter(made))

    assert batch({"image": "mask"})["image_valid"].tolist() == [True, False, True, False]
    assert batch({"image": "drop"})["id"].tolist() == [0, 2]
    with pytest.raises(NullValueError, match="'image'"):
        batch("error")


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "flipped"])
@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "gif"])
def test_a_damaged_image_is_an_error_with_its_row_or_a_null(damage: str, format: str) -> None:
    whole = encoded(Image.fromarray(pixels_of(1, (40, 40))), format)
    bad = {"cut": whole[: len(whole) // 2], "text": b"not an image", "empty": b"", "flipped": b"\0" * 9 + whole[9:]}
    with pytest.raises(
        RowErrors, match="1 row failed: row 1: FileReadError: column 'image': the image cannot be decoded"
    ):
        decoded([png(0), bad[damage]])
    column = DecodeImages("image", SIZE, damaged="null")(batch_of([png(0), bad[damage]])).column("image")
    assert column.is_valid().to_pylist() == [True, False]


def test_the_error_of_a_damaged_image_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "damaged.parquet", [png(0), b"\x89PNG\r\n"])
    loader, _ = StructuredDataset.create_dataloader(path, transform=DecodeImages("image", SIZE))
    with pytest.raises(RowErrors, match=r"row 1 of .*damaged.parquet: FileReadError: column 'image': the") as caught:
        next(iter(loader))
    assert [(row, type(error)) for row, error in caught.value.errors.items()] == [(1, FileReadError)]
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("shuffle", [False, True, "all"])
@pytest.mark.parametrize("damaged", ["error", "null"])
def test_the_error_of_one_image_of_many_files_names_its_file(tmp_path: Path, shuffle: Any, damaged: str) -> None:
    for number in range(20):
        written(tmp_path / f"{number}.parquet", [png(0), b"bad" if number == 13 else png(1), png(2)])
    transform = DecodeImages("image", SIZE, damaged=damaged)  # type: ignore[arg-type]
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), transform=transform, shuffle=shuffle)
    with pytest.raises(RowErrors if damaged == "error" else NullValueError) as caught:
        list(loader)
    text = str(caught.value)
    if damaged == "error":
        assert text.startswith(f"1 row failed: row 1 of {tmp_path}/13.parquet: FileReadError")
    else:
        assert "13.parquet, row group 0" in text
        assert "row 1 of the 3 rows read" in text
    assert text.count(".parquet") == 1
    if damaged == "null":
        assert "Leave such rows out with filters= or in transform." in text
        kept, _ = StructuredDataset.create_dataloader(str(tmp_path), transform=transform, nulls="mask", shuffle=shuffle)
        assert sum(int(batch["image_valid"].sum()) for batch in kept) == 59


def test_exact_names_both_sizes_and_the_row() -> None:
    with pytest.raises(RowErrors, match=r"row 1: OptionError: .*6 x 9 pixels.*expects 6 x 8.*'stretch'"):
        decoded([png(0), png(1, (6, 9))], fit="exact")


def test_images_of_16_bits_are_refused() -> None:
    deep = Image.fromarray(np.full((6, 8), 40_000, np.uint16))
    with pytest.raises(RowErrors, match=r"row 0: UnsupportedTypeError: .*more than 8 bits"):
        decoded([encoded(deep)], damaged="null")


@pytest.mark.parametrize("size", [[6, 8], OmegaConf.create([6, 8])], ids=["list", "of a config"])
def test_a_size_is_any_sequence_of_two_numbers(size: Any) -> None:
    assert DecodeImages("image", size) == DecodeImages("image", (6, 8))


def test_hydra_builds_the_transform() -> None:
    config = {"_target_": "torch_dataloader_utils.transforms.DecodeImages", "column": "image", "size": [6, 8]}
    assert hydra.utils.instantiate(OmegaConf.create(config)) == DecodeImages("image", SIZE)


@pytest.mark.parametrize("size", [0, -1, (3,), (3, 4, 5), (3, 0), 2.5, True, "224", "22", b"22", None])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(OptionError, match="size="):
        DecodeImages("image", size)


@pytest.mark.parametrize(
    "options",
    [{"mode": "CMYK"}, {"fit": "pad"}, {"damaged": "skip"}, {"mode": ["RGB"]}],
)
def test_unknown_words_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected one of"):
        DecodeImages("image", 4, **options)


@pytest.mark.parametrize("value", [0, -1, 1e6, True, None])
def test_a_limit_that_is_no_number_of_pixels_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"DecodeImages\(max_pixels=.*expected a positive int"):
        DecodeImages("image", SIZE, max_pixels=value)


def test_other_columns_are_refused_when_the_loader_is_created(path: str) -> None:
    with pytest.raises(ColumnNotFoundError, match="'img'"):
        StructuredDataset.create_dataloader(path, transform=DecodeImages("img", 4))
    with pytest.raises(UnsupportedTypeError, match="int64"):
        StructuredDataset.create_dataloader(path, transform=DecodeImages("id", 4))
    with pytest.raises(UnsupportedTypeError, match=r"Leave out Transform\(format=\)"):
        StructuredDataset.create_dataloader(path, transform=Transform(DecodeImages("image", 4), format="numpy"))


def test_paths_without_bytes_are_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'b\.png' without bytes"):
        decoded([{"bytes": png(0), "path": None}, {"bytes": None, "path": "b.png"}], kind=HF)


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"torch-dataloader-utils\[images\]"):
        decoded([])


# ------------------------------------------------------------------------------------------------------------- loaders


def test_it_survives_pickling() -> None:
    transform = DecodeImages("image", SIZE, fit="crop")
    assert pickle.loads(pickle.dumps(transform)) == transform


@pytest.mark.parametrize(
    "workers",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_mode": "processes"}],
    ids=["in line", "threads", "processes"],
)
def test_ranks_resume_in_the_middle_with_the_right_pixels(path: str, workers: dict[str, Any]) -> None:
    def loader(rank: int) -> Any:
        return StructuredDataset.create_dataloader(
            path, transform=DecodeImages("image", SIZE), batch_size=7, split_rows=8, num_ranks=2, rank=rank, **workers
        )[0]

    seen: list[int] = []
    for rank in range(2):
        begun = loader(rank)
        steps = iter(begun)
        batches = [next(steps) for _ in range(2)]
        state = begun.state_dict()
        steps.close()
        resumed = loader(rank)
        resumed.load_state_dict(state)
        for batch in [*batches, *resumed]:
            assert batch["image"].shape == (len(batch["id"]), 3, *SIZE)
            expected = np.stack([pixels_of(int(number)).transpose(2, 0, 1) for number in batch["id"]])
            assert torch.equal(batch["image"], torch.from_numpy(expected))
            seen += batch["id"].tolist()
    assert sorted(seen) == list(range(ROWS))


# -------------------------------------------------------------------------------------------------------------- memory


def tiny(path: Path, rows: int, groups: int) -> str:
    """Images of a hundred bytes, of which a row group makes very much more."""
    images = [encoded(Image.new("RGB", (1, 1), (row % 251, row // 251, 7))) for row in range(rows)]
    return written(path, images, groups)


def _plain(column: Any) -> Any:
    """The values, comparable."""
    if isinstance(column, torch.Tensor):
        return column.numpy().tobytes()
    return getattr(column, "storage", column).to_pylist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0, "batch_size": 7},
        {"num_workers": 2, "worker_mode": "processes"},
        {"shuffle": True},
        {"shuffle": True, "num_workers": 2, "shuffle_buffer_size": 300},
        {"shuffle": "splits", "num_ranks": 2, "rank": 1, "even": "drop"},
        {"shuffle": True, "num_ranks": 2, "rank": 1, "even": "pad", "batch_size": 48},
        {"steps_per_epoch": 40},
        {"filters": [("id", "<", 700)], "count_rows": True, "shuffle": True},
        {"filters": [("id", "<", 700)]},  # counts are unknown: tasks stay whole
        {"output_format": "arrow", "shuffle": True},
    ],
    ids=str,
)
def test_a_row_group_of_many_small_images_is_decoded_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    path = tiny(tmp_path / "tiny.parquet", 1000, 500)
    given = {"batch_size": 32, "transform": DecodeImages("image", 32), **options}

    def epoch(state: Any = None) -> tuple[list[Any], list[int], list[Any]]:
        loader, dataset = StructuredDataset.create_dataloader(path, **given)
        blocks: list[int] = []
        dataset.on_event(lambda event: blocks.append(event.nbytes) if isinstance(event, BlockEvent) else None)
        if state is not None:
            loader.load_state_dict(state)
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append([_plain(batch["id"]), _plain(batch["image"])])
            states.append(loader.state_dict())
        return batches, blocks, states

    whole, large, states = epoch()
    monkeypatch.setattr(tasks, "MADE_BYTES", 200_000)
    parts, small, other = epoch()
    assert parts == whole
    assert other == states  # states do not depend on how tasks are cut
    assert epoch(states[5])[0] == whole[5:]
    assert max(large) > 1_000_000
    if options.get("filters") is None or options.get("count_rows"):
        assert max(small) < 400_000


def test_row_groups_whose_bytes_are_not_small_beside_the_images_are_read_once(tmp_path: Path) -> None:
    """Parts decode a row group again, so they are as few as that is cheap."""
    made = Task((Piece(Split(DataFileInfo("x", 0, 100)), Rows(0, 100)),), 100, 10_000_000)
    assert [len(list(tasks.parted(made, row_bytes))) for row_bytes in (0, 1, 400_000, 2_684_355, 10_000_000)] == [
        *(1, 1, 1, 2, 4)
    ]
    small = Task(made.pieces, 100, 1000)
    parts = list(tasks.parted(small, 10_000_000))
    assert sum(part.rows or 0 for part in parts) == 100
    assert [row for part in parts for piece in part.pieces for row in piece.rows.numbers()] == list(range(100))  # type: ignore[union-attr]
    assert all(part.size_bytes <= tasks.MADE_BYTES for part in parts)


def test_the_error_of_a_part_names_the_file_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MADE_BYTES", 20_000)
    path = written(tmp_path / "bad.parquet", [*[png(row) for row in range(90)], b"none", *[png(0)] * 9], 50)
    for shuffle in (False, True):
        loader, _ = StructuredDataset.create_dataloader(
            path, transform=DecodeImages("image", 32), batch_size=10, shuffle=shuffle
        )
        with pytest.raises(RowErrors, match=r"1 row failed: row 90 of .*bad.parquet: FileReadError: .*the image"):
            list(loader)
