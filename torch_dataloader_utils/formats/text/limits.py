"""The limit on the bytes of a row: finds the first row that exceeds it, without parsing the text.

Only texts that are larger than the limit are searched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.redaction import printable

MOST_LINE_BYTES = 2**28  # by default
_WINDOW = 2**20  # bytes
_QUOTE, _ESCAPE, _COMMA = b'"\\,'
_MARKS = np.zeros(256, np.bool_)
_MARKS[list(b'"[]{},')] = True
_LEVELS = np.zeros(256, np.int64)
_LEVELS[list(b"[{")], _LEVELS[list(b"]}")] = 1, -1
_BEFORE = re.compile(rb"[ \t\r\n,\[]*")


class LongLine(Exception):
    """A row exceeds the limit; it starts at byte `offset` of the text."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the row at byte {offset} is too long")
        self.offset = offset


def long_line(path: str, where: str, most: int) -> FileReadError:
    """The error for a row that exceeds the limit."""
    return FileReadError(
        f"{printable(path)}, {where}: longer than max_line_bytes={most}. If that is right, set a larger "
        "format_options={'max_line_bytes': ...}; otherwise rows are not separated by newlines, or a quote or bracket "
        "is missing."
    )


def first_long_row(kind: str, text: bytes | pa.Buffer, most: int) -> int | None:
    """The offset of the first row that exceeds `most` bytes, or None.

    Args:
        kind: as in `TextPlan`; rows of CSV with newlines in values ("rows") are left to the parser.
        text: whole rows.
        most: the limit.
    """
    if len(text) <= most or kind == "rows":
        return None
    return first_long_line(text, most) if kind == "lines" else first_long_object(text, most, kind == "array")


def first_long_line(text: bytes | pa.Buffer, most: int) -> int | None:
    """The offset of the first line that exceeds `most` bytes, or None."""
    if len(text) <= most:
        return None
    starts = [0]
    for at in range(0, len(text), _WINDOW):  # windows, for their arrays of positions
        window = np.frombuffer(text, np.uint8, min(_WINDOW, len(text) - at), at)
        ends = np.concatenate([starts[-1:], np.flatnonzero(window == ord("\n")) + at + 1])
        long = np.flatnonzero(np.diff(ends) > most + 1)
        if len(long):
            return int(ends[long[0]])
        starts = [int(ends[-1])]
    return starts[0] if len(text) - starts[0] > most else None


def first_long_object(text: bytes | pa.Buffer, most: int, array: bool) -> int | None:
    """The offset of the first element of a JSON array, or else document, that exceeds `most` bytes, or None."""
    content, state, last = memoryview(text), _JsonState(), 0
    for at in range(0, len(text), _WINDOW):
        window = np.frombuffer(text, np.uint8, min(_WINDOW, len(text) - at), at)
        ends = np.concatenate([[last], state.ends(window, array) + at, [at + len(window)]])
        for number in np.flatnonzero(np.diff(ends) > most):
            before = _BEFORE.match(content, int(ends[number]))
            begin = before.end() if before else 0
            if len(bytes(content[begin : ends[number + 1]]).rstrip(b" \t\r\n")) > most:
                return begin
        last = int(ends[-2])
    return None


@dataclass(slots=True)
class _JsonState:
    """Where the windows of a JSON text read so far end: within a string, after a backslash, at which level."""

    quoted: bool = False
    escaped: bool = False
    level: int = 0

    def ends(self, window: npt.NDArray[np.uint8], array: bool) -> npt.NDArray[np.int64]:
        """The offsets in the next window at which elements of an array, or else documents, end."""
        places = np.flatnonzero(_MARKS[window])
        places = places[~self._escapes(window)[places]]
        marks = window[places]
        quoted = np.logical_xor.accumulate(np.concatenate([[self.quoted], marks == _QUOTE]))
        self.quoted = bool(quoted[-1])
        places, marks = places[~quoted[1:]], marks[~quoted[1:]]
        levels = self.level + np.cumsum(_LEVELS[marks])
        self.level = int(levels[-1]) if len(levels) else self.level
        closed = (levels == 0) & (_LEVELS[marks] < 0)
        if array:
            closed |= (levels == 1) & (marks == _COMMA)
        ends: npt.NDArray[np.int64] = places[closed] + (0 if array else 1)
        return ends

    def _escapes(self, window: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Whether a backslash escapes each byte of the next window."""
        slashes = window == _ESCAPE
        escaped = np.zeros(len(window), np.bool_)
        if self.escaped or slashes.any():
            numbers = np.arange(len(window))
            plain = np.maximum.accumulate(np.where(slashes, -1 - self.escaped, numbers))
            odd = slashes & ((numbers - plain) % 2 == 1)
            escaped[0], escaped[1:] = self.escaped, odd[:-1]
            self.escaped = bool(odd[-1])
        return escaped
