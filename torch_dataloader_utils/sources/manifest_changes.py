"""Writes a manifest anew, and compares one with the files that are there now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch_dataloader_utils.errors import DataNotFoundError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.sources.files import AnyPath, FoundFile, find_files, open_entries
from torch_dataloader_utils.sources.inspection import asked_by, sound_files
from torch_dataloader_utils.sources.manifest_file import (
    Inspected,
    check_roots,
    name_of,
    new_manifest,
    read_manifest,
    unpack_manifest,
)
from torch_dataloader_utils.sources.selection import select_data
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage import open_storage

Paths: TypeAlias = "AnyPath | Sequence[AnyPath]"


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """How the files differ from a manifest of them.

    Attributes:
        files: the number of files that are there now.
        added: the paths of files that the manifest does not have.
        removed: the paths of files that are gone.
        changed: the paths of files with another size or version (etag or modification time).
    """

    files: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether the manifest is stale."""
        return bool(self.added or self.removed or self.changed)


def rewrite_manifest(path: Paths, manifest: AnyPath, read: ReadOptions) -> tuple[Inspected, int]:
    """The files at `path`, and the bytes of the manifest that was written of them; an existing one is replaced.

    Raises:
        DataNotFoundError: there are no data files.
        FileReadError: a file cannot be read.
        OptionError: the manifest lies among the data, or cannot be written.
    """
    data = new_manifest(manifest, read, lambda: asked_by(path, read), lambda: sound_files(path, read)[1])
    return unpack_manifest(data, asked_by(path, read), name_of(manifest)), len(data)


def manifest_changes(path: Paths, manifest: AnyPath, read: ReadOptions) -> ManifestChanges:
    """How the files at `path` differ from their manifest. Lists them, and opens none.

    Raises:
        DataNotFoundError: there is no such manifest, or there are no data files.
        FileReadError: the file is not a manifest.
        OptionError: the manifest is for another path or other options.
    """
    storage, place = open_storage(manifest, read.storage_options, read.filesystem)
    data = read_manifest(storage, place)
    if data is None:
        raise DataNotFoundError(f"manifest={name_of(manifest)}: there is no such file; write one first.")
    inspected = unpack_manifest(data, asked_by(path, read), name_of(manifest))
    data_storage, entries = open_entries(path, read)
    check_roots(inspected.found, [inner for _, inner in entries], name_of(manifest), data_storage.local)
    where, found = find_files(path, read)
    return _changes(inspected.found, select_data(where, found, inspected.format)[1])


def _changes(before: Sequence[FoundFile | SkippedFile], now: Sequence[FoundFile]) -> ManifestChanges:
    old, new = {file.path: file for file in before}, {file.path: file for file in now}
    changed = [path for path, file in new.items() if path in old and _other(old[path], file)]
    groups = ([path for path in new if path not in old], [path for path in old if path not in new], changed)
    return ManifestChanges(len(new), *(tuple(map(redacted, paths)) for paths in groups))


def _other(before: FoundFile | SkippedFile, now: FoundFile) -> bool:
    """Whether the file has changed; a store that reports no version is compared by size."""
    return (before.size, before.version) != (now.size, now.version)
