"""Opens a Delta table at a version: the deltalake package reads its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from torch_dataloader_utils.delta.entries import LogEntries, log_entries
from torch_dataloader_utils.errors import DataLoaderUtilsError, DataNotFoundError, FileReadError, SnapshotError
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.storage.waiting import answered, limit

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r"\s+0: <?\w.*", re.DOTALL)  # the stack of deltalake's own code
# What this package does for a table that requires it of readers.
_READABLE = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"}
    | {"vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding", "variantShredding-preview"}
)
_NEWEST_READER = 3
_MANAGED = ("catalogManaged", "catalogOwned")  # how the names of one feature began


@dataclass(frozen=True)
class DeltaLog:
    """The log of a table, which may be read at several versions.

    Attributes:
        url: the table's folder, as deltalake takes it.
        options: of deltalake's client; may hold credentials.
        storage: where the folder is, for files that are checked before deltalake reads them.
        folder: the folder there.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)
    storage: Storage = field(default_factory=Storage)
    folder: str = ""

    @property
    def name(self) -> str:
        """The table, for messages."""
        return printable(self.url)

    def newest(self) -> DeltaTable:
        """The table at its newest version.

        Raises:
            DataNotFoundError: there is no such table.
            FileReadError: its log cannot be read, or it requires something of readers that is not supported.
            BatchTimeoutError: the store does not answer.
        """
        return self._opened(self._load, "its log")

    def at(self, version: int) -> DeltaTable:
        """The table at a version; raises the same errors as `newest`.

        Raises:
            SnapshotError: there is no such version.
        """
        try:
            return self._opened(lambda: self._load(version), f"its log at version {version}")
        except (DataNotFoundError, FileReadError) as error:
            newest = self.newest().version()
            if version > newest:
                raise SnapshotError(f"{self.name}: has no version {version}; its newest is {newest}.") from error
            raise SnapshotError(
                f"{self.name}: version {version} cannot be read, unlike version {newest}, the newest: was the log of "
                f"old versions cleaned up? {error}"
            ) from error

    def as_of(self, moment: datetime) -> DeltaTable:
        """The table as it was at this time, or its oldest version if it is younger; raises the errors of `newest`."""

        def load() -> DeltaTable:
            log_entries(self.storage, self.folder, None, every=True)
            table = self._load()
            table.load_as_version(moment)
            return table

        return self._opened(load, "its log")

    def entry(self, version: int) -> str:
        """The path of a version's file in the log."""
        return f"{self.url.rstrip('/')}/_delta_log/{version:020}.json"

    def _opened(self, load: Callable[[], DeltaTable], what: str) -> DeltaTable:
        with reading(self.name, what):
            return _readable(answered(load, limit(), f"reading the log of {self.name}"), self.name)

    def _load(self, version: int | None = None) -> DeltaTable:
        entries = self.entries(version)
        _check_features(entries.features, self.name)  # deltalake's own error may name what does not exist in Python
        if version is None:
            version = entries.version  # what was checked is what is read, even if there is a newer one by now
        return DeltaTable(self.url, version=version, storage_options=dict(self.options) or None)

    def entries(self, version: int | None) -> LogEntries:
        """The log's entries at a version, None for the newest; raises the errors of `log_entries`."""
        return log_entries(self.storage, self.folder, version)


@contextmanager
def reading(name: str, what: str) -> Iterator[None]:
    """A context that converts deltalake's exceptions to errors that name the table and what was read of it."""
    try:
        yield
    except FileReadError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise FileReadError(f"{name}: {what} cannot be read: {error}") from None
    except DataLoaderUtilsError:
        raise
    except TableNotFoundError as error:
        raise DataNotFoundError(
            f"{name}: there is no Delta table here: {_text(error)}. Give the folder that holds _delta_log; a folder of "
            "files without one is read by StructuredDataset.create_dataloader."
        ) from None
    except BaseException as error:
        # A panic of deltalake's own code is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise FileReadError(f"{name}: {what} cannot be read: {_text(error)}.") from None


def _text(error: BaseException) -> str:
    """What deltalake's error says, in a line and without its own stack."""
    plain = _FRAMES.sub("", _COLOURS.sub("", str(error)))
    return printable(" ".join(plain.replace("↳", ";").split())).rstrip(".")


def _readable(table: DeltaTable, name: str) -> DeltaTable:
    """The table, if this package does all that it requires of readers.

    Raises:
        FileReadError: it does not. The message names the features.
    """
    protocol = table.protocol()
    features = set(protocol.reader_features or ()) if protocol.min_reader_version >= _NEWEST_READER else set()
    _check_features(features, name)
    if protocol.min_reader_version > _NEWEST_READER:
        _check_features({f"reader version {protocol.min_reader_version}"}, name)
    return table


def _check_features(features: AbstractSet[str], name: str) -> None:
    unknown = sorted(features - _READABLE)
    managed = [feature for feature in unknown if feature.startswith(_MANAGED)]
    if managed:
        raise FileReadError(
            f"{name}: the table requires {managed[0]} of its readers: its catalog alone knows its versions, and "
            "deltalake takes them from none. Read it by the catalog's Iceberg endpoint, as Iceberg('schema.table', "
            "catalog={'type': 'rest', 'uri': 'https://HOST/api/2.1/unity-catalog/iceberg-rest', 'warehouse': "
            "'CATALOG', 'token': ...}), or read a copy of the table."
        )
    if unknown:
        raise FileReadError(
            f"{name}: the table requires {', '.join(unknown)} of its readers, which is not supported here. Drop the "
            "feature from the table, or read a copy without it."
        )
