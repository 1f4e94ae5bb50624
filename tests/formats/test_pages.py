"""The package's own decoder of Parquet pages: the same values as pyarrow's, bit for bit, or pyarrow itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.reading import opened
from torch_dataloader_utils import stream
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.formats.parquet import pages
from torch_dataloader_utils.formats.parquet.pages import PageDecoder
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.kernels import pages as kernel_pages
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.kernels.pages import zstd_functions
from torch_dataloader_utils.reading import straight
from torch_dataloader_utils.storage.remote import RangeFile

pytestmark = pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")

FORM = format_named("parquet")
TAKEN = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    *(pa.binary(3), pa.binary(8), pa.binary(21), pa.string(), pa.binary()),
    *(pa.large_string(), pa.large_binary(), pa.large_list(pa.int16())),
    *(pa.decimal128(*size) for size in ((7, 2), (9, 0), (18, 4), (19, 0), (38, 10))),
    *(pa.list_(kind) for kind in (pa.int8(), pa.int32(), pa.float64(), pa.timestamp("us"))),
    *(pa.list_(pa.field("item", kind, nullable=False)) for kind in (pa.int64(), pa.float32())),
    *(pa.list_(kind, size) for kind, size in ((pa.float32(), 1), (pa.int64(), 3), (pa.uint8(), 300))),
]
LEFT = [
    *(pa.large_list(pa.string()), pa.list_(pa.string()), pa.list_(pa.bool_()), pa.list_(pa.list_(pa.int32()))),
    *(pa.struct({"x": pa.int64()}), pa.map_(pa.int32(), pa.int32())),
    *(pa.decimal256(50, 2), pa.duration("us"), pa.null()),
]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that were decoded here, in order."""
    return spied(monkeypatch)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    read = PageDecoder.read

    def noted(self: PageDecoder, groups: Any, columns: Any) -> Any:
        arrays = read(self, groups, columns)
        names.extend(arrays)
        return arrays

    monkeypatch.setattr(PageDecoder, "read", noted)
    return names


def bits(column: pa.ChunkedArray) -> tuple[pa.DataType, list[Any]]:
    """Type and values, bit for bit."""
    if column.type not in (pa.string(), pa.large_string()):  # their bytes may be no text
        column.validate(full=True)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return kind, column.cast(pa.binary()).to_pylist()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        entries = pa.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
        return kind, pc.list_value_length(column).to_pylist() + bits(entries)[1]
    if not pa.types.is_primitive(kind) or pa.types.is_boolean(kind):
        return kind, column.to_pylist()
    words = column.combine_chunks().view(pa.binary(kind.bit_width // 8) if kind.bit_width != 64 else pa.int64())
    return kind, words.to_pylist()


def assert_same(path: Path, calls: Sequence[tuple[list[int], list[str]]], **options: Any) -> None:
    with opened(path, **options) as one, opened(path, "pyarrow", **options) as other:
        for groups, names in calls:
            ours, theirs = one.read(groups, names), other.read(groups, names)
            assert [bits(column) for column in ours] == [bits(column) for column in theirs]
            assert [column.null_count for column in ours] == [column.null_count for column in theirs]


def values_of(kind: pa.DataType, rows: int, seed: int, nulls: float) -> pa.Array:
    """Random bits of the type: floats with NaN payloads, infinities and -0.0, and the ends of integers' ranges."""
    rng = np.random.default_rng(seed)
    if pa.types.is_large_list(kind):
        return values_of(pa.list_(kind.value_type), rows, seed, nulls).cast(kind)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        size = getattr(kind, "list_size", 0)
        lengths = np.full(rows, size) if size else rng.choice([0, 0, 1, 5, 400], rows)
        inner = nulls if kind.value_field.nullable else 0
        entries = values_of(kind.value_type, int(lengths.sum()), seed, inner)
        mask = pa.array(rng.random(rows) < nulls)
        if size:
            return pa.FixedSizeListArray.from_arrays(entries, type=kind, mask=mask if seed % 2 and nulls else None)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(ends, entries, type=kind, mask=mask if nulls else None)
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        pool = [rng.bytes(size) for size in rng.choice([0, 1, 7, 15, 16, 17, 90], (3, 300, rows)[seed % 3])]
        words = [None if rng.random() < nulls else pool[place] for place in rng.integers(0, len(pool), rows)]
        large = kind in (pa.large_string(), pa.large_binary())
        return pa.array(words, pa.large_binary() if large else pa.binary()).view(kind)
    if pa.types.is_decimal(kind):
        digits, pool = min(kind.precision, 18), (3, 300, rows)[seed % 3]
        numbers = rng.integers(-(10**digits) + 1, 10**digits, pool)[rng.integers(0, pool, rows)]
        scale = 10 ** (kind.precision - digits)
        words = b"".join((int(number) * scale).to_bytes(16, "little", signed=True) for number in numbers)
        valid = np.packbits(rng.random(rows) >= nulls, bitorder="little").tobytes()
        return pa.Array.from_buffers(kind, rows, [pa.py_buffer(valid) if nulls else None, pa.py_buffer(words)])
    width = 1 if kind == pa.bool_() else kind.bit_width // 8
    pool = rng.bytes(width * max(1, (3, 300, rows)[seed % 3]))
    pool += b"\0" * width + b"\xff" * width + b"\0" * (width - 1) + b"\x80"
    words = np.frombuffer(pool, np.uint8).reshape(-1, width)
    raw = words[rng.integers(0, len(words), rows)].tobytes()
    found = pa.py_buffer(raw)
    if kind == pa.bool_():
        return pa.array(rng.random(rows) < rng.random(), mask=rng.random(rows) < nulls)
    if kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        found = pa.py_buffer((np.frombuffer(raw, f"i{width}") % 86_400_000).tobytes())
    valid = np.packbits(rng.random(rows) >= nulls, bitorder="little").tobytes()
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(valid) if nulls else None, found])


WRITTEN = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4"]),
        "use_dictionary": st.booleans(),
        "dictionary_pagesize_limit": st.sampled_from([200, 1 << 20]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([64, 3000, 1 << 20]),
        "write_page_checksum": st.booleans(),
        "store_schema": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
    }
)


@given(
    kinds=st.lists(st.sampled_from(TAKEN), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    nulls=st.sampled_from([0, 0.02, 0.5, 0.98, 1]),
    rows=st.sampled_from([1, 7, 8, 9, 255, 256, 1023, 1025, 3000]),
    groups=st.integers(1, 3),
    required=st.booleans(),
    written=WRITTEN,
)
@settings(max_examples=60)
def test_values_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[pa.DataType],
    seed: int,
    nulls: float,
    rows: int,
    groups: int,
    required: bool,
    written: dict[str, Any],
) -> None:
    columns = [values_of(kind, rows, seed + number, nulls) for number, kind in enumerate(kinds)]
    fields = [pa.field(f"c{n}", kind, nullable=bool(nulls) or not required) for n, kind in enumerate(kinds)]
    path = tmp_path_factory.mktemp("pages") / "f.parquet"
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path, row_group_size=-(-rows // groups), **written)
    names, numbers = [field.name for field in fields], list(range(pq.ParquetFile(path).num_row_groups))
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        assert_same(path, [(numbers, names), ([numbers[-1]], names[::-1])])
        suited = {"none", "snappy"} | ({"zstd"} if zstd_functions() is not None else set())
        sizes = nulls and any(pa.types.is_fixed_size_list(kind) for kind in kinds)  # of null ones pyarrow makes room
        if written["compression"] in suited and written["use_dictionary"] is False and not sizes:
            assert found == [*names, *names[::-1]]


def test_columns_that_are_decoded_together_keep_their_own_nulls(tmp_path: Path, decoded: list[str]) -> None:
    """Their validity lies in one piece of memory; columns of one type differ in names, and in being nullable."""
    kinds = [pa.int32(), pa.string(), pa.list_(pa.float32()), pa.bool_(), pa.timestamp("us")]
    columns = {f"c{n}": values_of(kinds[n % 5], 61, n, [0, 0.3][n % 3 == 0]) for n in range(200)}
    schema = pa.schema([pa.field(name, column.type, n % 7 > 0) for n, (name, column) in enumerate(columns.items())])
    schema = pa.schema([field.with_nullable(field.nullable or columns[field.name].null_count > 0) for field in schema])
    pq.write_table(pa.table(columns, schema), tmp_path / "f", row_group_size=17)
    assert_same(tmp_path / "f", [([0, 1, 2, 3], schema.names), ([2], schema.names[::-1]), ([3, 1], schema.names[::3])])
    assert set(decoded) == set(schema.names)


def test_what_is_stored_in_another_way_is_left_to_pyarrow(tmp_path: Path, decoded: list[str]) -> None:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"left {n}": pa.array([None] * 50, kind) for n, kind in enumerate(LEFT)}
    numbers = pa.array(rng.integers(0, 1000, 50))
    columns |= {"front": pa.array(["word"] * 50), "taken": numbers, "x.y": numbers}
    table = pa.table({**columns, "x": pa.array([{"y": 1}] * 50)})
    pq.write_table(table, tmp_path / "f", use_dictionary=False, column_encoding={"front": "DELTA_BYTE_ARRAY"})
    assert_same(tmp_path / "f", [([0], table.column_names)])
    assert decoded == ["taken", "x.y"]
    with opened(tmp_path / "f") as reader:
        assert reader.together(table.column_names, 50) == ["taken", "x.y", "front"]


@given(
    seed=st.integers(0, 1000),
    rows=st.sampled_from([1, 31, 33, 128, 129, 1025, 3000]),
    nulls=st.sampled_from([0, 0.3]),
    far=st.sampled_from([0, 1, 7, 1000, 2**30, 2**62]),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([300, 1 << 20]),
)
@settings(max_examples=40)
def test_other_encodings(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, nulls: float, far: int, version: str, page: int
) -> None:
    rng = np.random.default_rng(seed)
    long = rng.integers(-far, far + 1, rows)
    short = np.clip(long, -(2**30), 2**30)  # of further ones pyarrow reads no differences
    columns = {
        "delta": pa.array(long, mask=rng.random(rows) < nulls),
        "delta of 32": pa.array(short, pa.int32(), mask=rng.random(rows) < nulls),
        "delta of 8": pa.array(short % 100, pa.int8()),
        "delta of decimals": pa.array(short, pa.int32()).cast(pa.decimal128(10, 0)),
        "split": pa.array(rng.random(rows), mask=rng.random(rows) < nulls),
        "split of 32": pa.array(rng.random(rows).astype(np.float32)),
        "split of bytes": values_of(pa.binary(5), rows, seed, nulls),
        "split lists": values_of(pa.list_(pa.float32()), rows, seed, nulls),
        "lengths": values_of(pa.binary(), rows, seed, nulls),
    }
    kinds = {"delta": "DELTA_BINARY_PACKED", "split": "BYTE_STREAM_SPLIT", "lengths": "DELTA_LENGTH_BYTE_ARRAY"}
    names = {"split lists": "split lists.list.element"}
    encodings = {names.get(name, name): kinds[name.split()[0]] for name in columns}
    path = tmp_path_factory.mktemp("pages") / "f.parquet"
    pq.write_table(
        pa.table(columns),
        path,
        use_dictionary=False,
        column_encoding=encodings,
        data_page_version=version,
        data_page_size=page,
        store_decimal_as_integer=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        assert_same(path, [([0], list(columns))])
        assert found == list(columns) or nulls


@given(
    kind=st.sampled_from([pa.string(), pa.binary()]),
    seed=st.integers(0, 1000),
    nulls=st.sampled_from([0, 0.3, 1]),
    rows=st.sampled_from([1, 9, 1025, 3000]),
    groups=st.integers(1, 3),
    limit=st.sampled_from([200, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([300, 1 << 20]),
)
@settings(max_examples=30)
def test_codes_are_those_of_the_dictionary_page(
    tmp_path_factory: pytest.TempPathFactory,
    kind: pa.DataType,
    seed: int,
    nulls: float,
    rows: int,
    groups: int,
    limit: int,
    version: str,
    page: int,
) -> None:
    """Where a dictionary became too large, and values follow as they are, pyarrow makes it."""
    rng = np.random.default_rng(seed)
    words = [None if rng.random() < nulls else f"{place}" * (place % 7) for place in rng.integers(0, 300, rows)]
    table = pa.table({"word": pa.array(words, kind).dictionary_encode(), "id": range(rows)})
    path = tmp_path_factory.mktemp("pages") / "f.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=-(-rows // groups),
        dictionary_pagesize_limit=limit,
        data_page_version=version,
        data_page_size=page,
    )
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        assert_same(path, [(list(range(pq.ParquetFile(path).num_row_groups)), ["word", "id"])])
        assert found == ["word", "id"] or limit == 200


ALONE = [kind for kind in TAKEN if not (pa.types.is_list(kind) or pa.types.is_large_list(kind))]
ALONE = [kind for kind in ALONE if not pa.types.is_fixed_size_list(kind)]


def encoding_of(kind: pa.DataType) -> str:
    """The encoding that is neither PLAIN nor a dictionary, for a type that pyarrow writes and reads in it."""
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return "DELTA_LENGTH_BYTE_ARRAY"
    if kind == pa.bool_():
        return "RLE"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return "BYTE_STREAM_SPLIT"
    return "PLAIN" if kind.bit_width == 32 else "DELTA_BINARY_PACKED"  # pyarrow reads no differences of 33 bits


@given(
    kinds=st.lists(st.sampled_from(ALONE), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    nulls=st.sampled_from([0, 0.02, 0.5, 0.98, 1]),
    rows=st.sampled_from([1, 9, 256, 1025, 3000]),
    groups=st.integers(1, 3),
    backwards=st.booleans(),
    written=WRITTEN,
    encoded=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150)
def test_some_rows_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[pa.DataType],
    seed: int,
    nulls: float,
    rows: int,
    groups: int,
    backwards: bool,
    written: dict[str, Any],
    encoded: bool,
    data: st.DataObject,
) -> None:
    table = pa.table({f"c{n}": values_of(kind, rows, seed + n, nulls) for n, kind in enumerate(kinds)})
    written = dict(written)
    if encoded:
        encodings = {f"c{n}": encoding_of(kind) for n, kind in enumerate(kinds)}
        written |= {"use_dictionary": False, "column_encoding": encodings, "store_decimal_as_integer": False}
    path = tmp_path_factory.mktemp("pages") / "f.parquet"
    pq.write_table(table, path, row_group_size=-(-rows // groups), **written)
    numbers = list(range(pq.ParquetFile(path).num_row_groups))[:: -1 if backwards else 1]
    spans = st.tuples(st.integers(0, rows - 1), st.sampled_from([1, 1, 2, 7, 8, 9, 70, 600, 3000]))
    with opened(path) as one, opened(path, "pyarrow") as other:
        theirs = dict(zip(table.column_names, other.read(numbers, table.column_names), strict=True))
        assert other.read_rows(numbers, table.column_names, np.arange(1)) == {}
        for _ in range(3):
            some = data.draw(st.lists(spans, min_size=1, max_size=12)) + data.draw(
                st.sampled_from([[], [(rows - 1, 1)]])
            )
            picked = np.unique(np.concatenate([np.arange(at, min(at + size, rows)) for at, size in some]))
            ours = one.read_rows(numbers, table.column_names, picked)
            for name, column in ours.items():
                expected = theirs[name].take(pa.array(picked))
                assert bits(column) == bits(expected)
                assert column.null_count == expected.null_count
            suited = {"none", "snappy"} | ({"zstd"} if zstd_functions() is not None else set())
            if written["compression"] in suited and written["use_dictionary"] is False:
                assert list(ours) == table.column_names


def test_pages_without_a_row_that_is_asked_for_are_not_looked_at(tmp_path: Path) -> None:
    table = pa.table({"a": np.arange(90_000), "text": [str(row) for row in range(90_000)]})
    pq.write_table(table, tmp_path / "f", use_dictionary=False, write_page_checksum=True, compression="none")
    content = bytearray((tmp_path / "f").read_bytes())
    content[content.index((30_000).to_bytes(8, "little"))] ^= 1
    (tmp_path / "f").write_bytes(content)
    group = pq.ParquetFile(tmp_path / "f").metadata.row_group(0)
    stored = sum(group.column(leaf).total_compressed_size for leaf in range(2))
    with opened(tmp_path / "f") as reader:
        last = np.array([88_888, 89_000, 89_999])
        with recording() as noted:
            found = reader.read_rows([0], ["a", "text"], last)
        assert {name: column.to_pylist() for name, column in found.items()} == table.take(pa.array(last)).to_pydict()
        assert 0 < noted.work().bytes_decoded < stored / 4
        assert list(reader.read_rows([0], ["a", "text"], np.arange(31_000))) == ["text"]  # a page of "a" is damaged
        with pytest.raises(FileReadError, match="row group 0, column a"):
            reader.read([0], ["a"])


@pytest.mark.parametrize(
    "ranges", [[(-1, 2)], [(3, 3)], [(0, 9), (12, 10)], [(0, 5), (4, 6)], [(6, 7), (1, 2)], [(99, 101)]]
)
def test_ranges_that_are_none_are_refused(tmp_path: Path, ranges: list[tuple[int, int]]) -> None:
    pq.write_table(pa.table({"a": np.arange(100)}), tmp_path / "f")
    with opened(tmp_path / "f") as reader:
        decoder = reader._pages  # type: ignore[attr-defined]
        forms, fitting = decoder._forms.of(["a"]), pages._Part.of(0, np.array([(0, 1), (98, 100)]))
        assert decoder._read([fitting], forms)["a"].to_pylist() == [0, 98, 99]
        assert decoder._read([pages._Part.of(0, np.array(ranges))], forms) == {}


def test_some_strings_of_a_dictionary_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    decode = pages.decode
    monkeypatch.setattr(pages, "decode", lambda chunks: [calls.append(chunks.size), decode(chunks)])
    words = ["a word that is repeated", None, "", "another " * 99]
    table = pa.table({"few": [words[row % 4] for row in range(90_000)]})
    pq.write_table(table, tmp_path / "f", row_group_size=30_000)
    for rows, expected in ((np.arange(3, 90_000, 4000), [3]), (np.arange(500, 1500), [1, 1])):
        with opened(tmp_path / "f") as reader:
            found = reader.read_rows([0, 1, 2], ["few"], rows)["few"]
        assert found.to_pylist() == table["few"].take(pa.array(rows)).to_pylist()
        assert calls == expected
        calls.clear()


def test_strings_of_a_dictionary_have_room(tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A footer does not tell how long they are: a chunk with more is decoded again, and later ones have room."""
    calls: list[int] = []
    decode = pages.decode

    def counted(chunks: Any) -> None:
        calls.append(chunks.size)
        decode(chunks)

    monkeypatch.setattr(pages, "decode", counted)
    words = ["a word that is repeated", None, "", "another " * 9]
    table = pa.table({"few": [words[row % 4] for row in range(3000)], "id": range(3000)})
    pq.write_table(table, tmp_path / "f", row_group_size=1000)
    with opened(tmp_path / "f") as reader:
        columns = [reader.read([group], ["id", "few"])[1] for group in range(3)]
    assert calls == [2, 1, 2, 2]
    assert decoded == ["id", "few"] * 3
    assert [value for column in columns for value in column.to_pylist()] == table["few"].to_pylist()


def test_one_call_has_so_many_bytes(tmp_path: Path) -> None:
    table = pa.table({"text": ["x"] * 100, **{f"c{n}": np.arange(100) for n in range(9)}, "b": [[True]] * 100})
    pq.write_table(table, tmp_path / "f")
    with opened(tmp_path / "f") as reader:
        names = table.column_names
        assert reader.together(names, 100) == [*names[1:-1], "text"]
        assert reader.together(names, 1 << 20) == names[1:5]
        assert reader.together(names, 1 << 30) == names[1:2]
        assert reader.together(["b"], 100) == []
    with opened(tmp_path / "f", "pyarrow") as reader:
        assert reader.together(names, 100) == ()


def test_a_call_of_a_window_stays_in_the_cache(tmp_path: Path) -> None:
    """Also in a row group that is much larger than the window's others."""
    sizes, names = [40_000, *[100] * 9], [f"c{n}" for n in range(8)]
    for number, rows in enumerate(sizes):
        pq.write_table(pa.table({name: np.arange(rows) for name in names}), tmp_path / f"{number}.parquet")
    calls: list[int] = []
    read = PageDecoder.read

    def noted(self: PageDecoder, groups: Any, columns: Any) -> Any:
        arrays = read(self, groups, columns)
        calls.append(sum(array.nbytes for array in arrays.values()))
        return arrays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageDecoder, "read", noted)
        patch.setattr(straight, "delivers", lambda: False)
        loader = stream(str(tmp_path), shuffle=True, batch_size=1000, num_workers=0, num_ranks=1, rank=0)
        assert sum(len(batch["c0"]) for batch in loader) == sum(sizes)
    assert sum(calls) == 8 * 8 * sum(sizes)
    assert max(calls) == 8 * 40_000  # one column of it
    assert len(calls) == 8 + 9


def test_checksums_are_verified(tmp_path: Path, decoded: list[str]) -> None:
    table = pa.table({"a": np.arange(4000), "b": np.arange(4000)})
    pq.write_table(table, tmp_path / "f", use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray((tmp_path / "f").read_bytes())
    place = content.index((3000).to_bytes(8, "little"))
    content[place] ^= 1
    (tmp_path / "f").write_bytes(content)
    with opened(tmp_path / "f") as reader:
        with pytest.raises(FileReadError, match="row group 0, column a"):
            reader.read([0], ["a", "b"])
        assert decoded == ["b"]
    with opened(tmp_path / "f", page_checksums=False) as reader:
        assert reader.read([0], ["a"])[0][3000].as_py() == 3001


def outcome(path: Path, engine: str, **options: Any) -> Any:
    """What reading a file gives: the bits of its columns, or an error."""
    try:
        with opened(path, engine, **options) as reader:
            return [bits(column) for column in reader.read([0], list(reader.schema.names))]
    except (FileReadError, pa.ArrowException, ValueError, OSError) as error:
        return type(error)  # its words depend on what is read in one call


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_of_damaged_pages_it_reads_no_other_values_than_pyarrow(tmp_path: Path, codec: str, version: str) -> None:
    rng = np.random.default_rng(5)
    rows, path = 700, tmp_path / "f.parquet"
    columns = {
        name: pa.array(column, mask=rng.random(rows) < share)
        for name, column, share in (
            ("few", rng.integers(0, 9, rows), 0.3),
            ("many", rng.standard_normal(rows), 0),
            ("flag", rng.random(rows) < 0.5, 0.1),
        )
    }
    columns["text"] = pa.array([None if row % 7 == 0 else "x" * (row % 19) for row in range(rows)])
    columns["list"] = pa.array([None if row % 11 == 0 else [1, None, 3][: row % 4] for row in range(rows)])
    columns["pair"] = pa.array([[float(row), 2.0] for row in range(rows)], pa.list_(pa.float32(), 2))
    pq.write_table(
        pa.table(columns),
        path,
        compression=codec,
        data_page_version=version,
        data_page_size=900,
        use_dictionary=["few", "text"],
    )
    whole = path.read_bytes()
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    equal = 0
    for _ in range(400):
        content = bytearray(whole)
        for place in rng.integers(4, end, rng.integers(1, 3)):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content)
        ours, theirs = outcome(path, "auto"), outcome(path, "pyarrow")
        assert ours == theirs
        equal += isinstance(ours, list)
    assert 0 < equal < 400


def test_a_file_cut_off_meanwhile_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.arange(100_000)}), tmp_path / "f", use_dictionary=False)
    with opened(tmp_path / "f") as reader:
        with (tmp_path / "f").open("r+b") as file:
            file.truncate(5000)
        with pytest.raises(FileReadError):
            reader.read([0], ["a"])


def test_a_file_replaced_while_open_is_read_as_it_was(tmp_path: Path, decoded: list[str]) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "f")
    with opened(tmp_path / "f") as reader:
        pq.write_table(pa.table({"a": [7, 8, 9]}), tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "f")
        assert reader.read([0], ["a"])[0].to_pylist() == [1, 2, 3]
    assert decoded == ["a"]


def test_other_writers(tmp_path: Path, decoded: list[str]) -> None:
    polars, deltalake = pytest.importorskip("polars"), pytest.importorskip("deltalake")
    rng = np.random.default_rng(2)
    table = pa.table(
        {
            "id": np.arange(5000),
            "few": pa.array(rng.integers(0, 7, 5000).astype(np.int32), mask=rng.random(5000) < 0.1),
            "f": rng.standard_normal(5000).astype(np.float32),
            "flag": pa.array(rng.random(5000) < 0.5, mask=rng.random(5000) < 0.5),
            "day": pa.array(rng.integers(0, 9999, 5000).astype(np.int32)).cast(pa.date32()),
        }
    )
    for codec in ("zstd", "snappy", "uncompressed"):
        polars.from_arrow(table).write_parquet(tmp_path / "f.parquet", compression=codec)
        assert_same(tmp_path / "f.parquet", [([0], table.column_names)])
        if codec != "zstd" or zstd_functions() is not None:
            assert decoded == table.column_names
        decoded.clear()
    deltalake.write_deltalake(str(tmp_path / "delta"), table)
    for path in (tmp_path / "delta").glob("*.parquet"):
        assert_same(path, [([0], table.column_names)])
    assert decoded == table.column_names


def test_files_of_spark(decoded: list[str]) -> None:
    folder = Path(__file__).parents[3] / "shared" / "iceberg-tables"
    paths = [path for path in folder.rglob("*.parquet") if "deletes" not in path.name]
    if not paths:
        pytest.skip("their folder is not there")
    for path in paths:
        with opened(path) as reader:
            names = list(reader.schema.names)
        groups = list(range(pq.ParquetFile(path).num_row_groups))
        if groups:
            assert_same(path, [(groups, names)])
    assert decoded


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_remote_store_serves_both_decoders_with_one_request(
    decoded: list[str], monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    """What is refused here, pyarrow decodes from the same bytes."""
    fsspec = pytest.importorskip("fsspec")
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "id": np.arange(9000),
            "text": [f"{n}" * (n % 9) for n in range(9000)],
            "word": ["a", "bc", "d"] * 3000,
            "flags": pa.array([[True]] * 9000),
            "f": rng.standard_normal(9000),
        }
    )
    with fsspec.open("memory://pages/f.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=2000, compression={"f": "gzip"})
    fetched: list[Any] = []
    get = RangeFile._get
    monkeypatch.setattr(RangeFile, "_get", lambda self, ranges: fetched.extend(ranges) or get(self, ranges))

    def batches(**options: Any) -> list[Any]:
        del decoded[:], fetched[:]
        loader = stream(
            "memory://pages/",
            batch_size=64,
            num_ranks=1,
            rank=0,
            output_format="numpy",
            strings={"word": "codes"},
            shuffle=shuffle,
            **options,
        )
        return [{key: list(value) for key, value in batch.items()} for batch in loader]

    expected = batches(format_options={"engine": "pyarrow"})
    requests = sorted(fetched)
    assert not decoded
    assert batches() == expected
    assert {*decoded} == {"id", "text", "word"}
    assert sorted(fetched) == requests


def test_a_loader_without_the_compiled_decoder_delivers_the_same(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    table = pa.table({"id": np.arange(900), "f": rng.standard_normal(900), "text": [str(n) for n in range(900)]})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=100)

    def batches(**options: Any) -> list[Any]:
        loader = stream(str(tmp_path), batch_size=64, num_ranks=1, rank=0, output_format="numpy", **options)
        return [{key: list(value) for key, value in batch.items()} for batch in loader]

    expected = (
        batches(format_options={"engine": "pyarrow"}),
        batches(format_options={"engine": "pyarrow"}, shuffle=True),
    )
    assert not decoded
    assert (batches(), batches(shuffle=True)) == expected
    assert {*decoded} == {"text"}  # numbers are decoded to where they are delivered
    monkeypatch.setattr(pages, "pages_library", lambda: None)
    decoded.clear()
    assert (batches(), batches(shuffle=True)) == expected
    assert not decoded


def test_metrics_say_what_decoded_how_many_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    pq.write_table(pa.table({"f": rng.standard_normal(9000), "deep": [[[1]]] * 9000}), tmp_path / "f.parquet")
    group = pq.ParquetFile(tmp_path / "f.parquet").metadata.row_group(0)
    sizes = [group.column(leaf).total_compressed_size for leaf in range(2)]
    for options, expected in (({}, sizes), ({"format_options": {"engine": "pyarrow"}}, [0, sum(sizes)])):
        loader = stream(str(tmp_path), columns=["f", "deep"], num_ranks=1, rank=0, output_format="arrow", **options)
        list(loader)
        found = loader.metrics(total=True)
        assert [found["bytes_decoded"], found["bytes_by_pyarrow"]] == expected


def test_memory_between_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread keeps what ordinary chunks need; larger memory is of one call."""
    monkeypatch.setattr(kernel_pages._scratch, "kept", None, raising=False)
    small = kernel_pages.memory(1000)
    assert kernel_pages.memory(500) is small
    assert kernel_pages.memory(2000) is not small
    kept = kernel_pages.memory(2000)
    assert len(kernel_pages.memory(kernel_pages._KEPT + 1)) > kernel_pages._KEPT
    assert kernel_pages.memory(100) is kept


@pytest.mark.parametrize(("what", "number"), [("room", 100), ("room", 1 << 60), ("entries", 1 << 60)])
def test_a_footer_that_lies_about_sizes_is_left_to_pyarrow(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    pq.write_table(pa.table({"a": [[row] for row in range(1000)]}), tmp_path / "f", use_dictionary=False)
    with opened(tmp_path / "f") as reader:
        decoder = reader._pages  # type: ignore[attr-defined]
        chunks = decoder._chunks

        def lying(*arguments: Any) -> Any:
            found, fits = chunks(*arguments)
            found[what] = number
            return found, fits

        decoder._chunks = lying
        kernel_pages._scratch.kept = None
        assert len(reader.read([0], ["a"])[0]) == 1000
    assert not decoded
