"""All splits of a source, stored in columns: a `Split` is created only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileLayout, Rows, Split
from torch_dataloader_utils.rows import I64 as I64

# The plan rows of each segment of a file.


def plan_spans(layout: FileLayout) -> list[tuple[int, int]] | None:
    """The plan rows `[start, stop)` of each segment, or None if known only after reading.

    Live rows are contiguous; physical rows have gaps where filters pruned a segment.
    """
    if layout.counted:
        spans, at = [], 0
        for segment in layout.segments:
            spans.append((at, at + (segment.live_rows or 0)))
            at = spans[-1][1]
        return spans
    spans = []
    for segment in layout.segments:
        if segment.rows is None:
            return None
        spans.append((segment.first_row, segment.first_row + segment.rows))
    return spans


I32: TypeAlias = npt.NDArray[np.int32]

UNKNOWN = -1  # in `first`, `last`, `start` and `stop`: no value
_CHUNK = 1 << 13  # splits created at a time: their columns become Python lists


@dataclass(frozen=True, eq=False, repr=False)
class Splits(Sequence[Split]):
    """The splits in file order, 36 bytes each; a split's place is its `index`.

    Attributes:
        files: the files that the splits are cut from, with others or without.
        file: the file of each split (its index in `files`), shape [splits].
        first: its first segment, shape [splits].
        last: the end of its segments, exclusive, shape [splits].
        start: its first plan row, shape [splits].
        stop: the end of its plan rows, exclusive, shape [splits].
        sizes: its estimated decoded bytes, shape [splits].
    """

    files: Sequence[DataFile]
    file: I32
    first: I32
    last: I32
    start: I64
    stop: I64
    sizes: I64

    @classmethod
    def of(cls, splits: Sequence[Split], files: Sequence[DataFile]) -> Splits:
        """These splits of these files, in columns, numbered in order."""
        if isinstance(splits, Splits):
            return splits
        places = {file.info.key: place for place, file in enumerate(files)}
        nothing = (UNKNOWN, UNKNOWN)
        values = [
            (places[split.file.key], *(split.segments or nothing), *(_ends(split) or nothing), split.size_bytes)
            for split in splits
        ]
        file, first, last, start, stop, sizes = np.array(values, dtype=np.int64).reshape(-1, 6).T
        narrow = np.int32
        return cls(files, file.astype(narrow), first.astype(narrow), last.astype(narrow), start, stop, sizes)

    @classmethod
    def joined(cls, parts: Sequence[Splits]) -> Splits:
        """The splits of all parts, one part after another: at least one."""
        shifts = np.cumsum([0, *(len(part.files) for part in parts)])
        file = [part.file + np.int32(shift) for part, shift in zip(parts, shifts, strict=False)]
        columns = zip(*((part.first, part.last, part.start, part.stop, part.sizes) for part in parts), strict=True)
        files = tuple(file for part in parts for file in part.files)
        return cls(files, np.concatenate(file), *map(np.concatenate, columns))

    def __len__(self) -> int:
        return len(self.file)

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...

    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        if isinstance(index, slice):
            return list(self.at(np.arange(*index.indices(len(self)))))
        return next(self.at(np.array([range(len(self))[index]])))

    def __iter__(self) -> Iterator[Split]:
        return self.at(np.arange(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} splits of {len(self.files):,} files>"

    def at(self, numbers: I64) -> Iterator[Split]:
        """The splits with these numbers, shape [any], created one after another."""
        columns = (self.file, self.first, self.last, self.start, self.stop, self.sizes)
        for at in range(0, len(numbers), _CHUNK):
            some = numbers[at : at + _CHUNK]
            values = zip(*(column[some].tolist() for column in columns), some.tolist(), strict=True)
            for file, first, last, start, stop, size, number in values:
                rows = None if start == UNKNOWN else Rows(start, stop)
                segments = None if first == UNKNOWN else (first, last)
                yield Split(self.files[file].info, rows, segments, size, number)

    def every(self, step: int, first: int) -> Splits:
        """Every so many of the splits, from number `first` on."""
        some = slice(first, None, step)
        rows = self.start[some], self.stop[some]
        return Splits(self.files, self.file[some], self.first[some], self.last[some], *rows, self.sizes[some])

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Whether the number of plan rows of each split is known, shape [splits]."""
        counted: npt.NDArray[np.bool_] = self.start != UNKNOWN
        return counted

    @cached_property
    def uncounted(self) -> Split | None:
        """The first split whose row count is known only after reading; None if all are known before."""
        return None if self.counted.all() else self[int(np.argmin(self.counted))]

    @property
    def rows(self) -> int | None:
        """The number of plan rows of all splits; None if known only after reading."""
        return None if self.uncounted is not None else int((self.stop - self.start).sum())

    @cached_property
    def turns(self) -> I64:
        """The number of the partition of each split, shape [splits]."""
        return np.array([file.info.turn for file in self.files], dtype=np.int64)[self.file]

    def files_of(self, numbers: I64) -> Iterator[DataFile]:
        """The files of the splits with these numbers, shape [any], each once."""
        return (self.files[place] for place in distinct(self.file[numbers]).tolist())

    @property
    def of_each_file(self) -> I64:
        """The number of splits of each file, shape [files]."""
        return np.bincount(self.file, minlength=len(self.files))


def _ends(split: Split) -> tuple[int, int] | None:
    rows = split.row_range
    return None if rows is None else (rows.start, rows.stop)


def distinct(numbers: npt.NDArray[np.int32] | I64) -> I64:
    """These small natural numbers, each once, in ascending order; `np.unique` would import masked arrays (6 ms)."""
    seen = np.zeros(numbers.max(initial=-1) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen)
