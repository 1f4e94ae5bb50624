"""A ready-made snapshot for tables of data files in the package's formats, with rows deleted by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.sources.deleted_rows import Positions
from torch_dataloader_utils.sources.files import FoundFile, open_entries
from torch_dataloader_utils.sources.inspection import inspect_files
from torch_dataloader_utils.sources.manifest import FileManifest, manifest_of
from torch_dataloader_utils.sources.manifest_file import Inspected
from torch_dataloader_utils.sources.tables import SnapshotCursor, check_listed_once


@dataclass(frozen=True)
class TableFile:
    """A data file of a snapshot.

    Attributes:
        path: relative to the table's location.
        size: bytes.
        deleted: numbers of the rows that are deleted, counted from 0 in the file as written, in any order.
        partition: column -> value as text (None: null), for columns that are not in the file; the same for all files.
    """

    path: str
    size: int
    deleted: Sequence[int] | Positions = field(default=(), compare=False)
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSnapshot:
    """A `TableSnapshot` of data files in one of the package's formats.

    Attributes:
        name: the table's name, for messages.
        cursor: the snapshot's cursor.
        location: folder or URL of the table.
        files: its data files, in the order in which an unshuffled epoch reads them.
        schema: the schema to read the files as, including partition columns; None merges the files' schemas.
        format: the files' format.
    """

    name: str
    cursor: SnapshotCursor
    location: str
    files: Sequence[TableFile]
    schema: pa.Schema | None = None
    format: str = "parquet"
    _footers: dict[str, Inspected] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_footers": {}}

    def manifest(self, options: Options) -> FileManifest:
        """The files with their remaining rows; reads the footer of each, once.

        Raises:
            FileReadError: a file is missing, damaged or listed twice, or does not contain its deleted rows.
            SchemaMismatchError: a file's columns do not fit the schema.
            OptionError: there are no files and no schema, files have different partition columns, or the format does
                not count rows.
        """
        if not self.files and self.schema is None:
            raise OptionError(f"{self.name}: {self.cursor} has no files: pass schema= to FileSnapshot.")
        keys = {tuple(sorted(file.partition)) for file in self.files}
        if len(keys) > 1:
            raise OptionError(f"{self.name}: {self.cursor}: files have different partition columns: {sorted(keys)}.")
        read = replace(options.read, schema=self.schema, format=self.format)
        storage, [(_, folder)] = open_entries(self.location, read)
        paths = [f"{folder.rstrip('/')}/{file.path}" for file in self.files]
        check_listed_once(paths, storage)
        files = [FoundFile(path, file.size, file.path) for path, file in zip(paths, self.files, strict=True)]
        how = str(read.format_options)
        if how not in self._footers:  # which loaders of the same snapshot share
            form, progress = format_named(self.format), progress_of(options)
            self._footers[how] = inspect_files(storage, form, files, read.format_options, progress)
        manifest = manifest_of(
            storage,
            self._footers[how],
            [file.partition for file in self.files],
            read,
            {path: file.deleted for path, file in zip(paths, self.files, strict=True)},
        )
        schema = "" if self.cursor.schema is None else f", schema {self.cursor.schema}"
        return replace(manifest, origin=f"{self.cursor}{schema}")
