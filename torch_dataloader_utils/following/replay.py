"""Older rows that are read again beside the appended ones: of a few files drawn by hash, as many as were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from torch_dataloader_utils.hashing import Choice, Interval, name_hash
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, chosen_file
from torch_dataloader_utils.sources.manifest import FileManifest

if TYPE_CHECKING:
    from torch_dataloader_utils.iceberg.planned import PlannedFile

_WHOLE = 1 << 64

T = TypeVar("T")


@dataclass(frozen=True)
class Replay:
    """What is read again.

    Attributes:
        files: the older files.
        choice: which of their rows; None for all.
        share: how many older rows are asked for per appended row.
        rows: about how many are read.
    """

    files: tuple[PlannedFile, ...]
    choice: Choice | None
    share: float
    rows: int

    def manifest(self, manifest: FileManifest) -> FileManifest:
        """The manifest of the appended files and these, with only the rows that are read of these."""
        if not self.files:
            return manifest
        return replace(
            manifest,
            files=tuple(file for file in map(self._read, manifest.files) if file.layout.segments),
            opener=manifest.opener if self.choice is None else LiveOpener(manifest.opener),
            origin=f"{manifest.origin}, replay of {len(self.files)} files, {self.choice}",
        )

    def _read(self, file: DataFile) -> DataFile:
        """The file with the rows that are read: all of an appended file."""
        if self.choice is None or file.info.path not in self._paths:
            return file
        return chosen_file(file, self.choice, name_hash(file.info.path))

    @property
    def in_words(self) -> str:
        """What is asked for and what is read again, for people."""
        read = f"about {plural(self.rows, 'row')} of {plural(len(self.files), 'file')}" if self.files else "none so far"
        return f"{self.share:g} older rows beside each appended row: {read}"

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(planned.info.path for planned in self.files)


def drawn(share: float, appended: Sequence[PlannedFile], older: Sequence[PlannedFile], key: int) -> Replay:
    """Older files with at least `share` times as many rows as the appended ones, and about so many of their rows.

    No more files are drawn than needed, so that the rest of the table is not read. Rows are counted before deletes and
    filters, of the older files as of the appended ones.

    Args:
        share: older rows per appended row.
        appended: the files that were appended.
        older: those from before.
        key: another key draws other files and rows.
    """
    quota = share * _rows(appended)
    files = older_files(quota, older, lambda one: name_hash("replay", key, one.info.path), lambda one: _rows([one]))
    rows = _rows(files)
    choice = chosen_share(quota, rows, key)
    return Replay(tuple(files), choice, share, rows if choice is None else round(quota))


def older_files(quota: float, older: Sequence[T], order: Callable[[T], int], size: Callable[[T], int]) -> list[T]:
    """As few of these files, in this order, as together have at least the quota."""
    files: list[T] = []
    total = 0
    for file in sorted(older, key=order):
        if total >= quota:
            break
        files.append(file)
        total += size(file)
    return files


def chosen_share(quota: float, total: int, key: int) -> Choice | None:
    """Which rows of files with this total are read again, so that they are about the quota; None for all."""
    if total <= quota:
        return None
    kept = max(int(quota / total * _WHOLE), 1)
    return Choice((Interval(name_hash("replayed", key), 0, kept),))


def _rows(files: Sequence[PlannedFile]) -> int:
    return sum(max(one.file.record_count, 0) for one in files)
