"""Systematic resampling: equidistant marks on a line of weights; a row is drawn as often as marks fall on its piece.

With n marks on a line of length Q, a row of weight w is drawn floor(n w / Q) or ceil(n w / Q) times, and n w / Q times
on average over the offset of the marks. What a part of the line gets follows from where it begins, so a segment's draws
need neither those of others nor any state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.row_weights.whole_weights import U32
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.seeding import derive_key, window_order

F32: TypeAlias = npt.NDArray[np.float32]

_INT64 = 1 << 62  # products stay below it


@dataclass(frozen=True, slots=True)
class EpochMarks:
    """The marks of an epoch: mark j of 1 to n is at the first whole number S with `n S + offset >= j Q`.

    Attributes:
        number: how many there are (n): the rows of the epoch.
        length: of the line (Q), below 2**63.
        seed: of the loader.
        epoch: the epoch.
    """

    number: int
    length: int
    seed: int
    epoch: int

    @property
    def offset(self) -> int:
        """Below `length`, each as likely as any other over all seeds and epochs."""
        high, low = (derive_key("row weights", self.seed, self.epoch, part) for part in range(2))
        return (high << 64 | low) * self.length >> 128

    def up_to(self, places: list[int]) -> I64:
        """How many marks lie on the line up to each of these places, shape [places]."""
        number, offset, length = self.number, self.offset, self.length
        return np.array([(number * place + offset) // length for place in places], np.int64)

    def between(self, start: int, stop: int) -> I64:
        """The places of the marks on a part of the line, counted from its start: above 0, ascending, int64 [marks]."""
        first, last = self.up_to([start, stop]).tolist()
        most = max(1, _INT64 // self.number)  # marks whose places are computed in 64 bits at a time
        parts = [self._places(begin, min(begin + most, last), start) for begin in range(first, last, most)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _places(self, begin: int, end: int, start: int) -> I64:
        """Those of the marks `begin + 1` to `end`: with Q = a n + b, each is a or a + 1 behind the one before it."""
        least = (begin + 1) * self.length - self.offset - self.number * start
        place, rest = divmod(least + self.number - 1, self.number)
        step, more = divmod(self.length, self.number)
        turns = np.arange(end - begin, dtype=np.int64)
        places: I64 = place + turns * step + (rest + turns * more) // self.number
        return places


@dataclass(frozen=True, slots=True)
class FileDraws:
    """How often the rows of a file are drawn in an epoch; see `RowDraws`.

    Attributes:
        numbers: the weights of its rows, shape [rows].
        firsts: the first row of each of its segments, and the end.
        starts: where each of its segments begins on the line, and the end.
        segment: the number of its first segment, of those of all files.
        marks: of the epoch.
    """

    numbers: U32
    firsts: tuple[int, ...]
    starts: tuple[int, ...]
    segment: int
    marks: EpochMarks

    def count(self, place: int) -> int:
        """See `RowDraws`."""
        return self.firsts[place + 1] - self.firsts[place]

    def rows(self, place: int) -> I64:
        """See `RowDraws`."""
        numbers = self._numbers(place)
        # In file order, every second mark might fall on a row of the same label.
        key = derive_key("row weights in order", self.marks.seed, self.marks.epoch, self.segment + place)
        order = window_order(len(numbers), key)
        ends = np.cumsum(numbers[order], dtype=np.int64)
        drawn = np.searchsorted(ends, self.marks.between(*self.starts[place : place + 2]))
        counts = np.bincount(order[drawn], minlength=len(numbers))
        return np.repeat(np.arange(len(numbers)), counts)

    def shares(self, place: int) -> F32:
        """See `RowDraws`."""
        return (self._numbers(place) * (self.marks.number / self.marks.length)).astype(np.float32)

    def _numbers(self, place: int) -> U32:
        return self.numbers[self.firsts[place] : self.firsts[place + 1]]
