"""Decodes columns by the package's own decoder (kernels/pages.c), all of a row group in one call.

pyarrow decodes into fresh memory, a column per call, and each call waits for the GIL beside a busy training loop. Here
one call decodes all columns, without the GIL, at half of pyarrow's processor time.

Whatever is not suited, or is refused for any reason, pyarrow decodes: so its errors, messages and leniency remain.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.formats.sizes import leaf_count
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.kernels.pages import CHUNK, Chunks, decode, zstd_functions
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.storage import RemoteFile

_PLACES = {name: place for place, name in enumerate(CHUNK.names or ())}

# Numbers of parquet.thrift.
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "ZSTD": 6}
_KINDS = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7}
_WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}

# How values of these Arrow types must be stored for their bits to be those of the type.
_STORED = {
    pa.bool_(): "BOOLEAN",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.date32()), "INT32"),
    **dict.fromkeys((pa.int64(), pa.uint64()), "INT64"),
    pa.float16(): "FIXED_LEN_BYTE_ARRAY",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    **dict.fromkeys((pa.string(), pa.binary(), pa.large_string(), pa.large_binary()), "BYTE_ARRAY"),
}
_CODED = [pa.dictionary(pa.int32(), kind) for kind in (pa.string(), pa.binary())]
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

_MOST_BYTES = 32 << 20  # decoded bytes of one call: some 10 ms of work, and few enough for every thread to hold them
_MOST_CHUNK = 1 << 30  # bytes of a chunk: of larger ones, pyarrow reads a page at a time


class _Form(NamedTuple):
    """How a column is stored, and what its values become.

    Attributes:
        leaf: its number among the leaf columns.
        type: the Arrow type.
        values: that of its values: of a list, of these.
        kind: the number of the physical type.
        stored: bytes of a stored value; 0 for booleans, which are bits, and for bytes.
        width: bytes of a value of the type; 0 likewise.
        decimal: whether values are decimals.
        most: the definition level of a value that is not null.
        entry: of lists: the level from which on there is an entry; else 0.
        fixed: of lists of one size: the size; else 0.
        wide: whether offsets are int64.
        coded: whether values are the numbers of words in a dictionary of bytes.
    """

    leaf: int
    type: pa.DataType
    values: pa.DataType
    kind: int
    stored: int
    width: int
    decimal: bool
    most: int
    entry: int
    fixed: int
    wide: bool
    coded: bool

    @property
    def is_text(self) -> bool:
        """Whether values are bytes of any length."""
        return self.kind == _KINDS["BYTE_ARRAY"] and not self.coded

    @property
    def output(self) -> type[_Output]:
        """What the column is decoded to."""
        if self.coded:
            return _Codes
        return _Flat if self.is_flat else _Lists if self.entry else _Texts

    @property
    def is_flat(self) -> bool:
        """Whether values have one width, one for each row."""
        return not (self.entry or self.is_text)

    def offsets(self, rows: int) -> pa.Buffer:
        """Memory for the offsets of so many rows."""
        return pa.allocate_buffer((8 if self.wide else 4) * (rows + 1))

    def room(self, entries: int) -> int:
        """Bytes of so many values of fixed width."""
        return entries * self.width if self.width else -(-entries // 8)


class _Forms:
    """The forms of a file's columns.

    Args:
        metadata: its footer.
        schema: its columns, as pyarrow reads them.
    """

    def __init__(self, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self._metadata, self._schema = metadata, schema
        self._known: dict[str, _Form | None] = {}

    @cached_property
    def _leaves(self) -> dict[str, int]:
        return _leaf_numbers(self._schema)

    def of(self, columns: Sequence[str]) -> dict[str, _Form]:
        """Those of the suited ones among these columns."""
        for name in columns:
            if name not in self._known:
                self._known[name] = self._found(name)
        return {name: form for name in columns if (form := self._known[name]) is not None}

    def _found(self, name: str) -> _Form | None:
        """The form of a column; None if it is not suited."""
        leaf = self._leaves.get(name)
        if leaf is None:
            return None
        field, stored = self._schema.field(name), self._metadata.schema.column(leaf)
        kind, entry, fixed, most = field.type, 0, 0, int(field.nullable)
        wide = pt.is_large_list(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)
        if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
            entry, fixed = most + 1, kind.list_size if pt.is_fixed_size_list(kind) else 0
            most = entry + int(kind.value_field.nullable)
            kind = kind.value_type
            if not pt.is_primitive(kind) or pt.is_boolean(kind) or (pt.is_fixed_size_list(field.type) and not fixed):
                return None
        coded = kind in _CODED
        kind = kind.value_type if coded else kind
        levels = stored.max_repetition_level, stored.max_definition_level
        if levels != (int(entry > 0), most) or not _same_bits(kind, stored):
            return None
        width = _WIDTHS.get(stored.physical_type, stored.length)
        narrow = 4 if coded else kind.bit_width // 8 if width else 0
        physical, decimal = _KINDS[stored.physical_type], pt.is_decimal(kind)
        return _Form(leaf, field.type, kind, physical, width, narrow, decimal, most, entry, fixed, wide, coded)


def left_to_pyarrow(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """The columns of a file that are stored in a way that is not decoded here, by its schema and first row group."""
    forms, first = _Forms(metadata, metadata.schema.to_arrow_schema()).of(names), metadata.row_group(0)
    codecs = {name: first.column(form.leaf).compression for name, form in forms.items()}
    return [name for name in names if name not in forms or not _decompressed(codecs[name])]


def _decompressed(codec: str) -> bool:
    """Whether the bytes of this codec are decompressed here."""
    return codec in _CODECS and (codec != "ZSTD" or zstd_functions() is not None)


class PageDecoder:
    """Decodes columns of an open file. Used by one thread at a time.

    Args:
        source: the file, open.
        metadata: its footer.
        schema: its columns, as pyarrow reads them.
        verified: whether the checksums of pages are verified.
    """

    def __init__(self, source: pa.NativeFile, metadata: pq.FileMetaData, schema: pa.Schema, verified: bool) -> None:
        self._source, self._metadata, self._verified = source, metadata, verified
        self._forms = _Forms(metadata, schema)
        self._text_bytes: dict[str, float] = {}  # of columns of bytes: those of a row, of which there were most so far

    @staticmethod
    def usable(source: pa.NativeFile) -> bool:
        """Whether it can decode this open file in this process."""
        return isinstance(source, (pa.OSFile, RemoteFile)) and pages_library() is not None

    def together(self, columns: Sequence[str], rows: int) -> list[str]:
        """The first of these columns that one call decodes best, those of fixed width first; none if none is suited.

        Args:
            columns: names of columns.
            rows: of the row groups that are read together.
        """
        forms = self._forms.of(columns)
        names: list[str] = []
        size = 0
        for name in sorted(forms, key=lambda name: not forms[name].is_flat):
            size += forms[name].room(rows) if forms[name].is_flat else self._stored_bytes(forms[name], rows)
            if names and size > _MOST_BYTES:
                break
            names.append(name)
        return names

    def _stored_bytes(self, form: _Form, rows: int) -> int:
        """About how many bytes so many rows of strings or lists have, by those of the first row group."""
        group = self._metadata.row_group(0)
        return int(group.column(form.leaf).total_uncompressed_size * rows / max(1, group.num_rows))

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The rows of these row groups, for those of the columns that were decoded; pyarrow must read the others."""
        forms = self._forms.of(columns)
        counts = [self._metadata.row_group(group).num_rows for group in groups]
        chunks = [self._chunks(group, count, forms) for group, count in zip(groups, counts, strict=True)]
        forms = {name: form for name, form in forms.items() if all(name in chunk for chunk in chunks)}
        if not forms or not sum(counts):
            return {}
        outputs = {name: form.output(form, [chunk[name] for chunk in chunks]) for name, form in forms.items()}
        decoded: dict[str, _Output] = {}
        try:
            for name, output in outputs.items():
                output.allocate(self._text_bytes.get(name, 0))
            jobs = [job for output in outputs.values() for job in output.jobs]
            self._fetch(jobs)
            _decode(jobs)
            short = [job for output in outputs.values() for job in output.enlarged()]
            if short:
                _decode(short)
            decoded = {name: output for name, output in outputs.items() if not output.refused}
        except MemoryError:  # a damaged footer may name any sizes; pyarrow says what is wrong
            return {}
        finally:
            self._put_back([job for name, output in outputs.items() if name not in decoded for job in output.jobs])
        for name, output in decoded.items():
            self._text_bytes[name] = max(self._text_bytes.get(name, 0), output.row_bytes)
        recorder().count("bytes_decoded", sum(job["length"] for output in decoded.values() for job in output.jobs))
        return {name: output.array() for name, output in decoded.items()}

    def chunks(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, Chunks]:
        """Of the columns of fixed width, a chunk for each of these row groups; none of a file that is not local."""
        forms = {name: form for name, form in self._forms.of(columns).items() if form.is_flat and not form.decimal}
        if isinstance(self._source, RemoteFile):
            return {}
        jobs = [self._chunks(group, self._metadata.row_group(group).num_rows, forms) for group in groups]
        return {
            name: np.array([tuple(job[name].numbers) for job in jobs], CHUNK)
            for name in forms
            if all(name in job for job in jobs)
        }

    def _fetch(self, jobs: Sequence[_Job]) -> None:
        """Have the bytes of these chunks in memory, if the file is not on this machine."""
        if isinstance(self._source, RemoteFile):
            for job in jobs:
                place, content = job["start"], self._source.buffer(job["start"], job["length"])
                job.fetched = place, content
                job["file"], job["start"], job["length"] = -1, content.address, content.size

    def _put_back(self, jobs: Sequence[_Job]) -> None:
        """Give pyarrow the bytes of these chunks, which were fetched."""
        for job in jobs:
            if job.fetched is not None:
                self._source.put_back(*job.fetched)

    def _chunks(self, group: int, rows: int, forms: dict[str, _Form]) -> dict[str, _Job]:
        """The chunks of these columns in a row group, without those that are stored in another way."""
        found, row_group = {}, self._metadata.row_group(group)
        file = self._source.fileno() if isinstance(self._source, pa.OSFile) else -1
        for name, form in forms.items():
            chunk = row_group.column(form.leaf)
            codec, length = _CODECS.get(chunk.compression), chunk.total_compressed_size
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            if dictionary and dictionary < start:
                start = dictionary
            size, entries = chunk.total_uncompressed_size, chunk.num_values
            sizes_fit = 0 < length <= _MOST_CHUNK and 0 <= size <= _MOST_CHUNK
            entries_fit = entries == rows if not form.entry else rows <= entries <= _MOST_CHUNK
            if codec is None or not sizes_fit or not entries_fit:
                continue
            found[name] = _Job(
                file=file,
                start=start,
                length=length,
                codec=codec,
                **{
                    field: getattr(form, field)
                    for field in ("stored", "width", "decimal", "most", "entry", "fixed", "wide")
                },
                type=form.kind,
                rows=rows,
                entries=entries,
                room=size,
                coded=max(1, size // 4) if form.coded else 0,  # the length of a word has 4 bytes
                checked=self._verified,
            )
        return found


class _Job:
    """A chunk that is decoded: its numbers for pages.c.

    Attributes:
        numbers: by the order of their names.
        fetched: its place in the file and its bytes, if they are in memory.
    """

    def __init__(self, **numbers: int) -> None:
        self.fetched: tuple[int, pa.Buffer] | None = None
        self.numbers = [int(numbers.get(name, 0)) for name in CHUNK.names or ()]

    def __getitem__(self, name: str) -> int:
        return self.numbers[_PLACES[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.numbers[_PLACES[name]] = value


class _Output(ABC):
    """A column that is decoded.

    Args:
        form: how it is stored.
        jobs: the chunks.
    """

    def __init__(self, form: _Form, jobs: Sequence[_Job]) -> None:
        self.form, self.jobs = form, jobs

    @property
    def row_bytes(self) -> float:
        """Of bytes of any length: those of a row, of the row group that has most; else 0."""
        return 0

    @property
    def refused(self) -> bool:
        """Whether a chunk was."""
        return any(job["refused"] for job in self.jobs)

    @abstractmethod
    def allocate(self, row_bytes: float) -> None:
        """Make the memory of all chunks; `row_bytes` is how many bytes a row had so far, if they are of any length."""

    def enlarged(self) -> Sequence[_Job]:
        """The chunks that must be decoded again, with room for what they turned out to hold."""
        return ()

    @abstractmethod
    def array(self) -> pa.ChunkedArray:
        """What was decoded."""


class _Flat(_Output):
    """One value of fixed width for each row: all chunks, one after another."""

    def allocate(self, row_bytes: float) -> None:
        """One buffer of values, and one of validity."""
        self._rows = sum(job["rows"] for job in self.jobs)
        self._values = (pa.allocate_buffer if self.form.width else _bits)(self.form.room(self._rows))
        self._valid = _bits(-(-self._rows // 8)) if self.form.most else None
        first = 0
        for job in self.jobs:
            job["values"], job["valid"], job["first"] = self._values.address, _address(self._valid), first
            first += job["rows"]

    def array(self) -> pa.ChunkedArray:
        """One chunk."""
        nulls = sum(job["nulls"] for job in self.jobs)
        buffers = [self._valid if nulls else None, self._values]
        return pa.chunked_array([pa.Array.from_buffers(self.form.type, self._rows, buffers, nulls)], self.form.type)


class _Codes(_Output):
    """The number of a word for each row, and the words, a chunk and a dictionary for each row group."""

    def allocate(self, row_bytes: float) -> None:
        """Room for as many words as the dictionary page may hold."""
        self._buffers = []
        for job in self.jobs:
            rows = job["rows"]
            valid = _bits(-(-rows // 8)) if self.form.most else None
            codes, offsets = pa.allocate_buffer(4 * rows), pa.allocate_buffer(4 * (job["coded"] + 1))
            text = pa.allocate_buffer(job["room"])
            job["values"], job["valid"] = codes.address, _address(valid)
            job["offsets"], job["text"] = offsets.address, text.address
            self._buffers.append((valid, codes, offsets, text))

    def array(self) -> pa.ChunkedArray:
        """A chunk for each row group."""
        parts = []
        for job, (valid, codes, offsets, text) in zip(self.jobs, self._buffers, strict=True):
            words = pa.Array.from_buffers(self.form.values, job["found"], [None, offsets, text], 0)
            buffers = [valid if job["nulls"] else None, codes]
            parts.append(pa.DictionaryArray.from_buffers(self.form.type, job["rows"], buffers, words, job["nulls"]))
        return pa.chunked_array(parts, self.form.type)


class _Texts(_Output):
    """Bytes of any length for each row, a chunk for each row group."""

    def allocate(self, row_bytes: float) -> None:
        """Room for as many bytes as rows had so far, which dictionaries do not tell, and at least for those stored."""
        self._buffers = []
        for job in self.jobs:
            rows = job["rows"]
            job["room"] = max(job["room"], int(row_bytes * rows * 1.1))
            buffers = _bits(-(-rows // 8)) if self.form.most else None, self.form.offsets(rows)
            job["valid"], job["offsets"] = _address(buffers[0]), buffers[1].address
            self._buffers.append([*buffers, self._values(job)])

    def enlarged(self) -> list[_Job]:
        """Those that have more bytes than expected."""
        short = [
            (job, buffers)
            for job, buffers in zip(self.jobs, self._buffers, strict=True)
            if not job["refused"] and job["found"] > job["room"]
        ]
        for job, buffers in short:
            job["room"] = job["found"]
            buffers[2] = self._values(job)  # validity and offsets will be the same
        return [job for job, _ in short]

    @property
    def row_bytes(self) -> float:
        """Those of the row group that has most."""
        return max(job["found"] / max(1, job["rows"]) for job in self.jobs)

    def _values(self, job: _Job) -> pa.Buffer:
        made = pa.allocate_buffer(job["room"])
        job["values"] = made.address
        return made

    def array(self) -> pa.ChunkedArray:
        """A chunk for each row group."""
        parts = []
        for job, (valid, offsets, values) in zip(self.jobs, self._buffers, strict=True):
            buffers = [valid if job["nulls"] else None, offsets, values]
            parts.append(pa.Array.from_buffers(self.form.type, job["rows"], buffers, job["nulls"]))
        return pa.chunked_array(parts, self.form.type)


class _Lists(_Output):
    """A list of values of fixed width for each row, a chunk for each row group."""

    def allocate(self, row_bytes: float) -> None:
        """Room for an entry for each level, of which empty lists and nulls have one, too."""
        self._buffers = []
        outer = bool(self.form.entry > 1)
        for job in self.jobs:
            rows, entries = job["rows"], job["entries"]
            buffers = (
                _bits(-(-rows // 8)) if outer else None,
                None if self.form.fixed else self.form.offsets(rows),
                _bits(-(-entries // 8)) if self.form.most > self.form.entry else None,
                pa.allocate_buffer(self.form.room(entries)),
            )
            for name, buffer in zip(("lists", "offsets", "valid", "values"), buffers, strict=True):
                job[name] = _address(buffer)
            self._buffers.append(buffers)

    def array(self) -> pa.ChunkedArray:
        """A chunk for each row group."""
        parts = []
        for job, (lists, offsets, valid, values) in zip(self.jobs, self._buffers, strict=True):
            inner = [valid if job["nulls"] else None, values]
            entries = pa.Array.from_buffers(self.form.values, job["found"], inner, job["nulls"])
            nulls = job["null_lists"]
            outer = [lists if nulls else None, *([] if self.form.fixed else [offsets])]
            parts.append(pa.Array.from_buffers(self.form.type, job["rows"], outer, nulls, children=[entries]))
        return pa.chunked_array(parts, self.form.type)


def _bits(nbytes: int) -> pa.Buffer:
    """Bits that are 0."""
    made = pa.allocate_buffer(nbytes)
    np.frombuffer(made, np.uint8)[:] = 0
    return made


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _leaf_numbers(schema: pa.Schema) -> dict[str, int]:
    """The number of the leaf column of each column that has one; without names that occur twice."""
    numbers, leaf = {}, 0
    for field in schema:
        leaves = leaf_count(field.type)
        if leaves == 1:
            numbers[field.name] = leaf
        leaf += leaves
    return {name: number for name, number in numbers.items() if len(schema.get_all_field_indices(name)) == 1}


def _same_bits(kind: pa.DataType, stored: pq.ColumnSchema) -> bool:
    """Whether values of this Arrow type have the bits of those stored, or their lower ones."""
    physical = stored.physical_type
    if pt.is_timestamp(kind) or pt.is_time(kind):
        logical = json.loads(stored.logical_type.to_json())
        whole = "INT32" if kind.bit_width == 32 else "INT64"
        return bool(physical == whole and _UNITS.get(logical.get("timeUnit")) == kind.unit)
    if pt.is_decimal128(kind):
        return physical in ("INT32", "INT64") or (physical == "FIXED_LEN_BYTE_ARRAY" and 0 < stored.length <= 16)
    if pt.is_fixed_size_binary(kind):
        return bool(physical == "FIXED_LEN_BYTE_ARRAY" and stored.length == kind.byte_width > 0)
    return bool(_STORED.get(kind) == physical) and (kind != pa.float16() or stored.length == 2)


def _decode(jobs: Sequence[_Job]) -> None:
    """Decode chunks, whose results are then among their numbers."""
    table = np.array([tuple(job.numbers) for job in jobs], CHUNK)
    decode(table)
    for job, numbers in zip(jobs, table.tolist(), strict=True):
        job.numbers = list(numbers)
