"""The forms that columns of lists have in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Padding:
    """The layout of lists that become rectangles, as long as the longest list of the batch.

    Attributes:
        value: what fills shorter lists up.
        multiple: the length is rounded up to a multiple of this.
    """

    value: Any = 0
    multiple: int = 1

    def __str__(self) -> str:
        return f"{self.value}, to multiples of {self.multiple}"
