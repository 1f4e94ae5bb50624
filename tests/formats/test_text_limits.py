"""Memory stays bounded for text that expands without end and for lines without end."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.formats.text import limits
from torch_dataloader_utils.formats.text.limits import first_long_line, first_long_object

MIB = 2**20
PEAK = """
import sys
import numpy, pyarrow.compute, pyarrow.csv, pyarrow.dataset, pyarrow.json, torch
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError
from tests.memory import peak_memory

def peak():
    return peak_memory() >> 20

before, most_line, *paths = peak(), *sys.argv[1:]
for path in paths:
    try:
        loader, _ = StructuredDataset.create_dataloader(
            path, batch_size=65536, num_workers=2, num_ranks=1, rank=0,
            format_options={"max_line_bytes": int(most_line)}
        )
        print(peak() - before)
        print(sum(len(batch["id"]) for batch in loader))
    except FileReadError as error:
        print(error)
print(peak() - before)
"""


def peaks(paths: list[Path], most_line: int) -> list[str]:
    """What a process that reads the files prints: of each, MiB after planning, rows or the error; MiB at the end."""
    made = subprocess.run(
        [sys.executable, "-c", PEAK, str(most_line), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def read(path: Path, **format_options: Any) -> int:
    """The number of rows."""
    loader, _ = StructuredDataset.create_dataloader(
        str(path), format_options=format_options, num_ranks=1, rank=0, num_workers=0
    )
    return sum(len(batch["id"]) for batch in loader)


@pytest.mark.parametrize("mib", [160, pytest.param(2048, marks=pytest.mark.nightly)])
def test_a_small_file_that_expands_to_much_text_is_read_in_bounded_memory(tmp_path: Path, mib: int) -> None:
    path, lines = tmp_path / "f.csv.gz", b"1,2.5,3,abcdefghij\n" * (MIB // 19)
    with gzip.open(path, "wb", 6) as sink:
        sink.write(b"id,x,y,s\n")
        for _ in range(mib):
            sink.write(lines)
    assert path.stat().st_size < mib * MIB // 400
    planned, rows, read = peaks([path], 256 * MIB)
    assert int(rows) == mib * (MIB // 19)
    assert int(planned) < 64
    # prefetch_bytes, and as much for parsing and its allocator (mostly 300 together); as one block, 160 MiB of text
    # would take over 1,000.
    assert int(read) < 2 * 256


def test_lines_without_end_are_named_in_bounded_memory(tmp_path: Path) -> None:
    paths = [tmp_path / "f.csv", tmp_path / "f.csv.gz"]
    for path, start in zip(paths, (b"id,x\n1,2\n", b'id,x\n1,"'), strict=True):
        with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as sink:
            sink.write(start)
            for _ in range(100):
                sink.write(b"x" * MIB)
    printed = peaks(paths, 16 * MIB)
    errors = [line for line in printed if not line.isdecimal()]
    for path, error in zip(paths, errors, strict=True):
        assert "longer than max_line_bytes=16777216" in error
        assert f"{path.name}, line " in error
        assert "set a larger format_options={'max_line_bytes': ...}" in error
    assert int(printed[-1]) < 16 * 6 + 64  # mostly 110; with all of a text in memory, over 200


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "jsonl.gz"])
@pytest.mark.parametrize("rows", [0, 10, 300_000])
def test_a_longer_line_than_allowed_is_named(tmp_path: Path, suffix: str, rows: int) -> None:
    path = tmp_path / f"f.{suffix}"
    lines = '{"id": 1, "s": "a"}\n' if "jsonl" in suffix else "1,a\n"
    long = lines.replace("a", "a" * 5_000)
    text = ("" if "jsonl" in suffix else "id,s\n") + lines * rows + long + lines * 10
    path.write_bytes(gzip.compress(text.encode(), 1) if suffix.endswith("gz") else text.encode())
    with pytest.raises(FileReadError, match=rf"f.{suffix}, line {rows + ('csv' in suffix) + 1}: longer than"):
        read(path, max_line_bytes=4_000)
    assert read(path, max_line_bytes=6_000) == rows + 11


ROWS = {
    "newlines.csv": ("id,s\n", '1,"a\n\'"\n', "", {"newlines_in_values": True}),
    "newlines.csv.gz": ("id,s\n", '1,"a\n\'"\n', "", {"newlines_in_values": True}),
    "array.json": ("[\n", '{"id": 1, "t": [[{}]],\n"s": "a\\\\\\"],"},\n', '{"id": 2}]', {}),
    "documents.json": ("", '{"id": 1, "t": [[{}]],\n"s": "a\\\\\\"}]"}\n', '{"id": 2}', {}),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rows", [1, 40_000])
def test_a_row_of_several_lines_that_is_longer_than_allowed_is_named(tmp_path: Path, name: str, rows: int) -> None:
    start, row, end, options = ROWS[name]
    path, text = tmp_path / name, start + row * rows + row.replace("a", "a" * 5_000) + row * 10 + end
    path.write_bytes(gzip.compress(text.encode(), 1) if name.endswith("gz") else text.encode())
    line = start.count("\n") + row.count("\n") * rows + 1
    with pytest.raises(FileReadError, match=rf"{name}, line {line}: longer than max_line_bytes=4000"):
        read(path, max_line_bytes=4_000, **options)
    assert read(path, max_line_bytes=6_000, **options) == rows + 11 + bool(end)


def test_a_quote_that_is_missing_after_the_head_is_named_before_the_rest_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("id,s\n" + '1,"a"\n' * 200_000 + '1,"a\n' + "1,a\n" * 2_000)
    with pytest.raises(FileReadError, match=r"f.csv, line 200002: longer than .* or a quote or bracket is missing"):
        read(path, max_line_bytes=4_000, newlines_in_values=True, on_bad_lines="skip")


VALUES = st.recursive(
    st.text('a\\"[]{},\n', max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner),
    max_leaves=4,
)


@given(
    values=st.lists(VALUES, min_size=1, max_size=8),
    most=st.integers(8, 40),
    window=st.sampled_from([1, 7, 2**20]),
    array=st.booleans(),
)
def test_the_first_long_object_is_located_exactly(values: list[Any], most: int, window: int, array: bool) -> None:
    objects = [json.dumps({"v": value}) for value in values]
    text = (" [" + " , ".join(objects) + "]" if array else "\n".join(objects)).encode()
    long = next((number for number, item in enumerate(objects) if len(item) > most), None)
    expected = None
    if long is not None:
        expected = sum(len(item) + (3 if array else 1) for item in objects[:long]) + 2 * array
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_WINDOW", window)
        assert first_long_object(text, most, array) == expected


def test_the_limit_of_a_line_is_checked(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id\n1\n")
    with pytest.raises(OptionError, match="'max_line_bytes': 0}: expected at least 1"):
        read(tmp_path / "f.csv", max_line_bytes=0)
    with pytest.raises(OptionError, match="expected a int"):
        read(tmp_path / "f.csv", max_line_bytes="1MiB")


@pytest.mark.parametrize("before", [0, 2**20 - 5, 2**20, 3 * 2**20])
def test_the_first_long_line_is_located_exactly(before: int) -> None:
    text = (b"x" * 9 + b"\n") * (before // 10)
    assert first_long_line(text + b"y" * 10 + b"\n" + text, 10) is None
    assert first_long_line(text + b"y" * 11 + b"\n" + text, 10) == len(text)
    assert first_long_line(text + b"y" * 11, 10) == len(text)
