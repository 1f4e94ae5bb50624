"""Measures what equal steps cost: rows left out of an epoch, for three ways to give ranks equal numbers of batches.

    python benchmarks/uneven.py [--seeds 20]

Synthetic files have row counts that vary by 50 % around the mean. They are cut into chunks of a fixed number of rows;
the last chunk of a file is shorter. Nothing is read, written or timed: the result depends only on the plans.

- *interleave, truncate*: rank r reads chunks r, r + R, ...; all ranks stop with the first that ends (`even="none"`).
- *largest first, truncate*: the largest chunk goes to the rank with the fewest rows, and so on; ranks stop likewise.
- *row-exact*: `even="drop"`: interleaved, then row ranges move from the ranks with most rows to those with fewest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.planning.workers import lpt
from torch_dataloader_utils.seeding import derive_key, random_words

BATCH = 1024


@dataclass(frozen=True)
class Case:
    """Files with `rows` rows on average, in chunks of `chunk` rows, for `ranks` ranks."""

    files: int
    rows: int
    chunk: int
    ranks: int


CASES = (
    Case(64, 1_000_000, 250_000, 8),
    Case(64, 1_000_000, 250_000, 64),
    Case(1000, 200_000, 100_000, 64),
    Case(1000, 200_000, 100_000, 256),
    Case(5000, 50_000, 100_000, 512),
    Case(10, 5_000_000, 500_000, 16),
)

COLUMNS = (
    *("files", "rows per file", "rows per chunk", "ranks"),
    *("interleave, truncate", "largest first, truncate", "row-exact", "richest / poorest"),
)


def data_files(case: Case, seed: int) -> list[DataFile]:
    """The files of one draw, with a row group for each chunk."""
    words = random_words(case.files, derive_key("uneven", seed))
    counts = (case.rows // 2 + words % np.uint64(case.rows)).tolist()
    return [data_file(f"{number:05d}.parquet", rows, case.chunk) for number, rows in enumerate(counts)]


def data_file(name: str, rows: int, chunk: int) -> DataFile:
    """A file with row groups of `chunk` rows and a shorter last one."""
    starts = range(0, rows, chunk)
    segments = (Segment(i, at, min(chunk, rows - at), 8 * min(chunk, rows - at)) for i, at in enumerate(starts))
    return DataFile(DataFileInfo(name, 8 * rows, rows), FileLayout(tuple(segments)))


def lost(rank_rows: list[int], total: int) -> float:
    """The share of rows left out if every rank stops when the rank with the fewest rows has no full batch left."""
    return 1 - min(rank_rows) // BATCH * BATCH * len(rank_rows) / total


def losses(case: Case, seed: int) -> Iterator[float]:
    """For one draw, the share lost in each of the three ways, and the most rows of a rank over the fewest."""
    files = data_files(case, seed)
    splits = make_splits(TargetSizeSplitStrategy(split_rows=case.chunk), files)
    total = sum(file.info.record_count or 0 for file in files)
    interleaved, exact = (
        Plan(files, splits, PlanOptions(batch_size=BATCH, shuffle=True, seed=seed, even=even), case.ranks)
        for even in ("none", "drop")
    )
    rows = interleaved.rows(0)
    yield lost(rows, total)
    yield lost(by_lpt([split.row_count for split in splits], case.ranks), total)
    steps = exact.steps(0)
    assert len(set(steps)) == 1, "even='drop' gives all ranks the same number of steps"
    yield 1 - steps[0] * BATCH * case.ranks / total
    yield max(rows) / min(rows)


def by_lpt(sizes: list[int], ranks: int) -> list[int]:
    """The rows of each rank if the largest chunk always goes to the rank with the fewest rows."""
    owners = lpt(sizes, ranks)
    return np.bincount(owners, weights=sizes, minlength=ranks).astype(int).tolist()


def row(case: Case, seeds: int) -> str:
    """The case's row of the table, with means over the draws."""
    interleaved, balanced, exact, ratio = np.mean([list(losses(case, seed)) for seed in range(seeds)], axis=0)
    shape = f"{case.files:,} | {case.rows:,} | {case.chunk:,} | {case.ranks}"
    return f"| {shape} | {interleaved:.1%} | {balanced:.1%} | {exact:.3%} | {ratio:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="draws that each row is the mean of")
    seeds = parser.parse_args().seeds
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "--:|" * len(COLUMNS))
    for case in CASES:
        print(row(case, seeds), flush=True)


if __name__ == "__main__":
    main()
