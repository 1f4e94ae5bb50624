"""Rejects lengths of strings, lists and maps that no stripe can have: negative ones, and sums beyond 2 GiB.

pyarrow's ORC library allocates the sum of a column's lengths unchecked, and then writes there: damaged lengths crash
the process. Lengths are stored in runs of up to 512, whose heads limit their sum, so most runs need not be decoded.
Not checked: streams compressed with LZ4 or LZO, for which pyarrow must know the size, and the encodings of Hive 0.11.
The encodings are documented at https://orc.apache.org/specification/ORCv1/.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.formats.orc.footer import numbers_of, packed_numbers, parts_of, varint_at

_MOST = 2**31 - 1  # of an array that pyarrow makes of a stripe
_WITH_LENGTHS = {7, 8, 10, 11, 16, 17}  # types: string, binary, list, map, varchar, char
_LENGTH = 2  # a kind of stream
_VERSION_2 = (2, 3)  # encodings
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)  # bits


class LengthCheck:
    """Checks the stripes of an open file.

    Args:
        source: the file.
        tail: pyarrow's serialised file tail.

    Attributes:
        columns: the numbers of the columns with lengths in each top-level column.
    """

    def __init__(self, source: pa.NativeFile, tail: bytes) -> None:
        self._source = source
        postscript = numbers_of(b"".join(parts_of(tail, 1)[1]))
        self._decompress = _CODECS.get(postscript.get(2, 0))
        self._block = postscript.get(3, 2**18)
        footer = parts_of(b"".join(parts_of(tail, 2)[2]), 3, 4)
        self._stripes, types = footer[3], footer[4]
        root = parts_of(types[0], 2, 3)
        starts = [*(number for data in root[2] for number in packed_numbers(data)), len(types)]
        variable = [number for number, data in enumerate(types) if numbers_of(data).get(1, 0) in _WITH_LENGTHS]
        self.columns = {
            name.decode(): {number for number in variable if start <= number < stop}
            for name, (start, stop) in zip(root[3], pairwise(starts), strict=False)
        }
        self._streams: dict[int, list[tuple[int, int, int]]] = {}  # of the last stripe

    def check(self, stripe: int, names: Sequence[str]) -> None:
        """Check the lengths of these top-level columns in a stripe.

        Raises:
            ValueError: they cannot be true; the message names the column.
        """
        for name in names if self._decompress else ():
            columns = self.columns.get(name)
            if columns and not all(map(possible, self.encoded(stripe, columns))):
                raise ValueError(f"column {name!r} has lengths that are negative, cut off, or over {_MOST} in all.")

    def encoded(self, stripe: int, columns: Container[int]) -> Iterator[bytes]:
        """The encoded lengths of these columns in a stripe."""
        return (self._read(offset, size) for column, offset, size in self._of_stripe(stripe) if column in columns)

    def _of_stripe(self, stripe: int) -> list[tuple[int, int, int]]:
        """(column, offset, bytes) of each stream of lengths."""
        if stripe not in self._streams:
            numbers = numbers_of(self._stripes[stripe])
            offset = numbers.get(1, 0)
            end = offset + numbers.get(2, 0) + numbers.get(3, 0)
            self._streams = {stripe: list(_streams(self._read(end, numbers.get(4, 0)), offset))}
        return self._streams[stripe]

    def _read(self, offset: int, size: int) -> bytes:
        """These stored bytes of the file, decompressed."""
        self._source.seek(offset)
        stored: bytes = self._source.read(size)
        assert self._decompress is not None
        return self._decompress(stored, self._block)


def _streams(footer: bytes, offset: int) -> Iterator[tuple[int, int, int]]:
    """(column, offset, bytes) of each stream of lengths, from a stripe's footer."""
    parts = parts_of(footer, 1, 2)
    encodings = [numbers_of(data).get(1, 0) for data in parts[2]]
    for data in parts[1]:
        stream = numbers_of(data)
        column, size = stream.get(2, 0), stream.get(3, 0)
        if stream.get(1, 0) == _LENGTH and column < len(encodings) and encodings[column] in _VERSION_2:
            yield column, offset, size
        offset += size


def possible(lengths: bytes) -> bool:
    """Whether these encoded lengths are whole and not negative, and their sum fits an array."""
    try:
        return total(lengths, exact=False) <= _MOST or total(lengths, exact=True) <= _MOST
    except ValueError:  # a run is cut off, or has a negative number
        return False


def total(data: bytes, exact: bool) -> int:
    """The sum of these encoded lengths, or else an upper bound; bytes that are missing at the end count as zeros.

    Raises:
        ValueError: a run has a negative length, or its head is cut off.
    """
    at = result = 0
    while at + 1 < len(data):
        head = data[at]
        if head >> 6 == 0:  # one number, repeated
            stop = at + 2 + (head >> 3 & 7)
            run = int.from_bytes(data[at + 1 : stop], "big") * ((head & 7) + 3)
        else:
            count = ((head & 1) << 8 | data[at + 1]) + 1
            run, stop = _RUNS[head >> 6](data.ljust(at + 4, b"\0"), at, count, exact)
        result, at = result + run, stop
    return result


def _direct(data: bytes, at: int, count: int, exact: bool) -> tuple[int, int]:
    """The sum of a run of numbers of the same width, or an upper bound; and the offset after it."""
    width = _WIDTHS[data[at] >> 1 & 31]
    numbers, stop = _packed(data, at + 2, count, width, exact)
    return sum(numbers) if exact else count << width, stop


def _patched(data: bytes, at: int, count: int, exact: bool) -> tuple[int, int]:
    """The same, of a run whose largest numbers have their upper bits in a list after it."""
    width, patch = _WIDTHS[data[at] >> 1 & 31], _WIDTHS[data[at + 2] & 31]
    gap, patches = (data[at + 3] >> 5) + 1, data[at + 3] & 31
    start = at + 5 + (data[at + 2] >> 5)
    base = int.from_bytes(data[at + 4 : start], "big")
    if base >> 8 * (start - at - 4) - 1:
        raise ValueError("a negative length")
    low, stop = _packed(data, start, count, width, exact)
    high, stop = _packed(data, stop, patches, next((bits for bits in _WIDTHS if bits >= gap + patch), 64), exact)
    if not exact:
        return base * count + (count << width) + (patches << patch + width), stop
    return base * count + sum(low) + (sum(number & (1 << patch) - 1 for number in high) << width), stop


def _delta(data: bytes, at: int, count: int, exact: bool) -> tuple[int, int]:
    """The same, of a run of numbers that grow, or that shrink."""
    base, stop = varint_at(data, at + 2)
    coded, stop = varint_at(data, stop)
    step, code, rest = coded >> 1 ^ -(coded & 1), data[at] >> 1 & 31, max(count - 2, 0)
    width = _WIDTHS[code] if code else 0
    if not exact and step >= 0:
        most = base + step + (rest << width if code else rest * step)
        return count * most, stop + (rest * width + 7) // 8
    steps, stop = _packed(data, stop, rest, width, True) if code else ([abs(step)] * rest, stop)
    changes = [step, *(steps if step >= 0 else [-change for change in steps])]
    numbers = list(accumulate(changes[: count - 1], initial=base))
    if min(numbers) < 0:
        raise ValueError("a negative length")
    return sum(numbers), stop


_RUNS = {1: _direct, 2: _patched, 3: _delta}


def _packed(data: bytes, at: int, count: int, width: int, read: bool) -> tuple[list[int], int]:
    """Numbers of `width` bits each, if they are to be read; and the offset after them."""
    stop = at + (count * width + 7) // 8
    if not read:
        return [], stop
    content = np.frombuffer(data[at:stop].ljust(stop - at, b"\0"), np.uint8)
    bits = np.unpackbits(content)[: count * width].reshape(count, width).astype(np.uint64)
    numbers: list[int] = (bits @ (np.uint64(1) << np.arange(width, dtype=np.uint64)[::-1])).tolist()
    return numbers, stop


# ------------------------------------------------------------------------------------------------------- compression


def _chunks(stored: bytes, decompressed: Callable[[bytes], bytes]) -> bytes:
    """The content of chunks, each after its length and whether it is stored as it is."""
    parts, at = [], 0
    while at + 3 <= len(stored):
        head = int.from_bytes(stored[at : at + 3], "little")
        at, chunk = at + 3 + (head >> 1), stored[at + 3 : at + 3 + (head >> 1)]
        parts.append(chunk if head & 1 else decompressed(chunk))
    return b"".join(parts)


def _inflated(stored: bytes, block: int) -> bytes:
    return _chunks(stored, lambda chunk: zlib.decompressobj(-15).decompress(chunk, block))


def _unsnapped(stored: bytes, block: int) -> bytes:
    def one(chunk: bytes) -> bytes:
        content: bytes = pa.decompress(chunk, min(varint_at(chunk, 0)[0], block), "snappy", asbytes=True)
        return content

    return _chunks(stored, one)


def _unzstd(stored: bytes, block: int) -> bytes:
    def one(chunk: bytes) -> bytes:
        content: bytes = pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read(block)
        return content

    return _chunks(stored, one)


_CODECS: dict[int, Callable[[bytes, int], bytes]] = {
    0: lambda stored, _: stored,
    1: _inflated,
    2: _unsnapped,
    5: _unzstd,
}
