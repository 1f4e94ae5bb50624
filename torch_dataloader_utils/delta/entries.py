"""The files of a table's log, checked before deltalake reads them, and the deletion vectors that they list.

deltalake decodes JSON by calling itself for each level, so deep nesting ends the process; and it expands a deletion
vector without asking how many rows the file has. It also does not tell what the log says about a vector.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.parquet import FORMAT as PARQUET
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.storage import Naming, Storage, Stored

_NAME = re.compile(r"(\d{20})\.(?:json|crc|\d{20}\.compacted\.json|checkpoint\..*)$")
_PART = re.compile(r"\d{20}\.checkpoint\.(\d{10})\.(\d{10})\.parquet$")
_OPENING = re.compile(rb"[\[{]|\\u00[57][bB]")  # also as an escape within a text
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_READ = (b'"add"', b'"sidecar"', b'"protocol"')  # actions
_MOST_LEVELS = 500  # of JSON; deltalake's own limit depends on its stack, and is some 10,000


@dataclass(frozen=True, slots=True)
class LoggedVector:
    """A deletion vector, as the log describes it.

    Attributes:
        kind: "u" (a file named by an id), "p" (a file named by its path) or "i" (text in the log).
        place: the id, path or text.
        offset: where it begins in its file, in bytes.
        size: bytes.
        rows: the number of rows that it deletes.
    """

    kind: str
    place: str
    offset: int
    size: int
    rows: int


@dataclass(frozen=True)
class LogEntries:
    """What the log says at a version.

    Attributes:
        version: the newest one that was checked; None if there is no log.
        vectors: path of a data file, as the log spells it -> its deletion vector, or None.
        features: what the table requires of its readers.
    """

    version: int | None
    vectors: Mapping[str, LoggedVector | None]
    features: frozenset[str] = frozenset()


@dataclass
class _Found:
    """What files of the log say; the features are None if they do not say."""

    vectors: dict[str, LoggedVector | None] = field(default_factory=dict)
    features: frozenset[str] | None = None

    def update(self, later: _Found) -> None:
        self.vectors.update(later.vectors)
        self.features = self.features if later.features is None else later.features


def log_entries(storage: Storage, folder: str, version: int | None, every: bool = False) -> LogEntries:
    """The entries at a version, after a check that deltalake can decode the files of the log.

    Args:
        storage: where the table is.
        folder: the table's folder.
        version: the version; None for the newest.
        every: whether files before the last checkpoint are checked, too.

    Raises:
        FileReadError: a file cannot be read, or is nested too deeply.
    """
    log = f"{folder.rstrip('/')}/_delta_log"
    stored = storage.look(log)
    listed = storage.find(log, recursive=False) if stored is not None and stored.folder else []
    files = [(int(match[1]), file) for file in listed if (match := _NAME.match(_name(file)))]
    known = [number for number, _ in files if version is None or number <= version]
    if not known:
        return LogEntries(None, {})
    newest = max(known)
    first = 0 if every else _last_checkpoint([(number, file) for number, file in files if number <= newest])
    read = sorted(
        ((number, "checkpoint" not in _name(file), ".compacted." not in _name(file), file.path, file)
         for number, file in files if first <= number <= newest),
        key=lambda item: item[:4],
    )  # fmt: skip
    hint = [file for file in listed if _name(file) == "_last_checkpoint"]
    all_found = _Found()
    for found in read_footers(storage, lambda file: _read(storage, log, file), [*hint, *(item[4] for item in read)]):
        all_found.update(found)
    return LogEntries(newest, all_found.vectors, all_found.features or frozenset())


def _name(file: Stored) -> str:
    return file.path.rpartition("/")[2]


def _last_checkpoint(files: Sequence[tuple[int, Stored]]) -> int:
    """The version of the last whole checkpoint; 0 if there is none."""
    parts: dict[tuple[int, int], set[int]] = {}
    whole = [0]
    for number, file in files:
        part = _PART.match(_name(file))
        if part:
            parts.setdefault((number, int(part[2])), set()).add(int(part[1]))
        elif ".checkpoint." in _name(file):
            whole.append(number)
    whole += [number for (number, count), found in parts.items() if found >= set(range(1, count + 1))]
    return max(whole)


def _read(storage: Storage, log: str, file: Stored) -> _Found:
    """The vectors of the files that a file of the log adds, after the check."""
    with Naming(file.path):
        if file.path.endswith(".parquet"):
            return _from_parquet(storage, log, file)
        with storage.open(file.path) as source:
            data: bytes = source.read()
        found = _Found()
        for line in data.splitlines():
            check_depth(line, file.path)
            _check_texts(line, file.path)
            if any(name in line for name in _READ):
                found.update(_action(storage, log, json.loads(line), file.path))
        return found


def _action(storage: Storage, log: str, action: Any, path: str) -> _Found:
    if not isinstance(action, dict):
        return _Found()
    add, sidecar, protocol = action.get("add"), action.get("sidecar"), action.get("protocol")
    if isinstance(protocol, dict):
        return _Found(features=frozenset(map(str, protocol.get("readerFeatures") or ())))
    if isinstance(sidecar, dict) and isinstance(sidecar.get("path"), str):
        name = sidecar["path"]
        place = name if "/" in name else f"{log}/_sidecars/{name}"
        return _from_parquet(storage, log, Stored(place, int(sidecar.get("sizeInBytes") or 0)))
    if not isinstance(add, dict) or not isinstance(add.get("path"), str):
        return _Found()
    if isinstance(add.get("stats"), str):
        check_depth(add["stats"].encode(errors="replace"), path)
    return _Found({add["path"]: _vector(add.get("deletionVector"))})


def _vector(given: Any) -> LoggedVector | None:
    if not isinstance(given, dict) or given.get("pathOrInlineDv") is None:
        return None
    offset = given.get("offset")
    return LoggedVector(
        str(given.get("storageType")),
        str(given["pathOrInlineDv"]),
        1 if offset is None else int(offset),
        int(given.get("sizeInBytes", -1)),
        int(given.get("cardinality", -1)),
    )


def _from_parquet(storage: Storage, log: str, file: Stored) -> _Found:
    """As `_read`, of a checkpoint or its sidecar."""
    info = DataFileInfo(file.path, file.size)
    layout, schema = PARQUET.layout(info, storage, {})
    names = [name for name in ("protocol", "add", "sidecar") if name in schema.names]
    found = _Found()
    if not names:
        return found
    reader = PARQUET.open(info, layout, storage, {}, schema)
    try:
        for segment in layout.segments:
            for name, column in zip(names, reader.read([segment.number], names), strict=True):
                for row in _slim(column):
                    found.update(_action(storage, log, {name: row}, file.path))
    finally:
        reader.close()
    return found


def _slim(column: pa.ChunkedArray) -> Iterator[Any]:
    """The actions of a column, with only what is needed of them."""
    wanted = ("path", "sizeInBytes", "stats", "deletionVector", "readerFeatures")
    for chunk in column.chunks:
        kept = [name for name in wanted if chunk.type.get_field_index(name) >= 0]
        parts = [chunk.field(name) for name in kept]
        mask = chunk.is_null() if chunk.null_count else None
        yield from pa.StructArray.from_arrays(parts, names=kept, mask=mask).drop_null().to_pylist()


def _check_texts(line: bytes, path: str) -> None:
    """As `check_depth`, for the texts in a line, one of which is the JSON of statistics."""
    if len(_OPENING.findall(line)) > _MOST_LEVELS:
        for text in _TEXT.findall(line):
            check_depth(json.loads(text).encode(errors="replace"), path)


def check_depth(text: bytes, path: str) -> None:
    """Check that JSON is not nested too deeply.

    Raises:
        FileReadError: it is.
    """
    if text.count(b"[") + text.count(b"{") + text.count(b"\\u00") <= _MOST_LEVELS:
        return
    if len(_OPENING.findall(text)) <= _MOST_LEVELS:
        return
    bare = np.frombuffer(_TEXT.sub(b"", text), np.uint8)
    steps = np.isin(bare, list(b"[{")).astype(np.int64) - np.isin(bare, list(b"]}"))
    if len(steps) and int(np.cumsum(steps).max()) > _MOST_LEVELS:
        raise FileReadError(
            f"{printable(path)}: is nested more than {_MOST_LEVELS} levels deep, which no writer of a log does: it is "
            "damaged. Restore it, or read an older version of the table."
        )
