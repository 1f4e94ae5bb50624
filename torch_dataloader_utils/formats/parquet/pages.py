"""Decodes columns by the package's own decoder (kernels/pages.c), all of a row group in one call.

pyarrow decodes into fresh memory, a column per call, and each call waits for the GIL beside a busy training loop. Here
one call decodes all columns, without the GIL, at half of pyarrow's processor time.

Whatever is not suited, or is refused for any reason, pyarrow decodes: so its errors, messages and leniency remain.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, compress, groupby, starmap
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.formats.sizes import leaf_count
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.kernels.pages import CHUNK, Chunks, decode, zstd_functions
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.schemas.dictionaries import as_dictionaries
from torch_dataloader_utils.storage import RemoteFile

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

_LEAST_ROOM = 1 << 16  # bytes, so that a few strings of a dictionary have room

_FLAT, _CODES, _LISTS, _TEXTS = range(4)  # what columns become

Numbers: TypeAlias = npt.NDArray[np.int64]
Ranges: TypeAlias = npt.NDArray[np.int64]  # [n, 2]: `[first, last)`, ascending


class _Form(NamedTuple):
    """How columns are stored, and what their values become; one object for all columns that are alike.

    Attributes:
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
        becomes: one of the words above.
    """

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
    becomes: int

    @property
    def unscaled(self) -> _Form:
        """That of decimals stored as int64 as these numbers; of others, itself."""
        whole = self.decimal and self.kind == _KINDS["INT64"]
        return self._replace(decimal=False, width=8) if whole else self

    @property
    def coded(self) -> _Form:
        """That of strings or bytes as dictionaries, whose offsets are int32."""
        kind = as_dictionaries(self.type)
        assert kind is not None
        return self._replace(type=kind, values=kind.value_type, width=4, wide=False, becomes=_CODES)

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
    def leaves(self) -> dict[str, int]:
        """The number of the leaf column of each column that has one."""
        return _leaf_numbers(self._schema)

    def of(self, columns: Sequence[str]) -> dict[str, _Form]:
        """Those of the suited ones among these columns."""
        for name in columns:
            if name not in self._known:
                self._known[name] = self._found(name)
        return {name: form for name in columns if (form := self._known[name]) is not None}

    def _found(self, name: str) -> _Form | None:
        """The form of a column; None if it is not suited."""
        if name not in self.leaves:
            return None
        field, stored = self._schema.field(name), self._metadata.schema.column(self.leaves[name])
        physical, levels = stored.physical_type, (stored.max_repetition_level, stored.max_definition_level)
        unit = _unit(stored) if physical in ("INT32", "INT64") else ""
        inner = str(field.type.field(0).metadata) if field.type.num_fields else ""
        return _form_of(field.type, inner, field.nullable, physical, stored.length, unit, levels)


def left_to_pyarrow(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """The columns of a file that are stored in a way that is not decoded here, by its schema and first row group."""
    forms, first = _Forms(metadata, metadata.schema.to_arrow_schema()), metadata.row_group(0)
    codecs = {name: first.column(forms.leaves[name]).compression for name in forms.of(names)}
    known = {codec for codec in _CODECS if codec != "ZSTD" or zstd_functions() is not None}
    return [name for name in names if codecs.get(name) not in known]


class _Part(NamedTuple):
    """A row group, or some of its rows.

    Attributes:
        group: its number.
        rows: those that are decoded.
        ranges: which these are; None for all.
    """

    group: int
    rows: int
    ranges: Ranges | None = None

    @classmethod
    def of(cls, group: int, ranges: Ranges) -> _Part:
        """The rows in these ranges."""
        ranges = np.ascontiguousarray(ranges, np.int64)
        return cls(group, int((ranges[:, 1] - ranges[:, 0]).sum()), ranges)


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
        for name in sorted(forms, key=lambda name: forms[name].becomes != _FLAT):
            form = forms[name]
            size += form.room(rows) if form.becomes == _FLAT else self._stored_bytes(name, rows)
            if names and size > _MOST_BYTES:
                break
            names.append(name)
        return names

    def _stored_bytes(self, name: str, rows: int) -> int:
        """About how many bytes so many rows of strings or lists have, by those of the first row group."""
        group = self._metadata.row_group(0)
        return int(group.column(self._forms.leaves[name]).total_uncompressed_size * rows / max(1, group.num_rows))

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The rows of these row groups, for those of the columns that were decoded; pyarrow must read the others."""
        return self._read(self._whole(groups), self._forms.of(columns))

    def dictionaries(self, groups: Sequence[int], name: str) -> pa.ChunkedArray | None:
        """A column of strings or bytes as dictionaries, one for each row group; None if it was not decoded."""
        forms = {name: form.coded for name, form in self._forms.of([name]).items() if form.becomes == _TEXTS}
        return self._read(self._whole(groups), forms).get(name)

    def read_rows(self, groups: Sequence[int], columns: Sequence[str], rows: Numbers) -> dict[str, pa.ChunkedArray]:
        """As `read`, only the rows with these numbers among those of the row groups, and no lists.

        Args:
            groups: the numbers of the row groups.
            columns: names of columns.
            rows: int64 [n], ascending.
        """
        ends = np.cumsum([0, *self._counts(groups)])
        ranges = _ranges(rows, ends[1:-1])
        places = np.searchsorted(ranges[:, 0], ends).tolist()
        cuts = zip(groups, ends, places, places[1:], strict=False)
        parts = [_Part.of(group, ranges[i:j] - end) for group, end, i, j in cuts if i < j]
        forms = self._forms.of(columns).items()
        return self._read(parts, {name: form for name, form in forms if form.becomes != _LISTS})

    def _whole(self, groups: Sequence[int]) -> list[_Part]:
        return [_Part(*part) for part in zip(groups, self._counts(groups), strict=True)]

    def _counts(self, groups: Sequence[int]) -> list[int]:
        return [self._metadata.row_group(group).num_rows for group in groups]

    def _read(self, parts: Sequence[_Part], forms: Mapping[str, _Form]) -> dict[str, pa.ChunkedArray]:
        if not forms or not parts:
            return {}
        names = sorted(forms, key=lambda name: forms[name].becomes)
        chunks, fits = self._chunks([part.group for part in parts], {name: forms[name] for name in names})
        names, chunks = list(compress(names, fits.tolist())), chunks[fits]
        if not chunks["rows"].any():
            return {}
        counts = np.array([part.rows for part in parts])
        for place, ranges in enumerate(part.ranges for part in parts):
            if ranges is not None:
                chunks["ranges"][:, place], chunks["picked"][:, place] = ranges.ctypes.data, len(ranges)
        outputs: list[_Output] = []
        for becomes, part in groupby(names, key=lambda name: forms[name].becomes):
            first, alike = sum(len(output.forms) for output in outputs), {name: forms[name] for name in part}
            outputs.append(_OUTPUTS[becomes](alike, chunks[first : first + len(alike)], counts))
        fetched: list[tuple[int, pa.Buffer]] = []  # of files that are not on this machine, in the order of the chunks
        left = np.ones(len(names), np.bool_)
        try:
            for output in outputs:
                output.allocate(self._text_bytes)
            if isinstance(self._source, RemoteFile):
                fetched.extend(self._fetched(chunks))
            decode(chunks)
            for output in outputs:
                self._text_bytes |= output.complete()
            left = _refused(chunks)
        except MemoryError:  # a damaged footer may name any sizes; pyarrow says what is wrong
            return {}
        finally:  # for pyarrow
            for place, content in compress(fetched, np.repeat(left, len(parts)).tolist()):
                self._source.put_back(place, content)
        recorder().count("bytes_decoded", int(chunks["used"][~left].sum()))
        arrays = dict(chain.from_iterable(output.arrays() for output in outputs))
        return {name: arrays[name] for name in forms if name in arrays}

    def chunks(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, Chunks]:
        """A chunk for each of these row groups, of columns that are not codes, in a local file.

        Of decimals, only those that are stored as int64, which they then become.
        """
        forms = {name: form.unscaled for name, form in self._forms.of(columns).items()}
        plain = {name: form for name, form in forms.items() if form.becomes != _CODES and not form.decimal}
        if not plain or isinstance(self._source, RemoteFile):
            return {}
        chunks, fits = self._chunks(groups, plain)
        return {name: own for name, own, fit in zip(plain, chunks, fits.tolist(), strict=True) if fit}

    def _fetched(self, chunks: Chunks) -> Iterator[tuple[int, pa.Buffer]]:
        """The places in the file of these chunks, and their bytes, where they are decoded from."""
        for chunk in chunks.reshape(-1):
            place = int(chunk["start"])
            content = self._source.buffer(place, int(chunk["length"]))
            chunk["start"], chunk["length"] = content.address, content.size
            yield place, content

    def _chunks(self, groups: Sequence[int], forms: Mapping[str, _Form]) -> tuple[Chunks, npt.NDArray[np.bool_]]:
        """The chunks of columns in these row groups, [columns, row groups]; and which columns can be decoded here."""
        row_groups = [self._metadata.row_group(group) for group in groups]
        chunks = np.zeros((len(forms), len(groups)), CHUNK)
        of_forms = (form[2:-1] for form in forms.values())
        of_chunks = (_stored(group.column(self._forms.leaves[name])) for name in forms for group in row_groups)
        for names, found, count in ((_OF_FORM, of_forms, 1), (_OF_CHUNK, of_chunks, len(groups))):
            numbers = np.fromiter(chain.from_iterable(found), np.int64).reshape(len(forms), count, len(names))
            for place, name in enumerate(names):
                chunks[name] = numbers[:, :, place]
        chunks["coded"] = np.array([form.becomes == _CODES for form in forms.values()])[:, None] * np.maximum(
            1,
            chunks["room"] // 4,  # the length of a word has 4 bytes
        )
        chunks["file"] = self._source.fileno() if isinstance(self._source, pa.OSFile) else -1
        chunks["checked"] = self._verified
        chunks["rows"] = [group.num_rows for group in row_groups]
        rows, entries = chunks["rows"], chunks["entries"]
        of_lists = (rows <= entries) & (entries <= _MOST_CHUNK)
        fits = np.where(chunks["entry"] > 0, of_lists, entries == rows) & (rows >= 0) & (chunks["codec"] >= 0)
        for size, least in ((chunks["length"], 1), (chunks["room"], 0)):
            fits &= (size >= least) & (size <= _MOST_CHUNK)
        suited: npt.NDArray[np.bool_] = np.logical_and.reduce(fits, axis=1)
        return chunks, suited


@lru_cache(maxsize=256)  # many columns are alike
def _form_of(
    kind: pa.DataType, inner: str, nullable: bool, physical: str, length: int, unit: str, levels: tuple[int, int]
) -> _Form | None:
    """The form of columns of this type that are stored so; None if they are not suited.

    Args:
        kind: the Arrow type.
        inner: the metadata of the entries of lists, which types are compared without.
        nullable: whether values may be null.
        physical: the physical type.
        length: bytes of a value of fixed length.
        unit: that of times, as the file has it.
        levels: the greatest repetition level, and definition level.
    """
    outer = kind
    entry, fixed, most, is_fixed = 0, 0, int(nullable), pt.is_fixed_size_list(kind)
    wide = pt.is_large_list(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)
    if pt.is_list(kind) or pt.is_large_list(kind) or is_fixed:
        entry, fixed = most + 1, kind.list_size if is_fixed else 0
        most = entry + int(kind.value_field.nullable)
        kind = kind.value_type
        if not pt.is_primitive(kind) or pt.is_boolean(kind) or (is_fixed and not fixed):
            return None
    coded = kind in _CODED
    kind = kind.value_type if coded else kind
    if levels != (int(entry > 0), most) or not _same_bits(kind, physical, length, unit):
        return None
    width = _WIDTHS.get(physical, length)
    narrow = 4 if coded else kind.bit_width // 8 if width else 0
    becomes = _CODES if coded else _LISTS if entry else _TEXTS if physical == "BYTE_ARRAY" else _FLAT
    return _Form(outer, kind, _KINDS[physical], width, narrow, pt.is_decimal(kind), most, entry, fixed, wide, becomes)


_OF_FORM = ("type", "stored", "width", "decimal", "most", "entry", "fixed", "wide")  # numbers of a chunk that it has
_OF_CHUNK = ("codec", "start", "length", "room", "entries")  # those that the footer has


def _stored(chunk: pq.ColumnChunkMetaData) -> tuple[int, int, int, int, int]:
    """What the footer says of a chunk; codec -1: one that is not decoded here."""
    return (
        _CODECS.get(chunk.compression, -1),
        chunk_start(chunk),
        chunk.total_compressed_size,
        chunk.total_uncompressed_size,
        chunk.num_values,
    )


def chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    """Where in the file its first page begins: that of its dictionary, if it has one."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    return int(min(start, dictionary) if chunk.has_dictionary_page and dictionary else start)


def _refused(chunks: Chunks) -> npt.NDArray[np.bool_]:
    """Of which columns a chunk was refused."""
    refused: npt.NDArray[np.bool_] = (chunks["refused"] != 0).any(axis=1)
    return refused


class _Output(ABC):
    """Columns that are decoded, and become arrays of one kind.

    Args:
        forms: how they are stored, by name.
        chunks: of each column in each row group, [columns, row groups].
        counts: int64 [row groups], the rows of each that are decoded.
    """

    def __init__(self, forms: Mapping[str, _Form], chunks: Chunks, counts: Numbers) -> None:
        self.forms, self.chunks, self.counts = forms, chunks, counts

    @abstractmethod
    def allocate(self, row_bytes: Mapping[str, float]) -> None:
        """Make the memory of all chunks; `row_bytes` is how many bytes a row had so far, if they are of any length."""

    def complete(self) -> dict[str, float]:
        """Decode chunks with more bytes than expected again; returns how many a row has, by column."""
        return {}

    def arrays(self) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The columns of which no chunk was refused."""
        made = zip(self.forms.items(), _refused(self.chunks).tolist(), self._parts(), strict=True)
        for (name, form), refused, parts in made:
            if not refused:
                yield name, pa.chunked_array([self._array(form, *part) for part in parts], form.type)

    def _array(self, form: _Form, *part: Any) -> pa.Array:
        return pa.Array.from_buffers(form.type, *part)

    @abstractmethod
    def _parts(self) -> Iterator[Iterable[Sequence[Any]]]:
        """For each column, what each of its arrays is made of: rows, buffers, nulls, and for lists a place and values.

        That of a column that was refused is not to be made.
        """


class _Flat(_Output):
    """One value of fixed width for each row: the chunks of a column one after another."""

    def allocate(self, row_bytes: Mapping[str, float]) -> None:
        """A buffer of values for each column; validity of all in one, because few columns have nulls."""
        forms, rows = self.forms.values(), self.counts
        self._rows = int(rows.sum())
        self._values = [(pa.allocate_buffer if form.width else _bits)(form.room(self._rows)) for form in forms]
        size = -(-self._rows // 8)
        valid = _bits(len(forms) * size)
        self._valid = [valid.slice(place * size, size) for place in range(len(forms))]
        for name, buffers in (("values", self._values), ("valid", self._valid)):
            self.chunks[name] = np.array([buffer.address for buffer in buffers])[:, None]
        self.chunks["valid"][self.chunks["most"] == 0] = 0
        self.chunks["first"] = np.cumsum(rows) - rows

    def _parts(self) -> Iterator[Iterable[Sequence[Any]]]:
        """One array for each column."""
        nulls = self.chunks["nulls"].sum(axis=1).tolist()
        for values, valid, count in zip(self._values, self._valid, nulls, strict=True):
            yield [(self._rows, [valid if count else None, values], count)]


class _ByGroup(_Output):
    """Columns with a chunk for each row group."""

    buffers: ClassVar[tuple[str, ...]]  # their names among the numbers of a chunk

    def allocate(self, row_bytes: Mapping[str, float]) -> None:
        """The buffers of each chunk."""
        sizes, rows = (
            zip(*(self.chunks[name].tolist() for name in ("entries", "room")), strict=True),
            self.counts.tolist(),
        )
        self._buffers = [
            [self._made(form, *numbers) for numbers in zip(rows, *column, strict=True)]
            for form, column in zip(self.forms.values(), sizes, strict=True)
        ]
        for place, name in enumerate(self.buffers):
            self.chunks[name] = [[_address(made[place]) for made in column] for column in self._buffers]

    @abstractmethod
    def _made(self, form: _Form, rows: int, entries: int, room: int) -> list[pa.Buffer | None]:
        """The buffers of a chunk."""

    def _parts(self) -> Iterator[Iterable[Sequence[Any]]]:
        """An array for each chunk."""
        found = zip(*(self.chunks[name].tolist() for name in ("nulls", "null_lists", "found")), strict=True)
        for form, buffers, column in zip(self.forms.values(), self._buffers, found, strict=True):
            yield starmap(partial(self._part, form), zip(buffers, self.counts.tolist(), *column, strict=True))

    @abstractmethod
    def _part(
        self, form: _Form, buffers: list[pa.Buffer | None], rows: int, nulls: int, null_lists: int, found: int
    ) -> Sequence[Any]:
        """What the array of a chunk is made of."""


class _Texts(_ByGroup):
    """Bytes of any length for each row."""

    buffers = "valid", "offsets", "values"

    def allocate(self, row_bytes: Mapping[str, float]) -> None:
        """Room for as many bytes as rows had so far, which dictionaries do not tell, and at least for those stored."""
        self._most = np.array([row_bytes.get(name, 0.0) for name in self.forms])
        expected, size = self._most[:, None] * self.counts * 1.1, self.chunks["room"]
        least = np.maximum(size * self.counts // np.maximum(1, self.chunks["rows"]), np.minimum(size, _LEAST_ROOM))
        self.chunks["room"] = np.maximum(least, expected.astype(np.int64))
        super().allocate(row_bytes)

    def _made(self, form: _Form, rows: int, entries: int, room: int) -> list[pa.Buffer | None]:
        return [_bits(-(-rows // 8)) if form.most else None, form.offsets(rows), pa.allocate_buffer(room)]

    def complete(self) -> dict[str, float]:
        """Validity and offsets will be the same; the bytes of a row are those of the row group that has most so far."""
        short = (self.chunks["refused"] == 0) & (self.chunks["found"] > self.chunks["room"])
        again = self.chunks[short]
        again["room"] = again["found"]
        for number, (column, group) in enumerate(np.argwhere(short).tolist()):
            values = self._buffers[column][group][2] = pa.allocate_buffer(int(again["room"][number]))
            again["values"][number] = values.address
        if len(again):
            decode(again)
            self.chunks[short] = again
        most = (self.chunks["found"] / np.maximum(1, self.counts)).max(axis=1)
        return dict(zip(self.forms, np.maximum(most, self._most).tolist(), strict=True))

    def _part(
        self, form: _Form, buffers: list[pa.Buffer | None], rows: int, nulls: int, null_lists: int, found: int
    ) -> Sequence[Any]:
        valid, offsets, values = buffers
        return rows, [valid if nulls else None, offsets, values], nulls


class _Codes(_ByGroup):
    """The number of a word for each row, and the words of the dictionary."""

    buffers = "valid", "values", "offsets", "text"

    def _made(self, form: _Form, rows: int, entries: int, room: int) -> list[pa.Buffer | None]:
        """Room for as many words as the dictionary page may hold."""
        words = max(1, room // 4)
        codes, ends = pa.allocate_buffer(4 * rows), pa.allocate_buffer(4 * (words + 1))
        return [_bits(-(-rows // 8)) if form.most else None, codes, ends, pa.allocate_buffer(room)]

    def _part(
        self, form: _Form, buffers: list[pa.Buffer | None], rows: int, nulls: int, null_lists: int, found: int
    ) -> Sequence[Any]:
        valid, codes, *words = buffers
        return rows, [valid if nulls else None, codes], pa.Array.from_buffers(form.values, found, [None, *words]), nulls

    def _array(self, form: _Form, *part: Any) -> pa.Array:
        return pa.DictionaryArray.from_buffers(form.type, *part)


class _Lists(_ByGroup):
    """A list of values of fixed width for each row."""

    buffers = "lists", "offsets", "valid", "values"

    def _made(self, form: _Form, rows: int, entries: int, room: int) -> list[pa.Buffer | None]:
        """Room for an entry for each level, of which empty lists and nulls have one, too."""
        return [
            _bits(-(-rows // 8)) if form.entry > 1 else None,
            None if form.fixed else form.offsets(rows),
            _bits(-(-entries // 8)) if form.most > form.entry else None,
            pa.allocate_buffer(form.room(entries)),
        ]

    def _part(
        self, form: _Form, buffers: list[pa.Buffer | None], rows: int, nulls: int, null_lists: int, found: int
    ) -> Sequence[Any]:
        lists, offsets, valid, values = buffers
        entries = pa.Array.from_buffers(form.values, found, [valid if nulls else None, values], nulls)
        outer = [lists if null_lists else None, *([] if form.fixed else [offsets])]
        return rows, outer, null_lists, 0, [entries]


_OUTPUTS: Mapping[int, Callable[[Mapping[str, _Form], Chunks, Numbers], _Output]]
_OUTPUTS = {_FLAT: _Flat, _CODES: _Codes, _LISTS: _Lists, _TEXTS: _Texts}


def _ranges(rows: Numbers, borders: Numbers) -> Ranges:
    """The ranges of consecutive numbers among these ascending ones; none contains a border."""
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = np.diff(rows) != 1
    at = np.searchsorted(rows, borders)
    begins[at[at < len(rows)]] = True
    places = np.flatnonzero(begins)
    return np.stack([rows[places], rows[np.append(places[1:], len(rows)) - 1] + 1], axis=1)


def _bits(nbytes: int) -> pa.Buffer:
    """Bits that are 0."""
    made = pa.allocate_buffer(nbytes)
    np.frombuffer(made, np.uint8)[:] = 0
    return made


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _leaf_numbers(schema: pa.Schema) -> dict[str, int]:
    """The number of the leaf column of each column that has one; without names that occur twice."""
    counts, often = [leaf_count(kind) for kind in schema.types], Counter(schema.names)
    firsts = zip(schema.names, counts, accumulate(counts, initial=0), strict=False)
    return {name: first for name, count, first in firsts if count == 1 and often[name] == 1}


def _unit(stored: pq.ColumnSchema) -> str:
    """That of times, in Arrow's words; "" for other columns."""
    logical = stored.logical_type
    of_times = logical.type in ("TIME", "TIMESTAMP")
    return _UNITS.get(json.loads(logical.to_json()).get("timeUnit"), "") if of_times else ""


def _same_bits(kind: pa.DataType, physical: str, length: int, unit: str) -> bool:
    """Whether values of this Arrow type have the bits of those stored, or their lower ones."""
    if pt.is_timestamp(kind) or pt.is_time(kind):
        return bool(physical == ("INT32" if kind.bit_width == 32 else "INT64") and unit == kind.unit)
    if pt.is_decimal128(kind):
        return physical in ("INT32", "INT64") or (physical == "FIXED_LEN_BYTE_ARRAY" and 0 < length <= 16)
    if pt.is_fixed_size_binary(kind):
        return bool(physical == "FIXED_LEN_BYTE_ARRAY" and length == kind.byte_width > 0)
    return bool(_STORED.get(kind) == physical) and (kind != pa.float16() or length == 2)
