"""The families of inputs that are mutated: their seeds, how they are changed and read, and what must come of it."""

import ctypes
import gzip
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tests.formats.reading import read_all
from tests.fuzz import corpus
from tests.fuzz.mutations import mutated
from torch_dataloader_utils import DataLoaderUtilsError, StructuredDataset
from torch_dataloader_utils.formats.avro import FORMAT as AVRO
from torch_dataloader_utils.formats.parquet.footer import checked_footer

EQUAL, REFUSED = "equal", "refused"
_PERTURB = -6  # glibc's M_PERTURB


@dataclass(frozen=True)
class Seed:
    """A whole input.

    Attributes:
        name: the name of its file.
        content: its bytes.
    """

    name: str
    content: bytes


class Family(ABC):
    """Inputs of one format.

    Attributes:
        seeds: whole inputs.
    """

    seeds: Sequence[Seed]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = 0

    def write(self, seed: Seed, content: bytes) -> Path:
        """A new file, because the deletes of a path are read once per process."""
        self._written += 1
        path = self.folder / f"{self._written}-{seed.name}"
        path.write_bytes(content)
        return path

    def change(self, draw: Random, seed: Seed) -> bytes:
        """A mutated copy of a seed."""
        return mutated(draw, seed.content, [other.content for other in self.seeds])

    @abstractmethod
    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        """What comes of it: "equal", "refused", or what is wrong."""


def attempt(read: Callable[[], Any], *names: str) -> tuple[Any, str]:
    """What is read, and ""; or None and "refused", or what is wrong with the error.

    Args:
        read: a call of the package.
        names: an error must contain one of these.
    """
    try:
        return read(), ""
    except DataLoaderUtilsError as error:
        named = not names or any(name in str(error) for name in names)
        return None, REFUSED if named else f"nameless {type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (Rust panics are no Exceptions)
        return None, f"foreign {type(error).__name__}: {error} ({_place(error)})"


def _place(error: BaseException) -> str:
    """The last line of the package that an error went through."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "torch_dataloader_utils/" in name:
            place = f"{name.rpartition('torch_dataloader_utils/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def plain(rows: pa.Table) -> str:
    """The rows as text, in which NaN equals NaN."""
    return repr(rows.to_pydict())


def compared(found: pa.Table, reference: Callable[[], Any], text: Callable[[pa.Table], str] = plain) -> str:
    """ "equal", or how the rows differ from those of another reader."""
    try:
        ours = text(found)
    except (ValueError, ArithmeticError) as error:  # not every value fits a Python object
        ours = f"{type(error).__name__}"
    try:
        other = reference()
        theirs = other if isinstance(other, str) else text(other)
    except (UnicodeDecodeError, ArithmeticError) as error:
        theirs = f"{type(error).__name__}"
    except Exception as error:  # noqa: BLE001 (whatever another reader raises)
        theirs = f"refused by the reference: {type(error).__name__}: {error}"
    return EQUAL if ours == theirs else f"disagrees: {_around(ours, theirs)}"


def _around(ours: str, theirs: str) -> str:
    """The parts of two texts around their first difference."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"{ours[max(at - 40, 0) : at + 60]} | {theirs[max(at - 40, 0) : at + 200]}"


def checked(found: pa.Table) -> None:
    """Look at every value: what is delivered must not point outside its memory."""
    for column in found.columns:
        column.validate()
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if not any(word in str(error) for word in ("UTF8", "UTF-8", "does not fit in precision")):
                raise


def delivered(path: Path, **options: Any) -> list[Any]:
    """All batches of a file."""
    loader, _ = StructuredDataset.create_dataloader(path, num_workers=0, timeout=0, **options)
    return [batch for batch in loader]  # noqa: C416 (list() would ask for the length, and take memory for as many)


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """The batches as one table, checked."""
    listed = list(batches)
    table = pa.Table.from_batches(listed) if listed else pa.table({})
    checked(table)
    return table


class FileFamily(Family):
    """Files of a format, read by the public call.

    Attributes:
        ways: other options to read with; their rows are not compared.
    """

    ways: Sequence[dict[str, Any]] = ({"output_format": "torch", "nulls": "mask"},)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = [Seed(name, content) for name, content in self.files()]

    @abstractmethod
    def files(self) -> Iterable[tuple[str, bytes]]:
        """The seeds."""

    def read(self, path: Path) -> pa.Table:
        """The rows, as the package delivers them."""
        return table_of(delivered(path, output_format="arrow"))

    @abstractmethod
    def reference(self, path: Path, schema: pa.Schema) -> Any:
        """The rows as another reader has them, as a table or as the text of one."""

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        """Read as Arrow and compare; every third time, read in one of the other ways as well."""
        path = self.folder / seed.name
        path.write_bytes(content)
        if self.ways and draw.randrange(3) == 0:
            way = draw.choice(self.ways)
            _, wrong = attempt(lambda: delivered(path, **way))
            if wrong not in ("", REFUSED):
                return f"{wrong} with {way}"
        found, wrong = attempt(lambda: self.read(path), seed.name)
        if wrong:
            return wrong
        return EQUAL if not found.num_rows else compared(found, lambda: self.reference(path, found.schema))


_FILTER = {"output_format": "torch", "nulls": "mask", "filters": [("i", ">", 30), ("s", "!=", "text 4")]}
_SHUFFLED = {"output_format": "torch", "nulls": "mask", "shuffle": True, "shuffle_buffer_size": 40}


class Parquet(FileFamily):
    """Parquet; half of the changes are made in the footer, whose length is then corrected."""

    ways = (
        *FileFamily.ways,
        _FILTER,
        _SHUFFLED,
        {**_SHUFFLED, "format_options": {"engine": "pyarrow"}},
        {"format_options": {"page_checksums": False}, "output_format": "dict"},
        {"strings": "codes", "nulls": "mask"},
    )

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.parquet_files()

    def change(self, draw: Random, seed: Seed) -> bytes:
        if not seed.name.startswith("checksums"):
            return changed_parquet(draw, seed, self.seeds)
        data, _ = footer_of(seed.content)
        pages = mutated(draw, data[4:], [data])[: len(data) - 4]  # the footer is not covered by checksums
        return b"PAR1" + pages.ljust(len(data) - 4, b"\0") + seed.content[len(data) :]

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        return read_parquet(path, schema.names)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows as pyarrow reads them from a file whose footer has no bounds of a wrong length.

    It refuses columns with such bounds, though nothing that it reads depends on them.
    """
    with pa.OSFile(str(path)) as source:
        metadata = checked_footer(source)[1]
    file = pq.ParquetFile(path, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
    return file.read(columns=columns, use_threads=False)


def changed_parquet(draw: Random, seed: Seed, seeds: Sequence[Seed]) -> bytes:
    """A mutated copy of a Parquet file; every second time, of its footer only, with the right length."""
    if draw.randrange(2):
        return mutated(draw, seed.content, [other.content for other in seeds])
    data, footer = footer_of(seed.content)
    changed = mutated(draw, footer, [footer_of(other.content)[1] for other in seeds])
    return data + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def footer_of(content: bytes) -> tuple[bytes, bytes]:
    """A Parquet file's bytes before its footer, and the footer."""
    at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:at], content[at:-8]


class Orc(FileFamily):
    """ORC, of which pyarrow may deliver memory that it has not written, if a stripe is damaged."""

    ways = (*FileFamily.ways, _FILTER, _SHUFFLED)

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.orc_files()

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        return orc.ORCFile(path).read(columns=schema.names)

    def outcome(self, draw: Random, seed: Seed, content: bytes) -> str:
        outcome, path = super().outcome(draw, seed, content), self.folder / seed.name
        return EQUAL if outcome.startswith("disagrees") and self._undetermined(path) else outcome

    def _undetermined(self, path: Path) -> bool:
        """Whether pyarrow's rows depend on what was in memory: no rows are right then."""
        schema = orc.ORCFile(path).schema
        return len({_filled(byte, lambda: plain(self.reference(path, schema))) for byte in range(4)}) > 1


def _filled(byte: int, read: Callable[[], str]) -> str:
    """What is read while new memory holds this byte, or the error."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_PERTURB, byte)
    try:
        return read()
    except Exception as error:  # noqa: BLE001 (whatever another reader raises)
        return repr(error)
    finally:
        libc.mallopt(_PERTURB, 0)


class Ipc(FileFamily):
    """Arrow IPC: files and streams."""

    ways = (*FileFamily.ways, _FILTER, _SHUFFLED)

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.ipc_files()

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        content = path.read_bytes()  # the package reads files as streams, too
        table = pa.ipc.open_stream(content[8:] if content.startswith(b"ARROW1") else content).read_all()
        checked(table)
        return table


class Avro(FileFamily):
    """Avro, which only tables hold, so it is read by its format alone; fastavro is the other reader."""

    ways = ()

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.avro_files(self.folder)

    def read(self, path: Path) -> pa.Table:
        table = read_all(AVRO, path)
        checked(table)
        return table

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        records = corpus.read_avro(path.read_bytes())
        return pa.table({f.name: pa.array([record[f.name] for record in records], f.type) for f in schema})


class Csv(FileFamily):
    """CSV; pyarrow reads it with the types that were delivered."""

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.csv_files()

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        options = pacsv.ConvertOptions(column_types={field.name: field.type for field in schema})
        delimiter = "\t" if path.name.endswith("tsv") else ","
        return pacsv.read_csv(
            path, pacsv.ReadOptions(use_threads=False), pacsv.ParseOptions(delimiter=delimiter), options
        )


class Json(FileFamily):
    """JSON lines, documents and arrays; pyarrow reads lines, Python the others, and lines that pyarrow refuses.

    pyarrow refuses values of several kinds in a column of strings, and names that are repeated in an object.
    """

    def files(self) -> Iterable[tuple[str, bytes]]:
        return corpus.json_files()

    def reference(self, path: Path, schema: pa.Schema) -> Any:
        content = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
        if ".jsonl" not in path.name:
            return _rows_of(_documents(content.decode("utf-8-sig")), schema)
        try:
            return _json_lines(content, schema)
        except pa.ArrowInvalid:
            lines = content.decode("utf-8-sig").split("\n")
            return _rows_of([_DECODER.decode(line) for line in lines if line.strip()], schema)


class _Number(float):
    """A number that knows how it is written."""

    def __new__(cls, text: str) -> "_Number":
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


_DECODER = json.JSONDecoder(parse_float=_Number)


def _json_lines(content: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of a text, as pyarrow reads them."""
    options = pajson.ReadOptions(use_threads=False, block_size=len(content) + 1)
    parse = pajson.ParseOptions(explicit_schema=schema)
    return pajson.read_json(pa.BufferReader(content), options, parse).select(schema.names)


def _rows_of(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """The rows that Python parsed, with the types that pyarrow makes of their values."""
    kept = [{f.name: _as_text((row or {}).get(f.name), f.type) for f in schema} for row in rows]
    return _json_lines("\n".join(map(json.dumps, kept)).encode(), schema)


def _as_text(value: Any, kind: pa.DataType) -> Any:
    """The value; in a column of strings, anything else as it is written."""
    if kind != pa.string() or value is None or isinstance(value, str):
        return value
    return value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


def _documents(text: str) -> list[Any]:
    """The elements of an array, or consecutive documents."""
    rows, at = [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = _DECODER.raw_decode(text, at)
        rows.append(value)
    return rows[0] if rows and isinstance(rows[0], list) else rows


FAMILIES: dict[str, type[Family]] = {
    "parquet": Parquet,
    "orc": Orc,
    "ipc": Ipc,
    "avro": Avro,
    "csv": Csv,
    "json": Json,
}
