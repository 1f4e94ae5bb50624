import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.formats.text import streams as text_streams
from torch_dataloader_utils.formats.text.streams import Cuts, SharedStream, shared


@contextmanager
def piece_bytes(size: int, full: int = 2**26) -> Iterator[None]:
    """Text comes in pieces of so many bytes, and later segments take what exceeds `full` bytes."""
    usual = text_streams._PIECE_BYTES, text_streams._FULL_BYTES
    text_streams._PIECE_BYTES, text_streams._FULL_BYTES = size, full
    try:
        yield
    finally:
        text_streams._PIECE_BYTES, text_streams._FULL_BYTES = usual


class Counted:
    """How often a file was opened, and a stream over it."""

    def __init__(
        self, path: Path, text: bytes, step: int, start: int = 0, by_text: bool = False, most_line: int = 2**20
    ) -> None:
        path.write_bytes(gzip.compress(text, 1))
        self.path, self.opened = path, 0
        self.segments = max(-(-(len(text) - start if by_text else path.stat().st_size) // step), 1)
        cuts = Cuts(start, step, by_text, self.segments, most_line)
        self.stream = SharedStream(self.open, lambda source: pa.CompressedInputStream(source, "gzip"), cuts)

    def open(self) -> pa.NativeFile:
        self.opened += 1
        return pa.OSFile(str(self.path))


@settings(deadline=None)
@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=60),
    step=st.integers(1, 200),
    full=st.sampled_from([1, 50, 2**26]),
    by_text=st.booleans(),
    final=st.booleans(),
    data=st.data(),
)
def test_segments_tile_the_text_at_line_borders_in_any_order(
    tmp_path_factory, lines: list[bytes], step: int, full: int, by_text: bool, final: bool, data: st.DataObject
) -> None:
    text = b"head\n" + b"\n".join(lines) + (b"\n" if final else b"")
    made = Counted(tmp_path_factory.mktemp("streams") / "f.gz", text, step, 5, by_text)
    made.stream.join()
    with piece_bytes(data.draw(st.sampled_from([1, 7, 2**20])), full):
        found = {}
        for number in data.draw(st.permutations(range(made.segments))):
            found[number] = made.stream.segment(number)
        again = data.draw(st.integers(0, made.segments - 1))
        assert made.stream.segment(again) == found[again]
    ordered = [found[number] for number in sorted(found)]
    assert b"".join(segment.text for segment in ordered) == text[5:]
    at = 5
    for segment in ordered:
        assert segment.offset == at
        at += len(segment.text)
        assert at == len(text) or not segment.text or segment.text.endswith(b"\n")
    made.stream.leave()


def test_threads_that_share_a_stream_decompress_it_once_and_hold_a_few_segments(tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(400_000))
    made = Counted(tmp_path / "f.gz", text, step=10_000)
    assert made.segments > 50
    with piece_bytes(20_000), ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            made.stream.join()
        found = list(pool.map(made.stream.segment, range(made.segments)))
        assert len(made.stream._waiting) <= 3
    assert b"".join(segment.text for segment in found) == text
    assert made.opened <= 3  # a thread that is overtaken by more than there are readers begins again


def test_a_stream_ends_with_its_last_reader(tmp_path: Path) -> None:
    made = Counted(tmp_path / "f.gz", b"a\nb\n", 1000)

    def make() -> SharedStream:
        return made.stream

    first, second = shared("key", make), shared("key", lambda: Counted(tmp_path / "g.gz", b"", 1).stream)
    assert first is second
    assert first.segment(0).text == b"a\nb\n"
    first.leave()
    assert first._source is not None
    second.leave()
    assert first._source is None
    assert first.segment(0).text == b"a\nb\n"
