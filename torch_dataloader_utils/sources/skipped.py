"""Damaged files that `on_error="skip"` leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.redaction import printable

_SHOWN = 5  # files named in a message


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A damaged file that is left out.

    Attributes:
        path: as the storage names it.
        size: bytes as stored.
        version: as in `DataFileInfo`.
        reason: what is wrong with it.
        rows: the number of its rows, where its footer or the table's manifest has it; else None.
        place: its index among all files that were found, the skipped ones included.
        relative: as in `FoundFile`; empty for a table.
    """

    path: str
    size: int
    version: str
    reason: str
    rows: int | None = None
    place: int = 0
    relative: str = ""

    @property
    def name(self) -> str:
        """Its relative path, if it has one, for messages."""
        return printable(self.relative or self.path)


def skipped_file(file: DataFileInfo, place: int, reason: str, rows: int | None = None) -> SkippedFile:
    """A data file that is left out; arguments as for `SkippedFile`."""
    return SkippedFile(file.path, file.file_size, file.version, " ".join(reason.split()), rows, place)


def skipped_counts(skipped: Sequence[SkippedFile]) -> tuple[int, int]:
    """The number of files left out, and of their rows as far as known."""
    return len(skipped), sum(file.rows or 0 for file in skipped)


def skipped_names(skipped: Sequence[SkippedFile]) -> str:
    """The names of the first few files."""
    return listed((file.name for file in skipped), _SHOWN)


def skipped_reasons(skipped: Sequence[SkippedFile]) -> str:
    """What is wrong with the first few files; each reason names its file."""
    more = f"; and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
    return "; ".join(file.reason for file in skipped[:_SHOWN]) + more
