"""What a loader reads: files, tables, and what is appended to them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.options.times import time
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import (
    Checked,
    Value,
    a,
    interval,
    is_whole,
    maybe,
    not_below_zero,
    one_of,
    option,
    seconds_or_zero,
    setting,
    url_of,
    values,
    whole,
)
from torch_dataloader_utils.values import path as path_text

_snapshot = maybe(values("a whole number, as listed in the table's history", is_whole))
_REPLAY = "how many older rows are read beside each appended one, drawn anew each time"
_NON_APPENDS = "overwrites and deletes among the appends are errors, or are left out"


class Appended(Value):
    """The rows that were appended to a table between two snapshots.

    Raises:
        OptionError: a field cannot have this value.
    """

    after: int | None = setting(
        default=None, check=_snapshot, doc="the snapshot after which they were appended; None: all", kw_only=False
    )
    until: int | None = setting(
        default=None, check=_snapshot, doc="the last snapshot that is read; None: the current one"
    )
    replay: float = setting(default=0.0, check=not_below_zero, doc=_REPLAY)
    non_appends: Literal["error", "ignore"] = setting(
        default="error", check=one_of("error", "ignore"), doc=_NON_APPENDS
    )
    seed: int = setting(default=0, check=whole(0), doc="the seed of what is replayed")

    def check(self) -> None:
        """Check that one end of the range is given."""
        if self.after is None and self.until is None:
            raise OptionError("Appended(): expected after, until or both: without them, the whole table is read.")


AppendedLike: TypeAlias = int | Appended | Mapping[str, Any]


class Follow(Value):
    """Each pass after the first reads what was appended to a table since the pass before it.

    Raises:
        OptionError: a field cannot have this value.
    """

    poll: float = setting(default=10, check=interval, doc="seconds between two looks for appended rows", kw_only=False)
    wait: float | None = setting(
        default=None,
        check=maybe(seconds_or_zero),
        doc="a pass that finds no appended rows for so many seconds is empty; None waits",
    )
    after: int | None = setting(
        default=None, check=_snapshot, doc="the first pass reads what was appended after it; None: the whole table"
    )
    replay: float = setting(default=0.0, check=not_below_zero, doc=_REPLAY)
    non_appends: Literal["error", "ignore"] = setting(
        default="error", check=one_of("error", "ignore"), doc=_NON_APPENDS
    )
    seed: int = setting(default=0, check=whole(0), doc="the seed of what is replayed")


FollowLike: TypeAlias = bool | Follow | Mapping[str, Any] | None


def following(name: str, given: Any) -> Follow | None:
    """How a table is followed; None if it is not.

    Raises:
        OptionError: it is neither True nor False, nor a Follow.
    """
    if given is None or given is False:
        return None
    if given is True:
        return Follow()
    if not isinstance(given, (Follow, Mapping)):
        raise OptionError(f"{name}={shown(given)}: expected True, False or Follow(...).")
    return Follow.of(given)


@dataclass(frozen=True, kw_only=True)
class FollowOptions(Checked):
    """Which appended rows of a table are read: once, or in each pass those appended since the pass before it."""

    follow: Follow | None = option(
        False,
        following,
        given="FollowLike",
        doc="each pass after the first reads the rows appended since the pass before it; Follow(...) says how",
    )
    appended: Appended | None = option(None, keyword=False)

    @property
    def follows(self) -> bool:
        """Whether it does."""
        return self.follow is not None


AnyPath = str | os.PathLike[str]


def _paths(name: str, given: Any) -> Any:
    """A path or a list of paths, as text."""
    return list(map(url_of, given)) if isinstance(given, (list, tuple)) else url_of(given)


def _types(name: str, given: Any) -> dict[str, Any]:
    """Arrow types by column, from these, their names or a schema: as names where Arrow reads these."""
    pa = import_module("pyarrow")  # late: neither importing the package nor planning needs it
    try:
        types = pa.schema(given)
        if len(set(types.names)) < len(types):
            raise ValueError("a column occurs twice")
        for kind in types.types:
            pa.scalar(None, pa.string()).cast(kind)
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise OptionError(
            f"{name}={shown(given)}: expected a pyarrow.Schema, or a dict of column -> type or its name, such as "
            f"{{'year': 'int16', 'day': 'date32'}}, types that text can be cast to: {error}"
        ) from error
    return dict(zip(types.names, map(_named, types.types), strict=True))


def _named(kind: Any) -> Any:
    """The name of an Arrow type, if it has one by which Arrow finds it; else the type."""
    pa = import_module("pyarrow")
    try:
        return str(kind) if pa.type_for_alias(str(kind)) == kind else kind
    except ValueError:
        return kind


class Hive(Value):
    """Columns from folders named `key=value`, as in Hive's tables; all files must have the same keys.

    Raises:
        OptionError: a field cannot have this value.
    """

    root: AnyPath | None = setting(
        default=None,
        check=maybe(path_text),
        doc="only folders below this one count, however the path is spelled; None: all folders of the path",
        kw_only=False,
    )
    schema: Any = setting(
        default=None,
        check=maybe(_types),
        doc='a pyarrow.Schema, or {"year": "int16"}: types of these columns; others are int32, int64 or text',
    )


PartitioningLike: TypeAlias = Literal["auto", "hive"] | Hive | Mapping[str, Any] | None


def _partitioning(name: str, given: Any) -> Hive | str | None:
    """How folders become columns: the word "hive" is `Hive()`."""
    if given is None or isinstance(given, (Hive, Mapping)):
        return None if given is None else Hive.of(given)
    if not isinstance(given, str) or given not in ("auto", "hive"):
        raise OptionError(f"{name}={shown(given)}: expected one of 'auto', 'hive', None, or Hive(...).")
    return Hive() if given == "hive" else given


class SourceValue(Value):
    """What is read."""


# Columns that can be added: the name of a row's file, the row's number there, and how often it is drawn on average.
FILE, POSITION, SHARES = "_file", "_pos", "_draws"
_columns_to_add = values(
    "names, such as ['_file', '_pos']", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)


def _metadata_columns(name: str, given: Any) -> tuple[str, ...]:
    """The names of the columns, each once."""
    return tuple(dict.fromkeys(_columns_to_add(name, given)))


def _check_named(given: Sequence[str], what: str) -> None:
    """Check that these are columns that can be added.

    Args:
        given: names of columns.
        what: in which there are no others.

    Raises:
        OptionError: one is not.
    """
    for name in given:
        if name not in (FILE, POSITION, SHARES):
            kept = [each for each in given if each in (FILE, POSITION, SHARES)]
            raise OptionError(
                f"metadata_columns: {name!r}: {what} have {FILE!r} and {POSITION!r}, which name a row as long as its "
                "file is not written again.",
                remedies=[use(metadata_columns=kept or [FILE, POSITION])],
            )


class Files(SourceValue):
    """Files, with what their names and contents do not say.

    Raises:
        OptionError: a field cannot have this value.
    """

    path: AnyPath | Sequence[AnyPath] = setting(
        check=_paths, doc="a file, folder, glob or URL, or a list of these", kw_only=False
    )
    format: str | None = setting(
        default=None,
        check=maybe(values("the name of a format", lambda value: isinstance(value, str))),
        doc='the file format, such as "parquet"; None infers it from suffixes or first bytes',
    )
    schema: Any = setting(default=None, doc="the pyarrow.Schema to read as; None merges those of all files")
    partitioning: PartitioningLike = setting(
        default="auto",
        check=_partitioning,
        doc="whether key=value folders become columns; auto: if all files have the same keys; or Hive(...)",
    )
    manifest: AnyPath | None = setting(
        default=None,
        check=maybe(path_text),
        doc="a file that caches the list of files and their footers; created if missing",
    )

    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns that name rows, "_file" and "_pos", to add'
    )

    def check(self) -> None:
        """Check that only one schema gives the types of columns that folders make, and the names of columns to add."""
        _check_named(self.metadata_columns, "files")
        folders = self.partitioning
        if self.schema is not None and isinstance(folders, Hive) and folders.schema is not None:
            raise OptionError(
                f"schema= with partitioning={folders!r}: schema= has the types of all columns, also of folders.",
                remedies=[use(partitioning=folders.replace(schema=None)), leave_out("schema")],
            )


_ENDS = (".json", ".gz")  # of metadata files
_AS_OF = "read what was current at this time: a datetime with zone, ISO text, or milliseconds"
_NAME = re.compile(r"[\w.-]+")  # of a catalog; an address, which may hold a password, is none


class CatalogClient(Protocol):
    """A pyiceberg Catalog."""

    def load_table(self, identifier: Any) -> Any:
        """The table of this name."""


CatalogLike: TypeAlias = str | Mapping[str, Any] | CatalogClient


def _catalog(name: str, given: Any) -> Any:
    """A catalog; errors do not show its properties, or what may be an address."""
    named = isinstance(given, str) and _NAME.fullmatch(given)
    properties = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
    if not (named or properties or hasattr(given, "load_table")):
        raise OptionError(
            f"{name}: expected the name of a catalog in pyiceberg's configuration, a dict as pyiceberg's load_catalog "
            "takes it, such as {'type': 'rest', 'uri': ...}, or a pyiceberg Catalog."
        )
    return given


def is_path(table: Any) -> bool:
    """Whether a table is named by a path, as its spelling shows."""
    if isinstance(table, str):
        return "/" in table or os.sep in table or table.endswith(_ENDS)
    return isinstance(table, os.PathLike)


def check_catalog(table: Any, catalog: Any, keyword: str = "catalog") -> None:
    """Check that a catalog is only given with what has its name there.

    Args:
        table: the table.
        catalog: its catalog; None: none is given.
        keyword: by which it is given.

    Raises:
        OptionError: the table is a path.
    """
    if catalog is not None and is_path(table):
        raise OptionError(
            f"{keyword}= with table={shown(str(table))}: a path needs no catalog. A table in the catalog has a name, "
            "such as 'namespace.table'.",
            remedies=[leave_out(keyword)],
        )


class Iceberg(SourceValue):
    """An Iceberg table: its newest snapshot, another one, or what was appended to it.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    table: Any = setting(
        doc='a pyiceberg Table, the URL or path of a metadata file or of the table\'s folder, or "database.table"',
        kw_only=False,
    )
    catalog: CatalogLike | None = setting(
        default=None,
        check=maybe(_catalog),
        doc="a name in pyiceberg's configuration, properties for load_catalog, or a pyiceberg Catalog",
        secret=lambda catalog: not isinstance(catalog, str),
    )
    snapshot_id: int | None = setting(default=None, check=_snapshot, doc="read this snapshot, with its own schema")
    ref: str | None = setting(
        default=None,
        check=maybe(values("the name of a branch or tag", lambda value: isinstance(value, str) and value != "")),
        doc="read this branch or tag",
    )
    as_of: datetime | str | int | None = setting(default=None, check=maybe(time), doc=_AS_OF)
    appended: AppendedLike | None = setting(
        default=None,
        check=maybe(a(Appended)),
        doc="read only what was appended after a snapshot, as Appended(...) says",
    )
    follow: FollowLike = setting(
        default=False,
        check=following,
        doc="each pass after the first reads the rows appended since the pass before it; Follow(...) says how",
    )
    scan_filter: Any = setting(default=None, doc="rules out files and row groups like filters, but drops no single row")
    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns such as "_file" and "_pos" to add'
    )

    def check(self) -> None:
        """Check that the fields name one table, and select one snapshot, or a range of them."""
        check_catalog(self.table, self.catalog)
        points = [name for name in ("snapshot_id", "ref", "as_of", "appended") if getattr(self, name) is not None]
        if len(points) > 1:
            given = ", ".join(f"{name}={shown(getattr(self, name))}" for name in points)
            raise OptionError(f"{given}: expected one of snapshot_id, ref, as_of and appended.")
        if self.appended is not None and self.follow:
            raise OptionError(
                f"appended={self.appended!r} with follow={self.follow!r}: what is followed has its own after, "
                "replay and non_appends.",
                remedies=[leave_out("appended"), leave_out("follow")],
            )


class Delta(SourceValue):
    """A version of a Delta table; by default the newest.

    Raises:
        OptionError: a field cannot have this value.
    """

    table: Any = setting(
        doc='the path or URL of the table\'s folder, a deltalake.DeltaTable, or "uc://catalog.schema.table"',
        kw_only=False,
    )
    version: int | None = setting(default=None, check=maybe(whole(0)), doc="read this version, with its own schema")
    as_of: datetime | str | int | None = setting(default=None, check=maybe(time), doc=_AS_OF)
    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns that name rows, "_file" and "_pos", to add'
    )

    def check(self) -> None:
        """Check that at most one of `version` and `as_of` is given, and the names of columns to add."""
        _check_named(self.metadata_columns, "Delta tables")
        if self.version is not None and self.as_of is not None:
            raise OptionError(f"version={self.version}, as_of={shown(self.as_of)}: expected one of the two.")


SourceLike: TypeAlias = AnyPath | Sequence[AnyPath] | Files | Iceberg | Delta | Mapping[str, Any] | Any
