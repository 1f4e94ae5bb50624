"""A Delta table as a source of snapshots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from torch_dataloader_utils.delta.appends import NonAppends
from torch_dataloader_utils.delta.files import plain_url
from torch_dataloader_utils.delta.log import DeltaLog
from torch_dataloader_utils.delta.snapshot import Added, DeltaSnapshot, snapshot_of
from torch_dataloader_utils.delta.store_options import data_options, log_options
from torch_dataloader_utils.delta.unity import SCHEME, UnityTable
from torch_dataloader_utils.errors import OptionError, SnapshotError
from torch_dataloader_utils.options import Delta, Follow, Options, ReadOptions
from torch_dataloader_utils.options.times import milliseconds, moment_of
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import remember_secrets
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage import open_storage
from torch_dataloader_utils.values import url_of


class DeltaSource:
    """A table and the options for reading it. It stays in its process, because it may hold credentials.

    Args:
        chosen: the table and its version; a `deltalake.DeltaTable` is read at its version.
        non_appends: what commits that take rows away are among appended ones, instead of what `follow` says.

    Raises:
        OptionError: the table has another form.
    """

    def __init__(self, chosen: Delta, non_appends: NonAppends | None = None) -> None:
        table, self._non_appends = chosen.table, non_appends
        if not isinstance(table, (str, os.PathLike, DeltaTable)) or not table:
            raise OptionError(f"table={shown(table)}: expected the path or URL of a Delta table, or a DeltaTable.")
        self._moment = None if chosen.as_of is None else moment_of(chosen.as_of)
        self._version, self._asked = chosen.version, chosen.as_of
        self._chosen = chosen
        self._given: Mapping[str, Any] = {}
        if isinstance(table, DeltaTable):
            self._given = getattr(table, "_storage_options", None) or {}
            remember_secrets(self._given)
        self._loaded = table.version() if isinstance(table, DeltaTable) else None
        self._catalog_name = table if isinstance(table, str) and table.startswith(SCHEME) else None
        self._url = "" if self._catalog_name else _place(table)
        self._unity: tuple[Mapping[str, Any], UnityTable] | None = None
        self._latest: DeltaSnapshot | None = None  # its footers are those of other snapshots of the version

    @property
    def options(self) -> Delta:
        """The options that read the same version by the table's path: a `DeltaTable` is read at its version."""
        if self._loaded is None or self.pinned is not None:
            return self._chosen
        return self._chosen.replace(version=self._loaded)

    @property
    def pinned(self) -> str | None:
        """Why the table stays at one version (an option pins it); None if it can move."""
        given = {"version": self._version, "as_of": self._asked}
        option = next((name for name, value in given.items() if value is not None), None)
        return option and f"{option}= was given, which pins the version: leave it out."

    def taking(self, non_appends: NonAppends) -> DeltaSource:
        """The same table, with commits that take rows away as errors among appended ones, or left out."""
        return DeltaSource(self._chosen, non_appends)

    def newest(self, options: Options) -> SnapshotCursor:
        """The newest version; raises the errors of `DeltaLog.newest`."""
        return SnapshotCursor(self._log(self._read(options)).newest().version())

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> DeltaSnapshot:
        """The snapshot at a version; raises the errors of `DeltaLog.at` and `snapshot_of`.

        Raises:
            SnapshotError: the table is younger than `as_of`, or of appended rows as for `snapshot_of`.
        """
        read, follow = self._read(options), options.follow.follow
        log = self._log(read)
        version = self._version if cursor is None else cursor.end
        if version is None and self._moment is None:
            version = self._loaded
        if isinstance(version, int):
            table = log.at(version)
        else:
            table = log.newest() if self._moment is None else self._as_of(log, self._moment, read)
        after = (None if follow is None else follow.after) if cursor is None else cursor.start
        added = None
        if isinstance(after, int):
            added = Added(after, self._non_appends or (follow or Follow()).non_appends, options.features)
        made = self._renewing(snapshot_of(table, log, read, added))
        if self._latest is None or self._latest.cursor != made.cursor:
            self._latest = made
        return replace(made, plan=replace(made.plan, layouts=self._latest.plan.layouts))

    def _as_of(self, log: DeltaLog, moment: datetime, read: ReadOptions) -> DeltaTable:
        """The table as of this time; deltalake itself returns the oldest version for a time before it."""
        table = log.as_of(moment)
        storage, path = open_storage(log.entry(table.version()), data_options(read.storage_options or {}))
        entry = storage.look(path)
        if entry is not None and entry.written is not None and entry.written // 10**6 > milliseconds(moment):
            raise SnapshotError(
                f"{log.name}: as_of={shown(self._asked)} is before version {table.version()}, the oldest in its log: "
                "pass a later time."
            )
        return table

    def _log(self, read: ReadOptions) -> DeltaLog:
        storage, folder = open_storage(self._url, data_options(read.storage_options or {}))
        return DeltaLog(self._url, log_options(self._url, read.storage_options or {}), storage, folder)

    def _read(self, options: Options) -> ReadOptions:
        """What is read, with the access that the table itself or its catalog gives."""
        given = options.read.storage_options or {}
        both = {**self._given, **given} if self._catalog_name is None else self._of_catalog(self._catalog_name, given)
        return replace(options.read, storage_options=both or None)

    def _of_catalog(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The storage options of a table of a catalog, which is asked where it is when it is first read."""
        if self._unity is None or self._unity[0] != given:
            self._unity = given, UnityTable(name, given)
            self._url = _place(self._unity[1].location)
            return self._unity[1].options
        return self._unity[1].with_valid()

    def _renewing(self, made: DeltaSnapshot) -> DeltaSnapshot:
        """The snapshot, whose files are read with credentials that are renewed, if a catalog gives them."""
        if self._unity is None or made.plan.storage.local:
            return made
        storage = replace(made.plan.storage, renewal=self._unity[1].renewal)
        return replace(made, plan=replace(made.plan, storage=storage))


def _place(table: Any) -> str:
    """The table's folder: an absolute path, or a URL."""
    url = plain_url(table.table_uri) if isinstance(table, DeltaTable) else url_of(table)
    return url if "://" in url and not url.startswith("file://") else open_storage(url)[1]
