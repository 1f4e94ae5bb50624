"""Finds damaged files by decoding all of them once, before an epoch is planned; ranks share the work and the result."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from torch_dataloader_utils.distributed.exchange import Sharers
from torch_dataloader_utils.errors import DamagedFileError, PlanMismatchError
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.reading.decoding import decoder_calls
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.reading.row_count_scan import runs_of_file
from torch_dataloader_utils.reading.runs import unchanged
from torch_dataloader_utils.schemas.depth import has_values
from torch_dataloader_utils.sources.agreement import sharing_of
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_file
from torch_dataloader_utils.storage import Storage, usable_cores

_REMOTE_READS = 16  # reads in flight hide a remote store's latency

Skipped: TypeAlias = Mapping[int, SkippedFile]  # by place in the list of all files


@dataclass(frozen=True)
class FileCheck:
    """How files are decoded.

    Attributes:
        opener: opens them.
        storage: where they are.
        format_options: options of the format.
        schema: their columns, as they are requested from the opener.
        progress: shows the progress.
    """

    opener: FileOpener
    storage: Storage
    format_options: Mapping[str, Any]
    schema: pa.Schema
    progress: Progress = field(default=LOGGED, repr=False)

    def open(self, file: DataFile) -> FileReader:
        """A reader of a file."""
        return self.opener.open(file.info, file.layout, self.storage, self.format_options, self.schema)


class SharedCheck:
    """A check that ranks share: each decodes files `[rank::num_ranks]`, and all leave out what any of them found.

    Args:
        sharers: the ranks.
    """

    def __init__(self, sharers: Sharers) -> None:
        self._sharing = sharing_of(sharers, "exchange which files are damaged")

    def failing_together(self) -> AbstractContextManager[None]:
        """A context for all that precedes `joined`: an error in it is raised on the other ranks, too."""
        return self._sharing.failing_together()

    def own(self, found: Sequence[DataFile | SkippedFile], sound: Collection[int], check: FileCheck) -> Skipped:
        """The damaged files of which this rank knows: those of `found`, and those that it finds in its share.

        Args:
            found: all files, in order.
            sound: the places of files that need not be decoded.
            check: decodes them.

        Raises:
            FileReadError: a file cannot be read for another reason than damage to itself.
        """
        share = range(self._sharing.rank, len(found), self._sharing.num_ranks)
        files = {place: file for place in share if isinstance(file := found[place], DataFile) and place not in sound}
        known = {place: file for place, file in enumerate(found) if isinstance(file, SkippedFile)}
        return {**known, **_undecodable(files, check)}

    def joined(self, found: Sequence[DataFile | SkippedFile], own: Skipped) -> Skipped:
        """The damaged files that any rank knows of, the same on all. A collective.

        Raises:
            WorkerError: another rank failed.
            PlanMismatchError: the ranks see different files.
            DamagedFileError: all files are damaged.
        """
        parts = self._sharing.gathered((_digest(found), own))
        if len({of for of, _ in parts}) > 1:
            raise PlanMismatchError(
                f"ranks see different files to check: their digests are {[of[:8] for of, _ in parts]}, by rank. All "
                "ranks must see the same files, with the same filters."
            )
        skipped = {place: file for _, part in reversed(parts) for place, file in part.items()}
        if found and len(skipped) == len(found):
            raise DamagedFileError(
                f"on_error='skip' would leave out all {len(found)} file(s), because they are damaged: restore them, or "
                f"check the path and format=. The first: {skipped[0].reason}"
            )
        return skipped


def _digest(found: Sequence[DataFile | SkippedFile]) -> str:
    """Digest of the files' sizes: what is the same on all ranks, wherever their files lie."""
    sizes = [file.size if isinstance(file, SkippedFile) else file.info.file_size for file in found]
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _undecodable(files: Mapping[int, DataFile], check: FileCheck) -> dict[int, SkippedFile]:
    """Those of these files that cannot be decoded, by place."""
    jobs = [(place, run) for place, file in files.items() for run in runs_of_file(file)]
    found: dict[int, SkippedFile] = {}
    decoders = _Decoders(check)

    def work(job: tuple[int, range]) -> SkippedFile | None:
        place, run = job
        return None if place in found else _damage(files[place], place, run, decoders)

    threads = usable_cores() if check.storage.local else _REMOTE_READS
    try:
        with (
            check.progress.over(len(jobs), "checking files", "pieces of files") as shown,
            ThreadPoolExecutor(threads, "check") as pool,
        ):
            for (place, _), damage in zip(jobs, pool.map(work, jobs), strict=True):
                if damage is not None:
                    found.setdefault(place, damage)
                shown.advance()
    finally:
        decoders.close()
    return found


def _damage(file: DataFile, place: int, run: range, decoders: _Decoders) -> SkippedFile | None:
    """The file, if some of its segments cannot be decoded because it is damaged."""
    try:
        decoders.decode(file, [file.layout.segments[number] for number in run])
    except DamagedFileError as error:
        if error.path not in ("", file.info.path):  # a file of deletes: without it, deleted rows would come back
            raise
        return skipped_file(file.info, place, str(error), file.layout.row_count)
    return None


class _Decoders:
    """Decodes pieces of files; for several threads, each of which keeps its last file open."""

    def __init__(self, check: FileCheck) -> None:
        self._check = check
        self._local = threading.local()
        self._readers: dict[int, FileReader] = {}  # by thread

    def decode(self, file: DataFile, segments: Sequence[Segment]) -> None:
        """Decode all columns of these segments, and drop them."""
        reader = self._reader(file)
        if not self._check.storage.local:
            reader.prefetch([segment.number for segment in segments])
        fields = [field for field in reader.schema if has_values(field.type)]
        with unchanged(reader):
            for segment in segments:
                # A few columns at a time, from remote stores too: what all threads hold decoded stays small.
                for items in decoder_calls(fields, segment.rows or 0, self._check.opener.columnar):
                    reader.read([segment.number], [item.name for item in items])

    def _reader(self, file: DataFile) -> FileReader:
        if getattr(self._local, "path", None) != file.info.path:
            self._local.path = None
            thread = threading.get_ident()
            if thread in self._readers:
                self._readers.pop(thread).close()
            self._readers[thread] = self._check.open(file)
            self._local.path = file.info.path
        return self._readers[threading.get_ident()]

    def close(self) -> None:
        """Close the open files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
