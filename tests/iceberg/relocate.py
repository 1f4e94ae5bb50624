"""Copies an Iceberg table to another place: its metadata and all files that it names, with every path rewritten.

The tables of this folder say that they lie in `/FIXTURE_ROOT`; Iceberg's metadata knows absolute paths only.
"""

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

PATHS_FIELD = 2147483546  # id of the column of paths in files of positional deletes
DELETED = 2  # status of a manifest's entry
POSITIONS = 1  # content of a file: positional deletes, or a deletion vector


def latest_metadata(table: Path) -> Path:
    """The metadata file of the highest version in a table's folder."""
    found = (table / "metadata").glob("v*.metadata.json")
    return max(found, key=lambda path: int(re.sub(r"\D", "", path.name)))


def relocate(metadata: Path, source: Path, target: Path, *, old: str = "/FIXTURE_ROOT", new: str | None = None) -> str:
    """The new path of the metadata file of a copied table.

    Args:
        metadata: the file in `source`.
        source: the folder that the table calls `old`.
        target: the folder that gets the copy.
        old: how the table's paths begin.
        new: how they shall begin instead, such as "s3://bucket/tables"; by default with `target`.
    """
    return _Copy(source, target, old, str(target) if new is None else new).metadata(metadata)


class _Copy:
    """One table on its way from a folder to another."""

    def __init__(self, source: Path, target: Path, old: str, new: str) -> None:
        self.source, self.target, self.old, self.new = source, target, old, new
        self.sizes: dict[str, int] = {}  # of what was copied, by its old path

    def renamed(self, path: str) -> str:
        assert path.startswith(f"{self.old}/"), path
        return self.new + path.removeprefix(self.old)

    def metadata(self, file: Path) -> str:
        content = json.loads(file.read_text())
        content["location"] = self.renamed(content["location"])
        content |= {"metadata-log": [], "statistics": [], "partition-statistics": []}
        for snapshot in content.get("snapshots", []):
            self._once(snapshot["manifest-list"], lambda data: rewrite_avro(data, self._manifest))
            snapshot["manifest-list"] = self.renamed(snapshot["manifest-list"])
        place = file.relative_to(self.source)
        self._write(place, json.dumps(content).encode())
        return f"{self.new}/{place}"

    def _manifest(self, manifest: dict[str, Any]) -> dict[str, Any]:
        path = manifest["manifest_path"]
        size = self._once(path, lambda data: rewrite_avro(data, self._entry))
        return manifest | {"manifest_path": self.renamed(path), "manifest_length": size}

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        file = entry["data_file"]
        path, is_positions = file["file_path"], file.get("content", 0) == POSITIONS
        if entry["status"] != DELETED or self._at(path).exists():
            rewritten = self._positions(file["file_format"].lower()) if is_positions else bytes
            file["file_size_in_bytes"] = self._once(path, rewritten)
        file["file_path"] = self.renamed(path)
        if file.get("referenced_data_file"):
            file["referenced_data_file"] = self.renamed(file["referenced_data_file"])
        for bounds in (file.get("lower_bounds"), file.get("upper_bounds")) if is_positions else ():
            for bound in bounds or []:
                if bound["key"] == PATHS_FIELD:
                    bound["value"] = self.renamed(bound["value"].decode()).encode()
        return entry

    def _positions(self, form: str) -> Callable[[bytes], bytes]:
        """What rewrites a file of positional deletes of this format."""
        if form == "puffin":
            return lambda data: rewrite_puffin(data, self.renamed)
        if form == "avro":
            return lambda data: rewrite_avro(data, lambda row: row | {"file_path": self.renamed(row["file_path"])})
        return lambda data: rewrite_columns(data, form, self.renamed)

    def _once(self, path: str, rewritten: Callable[[bytes], bytes]) -> int:
        """The size in bytes of the copy of a file, which is written if it was not yet."""
        if path not in self.sizes:
            data = rewritten(self._at(path).read_bytes())
            self._write(Path(path.removeprefix(f"{self.old}/")), data)
            self.sizes[path] = len(data)
        return self.sizes[path]

    def _at(self, path: str) -> Path:
        return self.source / path.removeprefix(f"{self.old}/")

    def _write(self, place: Path, data: bytes) -> None:
        target = self.target / place
        os.makedirs(target.parent, exist_ok=True)
        target.write_bytes(data)


def rewrite_avro(data: bytes, rewritten: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """An Avro file with other records, and the schema and header of this one."""
    reader = fastavro.reader(io.BytesIO(data))
    header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    records = [rewritten(record) for record in reader]
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, records, codec="deflate", metadata=header)
    return out.getvalue()


def rewrite_columns(data: bytes, form: str, renamed: Callable[[str], str]) -> bytes:
    """A Parquet or ORC file of positional deletes with other paths."""
    table = (pq if form == "parquet" else orc).read_table(pa.BufferReader(data))
    place = table.schema.get_field_index("file_path")
    field = table.schema.field(place)
    paths = pa.array([renamed(path) for path in table.column(place).to_pylist()], field.type)
    out = pa.BufferOutputStream()
    (pq if form == "parquet" else orc).write_table(table.set_column(place, field, paths), out)
    return out.getvalue().to_pybytes()


def rewrite_puffin(data: bytes, renamed: Callable[[str], str]) -> bytes:
    """A Puffin file whose blobs refer to other data files; the blobs stay where they are."""
    size = int.from_bytes(data[-12:-8], "little")
    footer = json.loads(data[-12 - size : -12])
    for blob in footer["blobs"]:
        properties = blob.get("properties", {})
        if "referenced-data-file" in properties:
            properties["referenced-data-file"] = renamed(properties["referenced-data-file"])
    spelled = json.dumps(footer).encode()
    return data[: -12 - size] + spelled + len(spelled).to_bytes(4, "little") + data[-8:]
