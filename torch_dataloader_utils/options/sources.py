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
    num_bytes,
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


AnyPath = str | os.PathLike[str]


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
    seed: int = setting(default=0, check=whole(0), doc="the seed for drawing replayed rows")

    def check(self) -> None:
        """Check that one end of the range is given."""
        if self.after is None and self.until is None:
            raise OptionError("Appended(): expected after, until or both: without them, the whole table is read.")


AppendedLike: TypeAlias = int | Appended | Mapping[str, Any]


_LATER = ("settle", "marker", "changed", "forget", "max_files", "max_bytes", "rounds")  # fields of folders alone
_FOLLOW = "each pass after the first reads what was added since the pass before it; Follow(...) says how"


class Follow(Value):
    """Each pass after the first reads what was appended to a table, or added to a folder, since the pass before it.

    Raises:
        OptionError: a field cannot have this value.
    """

    poll: float = setting(default=10, check=interval, doc="seconds between checks for new data", kw_only=False)
    wait: float | None = setting(
        default=None,
        check=maybe(seconds_or_zero),
        doc="how long a pass waits for new data before it ends empty, in seconds; None: without limit",
    )
    after: int | str | None = setting(
        default=None,
        check=maybe(
            values("a snapshot or version, or a folder or name", lambda value: is_whole(value) or _is_name(value))
        ),
        doc="where the first pass starts: after this snapshot, folder or file name; None: everything is new",
    )
    replay: float = setting(default=0.0, check=not_below_zero, doc=_REPLAY)
    non_appends: Literal["error", "ignore"] = setting(
        default="error", check=one_of("error", "ignore"), doc=f"{_NON_APPENDS}; of tables"
    )
    seed: int = setting(default=0, check=whole(0), doc="the seed for drawing replayed rows")
    settle: float = setting(
        default=30,
        check=seconds_or_zero,
        doc="folders: on stores that show unfinished files, a file is read after this many seconds without a change",
    )
    marker: str | None = setting(
        default=None,
        check=maybe(values("the name of a file", lambda value: _is_name(value) and "/" not in value)),
        doc='folders: a file such as "_SUCCESS" that marks its folder, and those below, as complete; None: not used',
    )
    changed: Literal["error", "ignore"] = setting(
        default="error",
        check=one_of("error", "ignore"),
        doc="folders: files that change after they were read raise an error, or are ignored",
    )
    forget: int | None = setting(
        default=None,
        check=maybe(whole(1)),
        doc="folders: only this many newest folders may get new files, so states stay small; None: all folders",
    )
    max_files: int | None = setting(
        default=None, check=maybe(whole(1)), doc="folders: the maximum number of files in a pass; None: all new files"
    )
    max_bytes: int | str | None = setting(
        default=None, check=maybe(num_bytes), doc="folders: the maximum stored bytes in a pass, but at least one file"
    )
    rounds: AnyPath | None = setting(
        default=None,
        check=maybe(path_text),
        doc="folders: a shared folder in which ranks record what each pass reads; None: they agree by a process group",
    )

    def check_kind(self, kind: str, *, of_files: bool) -> None:
        """Check that it says only what can be followed of files, or of a table.

        Args:
            kind: what is followed, for messages.
            of_files: whether it is a folder of files.

        Raises:
            OptionError: it says something of the other.
        """
        others = ("non_appends",) if of_files else _LATER
        given = [name for name in self.given() if name in others]
        if given:
            raise OptionError(
                f"follow={self!r}: {kind} has no {', '.join(given)}.",
                remedies=[use(follow=self.replace(**{name: Follow.fields[name].kept for name in given}))],
            )
        whole = isinstance(self.after, str) and (self.after.startswith("/") or "://" in self.after)
        if self.after is not None and (isinstance(self.after, str) != of_files or whole):
            expected = "the name of a folder or file below the path" if of_files else "a snapshot or version, a number"
            raise OptionError(
                f"follow={self!r}: of {kind}, after= is {expected}.", remedies=[use(follow=self.replace(after=None))]
            )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


FollowLike: TypeAlias = bool | Follow | Mapping[str, Any] | None


def following(name: str, given: Any) -> Follow | None:
    """How a table or folder is followed; None if it is not.

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
    """Which rows are read of what grows: those appended once, or in each pass those since the pass before it."""

    follow: Follow | None = option(
        False,
        following,
        given="FollowLike",
        doc=_FOLLOW,
    )
    appended: Appended | None = option(None, keyword=False)

    @property
    def follows(self) -> bool:
        """Whether it does."""
        return self.follow is not None


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
    follow: FollowLike = setting(default=False, check=following, doc=_FOLLOW)

    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns that name rows, "_file" and "_pos", to add'
    )

    def check(self) -> None:
        """Check that only one schema gives the types of columns that folders make, and that what grows has no list."""
        _check_named(self.metadata_columns, "files")
        if isinstance(self.follow, Follow):
            self.follow.check_kind("a folder", of_files=True)
        if self.follow and self.manifest is not None:
            raise OptionError(
                f"manifest= with follow={self.follow!r}: a manifest is a list of files, and a folder that is followed "
                "has other files in each pass.",
                remedies=[leave_out("manifest"), leave_out("follow")],
            )
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
        doc="read only rows appended after a snapshot: Appended(...)",
    )
    follow: FollowLike = setting(
        default=False,
        check=following,
        doc=_FOLLOW,
    )
    scan_filter: Any = setting(default=None, doc="skips files and row groups as filters do, but drops no single row")
    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns such as "_file" and "_pos" to add'
    )

    def check(self) -> None:
        """Check that the fields name one table, and select one snapshot, or a range of them."""
        check_catalog(self.table, self.catalog)
        if isinstance(self.follow, Follow):
            self.follow.check_kind("an Iceberg table", of_files=False)
        points = [name for name in ("snapshot_id", "ref", "as_of", "appended") if getattr(self, name) is not None]
        if len(points) > 1:
            given = ", ".join(f"{name}={shown(getattr(self, name))}" for name in points)
            raise OptionError(f"{given}: expected at most one of snapshot_id, ref, as_of and appended.")
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
    follow: FollowLike = setting(default=False, check=following, doc=_FOLLOW)
    metadata_columns: Sequence[str] = setting(
        default=(), check=_metadata_columns, doc='columns that name rows, "_file" and "_pos", to add'
    )

    def check(self) -> None:
        """Check that at most one of `version` and `as_of` is given, that a table is followed as one, and names."""
        _check_named(self.metadata_columns, "Delta tables")
        if isinstance(self.follow, Follow):
            self.follow.check_kind("a Delta table", of_files=False)
        if self.version is not None and self.as_of is not None:
            raise OptionError(f"version={self.version}, as_of={shown(self.as_of)}: expected one of the two.")


SourceLike: TypeAlias = AnyPath | Sequence[AnyPath] | Files | Iceberg | Delta | Mapping[str, Any] | Any
