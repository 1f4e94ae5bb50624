"""How files are cut into splits.

A strategy is any object with `split(files) -> list[Split]`. The result of a user's strategy passes through
`checks.checked_splits` before it is planned with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch_dataloader_utils.errors import CountsRequiredError
from torch_dataloader_utils.model import DataFile, DataFileInfo, Rows, Shard, Split
from torch_dataloader_utils.planning.checks import checked_splits
from torch_dataloader_utils.planning.spans import plan_spans
from torch_dataloader_utils.units import parse_bytes


@runtime_checkable
class SplitStrategy(Protocol):
    """Cuts files into splits; an attribute `assignment = "turn"` gives them to workers in turn instead of by size."""

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files: every row in exactly one; their order is the order without shuffling."""


@runtime_checkable
class GenerateStrategy(Protocol):
    """Makes the shards of one rank itself; `generate(files, num_workers, epoch)` is accepted, too."""

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> Sequence[Shard]:
        """The shards of this rank, at most `num_workers`."""


class TargetSizeSplitStrategy:
    """Adds consecutive segments while the total stays within a size (the default).

    A larger segment is a separate split, and so is a compressed text. No split is empty, spans two files or crosses a
    pruned segment.

    Args:
        split_bytes: decoded bytes of a split, as a number or a text such as `"128MiB"`; None means that size.
        split_rows: rows of a split; takes precedence if given.
    """

    assignment = "lpt"

    def __init__(self, split_bytes: int | str | None = None, split_rows: int | None = None) -> None:
        self.split_bytes = parse_bytes("128MiB" if split_bytes is None else split_bytes, "split_bytes")
        self.split_rows = split_rows

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return _splits(files, self.split_bytes, self.split_rows)


class SizeBalancedSplitStrategy:
    """One split per file (per run of rows if filters pruned segments), given to workers largest first."""

    assignment = "lpt"

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return _splits(files, None, None)


class RoundRobinSplitStrategy(SizeBalancedSplitStrategy):
    """One split per file (per run of rows if filters pruned segments), given to workers in turn."""

    assignment = "turn"


def make_splits(strategy: SplitStrategy, files: Sequence[DataFile]) -> tuple[Split, ...]:
    """The splits that `strategy` makes of `files`, checked unless the strategy is one of ours.

    Raises:
        OptionError: a strategy's splits lie outside their files, overlap or leave rows out.
    """
    splits = strategy.split(files)
    if type(strategy) in (TargetSizeSplitStrategy, SizeBalancedSplitStrategy, RoundRobinSplitStrategy):
        return tuple(splits)
    return tuple(checked_splits(splits, files, type(strategy).__name__))


def _splits(files: Sequence[DataFile], split_bytes: int | None, split_rows: int | None) -> list[Split]:
    """Segments of each file added up while they stay within the limit (rows if given, else bytes; None: no limit)."""
    splits: list[Split] = []
    for file in files:
        spans = plan_spans(file.layout)
        if split_rows is not None:
            if spans is None:
                raise CountsRequiredError(
                    f"split_rows={split_rows}: the row count of {file.info.path!r} is unknown: use count_rows=True, or "
                    "split_bytes instead."
                )
            sizes = [stop - start for start, stop in spans]
        else:
            sizes = [segment.size_bytes for segment in file.layout.segments]
        limit = None if file.layout.sequential else split_rows if split_rows is not None else split_bytes
        for run in _runs(sizes, spans, limit):
            splits.append(_split(file, spans, run, len(splits)))
    return splits


def _runs(sizes: list[int], spans: list[tuple[int, int]] | None, limit: int | None) -> list[tuple[int, int]]:
    """Half-open runs of segments: within `limit`, without gaps, none empty."""
    runs: list[tuple[int, int]] = []
    total, end = 0, None
    for place, size in enumerate(sizes):
        if spans is not None:
            start, stop = spans[place]
            if start == stop:
                continue
            gap, end = start != end, stop
        else:
            gap = False
        if not runs or gap or (limit is not None and total + size > limit):
            runs.append((place, place + 1))
            total = size
        else:
            runs[-1] = (runs[-1][0], place + 1)
            total += size
    return runs


def _split(file: DataFile, spans: list[tuple[int, int]] | None, run: tuple[int, int], index: int) -> Split:
    # Whole segments: finding them by their rows, as `checks` does for a user's strategy, takes twice the time.
    first, last = run
    segments = file.layout.segments
    if spans is None:
        return Split(file.info, None, run, sum(segment.size_bytes for segment in segments[first:last]), index)
    size = segments[first].size_bytes
    for place in range(first + 1, last):
        if spans[place][0] < spans[place][1]:  # a segment without a plan row is not read
            size += segments[place].size_bytes
    return Split(file.info, Rows(spans[first][0], spans[last - 1][1]), run, size, index)


def assignment_of(strategy: Any) -> str:
    """How the splits of `strategy` are given to workers: `"lpt"` unless it declares `"turn"`."""
    return str(getattr(strategy, "assignment", "lpt"))
