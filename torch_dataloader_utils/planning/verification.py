"""Checks that the plans of all ranks deliver every row exactly once, counted row by row. Reads no data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Rows, Split
from torch_dataloader_utils.planning.row_ranges import row_ranges
from torch_dataloader_utils.planning.splits import I64, plan_spans

_FAULTS_OF_A_FILE = 1000  # listed; all are counted

Part = tuple[Split, Rows | None]  # rows of a split; None: all of its segments, whose rows are not known


@dataclass(frozen=True, slots=True)
class PlanFault:
    """Consecutive rows of one file that are not delivered exactly once.

    Attributes:
        path: the file.
        start: the first row (or segment, if the row counts of the file are unknown).
        stop: the end, exclusive.
        times: how often they are delivered: 0 if they are missing.
        segments: the numbers of the segments that hold them.
        ranks: the ranks that deliver them.
    """

    path: str
    start: int
    stop: int
    times: int
    segments: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Verified:
    """What the plans of all ranks deliver together, counted in `unit`s.

    Attributes:
        unit: "row", or "segment" if the row count of any file is unknown.
        expected: those that there are.
        delivered: those that ranks deliver, each as often as it is, without padding.
        left_out: those that the options leave out.
        padding: repeats that the options add.
        missing: those that no rank delivers, and no option leaves out.
        repeated: how many are delivered beyond the first time.
        faults: where they are.
    """

    unit: str
    expected: int
    delivered: int
    left_out: int
    padding: int
    missing: int
    repeated: int
    faults: tuple[PlanFault, ...]


def verified(
    files: Sequence[DataFile], ranks: Mapping[int, Iterable[Piece]], left_out: Iterable[Piece] = ()
) -> Verified:
    """The union of the ranks' pieces, compared with the rows of the files.

    Args:
        files: all files, with the segments that an epoch reads.
        ranks: the pieces that each rank delivers, with padding.
        left_out: the rows that the options leave out (`even="drop"`, `last_batch="drop"`).
    """
    pieces = {rank: list(given) for rank, given in ranks.items()}
    real = {rank: _by_file(piece for piece in given if not piece.pad) for rank, given in pieces.items()}
    out = _by_file(left_out)
    known = all(file.layout.counted or file.layout.known for file in files)
    audits = [
        _Audit(file, {rank: of.get(file.info.key, []) for rank, of in real.items()}, out.get(file.info.key, []), known)
        for file in files
    ]
    totals = ("expected", "delivered", "left_out", "missing", "repeated")
    return Verified(
        unit="row" if known else "segment",
        padding=sum(len(piece) for given in pieces.values() for piece in given if piece.pad),
        faults=tuple(fault for audit in audits for fault in islice(audit.faults(), _FAULTS_OF_A_FILE)),
        **{name: sum(getattr(audit, name) for audit in audits) for name in totals},
    )


def _by_file(pieces: Iterable[Piece]) -> dict[FileKey, list[Part]]:
    found: dict[FileKey, list[Part]] = {}
    for piece in pieces:
        for split, rows in _parts(piece):
            found.setdefault(split.file.key, []).append((split, rows))
    return found


def _parts(piece: Piece) -> Iterator[Part]:
    """The rows of a piece; those of a part of a window, which its permutation scatters over splits, run by run."""
    source = piece.source
    if isinstance(source, Split):
        yield source, piece.rows
    elif piece.rows is None or len(piece.rows) == source.row_count:
        for part in source.pieces:
            yield from _parts(part)
    else:
        splits = {split.file.path: split for part in source.pieces for split, _ in _parts(part)}
        for run in row_ranges([piece]):
            yield splits[run.path], Rows(run.start, run.stop)


@dataclass(frozen=True)
class _Audit:
    """The rows of one file, compared with those that the ranks deliver. With `known` False, its segments."""

    file: DataFile
    ranks: Mapping[int, Sequence[Part]]
    out: Sequence[Part]
    known: bool

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The rows of each segment, half-open."""
        spans = plan_spans(self.file.layout) if self.known else None
        return [(place, place + 1) for place in range(len(self.file.layout.segments))] if spans is None else spans

    @cached_property
    def wanted(self) -> I64:
        """1 for each row that there is, 0 for those that a filter ruled out, shape [rows]."""
        wanted = np.zeros(self.spans[-1][1] if self.spans else 0, np.int64)
        for start, stop in self.spans:
            wanted[start:stop] = 1
        return wanted

    @cached_property
    def times(self) -> I64:
        """How often each row is delivered, shape [rows]."""
        return self._counted([part for given in self.ranks.values() for part in given])

    @cached_property
    def dropped(self) -> I64:
        """How often each row is left out, shape [rows]."""
        return self._counted(self.out)

    @property
    def expected(self) -> int:
        """The number of rows."""
        return int(self.wanted.sum())

    @property
    def delivered(self) -> int:
        """The number of rows delivered."""
        return int(self.times.sum())

    @property
    def left_out(self) -> int:
        """The number of rows left out."""
        return int(self.dropped.sum())

    @property
    def missing(self) -> int:
        """The number of rows neither delivered nor left out."""
        return int((self.times + self.dropped < self.wanted).sum())

    @property
    def repeated(self) -> int:
        """The number of times that rows are delivered beyond once."""
        return int(np.maximum(self.times + self.dropped - self.wanted, 0).sum())

    def faults(self) -> Iterator[PlanFault]:
        """The runs of rows that are not delivered exactly once, each with one count."""
        times = self.times + self.dropped
        marked = np.where(times == self.wanted, -1, times)
        edges = np.flatnonzero(np.diff(marked, prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(edges):
            if marked[start] >= 0:
                yield self._fault(start, stop)

    def _fault(self, start: int, stop: int) -> PlanFault:
        touched = [place for place, (first, last) in enumerate(self.spans) if first < stop and last > start]
        ranks = [rank for rank, given in self.ranks.items() if any(self._touches(p, start, stop) for p in given)]
        numbers = tuple(self.file.layout.segments[place].number for place in touched)
        return PlanFault(self.file.info.path, start, stop, int(self.times[start]), numbers, tuple(ranks))

    def _touches(self, part: Part, start: int, stop: int) -> bool:
        places = _places(part[0], part[1] if self.known else None)
        if isinstance(places, slice):
            return places.start < stop and (places.stop is None or places.stop > start)
        return bool(((places >= start) & (places < stop)).any())

    def _counted(self, parts: Iterable[Part]) -> I64:
        counts = np.zeros(len(self.wanted), np.int64)
        for split, rows in parts:
            counts[_places(split, rows if self.known else None)] += 1
        return counts


def _places(split: Split, rows: Rows | None) -> slice | npt.NDArray[np.int64]:
    if rows is None:
        return slice(*(split.segments or (0, None)))
    return slice(rows.start, rows.stop) if rows.contiguous else rows.numbers()
