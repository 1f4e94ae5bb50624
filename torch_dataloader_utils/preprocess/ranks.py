"""A scan that processes share: each counts a part of the rows, and then all of them know what all have counted.

What was counted of one output goes to one process, and its sum to all. Values and how often they occur would be too
many for that: each process adds up some of their 64 partitions, and sends the others what a vocabulary can keep of it.
The first process gets all others, too: those that an update goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_dataloader_utils.distributed.exchange import Sharers
from torch_dataloader_utils.errors import PlanMismatchError
from torch_dataloader_utils.preprocess.columns import whole
from torch_dataloader_utils.preprocess.counts import ValueCounts
from torch_dataloader_utils.preprocess.learning import Learning
from torch_dataloader_utils.preprocess.partitions import PARTITIONS
from torch_dataloader_utils.preprocess.scan import FitScan
from torch_dataloader_utils.reading.row_count_scan import Sharing

_ROUND_BYTES = 256 << 20  # of values that a process sends at a time


@dataclass
class _RankPart:
    """What one process has of some outputs, by the place of each.

    Attributes:
        learning: without values.
        values: tables as of `ValueCounts.partition`.
        missing: how many values were missing.
        others: how many different values are in no table.
    """

    learning: dict[int, Learning] = field(default_factory=dict)
    values: dict[int, list[Any]] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    others: dict[int, int] = field(default_factory=dict)


def join(scan: FitScan, sharers: Sharers, gathering: Sharing, mark: str) -> None:
    """Let a scan know what the scans of all processes have counted; the same on all. A collective.

    Afterwards, `ValueCounts` hold those values that decide what is learned; on the first process, all values.

    Args:
        scan: of this process's part of the rows.
        sharers: the processes.
        gathering: how they gather.
        mark: a digest of what must be the same on all.

    Raises:
        WorkerError: another process failed; says why.
        PlanMismatchError: they read different data or have different specs; or one does not arrive in time.
    """
    if sharers.peers is None:
        return
    size = sum(values.nbytes for values in _values(scan).values())
    reports = gathering.gathered((mark, scan.rows, size))
    if len({each for each, _, _ in reports}) > 1:
        raise PlanMismatchError(
            f"ranks fit different things: the digests of their files, filters and specs are "
            f"{[each for each, _, _ in reports]}, by rank. All must see the same files, with the same options and spec."
        )
    swapping = _swapping(sharers, gathering)
    own = _added_up(scan, swapping, gathering, _rounds(max(size for _, _, size in reports), gathering))
    try:
        with gathering.failing_together():
            mine = _decisive(scan, own)
        parts = gathering.gathered(mine)
        scan.rows = sum(rows for _, rows, _ in reports)
        _take_over(scan, parts)
        _complete(scan, parts, own.counts, swapping, gathering)
    finally:
        for counts in own.counts.values():
            counts.close()


def _decisive(scan: FitScan, own: _RankSums) -> _RankPart:
    """Of what this process has added up, what all have to know; only the other values are left."""
    made = _RankPart(own.learning)
    for place, values in _values(scan).items():
        counts = own.counts[place]
        made.values[place] = scan.outputs[place].decisive(counts)
        made.missing[place] = values.missing
        for table in made.values[place]:
            counts.drop(whole(table.column("value")))
        made.others[place] = counts.distinct
    return made


def _rounds(size: int, sharing: Sharing) -> int:
    """In how many rounds so many bytes of values are sent."""
    return min(max(1, -(-size // _ROUND_BYTES)), -(-PARTITIONS // sharing.num_ranks))


@dataclass
class _RankSums:
    """What this process adds up for all."""

    learning: dict[int, Learning] = field(default_factory=dict)
    counts: dict[int, ValueCounts] = field(default_factory=dict)


def _values(scan: FitScan) -> dict[int, ValueCounts]:
    return {place: output.counts for place, output in scan.counting.items() if output.counts is not None}


def _swapping(sharers: Sharers, gathering: Sharing) -> Sharing:
    """As gathering, of parts that are lists: each process gets what all of them have for it."""
    ranks = gathering.num_ranks

    def exchange(parts: Any) -> list[Any]:
        return sharers.swap([parts] * ranks if isinstance(parts, str) else parts, "swap what they counted")

    return Sharing(gathering.rank, ranks, exchange, gathering.work)


def _added_up(scan: FitScan, swapping: Sharing, gathering: Sharing, rounds: int) -> _RankSums:
    own = _RankSums(counts={place: values.empty() for place, values in _values(scan).items()})
    for number in range(rounds):
        with swapping.failing_together():
            parts = [_for_rank(scan, rank, swapping.num_ranks, number, rounds) for rank in range(swapping.num_ranks)]
        got: Sequence[Any] = swapping.gathered(parts)
        del parts
        with gathering.failing_together():
            for part in got:
                _add(own, part)
    return own


def _for_rank(scan: FitScan, rank: int, ranks: int, number: int, rounds: int) -> _RankPart:
    """What a process adds up in one of the rounds."""
    part = _RankPart()
    if number == 0:
        part.learning = {
            place: output.without_values() for place, output in scan.counting.items() if place % ranks == rank
        }
    for place, values in _values(scan).items():
        part.values[place] = list(_filled(values, _partitions(rank, ranks, number, rounds)))
    return part


def _partitions(rank: int, ranks: int, number: int, rounds: int) -> list[int]:
    """Of the partitions that a process adds up, those of one of the rounds."""
    return [each for each in range(rank, PARTITIONS, ranks) if each // ranks % rounds == number]


def _filled(values: ValueCounts, partitions: Sequence[int]) -> Iterator[Any]:
    tables = (values.partition(number) for number in partitions)
    return (table for table in tables if len(table))


def _add(own: _RankSums, part: _RankPart) -> None:
    for place, output in part.learning.items():
        if place in own.learning:
            own.learning[place].merge(output)
        else:
            own.learning[place] = output
    for place, tables in part.values.items():
        counts = own.counts[place]
        counts.merge(ValueCounts.from_tables(counts.type, tables, memory=counts.memory))


def _take_over(scan: FitScan, parts: Sequence[_RankPart]) -> None:
    """Put what all have added up in place of what this process has counted."""
    counted = _values(scan)
    learning = {place: output for part in parts for place, output in part.learning.items()}
    outputs = list(scan.outputs)
    for place, output in learning.items():
        if place in counted:
            values = counted[place]
            tables = [table for part in parts for table in part.values[place]]
            missing = sum(part.missing[place] for part in parts)
            output.counts = ValueCounts.from_tables(values.type, tables, missing, values.memory)
            values.close()
        output.known = outputs[place].known
        outputs[place] = output
    scan.outputs = tuple(outputs)


def _complete(
    scan: FitScan,
    parts: Sequence[_RankPart],
    others: Mapping[int, ValueCounts],
    swapping: Sharing,
    gathering: Sharing,
) -> None:
    """Let the first process have the other values, too. A collective if there are some."""
    left = {place: sum(part.others[place] for part in parts) for place in others}
    sizes = gathering.gathered(sum(counts.nbytes for counts in others.values())) if any(left.values()) else []
    rounds = _rounds(sum(sizes), gathering) if sizes else 0
    for number in range(rounds):
        with swapping.failing_together():
            sent = _partitions(gathering.rank, gathering.num_ranks, number, rounds)
            part = _RankPart(values={place: list(_filled(counts, sent)) for place, counts in others.items()})
        got: Sequence[Any] = swapping.gathered([part, *[_RankPart()] * (gathering.num_ranks - 1)])
        with gathering.failing_together():
            for place, tables in ((place, tables) for each in got for place, tables in each.values.items()):
                counts = scan.outputs[place].counts
                assert counts is not None
                counts.merge(ValueCounts.from_tables(counts.type, tables, memory=counts.memory))
    for place in others:
        scan.outputs[place].is_whole = gathering.rank == 0 or not left[place]
