import itertools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError, SchemaMismatchError
from torch_dataloader_utils.formats.base import Reader
from torch_dataloader_utils.formats.ipc.messages import Message
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.remote import Range, RangeFile

from .contract import FormatContract, tables

FORM = format_named("ipc")
WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def write(table: pa.Table, path: Path, rows: int = 10, kind: str = "file", **options: object) -> None:
    with WRITERS[kind](str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


def opened(path: Path) -> tuple[FileLayout, Reader]:
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = format_named("ipc").layout(info, Storage(), {})
    return layout, FORM.open(info, layout, Storage(), {}, schema)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    layout, reader = opened(path)
    names = list(columns or reader.schema.names)
    found = reader.read([segment.number for segment in layout.segments], names)
    reader.close()
    return pa.table(dict(zip(names, found, strict=True)))


class TestFileContract(FormatContract):
    form = FORM
    wrong = (
        b"",
        b"no such format at all",
        b"ARROW1",
        b"ARROW1\0\0" * 9,
        b"\xff\xff\xff\xff" * 9,
        b"\0" * 99,
        b"\7" * 99,
    )

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        write(table, path, segment_rows)


class TestStreamContract(TestFileContract):
    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        write(table, path, segment_rows, "stream")


class TestCompressedContract(TestFileContract):
    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        write(table, path, segment_rows, compression="zstd")


ROWS = 25
STRUCT = pa.struct({"x": pa.int32(), "y": pa.list_(pa.string())})


def array(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    return pa.array([*values, None] * ROWS, kind).slice(0, ROWS)


ARRAYS: dict[str, Callable[[], pa.Array]] = {
    "int": lambda: array(pa.int16(), [1, 2]),
    "bool": lambda: array(pa.bool_(), [True, False]),
    "null": lambda: pa.nulls(ROWS),
    "float16": lambda: array(pa.float16(), [np.float16(1.5), np.float16(-0.25)]),
    "decimal": lambda: array(pa.decimal128(38, 2), [1, 2]),
    "timestamp": lambda: array(pa.timestamp("ms", "Europe/Berlin"), [1, 2]),
    "string": lambda: array(pa.string(), ["a", "bcd", ""]),
    "large string": lambda: array(pa.large_string(), ["a", "bcd"]),
    "string view": lambda: array(pa.string_view(), ["a", "longer than twelve bytes", ""]),
    "bytes": lambda: array(pa.binary(), [b"a", b"bcd"]),
    "fixed bytes": lambda: array(pa.binary(3), [b"abc", b"def"]),
    "list": lambda: array(pa.list_(pa.int64()), [[1, 2], []]),
    "large list": lambda: array(pa.large_list(pa.string()), [["a"], []]),
    "list view": lambda: array(pa.list_view(pa.int64()), [[1, 2], []]),
    "fixed list": lambda: array(pa.list_(pa.float32(), 2), [[1, 2], [3, 4]]),
    "struct": lambda: array(STRUCT, [{"x": 1, "y": ["a"]}, {"x": None, "y": []}]),
    "map": lambda: array(pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
    "dictionary": lambda: array(pa.string(), ["a", "b"]).dictionary_encode(),
    "run-end": lambda: pa.compute.run_end_encode(array(pa.int32(), [5])),
    "sparse union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0] * 5, pa.int8()), [pa.array(range(ROWS)), pa.array([str(i) for i in range(ROWS)])]
    ),
    "dense union": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0] * 5, pa.int8()),
        pa.array(range(ROWS), pa.int32()),
        [pa.array(range(ROWS)), pa.array([str(i) for i in range(ROWS)])],
    ),
    "tensor": lambda: pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), array(pa.list_(pa.int32(), 2), [[1, 2], [3, 4]])
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_read_alone_and_among_others(
    tmp_path: Path, name: str, compression: str | None, kind: str
) -> None:
    table = pa.table({"before": [str(i) for i in range(ROWS)], "a": ARRAYS[name](), "after": range(ROWS)})
    write(table, tmp_path / "f", ROWS, kind, compression=compression)
    for columns in (["before", "a", "after"], ["a"], ["after", "before"], ["after"]):
        found = read(tmp_path / "f", columns)
        assert found.schema.types == table.select(columns).schema.types
        assert found.to_pylist() == table.select(columns).to_pylist()
        found.validate(full=True)


def test_buffers_are_ours_to_hand_out(tmp_path: Path) -> None:
    table = pa.table({"a": range(ROWS), "s": ["x"] * ROWS, "l": [[1.0, None]] * ROWS, "f": ARRAYS["fixed list"]()})
    write(table, tmp_path / "f", ROWS)
    _, reader = opened(tmp_path / "f")
    twice = [reader.read([0], table.column_names) for _ in range(2)]
    reader.close()
    buffers = [[b for column in columns for b in column.chunk(0).buffers() if b is not None] for columns in twice]
    assert all(buffer.is_mutable for buffer in buffers[0])
    # What is written into one is seen by nobody else.
    for buffer in buffers[0]:
        np.frombuffer(buffer, np.uint8)[:] = 255
    assert pa.table(dict(zip(table.column_names, twice[1], strict=True))).to_pylist() == table.to_pylist()
    assert all(buffer.address % 8 == 0 for buffer in buffers[0])


def test_few_columns_of_a_file_are_read_without_the_others(tmp_path: Path) -> None:
    table = pa.table({f"c{i}": np.arange(100_000) for i in range(10)})
    write(table, tmp_path / "f", 100_000)
    _, reader = opened(tmp_path / "f")
    reader.source = source = Counting(reader.source)
    assert reader.read([0], ["c7"])[0].to_pylist() == list(range(100_000))
    reader.close()
    assert 800_000 <= source.bytes <= 810_000


class Counting:
    """An open file that counts how many bytes are read from it, and how often."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source, self.bytes, self.reads = source, 0, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def readinto(self, content: object) -> int:
        return self._counted(self._source.readinto(content))

    def read_at(self, size: int, offset: int) -> bytes:
        found = self._source.read_at(size, offset)
        self._counted(len(found))
        return found

    def _counted(self, size: int) -> int:
        self.bytes, self.reads = self.bytes + size, self.reads + 1
        return size


@pytest.mark.parametrize("kind", WRITERS)
def test_planning_reads_no_bodies(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pa.table({"a": np.arange(1_000_000)}), tmp_path / "f", 100_000, kind)
    sources = []
    real = Storage.open_data
    monkeypatch.setattr(Storage, "open_data", lambda *args: sources.append(Closing(real(*args))) or sources[-1])
    layout, _ = format_named("ipc").layout(DataFileInfo(str(tmp_path / "f"), 0), Storage(), {})
    assert [segment.rows for segment in layout.segments] == [100_000] * 10
    assert [segment.size_bytes for segment in layout.segments] == [800_000] * 10
    (source,) = sources
    assert source.bytes <= source.reads << 16
    assert source.reads <= 10 + 3


@pytest.mark.parametrize("kind", WRITERS)
def test_planning_of_a_small_file_is_one_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pa.table({"a": np.arange(1000)}), tmp_path / "f", 10, kind)
    sources = []
    real = Storage.open_data
    monkeypatch.setattr(Storage, "open_data", lambda *args: sources.append(Closing(real(*args))) or sources[-1])
    layout, _ = format_named("ipc").layout(DataFileInfo(str(tmp_path / "f"), 0), Storage(), {})
    assert len(layout.segments) == 100
    assert [source.reads for source in sources] == [1]


class Closing(Counting):
    def __enter__(self) -> "Closing":
        return self

    def __exit__(self, *error: object) -> None:
        self._source.close()


def words(*values: str) -> pa.Array:
    return pa.array(values).dictionary_encode()


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_stream_may_replace_or_extend_its_dictionaries(tmp_path: Path, deltas: bool, order: tuple[int, ...]) -> None:
    contents = [["a", "b"], ["a", "b", "c", "c"], ["a", "b", "c", "d"]] if deltas else [["a", "b"], ["c"], ["d", "a"]]
    batches = [pa.record_batch({"i": range(len(c)), "w": words(*c)}) for c in contents]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(str(tmp_path / "f"), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    layout, reader = opened(tmp_path / "f")
    assert layout.metadata.needed == (1, 2, 3)
    for columns in (["w"], ["w", "i"]):
        found = reader.read(order, columns)
        assert found[0].to_pylist() == [value for number in order for value in contents[number]]
    assert [reader.read([number], ["w"])[0].to_pylist() for number in order] == [contents[number] for number in order]
    reader.close()


def test_a_file_may_extend_its_dictionaries(tmp_path: Path) -> None:
    contents = [["a", "b"], ["a", "b", "c", "c"]]
    batches = [pa.record_batch({"w": words(*content)}) for content in contents]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_file(str(tmp_path / "f"), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read(tmp_path / "f")["w"].to_pylist() == sum(contents, [])


def moved(path: Path, padding: int, order: Callable[[list[Message]], list[Message]]) -> None:
    """Rewrite a file with so many zeros behind its magic bytes, and its messages after the schema in another order."""
    content, index = path.read_bytes(), opened(path)[0].metadata
    length = int.from_bytes(content[-10:-6], "little")
    whole, footer = b"ARROW1" + b"\0" * padding + index.schema, content[-10 - length :]
    for message in order([*index.dictionaries, *index.batches]):
        block = struct.pack("<qi4xq", message.offset, message.metadata, message.body)
        assert footer.count(block) == 1
        footer = footer.replace(block, struct.pack("<q", len(whole)) + block[8:])
        whole += content[message.offset : message.offset + message.size]
    path.write_bytes(whole + b"\xff\xff\xff\xff\0\0\0\0" + footer)


@pytest.mark.parametrize("padding", [2, 58])  # 58 is what arrow-rs writes
@pytest.mark.parametrize("last_first", [False, True])
def test_messages_of_a_file_may_lie_elsewhere_than_pyarrow_puts_them(
    tmp_path: Path, padding: int, last_first: bool
) -> None:
    table = pa.table({"w": words("a", "b", "a"), "a": range(3)})
    write(table, tmp_path / "f", 3)
    moved(tmp_path / "f", padding, (lambda found: found[::-1]) if last_first else list)
    assert pa.ipc.open_file(tmp_path / "f").read_all().equals(table)
    for columns in (["w", "a"], ["w"], ["a"]):
        assert read(tmp_path / "f", columns).to_pylist() == table.select(columns).to_pylist()


@given(data=st.data())
def test_any_batches_in_any_order(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("ipc") / "f"
    table = data.draw(tables())
    write(
        table,
        path,
        7,
        data.draw(st.sampled_from(sorted(WRITERS))),
        compression=data.draw(st.sampled_from([None, "lz4"])),
    )
    layout, reader = opened(path)
    places = data.draw(st.permutations(range(len(layout.segments))))
    columns = data.draw(st.lists(st.sampled_from(table.column_names), unique=True, min_size=1))
    found = reader.read(places, columns)
    reader.close()
    starts = layout.plan_starts()
    rows = [row for place in places for row in range(starts[place], starts[place + 1])]
    assert [column.to_pylist() for column in found] == [table[name].take(rows).to_pylist() for name in columns]


@pytest.mark.parametrize("kind", WRITERS)
def test_batches_without_rows_are_no_segments(tmp_path: Path, kind: str) -> None:
    schema = pa.schema({"a": pa.int64(), "s": pa.string()})
    with WRITERS[kind](str(tmp_path / "f"), schema) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_batch(pa.record_batch({"a": values, "s": ["x"] * len(values)}, schema=schema))
    layout, _ = opened(tmp_path / "f")
    assert [(s.number, s.first_row, s.rows) for s in layout.segments] == [(1, 0, 2), (3, 2, 1)]
    assert read(tmp_path / "f", ["a"])["a"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_without_batches_has_a_schema_and_no_segments(tmp_path: Path, kind: str) -> None:
    write(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "f", kind=kind)
    layout, reader = opened(tmp_path / "f")
    assert layout.segments == ()
    assert reader.schema == pa.schema({"a": pa.int8()})
    assert reader.read([], ["a"])[0].type == pa.int8()


def test_streams_as_written_before_version_0_15(tmp_path: Path) -> None:
    table = pa.table({"a": range(ROWS), "s": ["x"] * ROWS})
    write(table, tmp_path / "f", 10, "stream", use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    assert (tmp_path / "f").read_bytes()[:4] != b"\xff\xff\xff\xff"
    assert read(tmp_path / "f", ["s"]).num_rows == ROWS
    assert read(tmp_path / "f").to_pylist() == table.to_pylist()


def test_a_stream_without_an_end_mark_is_whole_if_its_last_message_is(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(pa.table({"a": range(ROWS)}), path, 10, "stream")
    content = path.read_bytes()
    assert content.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    path.write_bytes(content[:-8])
    assert read(path)["a"].to_pylist() == list(range(ROWS))
    for wrong in (content[:-9], content + b"\0" * 8, content + content):
        path.write_bytes(wrong)
        with pytest.raises(FileReadError, match="f, footer: cannot be read: ValueError"):
            read(path)


def test_feather_version_2_is_read_and_version_1_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": range(ROWS), "s": ["x"] * ROWS})
    feather.write_feather(table, tmp_path / "f", chunksize=10)
    assert [segment.rows for segment in opened(tmp_path / "f")[0].segments] == [10, 10, 5]
    assert read(tmp_path / "f").to_pylist() == table.to_pylist()
    (tmp_path / "old").write_bytes(b"FEA1" + b"\0" * 32 + b"FEA1")
    with pytest.raises(FileReadError, match=r"old, footer: .*version 1 of Feather.*write_feather"):
        opened(tmp_path / "old")


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(pa.table({"a": np.arange(1_000_000)}), path, 100_000)
    _, reader = opened(path)
    with path.open("r+b") as file:
        file.truncate(1_000_000)
    assert reader.read([0], ["a"])[0][5].as_py() == 5
    with pytest.raises(FileReadError, match=r"f, record batches 9, columns a: .*ends before byte 8001576"):
        reader.read([9], ["a"])
    reader.close()


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("columns", [["a", "s"], ["a"], ["s"]])
def test_remote_files_are_read_as_local_ones(tmp_path: Path, kind: str, columns: list[str]) -> None:
    table = pa.table({"a": np.arange(50_000), "b": np.arange(50_000.0), "s": [str(i) for i in range(50_000)]})
    write(table, tmp_path / "f", 20_000, kind)
    storage, path = open_storage(f"memory:/{tmp_path}/f")
    with storage.connect().open_output_stream(path) as sink:
        sink.write((tmp_path / "f").read_bytes())
    info = DataFileInfo(path, (tmp_path / "f").stat().st_size)
    layout, schema = format_named("ipc").layout(info, storage, {})
    assert layout == opened(tmp_path / "f")[0]
    reader = FORM.open(info, layout, storage, {}, schema)
    found = [reader.read([number], columns) for number in (2, 0, 1)]
    reader.close()
    assert [pa.table(part, columns).num_rows for part in found] == [10_000, 20_000, 20_000]
    assert pa.concat_tables(pa.table(found[i], columns) for i in (1, 2, 0)).equals(table.select(columns))


def test_a_task_of_a_remote_file_takes_two_round_trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({f"c{i}": np.arange(300_000) for i in range(6)})
    write(table, tmp_path / "f", 100_000)
    storage, path = open_storage(f"memory:/{tmp_path}/f")
    with storage.connect().open_output_stream(path) as sink:
        sink.write((tmp_path / "f").read_bytes())
    info = DataFileInfo(path, (tmp_path / "f").stat().st_size)
    layout, schema = format_named("ipc").layout(info, storage, {})
    asked: list[list[Range]] = []
    real = RangeFile._get

    def counted(file: RangeFile, ranges: list[Range]) -> list[bytes]:
        asked.append(ranges)
        return real(file, ranges)

    monkeypatch.setattr(RangeFile, "_get", counted)
    reader = FORM.open(info, layout, storage, {}, schema)
    found = reader.read([0, 1, 2], ["c1", "c4"])
    reader.close()
    assert [column.to_pylist() for column in found] == [list(range(300_000))] * 2
    assert len([ranges for ranges in asked if ranges]) == 2  # metadata, then columns
    assert sum(stop - start for ranges in asked for start, stop in ranges) < 6 * 800_000 + 10_000


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    write(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "f")
    with pytest.raises(SchemaMismatchError, match="f: more than one column is called 'a'"):
        StructuredDataset.create_dataloader(tmp_path / "f", format="ipc")


@pytest.mark.parametrize("rows", [0, 26, 2**45])
def test_a_batch_whose_number_of_rows_is_not_that_of_its_columns_is_refused(tmp_path: Path, rows: int) -> None:
    """Without rows it would be left out; with too many, the plan would not fit into memory."""
    path = tmp_path / "f.arrow"
    table = pa.table({"x": range(25)})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    assert content.count(struct.pack("<q", 25)) == 2  # of the batch, and of its column
    path.write_bytes(content.replace(struct.pack("<q", 25), struct.pack("<q", rows), 1))
    with pytest.raises(FileReadError, match=r"f\.arrow, footer: .* rows that its columns do not have"):
        format_named("ipc").layout(DataFileInfo(str(path), len(content)), Storage(), {})


def test_columns_of_runs_can_be_filtered(tmp_path: Path) -> None:
    table = pa.table({"x": range(6), "runs": pa.compute.run_end_encode(pa.array([1, 1, 2, 2, None, 3]))})
    with pa.ipc.new_file(str(tmp_path / "f.arrow"), table.schema) as writer:
        writer.write_table(table)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, filters=[("x", ">", 2)], output_format="arrow", num_workers=0
    )
    assert pa.Table.from_batches(loader)["runs"].to_pylist() == [2, None, 3]


def views(kind: pa.DataType, garbage: bytes = b"") -> pa.Array:
    """Strings as views; that of a null begins with the garbage."""
    column = pa.array(["x" * 20, None, "y"], kind)
    nulls, stored, text = column.buffers()
    content = bytearray(stored.to_pybytes())
    content[16:32] = (garbage or bytes(content[:16])).ljust(16, b"\0")
    return pa.Array.from_buffers(kind, 3, [nulls, pa.py_buffer(content), text])


SHAPES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda column: column,
    "list": lambda column: pa.ListArray.from_arrays([0, 1, 2, 3], column),
    "struct": lambda column: pa.StructArray.from_arrays([pa.array([1, 2, 3]), column], ["a", "b"]),
    "map": lambda column: pa.MapArray.from_arrays([0, 1, 2, 3], ["a", "b", "c"], column),
}


@pytest.mark.parametrize("garbage", [b"\x7f" * 16, b"\xff\xff\xff\xff", struct.pack("<iiii", 13, 0, 0, 8)])
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_null_whose_view_points_outside_its_memory_is_refused(
    tmp_path: Path, shape: str, kind: pa.DataType, garbage: bytes
) -> None:
    """pyarrow does not validate it, but reads there when it casts or concatenates."""
    whole, damaged = (pa.table({"v": SHAPES[shape](column)}) for column in (views(kind), views(kind, garbage)))
    write(whole, tmp_path / "whole.arrow")
    assert read(tmp_path / "whole.arrow").equals(whole)
    write(damaged, tmp_path / "damaged.arrow")
    with pytest.raises(FileReadError, match=r"damaged\.arrow.*view of a null points outside"):
        read(tmp_path / "damaged.arrow")


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_a_union_without_types_is_refused(tmp_path: Path, mode: str) -> None:
    """pyarrow crashes when it makes nulls of it."""
    kind = pa.union([], mode)
    for column in (kind, pa.struct([("u", kind)])):
        with pa.ipc.new_file(str(tmp_path / "f.arrow"), pa.schema([("u", column)])):
            pass
        with pytest.raises(FileReadError, match=r"f\.arrow.*column 'u' is a union without types"):
            StructuredDataset.create_dataloader(tmp_path / "f.arrow")


@pytest.mark.parametrize("column", [pa.array([0, 1]).view(pa.date64()), pa.array([0, 2**40]).view(pa.time64("us"))])
def test_a_value_that_its_type_does_not_have_is_an_error_that_names_its_column_alone(
    tmp_path: Path, column: pa.Array
) -> None:
    table = pa.table({"id": [1, 2], "when": column, "word": ["a", "b"]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    info = DataFileInfo(str(tmp_path / "a.arrow"), 0)
    layout, schema = FORM.layout(info, Storage(), {})
    reader = FORM.open(info, layout, Storage(), {}, schema)
    with pytest.raises(FileReadError, match=r"ArrowInvalid: column 'when': "):
        reader.read([0], ["id", "when", "word"])
    reader.close()
