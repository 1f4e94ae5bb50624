"""A terminal for tests: a pseudo-terminal in place of stderr, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

COLUMNS = 110


class Terminal:
    """What was written to a terminal."""

    def __init__(self) -> None:
        self._written = b""

    def read(self, descriptor: int) -> None:
        """Read until the other end is closed."""
        while data := _read(descriptor):
            self._written += data

    @property
    def text(self) -> str:
        return self._written.decode()

    @property
    def frames(self) -> list[str]:
        """Everything that was drawn, one entry for each time a line was drawn."""
        drawn = re.split(r"\r\n|\r|\n|\x1b\[A", self.text)
        return [frame.strip() for frame in drawn if frame.strip()]

    @property
    def screen(self) -> list[str]:
        """The lines of the screen at the end, without trailing spaces."""
        lines, row, column = [""], 0, 0
        for piece in re.findall(r"\x1b\[A|[\r\n]|[^\r\n\x1b]+", self.text):
            if piece == "\x1b[A":
                row -= 1
            elif piece == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif piece == "\r":
                column = 0
            else:
                lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
                column += len(piece)
        return [line.rstrip() for line in lines]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: nobody has the other end open
        return b""


@contextmanager
def stderr_terminal() -> Iterator[Terminal]:
    """Let `sys.stderr` be a terminal within the `with` block; after it, everything written there is known."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    terminal, before = Terminal(), sys.stderr
    reader = Thread(target=terminal.read, args=(ours,))
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as sys.stderr:
            yield terminal
    finally:
        sys.stderr = before
        reader.join()
        os.close(ours)
