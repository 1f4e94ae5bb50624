"""How files are cut into splits.

A strategy is any object with `split(files) -> list[Split]`. `checks.checked_splits` checks the splits of a custom
strategy before they are used.
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
    """Cuts files into splits; an attribute `assignment = "turn"` assigns them to workers in turn, not by size."""

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, each row in exactly one; rows are delivered in this order unless shuffled."""


@runtime_checkable
class GenerateStrategy(Protocol):
    """Makes the shards of one rank itself; `generate(files, num_workers, epoch)` also works."""

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> Sequence[Shard]:
        """The shards of this rank, at most `num_workers`."""


class TargetSizeSplitStrategy:
    """Groups consecutive segments up to a target size (the default strategy).

    A larger segment is a split of its own, and so is a compressed text file. No split is empty, spans two files or
    crosses a pruned segment.

    Args:
        split_bytes: decoded bytes per split, as a number or a string such as `"128MiB"`, the default.
        split_rows: rows per split; overrides `split_bytes`.
    """

    assignment = "lpt"

    def __init__(self, split_bytes: int | str | None = None, split_rows: int | None = None) -> None:
        self.split_bytes = parse_bytes("128MiB" if split_bytes is None else split_bytes, "split_bytes")
        self.split_rows = split_rows

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return _splits(files, self.split_bytes, self.split_rows)


class SizeBalancedSplitStrategy:
    """One split per file (per run of rows if filters pruned segments), assigned to workers largest first."""

    assignment = "lpt"

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return _splits(files, None, None)


class RoundRobinSplitStrategy(SizeBalancedSplitStrategy):
    """One split per file (per run of rows if filters pruned segments), assigned to workers in turn."""

    assignment = "turn"


def make_splits(strategy: SplitStrategy, files: Sequence[DataFile]) -> tuple[Split, ...]:
    """The splits that `strategy` makes of `files`, checked unless the strategy belongs to this package.

    Raises:
        OptionError: a strategy's splits lie outside their files, overlap or leave rows out.
    """
    splits = strategy.split(files)
    if type(strategy) in (TargetSizeSplitStrategy, SizeBalancedSplitStrategy, RoundRobinSplitStrategy):
        return tuple(splits)
    return tuple(checked_splits(splits, files, type(strategy).__name__))


def _splits(files: Sequence[DataFile], split_bytes: int | None, split_rows: int | None) -> list[Split]:
    """Splits of consecutive segments of each file, within the limit: rows if given, else bytes; None means no limit."""
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
    """Half-open runs of segments within `limit`, without gaps; none is empty."""
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
    # Whole segments are known here; finding them by their rows, as `checks` does, would take twice the time.
    first, last = run
    segments = file.layout.segments
    if spans is None:
        return Split(file.info, None, run, sum(segment.size_bytes for segment in segments[first:last]), index)
    size = segments[first].size_bytes
    for place in range(first + 1, last):
        if spans[place][0] < spans[place][1]:  # a segment without plan rows is not read
            size += segments[place].size_bytes
    return Split(file.info, Rows(spans[first][0], spans[last - 1][1]), run, size, index)


def assignment_of(strategy: Any) -> str:
    """How the splits of `strategy` are assigned to workers: `"lpt"` unless it declares `"turn"`."""
    return str(getattr(strategy, "assignment", "lpt"))
