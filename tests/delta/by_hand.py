"""Writes what deltalake does not: deletion vectors, and other entries of a table's log."""

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # of Z85


def entries(folder: Path) -> list[Path]:
    """The files of the log, oldest first."""
    return sorted((folder / "_delta_log").glob("*.json"))


def actions(folder: Path) -> list[dict[str, Any]]:
    """All actions of the log."""
    return [json.loads(line) for entry in entries(folder) for line in entry.read_text().splitlines()]


def commit(folder: Path, lines: Iterable[Mapping[str, Any]]) -> int:
    """Add a version of these actions; returns its number."""
    version = len(entries(folder))
    first = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "DELETE"}}
    text = "\n".join(json.dumps(line) for line in [first, *lines])
    (folder / "_delta_log" / f"{version:020}.json").write_text(f"{text}\n")
    return version


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], version: int = 0) -> None:
    """Change the actions of a version in place."""
    entry = entries(folder)[version]
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        change(line)
    entry.write_text("\n".join(map(json.dumps, lines)))


def require(folder: Path, *features: str) -> None:
    """Have the table require these features of its readers."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    rewrite(folder, lambda line: line.update(protocol=protocol) if "protocol" in line else None)


def live(folder: Path) -> dict[str, dict[str, Any]]:
    """Path -> the action that added it, for the files of the newest version, the oldest first."""
    files: dict[str, dict[str, Any]] = {}
    for action in actions(folder):
        if "remove" in action:
            files.pop(action["remove"]["path"], None)
        elif "add" in action:
            files[action["add"]["path"]] = action["add"]
    return files


def delete_rows(folder: Path, rows: Mapping[str, Collection[int]], kind: str = "u") -> int:
    """Commit a deletion of rows by vectors: path of a file, as the log spells it -> all its deleted row numbers.

    A vector is a file named by its id ("u"), a file named by its path ("p"), or text in the log ("i").
    """
    files, lines = live(folder), []
    for path, deleted in rows.items():
        add = files[path]
        kept = {name: add[name] for name in ("path", "partitionValues", "size", "deletionVector") if name in add}
        vector = _vector(folder, deleted, kind)
        stats = json.dumps({**json.loads(add["stats"]), "tightBounds": False})
        lines.append({"remove": {**kept, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}})
        lines.append({"add": {**add, "stats": stats, "deletionVector": vector}})
    return commit(folder, lines)


def _vector(folder: Path, rows: Collection[int], kind: str) -> dict[str, Any]:
    bitmap = b"\xd1\xd3\x39\x64" + BitMap64(sorted(rows)).serialize()
    facts = {"storageType": kind, "sizeInBytes": len(bitmap), "cardinality": len(set(rows))}
    if kind == "i":
        return {**facts, "pathOrInlineDv": z85(bitmap)}
    name = uuid.uuid4()
    path = folder / f"deletion_vector_{name}.bin"
    path.write_bytes(b"\x01" + struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap)))
    where = z85(name.bytes) if kind == "u" else path.absolute().as_uri()
    return {**facts, "pathOrInlineDv": where, "offset": 1}


def z85(data: bytes) -> str:
    """The bytes as text of base 85, filled up to whole groups of four."""
    text = ""
    for (number,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)):
        group = ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            group = _DIGITS[digit] + group
        text += group
    return text
