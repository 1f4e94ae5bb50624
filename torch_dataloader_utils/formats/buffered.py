"""Buffered reads of a file: one request serves many small reads."""

from __future__ import annotations

import pyarrow as pa


class BufferedFile:
    """An open file that reads nearby parts together.

    Attributes:
        size: the file's size in bytes.
    """

    def __init__(self, source: pa.NativeFile, least: int) -> None:
        """Reads `source`, at least `least` bytes at a time."""
        self.size: int = source.size()
        self._source = source
        self._least = least
        self._start, self._data = 0, b""

    def at(self, offset: int, size: int) -> bytes:
        """The bytes `[offset, offset + size)`.

        Raises:
            ValueError: the file ends before `offset + size`.
        """
        if offset < self._start or offset + size > self._start + len(self._data):
            self._start, self._data = offset, self._source.read_at(max(size, self._least), offset)
        content = self._data[offset - self._start : offset - self._start + size]
        if len(content) < size:
            raise ValueError(f"it ends before byte {offset + size}.")
        return content
