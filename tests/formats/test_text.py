"""How text is cut into ranges of whole lines, whatever its lines are."""

import gzip
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DamagedFileError, FileReadError, SchemaMismatchError
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.formats.text import reader as text_reader
from torch_dataloader_utils.formats.text.format import RANGE_BYTES
from torch_dataloader_utils.formats.text.plan import TextPlan
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

FORM = format_named("csv")
# One column of whole lines: no character means anything but newlines.
LINES = {"header": False, "column_names": ["line"], "quote_char": "", "delimiter": "\x01"}
SCHEMA = pa.schema({"line": pa.string()})

texts = st.lists(
    st.tuples(st.text("ab é漢😀", max_size=30), st.sampled_from(["\n", "\r\n", "\n\n", "\n\r\n\n"])), max_size=15
)


@dataclass(frozen=True)
class NotingStorage(Storage):
    """Notes which bytes are read, and when."""

    noted: list[tuple[int, int]] = field(default_factory=list, compare=False)

    def open_data(self, file: DataFileInfo) -> pa.NativeFile:
        return pa.PythonFile(_Noting(open(file.path, "rb"), self.noted), "r")


class _Noting:
    def __init__(self, inner: Any, noted: list[tuple[int, int]]) -> None:
        self._inner, self._noted = inner, noted

    def read(self, size: int = -1) -> bytes:
        start = self._inner.tell()
        found: bytes = self._inner.read(size)
        if found:
            self._noted.append((start, start + len(found)))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def laid_out(path: Path, content: bytes, step: int) -> tuple[DataFileInfo, FileLayout]:
    path.write_bytes(content)
    info = DataFileInfo(str(path), len(content))
    return info, replace(FORM, range_bytes=step).layout(info, Storage(), LINES)[0]


@given(
    lines=texts,
    step=st.integers(1, 70),
    final=st.booleans(),
    mark=st.booleans(),
    tail=st.none() | st.integers(0, 9),
    data=st.data(),
)
@example(lines=[("a" * 30, "\n"), ("b", "\n")], step=1, final=True, mark=True, tail=0, data=None)
def test_each_line_is_in_the_range_it_starts_in(
    tmp_path_factory: pytest.TempPathFactory, lines: list, step: int, final: bool, mark: bool, tail: int | None, data
) -> None:
    body = "".join(text + end for text, end in lines).encode()
    body = body if final else body.removesuffix(b"\n").removesuffix(b"\r")
    content = b"\xef\xbb\xbf" * mark + body
    info, layout = laid_out(tmp_path_factory.getbasetemp() / "lines", content, step)
    if tail is not None:  # wherever lines are thought to end
        layout = replace(layout, metadata=replace(layout.metadata, tail=tail))
    reader = FORM.open(info, layout, Storage(), LINES, SCHEMA)
    numbers = [segment.number for segment in layout.segments]
    expected: dict[int, list[str]] = {number: [] for number in numbers}
    at = 3 * mark
    for line in body.split(b"\n"):
        if text := line.removesuffix(b"\r"):
            expected[(at - 3 * mark) // step].append(text.decode())
        at += len(line) + 1
    for number in numbers:
        assert reader.read([number], ["line"])[0].to_pylist() == expected[number]
    chosen = (
        numbers
        if data is None
        else data.draw(st.lists(st.sampled_from(numbers), max_size=9) if numbers else st.just([]))
    )
    assert reader.read(chosen, ["line"])[0].to_pylist() == sum((expected[number] for number in chosen), [])
    assert sum(segment.size_bytes for segment in layout.segments) in (0, len(body))
    reader.close()


def test_planning_reads_the_head_and_reading_reads_each_byte_about_once(tmp_path: Path) -> None:
    content = b"".join(b"%d,%s\n" % (i, b"x" * (i % 50)) for i in range(200_000))
    path = tmp_path / "f"
    path.write_bytes(content)
    info, storage = DataFileInfo(str(path), len(content)), NotingStorage()
    layout, _ = FORM.layout(info, storage, LINES)
    assert len(layout.segments) == -(-len(content) // RANGE_BYTES) > 2
    assert max(stop for _, stop in storage.noted) == 2**20
    storage.noted.clear()
    reader = FORM.open(info, layout, storage, LINES, SCHEMA)
    rows = sum(len(reader.read([segment.number], ["line"])[0]) for segment in layout.segments)
    assert rows == 200_000
    assert len(storage.noted) == len(layout.segments)  # one request each
    longest = max(map(len, content.split(b"\n"))) + 2
    assert sum(b - a for a, b in storage.noted) <= len(content) + (longest + 1) * len(layout.segments)
    storage.noted.clear()
    reader.read([segment.number for segment in layout.segments], ["line"])
    assert storage.noted == [(0, len(content))]  # adjacent ranges are one
    reader.close()


def test_a_line_longer_than_many_ranges_is_read_by_the_first(tmp_path: Path) -> None:
    long = b"x" * 1_000_000
    info, layout = laid_out(tmp_path / "f", b"a\n" + long + b"\nb", 1000)
    reader = FORM.open(info, layout, Storage(), LINES, SCHEMA)
    rows = [reader.read([segment.number], ["line"])[0].to_pylist() for segment in layout.segments]
    assert rows[0] == ["a", long.decode()]
    assert rows[1:-1] == [[]] * (len(rows) - 2)
    assert rows[-1] == ["b"]
    reader.close()


def test_a_file_that_shrinks_under_a_reader_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    info, layout = laid_out(path, b"abc\n" * 1000, 100)
    reader = FORM.open(info, layout, Storage(), LINES, SCHEMA)
    path.write_bytes(b"abc\n" * 500)
    with pytest.raises(FileReadError, match=r"ends before byte \d+, but 4000 bytes were planned"):
        reader.read([30], ["line"])
    reader.close()


def test_a_reader_is_used_again_and_columns_may_be_none(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = FORM.layout(info, Storage(), LINES)
    reader = FORM.open(info, layout, Storage(), LINES, schema)
    assert reader.read([0], []) == []
    for _ in range(3):
        assert reader.read([0], ["line"])[0].to_pylist() == ["a", "b"]
    reader.close()


@pytest.mark.parametrize("data", [b"", b"{}", bytes(pa.schema({"a": pa.int8()}).serialize())])
def test_wrong_bytes_cannot_be_unpacked(data: bytes) -> None:
    with pytest.raises(ValueError, match="no layout of this version"):
        FORM.unpack(data)


def test_a_packed_layout_is_small(tmp_path: Path) -> None:
    plan = TextPlan(size=2**40, step=RANGE_BYTES, names=("a", "b"))
    layout = replace(plan, size=2**30).layout()
    packed = FORM.pack(layout, pa.schema({"a": pa.int8(), "b": pa.string()}))
    assert len(packed) < 1000
    assert FORM.unpack(packed) == (layout, pa.schema({"a": pa.int8(), "b": pa.string()}))


def test_a_line_far_into_a_remote_file_is_told_by_its_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "_MOST_REMOTE", 100)
    path = tmp_path / "f"
    path.write_bytes(b"1\n" * 1000 + b"x\n")
    schema = pa.schema({"line": pa.int64()})
    for storage, place in (
        (
            Storage("sub", filesystem=pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())),
            "line 1 after byte 2000",
        ),
        (Storage(), "line 1001"),
    ):
        info = DataFileInfo("f" if not storage.local else str(path), 2002)
        layout, _ = replace(FORM, range_bytes=1000).layout(info, storage, LINES)
        reader = FORM.open(info, layout, storage, LINES, schema)
        with pytest.raises(SchemaMismatchError, match=f"{place}, column 'line': 'x'"):
            reader.read([2], ["line"])
        reader.close()


@given(
    members=st.lists(st.tuples(texts, st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=4),
    step=st.integers(1, 200),
    encoding=st.sampled_from(["utf-8", "utf-16-le"]),
)
@example(members=[([("a" * 20, "\n")] * 9, 1, 512)], step=7, encoding="utf-8")
@example(members=[([("a", "\n")], 1, 200_000)], step=1000, encoding="utf-8")  # Python's gzip reads them one by one
def test_zeros_after_a_gzip_member_are_padding(
    tmp_path_factory: pytest.TempPathFactory, members: list, step: int, encoding: str
) -> None:
    text = "".join("".join(line + end for line, end in lines) for lines, _, _ in members)
    parts = ("".join(line + end for line, end in lines).encode(encoding) for lines, _, _ in members)
    zeros = (bytes(count * 3**growth) for _, growth, count in members)
    content = b"".join(gzip.compress(part) + pad for part, pad in zip(parts, zeros, strict=True))
    path = tmp_path_factory.getbasetemp() / "padded.csv.gz"
    path.write_bytes(content)
    info, options = DataFileInfo(str(path), len(content)), {**LINES, "encoding": encoding}
    layout = replace(FORM, range_bytes=step).layout(info, Storage(), options)[0]
    reader = FORM.open(info, layout, Storage(), options, SCHEMA)
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.removesuffix("\r")]
    for _ in range(2):
        assert reader.read([s.number for s in layout.segments], ["line"])[0].to_pylist() == lines
    reader.close()


@pytest.mark.parametrize(
    "tail",
    [b"\0\0junk", b"\x1f\x8b", gzip.compress(b"b\n", mtime=0)[:-1], b"\0" + gzip.compress(b"b", mtime=0)[:9]],
)
def test_other_bytes_after_a_gzip_member_are_damage(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a\n") + tail)
    with pytest.raises(DamagedFileError, match=r"a\.csv\.gz"):
        FORM.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), LINES)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.json.gz"])
def test_padded_files_of_all_text_formats_are_read(tmp_path: Path, name: str) -> None:
    content = {"csv": b"x\n1\n2\n", "jsonl": b'{"x": 1}\n{"x": 2}\n', "json": b'[{"x": 1}, {"x": 2}]'}
    (tmp_path / name).write_bytes(gzip.compress(content[name.split(".")[1]]) + bytes(512))
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=2)
    assert next(iter(loader))["x"].tolist() == [1, 2]
