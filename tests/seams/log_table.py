"""A table format of the tests' own: a folder of Parquet files and a log, of which each version names the live files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import FileSnapshot, SnapshotCursor, SnapshotError, TableFile


@dataclass(frozen=True)
class LogTable:
    """The table in a folder: a `TableSource`.

    Attributes:
        folder: where its files and its log are.
        version: which one is read; None for the newest.
    """

    folder: Path
    version: int | None = None

    @property
    def pinned(self) -> str | None:
        return None if self.version is None else "version= was given, which pins the snapshot: leave it out."

    def newest(self, options: Any) -> SnapshotCursor:
        return SnapshotCursor(max(int(path.stem) for path in (self.folder / "_log").iterdir()))

    def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
        if cursor is None:
            cursor = self.newest(options) if self.version is None else SnapshotCursor(self.version)
        files = self._log(cursor.end)
        if cursor.start is not None:
            files = _appended(self._log(cursor.start), files, cursor)
        return FileSnapshot(
            name=f"log table {self.folder.name}",
            cursor=cursor,
            location=str(self.folder),
            files=[TableFile(path, **facts) for path, facts in files.items()],
            schema=pa.schema({"id": pa.int64(), "x": pa.float64(), "day": pa.string()}),
        )

    def _log(self, version: Any) -> dict[str, Any]:
        path = self.folder / "_log" / f"{version}.json"
        if not path.exists():
            raise SnapshotError(f"version {version} is not in the log of {self.folder} (any more).")
        files: dict[str, Any] = json.loads(path.read_text())
        return files


def _appended(before: Mapping[str, Any], after: Mapping[str, Any], cursor: SnapshotCursor) -> dict[str, Any]:
    if any(after.get(path) != facts for path, facts in before.items()):
        raise SnapshotError(f"{cursor}: rows that were there before have been deleted since.")
    return {path: facts for path, facts in after.items() if path not in before}


def commit(folder: Path, version: int, files: Mapping[str, Any]) -> None:
    (folder / "_log").mkdir(parents=True, exist_ok=True)
    (folder / "_log" / f"{version}.json").write_text(json.dumps(files))


def data_file(
    folder: Path, name: str, ids: Sequence[int], deleted: Sequence[int] = (), rows: int = 10
) -> dict[str, Any]:
    """A file of row groups of so many rows, and its line of the log."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, "x": [number / 2 for number in ids]}), folder / name, row_group_size=rows)
    size = (folder / name).stat().st_size
    return {name: {"size": size, "deleted": list(deleted), "partition": {"day": name[:1]}}}
