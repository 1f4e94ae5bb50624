"""How files are cut into splits.

A strategy is any object with `split(files) -> list[Split]`. `checks.checked_splits` checks the splits of a custom
strategy before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch_dataloader_utils.model import DataFile, DataFileInfo, Shard, Split
from torch_dataloader_utils.planning.checks import checked_splits
from torch_dataloader_utils.planning.cutting import cut_segments
from torch_dataloader_utils.planning.splits import Splits
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
        return list(self.cut(files))

    def cut(self, files: Sequence[DataFile]) -> Splits:
        """The same splits, in columns."""
        return cut_segments(files, self.split_bytes, self.split_rows)


class SizeBalancedSplitStrategy:
    """One split per file (per run of rows if filters pruned segments), assigned to workers largest first."""

    assignment = "lpt"

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return list(self.cut(files))

    def cut(self, files: Sequence[DataFile]) -> Splits:
        """The same splits, in columns."""
        return cut_segments(files, None, None)


class RoundRobinSplitStrategy(SizeBalancedSplitStrategy):
    """One split per file (per run of rows if filters pruned segments), assigned to workers in turn."""

    assignment = "turn"


def make_splits(strategy: SplitStrategy, files: Sequence[DataFile]) -> Splits:
    """The splits that `strategy` makes of `files`, checked unless the strategy belongs to this package.

    Raises:
        OptionError: a strategy's splits lie outside their files, overlap or leave rows out.
    """
    of_package = TargetSizeSplitStrategy, SizeBalancedSplitStrategy, RoundRobinSplitStrategy
    if isinstance(strategy, of_package) and type(strategy) in of_package:  # a subclass may override `split`
        return strategy.cut(files)
    return Splits.of(checked_splits(strategy.split(files), files, type(strategy).__name__), files)


def assignment_of(strategy: Any) -> str:
    """How the splits of `strategy` are assigned to workers: `"lpt"` unless it declares `"turn"`."""
    return str(getattr(strategy, "assignment", "lpt"))
