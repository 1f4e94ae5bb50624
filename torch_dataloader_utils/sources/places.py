"""Rows with their places: the hashes of files and row numbers, as subsets have them."""

from __future__ import annotations

from dataclasses import replace

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.reading.places import PLACE_FIELD, FileKeys, placed
from torch_dataloader_utils.sources.manifest import FileManifest


def with_places(manifest: FileManifest, name: str) -> FileManifest:
    """The manifest with the column `PLACE`; `name` is that of the data.

    Raises:
        OptionError: the rows of the table have no place that stays.
    """
    if manifest.relative is None:
        raise OptionError(
            f"{name}: a transform asks for the places of rows, but those of this table move when it is rewritten. Tell "
            "its rows apart by columns: TargetEncode(by=[...])."
        )
    keys = keys_of(manifest)
    files = tuple(replace(file, name_hash=keys.of(file.info)) for file in manifest.files)
    schema = manifest.schema.append(PLACE_FIELD)
    return replace(manifest, files=files, opener=placed(manifest.opener, keys), schema=schema, keys=keys)


def keys_of(manifest: FileManifest) -> FileKeys:
    """The keys of the files by their names below the given folder, so that folders can be moved."""
    return FileKeys({file.info.path: name_hash(manifest.name_of(file)) for file in manifest.files})
