"""The families of mutated inputs beside data files: metadata and deletes of tables, manifest files, states."""

import io
import json
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
from pyroaring import BitMap64

from tests.formats.reading import read_all
from tests.fuzz.families import (
    EQUAL,
    Family,
    Seed,
    attempt,
    changed_parquet,
    checked,
    compared,
    plain,
    read_parquet,
    table_of,
)
from tests.fuzz.mutations import mutated, mutated_value
from tests.fuzz.plain_tables import current_fields, rows_of, rows_under
from tests.iceberg import by_hand
from tests.iceberg.relocate import latest_metadata, relocate
from torch_dataloader_utils import IcebergDataset, Rotate, StructuredDataset
from torch_dataloader_utils.formats.avro import FORMAT as AVRO
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergTable

_TABLES = Path(__file__).parents[1] / "iceberg" / "tables"


class TableFiles(Family):
    """Files of the tables that Spark wrote; each table is read as a whole, with one of its files mutated.

    Attributes:
        pattern: which files of a table are mutated.
    """

    pattern: str

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows: dict[str, str] = {}
        self.whole: dict[int, pa.Table] = {}
        self.metadata: dict[str, str] = {}
        seeds = []
        for table in sorted((_TABLES / "db").iterdir()):
            self.metadata[table.name] = relocate(latest_metadata(table), _TABLES, folder)
            whole = self.delivered(table.name)
            self.rows[table.name] = _sorted(whole)
            self.whole[json.loads(Path(self.metadata[table.name]).read_text())["current-snapshot-id"]] = whole
            paths = sorted((folder / "db" / table.name).rglob(self.pattern))
            seeds += [Seed(str(path.relative_to(folder)), path.read_bytes()) for path in paths]
        self.seeds = seeds

    def delivered(self, table: str) -> pa.Table:
        """The rows of a table."""
        loader, _ = IcebergDataset.create_dataloader(
            self.metadata[table], num_workers=0, timeout=0, output_format="arrow", columns=None
        )
        return table_of(batch for batch in loader)

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        path, table = self.folder / seed.name, Path(seed.name).parts[1]
        path.write_bytes(content)
        try:
            found, wrong = attempt(lambda: self.delivered(table))
            if wrong:
                return wrong
            ours = _sorted(found)
            if ours == self.rows[table]:
                return EQUAL
            outcome = compared(found, lambda: _by_pyiceberg(self.metadata[table], found.schema), _sorted)
            return outcome if outcome == EQUAL or not self._right(content, found, table) else EQUAL
        finally:
            path.write_bytes(seed.content)

    def _right(self, content: bytes, found: pa.Table, table: str) -> bool:
        """Whether these are the rows by a plain reading of the specification."""
        try:
            return _sorted(found) == repr(sorted(map(repr, self.plain_rows(content, table))))
        except Exception:  # noqa: BLE001 (whatever is damaged)
            return False

    @abstractmethod
    def plain_rows(self, content: bytes, table: str) -> list[Any]:
        """The rows by the specification, for what pyiceberg does not read, or reads wrongly."""


def _sorted(rows: pa.Table) -> str:
    return repr(sorted(map(repr, rows.to_pylist())))


def _by_pyiceberg(metadata: str, schema: pa.Schema) -> pa.Table:
    rows = StaticTable.from_metadata(metadata).scan().to_arrow().select(schema.names)
    return pa.Table.from_arrays([_stored(column) for column in rows.columns], rows.column_names)


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """UUIDs as the bytes that the package delivers."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


class Metadata(TableFiles):
    """The metadata files of tables: as JSON values, and as bytes."""

    pattern = "*.metadata.json"

    def change(self, draw: Random, seed: Seed) -> bytes:
        if draw.randrange(3) == 0:
            return super().change(draw, seed)
        return json.dumps(mutated_value(draw, json.loads(seed.content))).encode()

    def plain_rows(self, content: bytes, table: str) -> list[Any]:
        """The rows of the whole table of the same snapshot, by the ids of the fields.

        pyiceberg reads no times of ORC files and no equality deletes, delivers null lists as empty ones, refuses JSON
        with half a surrogate pair or deep nesting, and requires a struct that older files lack although all its fields
        are optional.
        """
        metadata = json.loads(content)
        return rows_under(current_fields(metadata), self.whole[metadata["current-snapshot-id"]])


class Manifests(TableFiles):
    """The manifest lists and manifests of tables: their records, and their bytes."""

    pattern = "*.avro"

    def change(self, draw: Random, seed: Seed) -> bytes:
        if draw.randrange(3) == 0:
            return super().change(draw, seed)
        reader = fastavro.reader(io.BytesIO(seed.content))
        records = list(reader)
        header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        sink = io.BytesIO()
        try:
            fastavro.writer(sink, reader.writer_schema, mutated_value(draw, records), metadata=header)
        except Exception:  # noqa: BLE001 (a value that Avro cannot hold at this place)
            return super().change(draw, seed)
        return sink.getvalue()

    def plain_rows(self, content: bytes, table: str) -> list[Any]:
        """The rows of the files that fastavro lists.

        pyiceberg reads no equality deletes, and takes the data file of a deletion vector from the Puffin file; by the
        specification it is `referenced_data_file` of the manifest.
        """
        return rows_of(Path(self.metadata[table]))


# ----------------------------------------------------------------------------------------------------------- deletes

_FIELD = by_hand.field(1, "x", pa.int64())
_DATA = pa.table([pa.array(range(60), pa.int64()), pa.array([f"s{i}" for i in range(60)])], schema=pa.schema(
    [_FIELD, by_hand.field(2, "s", pa.string())]
))  # fmt: skip
_DELETED = [1, 2, 3, 17, 40, 59]


class Deletes(Family):
    """Files of positional and equality deletes; a copy of what another reader finds must delete the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = by_hand.write(_DATA, folder / "data.parquet", segment_rows=20)
        self.table = IcebergTable(_DATA.schema, keys={1: _DATA.schema.field(0), 2: _DATA.schema.field(1)})
        self.files: dict[str, DeleteFile] = {}
        for form in ("parquet", "orc", "avro"):
            positions = by_hand.positions_file(folder / f"positions.{form}", {str(self.data): _DELETED}, form)
            keys = by_hand.equality_file(folder / f"equality.{form}", _DATA.take(_DELETED), form)
            self.files |= {f"positions.{form}": positions, f"equality.{form}": keys}
        self.seeds = [Seed(name, (folder / name).read_bytes()) for name in self.files]

    def change(self, draw: Random, seed: Seed) -> bytes:
        if not seed.name.endswith("parquet"):
            return super().change(draw, seed)
        return changed_parquet(draw, seed, [other for other in self.seeds if other.name.endswith("parquet")])

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        path = self.write(seed, content)
        found, wrong = attempt(lambda: self.read(seed.name, path), str(self.folder))
        return wrong or compared(found, lambda: self.copied(seed.name, path))

    def read(self, name: str, path: Path) -> pa.Table:
        """The rows that are left."""
        known = self.files[name]
        given = DeleteFile(known.kind, str(path), known.format, path.stat().st_size, equality_ids=known.equality_ids)
        rows = by_hand.read_rows(self.data, self.table, deletes=[given])
        checked(rows)
        return rows

    def copied(self, name: str, path: Path) -> pa.Table:
        """The rows that are left by a new file of the deletes that another reader finds."""
        form = path.suffix[1:]
        if form == "parquet":
            rows = read_parquet(path)
        elif form == "orc":
            rows = orc.ORCFile(path).read()
        else:
            rows = read_all(AVRO, path)
        known, new = self.files[name], by_hand.write(rows, self.folder / f"copy-of-{path.name}")
        given = DeleteFile(known.kind, str(new), "parquet", new.stat().st_size, equality_ids=known.equality_ids)
        return by_hand.read_rows(self.data, self.table, deletes=[given])


class Puffin(Family):
    """Deletion vectors: their bytes, of which a checksum is stored; and vectors whose checksum is right."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = by_hand.write(_DATA, folder / "data.parquet", segment_rows=20)
        self.table = IcebergTable(_DATA.schema, keys={1: _DATA.schema.field(0), 2: _DATA.schema.field(1)})
        vectors = {"few": _DELETED, "run": range(5, 50), "far": [3, 2**33, 2**40 + 1], "none": []}
        self.seeds = [Seed(f"{name}.puffin", by_hand.vector_blob(rows)) for name, rows in vectors.items()]

    def change(self, draw: Random, seed: Seed) -> bytes:
        content = seed.content
        if draw.randrange(3) == 0:
            changed = super().change(draw, seed)
            return changed if changed != content else content[:-1]
        body = content[4:8] + mutated(draw, content[8:-4], [other.content[8:-4] for other in self.seeds])
        return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        path = self.write(seed, content)
        deletes = [DeleteFile("vector", str(path), "puffin", len(content), 0, len(content))]
        found, wrong = attempt(lambda: by_hand.read_rows(self.data, self.table, deletes=deletes), seed.name)
        return wrong or compared(found, lambda: _without(content))


def _without(blob: bytes) -> pa.Table:
    """The rows that a vector leaves."""
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("the checksum is wrong")
    gone = BitMap64.deserialize(blob[8:-4])
    return _DATA.take(pa.array([row for row in range(_DATA.num_rows) if row not in gone], pa.int64()))


# ---------------------------------------------------------------------------- the package's own files and states


class _OverFiles(Family):
    """What accompanies a folder of small Parquet files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        for number in range(3):
            part = pa.table({"x": pa.array(range(number * 20, number * 20 + 20)), "s": ["a"] * 20})
            pq.write_table(part, self.data / f"part-{number}.parquet", row_group_size=7)

    def opened(self, **options: Any) -> tuple[Any, Any]:
        """A loader and its dataset."""
        return StructuredDataset.create_dataloader(
            self.data, **{"num_workers": 0, "timeout": 0, "batch_size": 4, **options}
        )


class Manifest(_OverFiles):
    """Manifest files, which are Parquet files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "kept.manifest"
        self.rows = plain(table_of(self.opened(output_format="arrow", manifest=path)[0]))
        self.seeds = [Seed(path.name, path.read_bytes())]

    def change(self, draw: Random, seed: Seed) -> bytes:
        return changed_parquet(draw, seed, self.seeds)

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        path = self.folder / seed.name
        path.write_bytes(content)
        loaded = lambda: table_of(batch for batch in self.opened(output_format="arrow", manifest=path)[0])  # noqa: E731
        found, wrong = attempt(loaded, seed.name)
        return wrong or compared(found, lambda: self.rows)


_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "shuffle_buffer_size": 16, "even": "drop"},
    "filtered": {"filters": [("x", ">", 5)]},
    "rotate": {"sharding": Rotate(4)},
    "canonical": {"canonical_ranks": 4, "even": "drop"},
}


class States(_OverFiles):
    """States after some steps, and after resuming under other options; every row must come at most once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = [Seed(name, json.dumps(state).encode()) for name, state in self._states()]

    def _states(self) -> Iterable[tuple[str, Any]]:
        for name, options in _SETTINGS.items():
            _, dataset = self.opened(**options)
            batches = iter(dataset)
            for _ in range(3):
                next(batches)
            state = dataset.state_dict()
            yield name, state
            if name != "canonical":  # whose batches cannot change
                _, other = self.opened(**{**options, "batch_size": 8})
                other.load_state_dict(state)
                next(iter(other))
                yield f"{name}-resumed", other.state_dict()
            yield f"{name}-all", dataset.state_dict(all_ranks=True)

    def change(self, draw: Random, seed: Seed) -> bytes:
        return json.dumps(mutated_value(draw, json.loads(seed.content))).encode()

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        state, options = json.loads(content), _SETTINGS[seed.name.partition("-")[0]]
        strict = draw.randrange(3) > 0
        _, dataset = self.opened(**options)
        values, wrong = attempt(lambda: self._rest(dataset, state, strict))
        return wrong or (EQUAL if len(set(values)) == len(values) else f"disagrees: repeated rows {values}")

    def _rest(self, dataset: Any, state: Any, strict: bool) -> list[int]:
        dataset.load_state_dict(state, strict=strict)
        dataset.state_dict()
        repr(dataset.describe())
        return [value for batch in dataset for value in batch["x"].tolist()]


TABLE_FAMILIES: dict[str, type[Family]] = {
    "iceberg-metadata": Metadata,
    "iceberg-manifests": Manifests,
    "iceberg-deletes": Deletes,
    "puffin": Puffin,
    "manifest": Manifest,
    "states": States,
}
