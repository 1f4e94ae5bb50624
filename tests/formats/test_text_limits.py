"""Memory stays bounded for text that expands without end and for lines without end."""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.formats.text.plan import first_long_line

PEAK = """
import resource, sys
import numpy, pyarrow.compute, pyarrow.csv, pyarrow.dataset, pyarrow.json, torch
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before = peak()
try:
    loader, _ = StructuredDataset.create_dataloader(
        sys.argv[1], batch_size=65536, prefetch_bytes="64MiB", num_ranks=1, rank=0
    )
    print(peak() - before)
    print(sum(len(batch["id"]) for batch in loader))
except FileReadError as error:
    print(error)
print(peak() - before)
"""


def peaks(path: Path) -> list[str]:
    """What a process that reads the file prints: MiB after planning, rows or else the error, MiB at the end."""
    made = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def read(path: Path, **format_options: Any) -> int:
    """The number of rows."""
    loader, _ = StructuredDataset.create_dataloader(
        str(path), format_options=format_options, num_ranks=1, rank=0, num_workers=0
    )
    return sum(len(batch["id"]) for batch in loader)


def test_a_small_file_that_expands_to_much_text_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path, lines = tmp_path / "f.csv.gz", b"1,2.5,3,abcdefghij\n" * 50_000
    with gzip.open(path, "wb", 6) as sink:
        sink.write(b"id,x,y,s\n")
        for _ in range(300):
            sink.write(lines)
    assert path.stat().st_size < 2**20
    planned, rows, read = peaks(path)
    assert int(rows) == 300 * 50_000
    assert int(planned) < 64
    assert int(read) < 600  # as for the same text uncompressed; as one block, it would take 3 GiB


@pytest.mark.parametrize(("start", "compressed"), [(b"id,x\n1,2\n", False), (b'id,x\n1,"', True)])
def test_a_line_without_end_is_named_in_bounded_memory(tmp_path: Path, start: bytes, compressed: bool) -> None:
    path = tmp_path / ("f.csv.gz" if compressed else "f.csv")
    with gzip.open(path, "wb", 1) if compressed else path.open("wb") as sink:
        sink.write(start)
        for _ in range(270):
            sink.write(b"x" * 2**20)
    error, read = peaks(path)[-2:]
    assert "longer than max_line_bytes=268435456" in error
    assert path.name in error
    assert ", line " in error
    assert "set a larger format_options={'max_line_bytes': ...}" in error
    assert int(read) < 256 * 4


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
