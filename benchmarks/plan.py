"""Measures how the time and memory of a plan grow with splits and ranks: no file is read or written.

    python benchmarks/plan.py [--growth] [--sharding interleave strided ...] [--splits 1000000] [--ranks 4096]

Without options: one rank's plan of 1,000,000 splits for 4,096 ranks, under every sharding policy and every `even=`, for
files of 100 row groups and for files of one, each row group being one split. `--growth` measures 10,000, 100,000 and
1,000,000 splits for 1, 64 and 4,096 ranks instead.

- *splits*: CPU seconds to cut the files, and the memory that the splits occupy afterwards.
- *first plan*: CPU seconds of `Plan(...)` and the plan of one rank in one epoch, and the peak of memory above them.
- *next epoch*: CPU seconds of the same rank's plan in the following epoch.
- *pieces*: the number of runs of rows that the rank reads.

Each row runs in two processes: one is timed, in the other Python and numpy count what they allocate (`tracemalloc`).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Segment, split_pieces
from torch_dataloader_utils.planning.phases import Phase, plain_options, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.seeding import random_words

T = TypeVar("T")
MB = 1e6
ROWS = 500  # of the smallest row group; the largest has four times as many
ROW_BYTES = 4_000
POLICIES: dict[str, dict[str, Any]] = {
    "interleave": {},
    "contiguous": {"sharding": "contiguous"},
    "rotate": {"sharding": "rotate"},
    "total_shards": {"sharding": Rotate(8192)},
    "strided": {"sharding": "strided"},
    "shard_batches": {"sharding": Strided("batch")},
}
SHUFFLES: dict[str, dict[str, Any]] = {
    "splits": {"shuffle": True},
    "rows": {"shuffle": True, "window_bytes": 128 * 2**20},
}
HEADER = (
    *("splits", "files", "ranks", "sharding", "even", "shuffle", "splits, s", "splits, MB"),
    *("first plan, s", "first plan, MB", "next epoch, s", "pieces"),
)


@dataclass(frozen=True)
class Case:
    """What is planned."""

    splits: int
    ranks: int
    sharding: str = "interleave"
    even: str = "none"
    shuffle: str = "splits"
    groups: int = 100  # row groups per file
    resumed: bool = False

    @property
    def options(self) -> PlanOptions:
        """The plan's options."""
        return PlanOptions(even=self.even, **POLICIES[self.sharding], **SHUFFLES[self.shuffle])


@dataclass
class Cost:
    """CPU seconds and bytes of each step."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    pieces: int = 0

    def of(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returns; its costs are noted under `name`."""
        gc.collect()
        tracemalloc.reset_peak()
        before, begin = tracemalloc.get_traced_memory()[0], time.process_time()
        made = make()
        self.seconds[name] = time.process_time() - begin
        self.peak[name] = tracemalloc.get_traced_memory()[1] - before
        gc.collect()
        self.kept[name] = tracemalloc.get_traced_memory()[0] - before
        return made


def data_files(case: Case) -> list[DataFile]:
    """Files of `case.groups` row groups of different sizes."""
    rows = (ROWS + random_words(case.splits, 1) % np.uint64(3 * ROWS)).astype(np.int64)
    return [
        data_file(f"part-{number:07d}.parquet", part.tolist())
        for number, part in enumerate(np.split(rows, range(case.groups, case.splits, case.groups)))
    ]


def data_file(name: str, rows: Sequence[int]) -> DataFile:
    """A file of row groups with these numbers of rows."""
    starts = itertools.accumulate(rows, initial=0)
    segments = [Segment(i, at, n, n * ROW_BYTES) for i, (at, n) in enumerate(zip(starts, rows, strict=False))]
    total = sum(rows)
    return DataFile(DataFileInfo(name, total * ROW_BYTES // 2, total), FileLayout(tuple(segments)))


def measured(case: Case, traced: bool) -> Cost:
    """The costs of one case in this process."""
    cost, rank = Cost(), case.ranks // 2
    files = data_files(case)
    if traced:
        tracemalloc.start()
    splits = cost.of("splits", lambda: make_splits(TargetSizeSplitStrategy(split_bytes=1), files))

    def first() -> Plan:
        plan = Plan(files, splits, case.options, case.ranks)
        cost.pieces = sum(1 for shard in plan.rank(0, rank).shards for _ in split_pieces(shard))
        return plan

    plan = cost.of("first", first)
    cost.of("next", lambda: plan.rank(1, rank))
    if case.resumed:
        half = (plan.steps(0) or [0])[0] // 2
        past = [Phase(plain_options(case.options, case.ranks), half)]
        cost.of("resumed", lambda: plan_of_rest(plan, 0, past).rank(0, rank))
    return cost


def in_processes(case: Case) -> tuple[Cost, Cost]:
    """The costs in a process that is timed, and in one that counts allocations."""
    found = []
    for traced in (False, True):
        command = [sys.executable, __file__, "--case", json.dumps([asdict(case), traced])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(Cost(**json.loads(done.stdout)))
    return found[0], found[1]


def row(case: Case) -> str:
    """The case's row of the table."""
    timed, counted = in_processes(case)
    values = [
        *(f"{case.splits:,}", f"{-(-case.splits // case.groups):,}", f"{case.ranks:,}"),
        *(case.sharding, case.even, case.shuffle),
        *(f"{timed.seconds['splits']:.2f}", f"{counted.kept['splits'] / MB:.0f}"),
        *(f"{timed.seconds['first']:.2f}", f"{counted.peak['first'] / MB:.0f}"),
        *(f"{timed.seconds['next']:.2f}", f"{timed.pieces:,}"),
    ]
    if case.resumed:
        values += [f"{timed.seconds['resumed']:.2f}", f"{counted.peak['resumed'] / MB:.0f}"]
    return f"| {' | '.join(values)} |"


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """The rows of the table."""
    if given.growth:
        for splits, ranks in itertools.product((10_000, 100_000, 1_000_000), (1, 64, 4_096)):
            yield from (Case(splits, ranks, sharding=sharding) for sharding in given.sharding)
        return
    if given.resume:
        yield from (Case(given.splits, given.ranks, sharding, resumed=True) for sharding in given.sharding)
        return
    for groups, sharding, even in itertools.product((100, 1), given.sharding, ("none", "drop", "pad")):
        shuffles = SHUFFLES if even == "none" else ["splits"]
        yield from (Case(given.splits, given.ranks, sharding, even, shuffle, groups) for shuffle in shuffles)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true", help="10,000 to 1,000,000 splits for 1, 64 and 4,096 ranks")
    parser.add_argument("--resume", action="store_true", help="also the plan of what is left after half an epoch")
    parser.add_argument("--sharding", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--splits", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4_096)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        case, traced = json.loads(given.case)
        print(json.dumps(asdict(measured(Case(**case), traced))))
        return
    header = [*HEADER, *(["resumed, s", "resumed, MB"] if given.resume else [])]
    print(f"| {' | '.join(header)} |")
    print("|" + "--:|" * len(header))
    for case in cases(given):
        print(row(case), flush=True)


if __name__ == "__main__":
    main()
