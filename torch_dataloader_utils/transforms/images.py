"""Encoded images to one tensor per batch, by Pillow, which releases the GIL while it decodes and resizes.

Not by torchvision: its wheels are built for one build of torch, and those on PyPI do not load beside a CPU build.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import (
    DataLoaderUtilsError,
    FileReadError,
    MissingExtraError,
    OptionError,
    RowErrors,
    UnsupportedTypeError,
)
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.transforms.columns import check_column, place_of, replaced

_WHO = "DecodeImages"
_CHOICES = {"mode": ("RGB", "GRAY"), "fit": ("stretch", "crop", "exact"), "damaged": ("error", "null")}
_PILLOW_MODES = {"RGB": "RGB", "GRAY": "L"}
# What is decoded. Pillow knows some 40 more: one starts Ghostscript, others parsers that few programs have tested.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_NAMED = "JPEG, PNG, WebP, GIF, BMP or TIFF"
_MOST_PIXELS = 1 << 26  # 8,192 x 8,192: 200 MB as RGB, and up to twice as much while it is turned or converted
# What Pillow's decoders raise on damaged input, besides its own errors, which are OSErrors.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError, struct.error, zlib.error)


@dataclass(frozen=True)
class DecodeImages:
    """Decodes a column of images (JPEG, PNG, WebP, GIF, BMP, TIFF) into uint8 tensors `[B, C, H, W]`; picklable.

    Images are turned upright by their EXIF orientation. Transparency is dropped, and of an animation only the first
    image is decoded. A null stays a null, to which the loader's `nulls=` applies. Needs the extra `images`.

    Args:
        column: of bytes, or of structs with a field `bytes`, as Hugging Face datasets writes images.
        size: (height, width) of the tensors; an int for a square.
        mode: "RGB" for 3 channels, "GRAY" for 1.
        fit: how images of other sizes become that size: "stretch" resizes each side (bilinear, antialiased); "crop"
            keeps the proportions and cuts off what protrudes, half on each side; "exact" raises an error.
        damaged: "error", or "null" for a null in place of an image that cannot be decoded, or has too many pixels.
        max_pixels: the most pixels (height x width) of an image before it is resized: a file of a few kilobytes may
            hold an image that takes gigabytes. Of a JPEG that is decoded at a fraction of its size, those pixels count.

    Raises:
        OptionError: an argument is not one of the above.
    """

    column: str
    size: int | tuple[int, int]
    mode: str = "RGB"
    fit: str = "stretch"
    damaged: str = "error"
    max_pixels: int = _MOST_PIXELS

    def __post_init__(self) -> None:
        check_column(self.column, _WHO)
        object.__setattr__(self, "size", checked_size(self.size, _WHO))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{_WHO}({name}={shown(getattr(self, name))}): expected one of {listed(choices, show=repr)}."
                )
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise OptionError(f"{_WHO}(max_pixels={shown(self.max_pixels)}): expected a positive int.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        assert isinstance(self.size, tuple)
        return (3 if self.mode == "RGB" else 1, *self.size)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with decoded images.

        Raises:
            MissingExtraError: Pillow is not installed.
            UnsupportedTypeError: the column is not of bytes, or holds paths without bytes.
            RowErrors: images cannot be decoded, have too many pixels (both a FileReadError), have more than 8 bits per
                channel (an UnsupportedTypeError), or have another size under fit="exact" (an OptionError).
        """
        place = place_of(batch, self.column, _WHO)
        encoded = _encoded(self.column, batch.column(place))
        pixels, valid = self._decoded(encoded)
        kind = pa.fixed_shape_tensor(pa.uint8(), self.shape, dim_names=["C", "H", "W"])
        missing = None if valid.all() else pa.array(~valid)
        width = kind.storage_type.list_size
        rows = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), width, mask=missing)
        return replaced(batch, place, self.column, pa.ExtensionArray.from_storage(kind, rows))

    def _decoded(self, encoded: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Pixels [n, C, H, W], and which rows have an image."""
        pillow, errors = _Pillow(), {}
        pixels = np.zeros((len(encoded), *self.shape), np.uint8)
        valid = np.zeros(len(encoded), np.bool_)
        for row, data in _present(encoded):
            try:
                pixels[row] = self._image(pillow, data)
            except DataLoaderUtilsError as error:
                errors[row] = type(error)(f"column {self.column!r}: {error}")
            except (*_DAMAGE, *pillow.bombs) as error:
                if self.damaged == "error":
                    errors[row] = self._problem(error, pillow)
            else:
                valid[row] = True
        if errors:
            first = next(iter(errors.values()))
            raise RowErrors(errors) from first.__cause__
        return pixels, valid

    def _problem(self, error: Exception, pillow: _Pillow) -> FileReadError:
        """What is wrong with an image, and what mends it."""
        if isinstance(error, _TooLarge):
            problem, remedy = str(error), f"If such images are expected, pass {_WHO}(max_pixels={error.pixels})"
        elif isinstance(error, pillow.bombs):
            # Pillow's own limit is a variable of the process, which is the user's.
            problem = f"the image is too large for Pillow: {error}"
            remedy = "Store it smaller, or set PIL.Image.MAX_IMAGE_PIXELS"
        elif isinstance(error, pillow.Image.UnidentifiedImageError):
            problem = f"the image cannot be decoded: its bytes are not {_NAMED}"
            remedy = "Repair it, or store it as one of these"
        else:
            problem, remedy = f"the image cannot be decoded: {error}", "Repair it"
        made = FileReadError(
            f"column {self.column!r}: {problem}. {remedy}, pass {_WHO}(damaged='null') for a null in its place, or "
            "Transform(on_error='skip') to go on without the row."
        )
        made.__cause__ = error
        return made

    def _image(self, pillow: _Pillow, data: pa.Buffer) -> np.ndarray[Any, Any]:
        """Pixels [C, H, W] of one image."""
        channels, height, width = self.shape
        with pillow.Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            whole = image.size
            if self.fit != "exact":  # a large JPEG is decoded at a half, quarter or eighth of its size
                image.draft(None, (2 * max(height, width),) * 2)
            # A decoder of progressive JPEGs keeps the whole image, whatever the size that it returns.
            width_now, height_now = whole if image.info.get("progressive") else image.size
            if width_now * height_now > self.max_pixels:
                raise _TooLarge(height_now, width_now, self.max_pixels)
            pillow.ImageOps.exif_transpose(image, in_place=True)
            upright = _converted(image, _PILLOW_MODES[self.mode])
        sized = self._sized(pillow, upright, (width, height))
        return np.asarray(sized).reshape(height, width, channels).transpose(2, 0, 1)

    def _sized(self, pillow: _Pillow, image: Any, size: tuple[int, int]) -> Any:
        if image.size == size:
            return image
        if self.fit == "stretch":
            return image.resize(size, pillow.Image.Resampling.BILINEAR)
        if self.fit == "crop":
            return pillow.ImageOps.fit(image, size, pillow.Image.Resampling.BILINEAR)
        given, wanted = (f"{height} x {width}" for width, height in (image.size, size))
        raise OptionError(
            f"an image is {given} pixels (height x width), and {_WHO}(fit='exact') expects {wanted}: pass its size, or "
            "fit='stretch' or 'crop' to resize images."
        )


class _TooLarge(ValueError):
    """An image has more pixels than may be decoded."""

    def __init__(self, height: int, width: int, most: int) -> None:
        super().__init__(f"the image is {height} x {width} pixels (height x width), more than max_pixels={most}")
        self.pixels = height * width


class _Pillow:
    """Pillow's modules, imported when images are first decoded."""

    def __init__(self) -> None:
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise MissingExtraError(f"{_WHO} needs Pillow: pip install 'torch-dataloader-utils[images]'") from error
        self.Image: Any = Image
        self.ImageOps: Any = ImageOps
        # The second, where warnings are errors.
        self.bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def _converted(image: Any, mode: str) -> Any:
    """The image in a mode of 8 bits per channel."""
    if image.mode[0] in "IF":  # Pillow would cut such values off at 255
        raise UnsupportedTypeError(
            f"an image has more than 8 bits per channel (Pillow's mode {image.mode!r}), which uint8 cannot hold: scale "
            "it to 8 bits, or decode it in a transform of your own."
        )
    if image.mode == mode:
        image.load()
        return image
    return image.convert(mode)


def checked_size(size: Any, who: str) -> tuple[int, int]:
    """Height and width, of which an int gives both; `who` asks for them.

    Raises:
        OptionError: they are no sizes.
    """
    # Hydra passes the list of a config as an OmegaConf ListConfig, which is neither a list nor a tuple.
    listed = isinstance(size, Sequence) and not isinstance(size, (str, bytes))
    sides: Sequence[Any] = size if listed else (size, size)
    whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    if len(sides) != 2 or not whole:
        raise OptionError(f"{who}(size={shown(size)}): expected (height, width) in pixels, or an int for a square.")
    return sides[0], sides[1]


def _encoded(name: str, column: pa.Array) -> pa.Array:
    """The column's bytes, null where there is no image."""
    if not pt.is_struct(column.type):
        return _checked_bytes(name, column)
    fields = column.type.names
    if "bytes" not in fields:
        raise UnsupportedTypeError(f"{_WHO}: column {name!r} is a struct of {fields}: expected a field 'bytes'.")
    flat = dict(zip(fields, column.flatten(), strict=True))  # a null struct has null fields
    encoded = _checked_bytes(name, flat["bytes"])
    if "path" in flat and encoded.null_count:
        _check_embedded(name, encoded, flat["path"])
    return encoded


def _checked_bytes(name: str, column: pa.Array) -> pa.Array:
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UnsupportedTypeError(
            f"{_WHO}: column {name!r} holds {column.type}: expected bytes, or structs with a field 'bytes' of them."
        )
    return column


def _check_embedded(name: str, encoded: pa.Array, paths: pa.Array) -> None:
    """Raise for rows with a path and no bytes."""
    outside = encoded.is_null().to_numpy(zero_copy_only=False) & paths.is_valid().to_numpy(zero_copy_only=False)
    if outside.any():
        path = paths[int(outside.argmax())].as_py()
        raise UnsupportedTypeError(
            f"{_WHO}: column {name!r} has the path {shown(path)} without bytes, and paths are not read: embed the "
            "images when you write the files, as Hugging Face datasets does in push_to_hub."
        )


def _present(encoded: pa.Array) -> Iterator[tuple[int, pa.Buffer]]:
    """The rows that are not null, and their bytes, not copied."""
    for row, value in enumerate(encoded):
        if value.is_valid:
            yield row, value.as_buffer()
