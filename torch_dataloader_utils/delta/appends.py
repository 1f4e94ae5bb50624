"""What was appended between two versions of a Delta table, by the log's JSON: deltalake does not tell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deltalake import DeltaTable

from torch_dataloader_utils.delta.entries import check_depth
from torch_dataloader_utils.delta.files import ListedFile, inside, listed_files, plain_url
from torch_dataloader_utils.delta.log import DeltaLog
from torch_dataloader_utils.errors import FileReadError, SnapshotError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.storage import Naming

NonAppends = Literal["error", "ignore"]


@dataclass(frozen=True)
class Commit:
    """What one version did to the data.

    Attributes:
        version: its number.
        added: the files whose rows it appended, in one spelling.
        appends: whether it took no rows away.
        operation: what wrote it, as the log says.
    """

    version: int
    added: tuple[str, ...]
    appends: bool
    operation: str


def commits_between(log: DeltaLog, start: int, end: int) -> list[Commit]:
    """The commits after a version, up to and including another.

    Raises:
        SnapshotError: one was cleaned up.
        FileReadError: one is damaged.
    """
    return read_footers(log.storage, lambda version: _commit(log, version), range(start + 1, end + 1))


def _commit(log: DeltaLog, version: int) -> Commit:
    path = f"{log.folder.rstrip('/')}/_delta_log/{version:020}.json"
    if log.storage.look(path) is None:
        raise SnapshotError(
            f"{log.name}: the log of version {version} was cleaned up, so what it appended is not known any more: read "
            "the whole table, by a new loader or by advance() without appended_only; and then follow it more often, or "
            "keep its log for longer (delta.logRetentionDuration)."
        )
    with Naming(path):
        with log.storage.open(path) as source:
            data: bytes = source.read()
        try:
            return _of_actions(version, map(json.loads, _lines(data, path)))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise FileReadError(f"{printable(path)}: is not a file of a Delta log ({type(error).__name__}).") from error


def _lines(data: bytes, path: str) -> Iterable[bytes]:
    for line in data.splitlines():
        check_depth(line, path)
        if line.strip():
            yield line


def _of_actions(version: int, actions: Iterable[Mapping[str, Any]]) -> Commit:
    added: list[str] = []
    appends, operation = True, ""
    for action in actions:
        add, remove, info = action.get("add"), action.get("remove"), action.get("commitInfo")
        # A compaction moves rows to other files, and says that it changes no data.
        if add is not None and add.get("dataChange", True):
            added.append(inside(plain_url(add["path"])))
        if remove is not None and remove.get("dataChange", True):
            appends = False
        operation = operation if info is None else str(info.get("operation", ""))
    return Commit(version, tuple(added), appends, operation)


def appended_files(
    log: DeltaLog, start: int, table: DeltaTable, non_appends: NonAppends, *, bounds: bool
) -> list[tuple[int, ListedFile]]:
    """The files that were appended after a version, up to that of the table, each with the version that added it.

    Args:
        log: the log of the table.
        start: the version.
        table: the table at the last version.
        non_appends: whether commits that take rows away are errors, or left out with all that they write.
        bounds: as for `listed_files`.

    Raises:
        SnapshotError: a commit did more than append, or was cleaned up; or the version is not an earlier one.
    """
    end = table.version()
    if start > end:
        raise SnapshotError(f"{log.name}: expected a version of at most {end}, the newest, got after={start}.")
    commits = commits_between(log, start, end)
    _check_appends(commits, log.name, non_appends)
    wanted = {path: commit.version for commit in commits if commit.appends for path in commit.added}
    files: dict[str, ListedFile] = {}
    # Those that a compaction has replaced since are listed at the version that added them.
    for at, listed in _listings(wanted, table, log, bounds):
        files |= {
            file.path: file for file in listed if wanted.get(file.path) == at or (at == end and file.path in wanted)
        }
    missing = next((path for path in wanted if path not in files), None)
    if missing is not None:
        raise FileReadError(f"{log.name}: version {wanted[missing]} added {printable(missing)}, but does not list it.")
    return sorted(
        ((wanted[path], file) for path, file in files.items()), key=lambda item: (item[0], item[1].time, item[1].path)
    )


def _listings(
    wanted: Mapping[str, int], table: DeltaTable, log: DeltaLog, bounds: bool
) -> Iterable[tuple[int, Sequence[ListedFile]]]:
    """The table's files at the last version, and at those whose files it does not list any more."""
    listed = listed_files(table, bounds) if wanted else []
    yield table.version(), listed
    there = {file.path for file in listed}
    for version in sorted({version for path, version in wanted.items() if path not in there}):
        yield version, listed_files(log.at(version), bounds)


def _check_appends(commits: Sequence[Commit], name: str, non_appends: NonAppends) -> None:
    other = next((commit for commit in commits if not commit.appends), None)
    if other is None or non_appends == "ignore":
        return
    raise SnapshotError(
        f"{name}: version {other.version} is not an append but {shown(other.operation or 'another change')}, "
        "which took rows away: between two versions, only appended rows can be read. To leave such versions out, pass "
        "non_appends='ignore' to Follow or advance; to read the whole table, call advance() without appended_only."
    )
