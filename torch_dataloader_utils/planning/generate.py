"""Calls strategies that make a rank's shards themselves (`generate`)."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.model import DataFile, DataFileInfo, Piece, Shard, Split
from torch_dataloader_utils.planning.even import end_with, total_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces, real_pieces
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.splits import plan_spans
from torch_dataloader_utils.planning.strategies import SplitChecker


def call_generate(
    strategy: Any, files: Sequence[DataFile], num_workers: int, epoch: int, num_ranks: int, rank: int
) -> tuple[list[Shard], bool]:
    """The shards that `strategy.generate` makes for this rank, and whether every rank gets all data.

    A method that takes neither `num_ranks` nor `rank` is called with `(files, num_workers, epoch)`. Every rank then
    delivers all rows, so the caller should warn.

    Args:
        strategy: an object with `generate`.
        files: the files; the strategy gets their `DataFileInfo`.
        num_workers: I/O workers of the rank; the strategy may return at most this many shards (0 counts as 1).
        epoch: the epoch.
        num_ranks: the number of ranks.
        rank: the global rank.

    Raises:
        OptionError: `generate` does not accept these arguments, or returned too many shards or something else.
    """
    workers = max(num_workers, 1)
    seen = [_as_seen(file) for file in files]
    name = f"{type(strategy).__name__}.generate"
    signature = inspect.signature(strategy.generate)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((seen, workers, epoch), {"num_ranks": num_ranks, "rank": rank}),
        ((seen, workers, epoch, num_ranks, rank), {}),
        ((seen, workers, epoch), {}),
    ]
    fitting = [i for i, (args, keywords) in enumerate(calls) if _binds(signature, args, keywords)]
    if not fitting:
        raise OptionError(
            f"{name}{signature}: expected generate(files, num_workers, epoch, num_ranks, rank) "
            "or generate(files, num_workers, epoch)."
        )
    args, keywords = calls[fitting[0]]
    shards = list(strategy.generate(*args, **keywords))
    if not all(isinstance(shard, Shard) for shard in shards):
        raise OptionError(
            f"{name} returned {[type(shard).__name__ for shard in shards][:3]}: expected a list of Shard."
        )
    if len(shards) > workers:
        raise OptionError(
            f"{name} returned {len(shards)} shards for num_workers={workers}: expected at most {workers}."
        )
    return shards, fitting[0] == 2 and num_ranks > 1


def generated_plan(
    shards: Sequence[Shard],
    files: Sequence[DataFile],
    options: PlanOptions,
    epoch: int,
    rank: int,
    exact: bool,
    order: int = 0,
) -> RankPlan:
    """The plan of a rank whose shards a strategy made: delivered as given, with `last_batch` applied per worker.

    Args:
        shards: the shards of this rank; workers without a shard are idle.
        files: the files.
        options: the plan's options; `sharding` is ignored.
        epoch: the epoch.
        rank: the global rank.
        exact: whether every planned row will be delivered.
        order: of its pieces, which tells laps apart.

    Raises:
        OptionError: rows lie outside their files or twice on this rank.
    """
    checker = SplitChecker(files, "generate")
    located = [[part for split in shard.splits for part in checker.located(split)] for shard in shards]
    checker.check_disjoint((split for splits in located for split in splits), complete=False)
    pieces = _numbered(located, order)
    pieces += [[] for _ in range(options.num_shards - len(shards))]
    layouts = {file.info.key: file.layout for file in files}
    if not exact or any(piece.rows is None for shard in pieces for piece in shard):
        return RankPlan(epoch, rank, tuple(map(tuple, pieces)), None, None, layouts, options.batch_size)
    ended = [end_with(Pieces.of(shard), options.batch_size, options.last_batch, ()) for shard in pieces]
    steps = sum(-(-total_rows(shard) // options.batch_size) for shard in ended)
    rows = sum(total_rows(real_pieces(shard)) for shard in ended)
    return RankPlan(epoch, rank, tuple(ended), steps, rows, layouts, options.batch_size)


def _numbered(shards: Sequence[Sequence[Split]], order: int) -> list[list[Piece]]:
    """A piece for each split of each shard, numbered consecutively, so that strategies need not number their splits."""
    numbers = itertools.count()
    return [
        [Piece(replace(split, index=next(numbers)), split.row_range, order) for split in splits] for splits in shards
    ]


def _binds(signature: inspect.Signature, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **keywords)
    except TypeError:
        return False
    return True


def _as_seen(file: DataFile) -> DataFileInfo:
    """The file's info with the row count that plans use: its live rows, if known."""
    if not file.layout.counted:
        return file.info
    spans = plan_spans(file.layout)
    return replace(file.info, record_count=spans[-1][1] if spans else 0)
