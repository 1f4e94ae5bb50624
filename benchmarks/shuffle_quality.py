"""Measures how well each way to shuffle mixes rows, on the orders that plans produce. Nothing is read or timed.

    python benchmarks/shuffle_quality.py [--seeds 8] [--plot docs/images/shuffle_quality.png]

25 million rows in 100 files of two splits each; a split has 8 row groups of 15,625 rows. One rank, one worker. The
label of a row is its position in the files, as in files sorted by time; files sorted by class give the same ratios.

- *travel*: how far a row moves from its position in the files, as a share of the epoch (0.333 for a full shuffle).
- *stays*: the share of rows that travel less than 1 % of the epoch (0.020 for a full shuffle).
- *splits*: how many of the 200 splits a batch draws from.
- *global ratio*: the variance of a batch's mean label, relative to that of batches drawn at random from all rows.
- *window ratio*: the variance around the mean of the batch's own window, relative to that of drawing without
  replacement from the window; batches that span two windows are left out.

*Buffer* is what loaders usually do: a buffer is filled in file order, then each new row replaces a random one, which is
delivered.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Piece, Segment, Window
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.seeding import derive_key, permutation, random_words, window_order

I64 = npt.NDArray[np.int64]

BATCHES = (256, 1024)
BUFFER = 10_000
WINDOW = 250_000
OPEN = (2, 4, 8, 32)
ROW_BYTES = 40 * 4 + 8 + 1  # of the table `wide` of tables.py, decoded
COUNTED_BATCHES = 2000  # the number of batches in which splits are counted


@dataclass(frozen=True)
class Shape:
    """Files of equal splits, each of equal row groups."""

    files: int = 100
    splits: int = 2  # per file
    groups: int = 8  # per split
    group_rows: int = 15_625

    @property
    def split_rows(self) -> int:
        return self.groups * self.group_rows

    @property
    def all_splits(self) -> int:
        return self.files * self.splits

    @property
    def rows(self) -> int:
        return self.all_splits * self.split_rows

    def data_file(self, number: int) -> DataFile:
        starts = range(0, self.splits * self.split_rows, self.group_rows)
        segments = (Segment(i, at, self.group_rows, ROW_BYTES * self.group_rows) for i, at in enumerate(starts))
        rows = self.splits * self.split_rows
        return DataFile(DataFileInfo(f"{number:05d}.parquet", ROW_BYTES * rows, rows), FileLayout(tuple(segments)))


@dataclass(frozen=True)
class Epoch:
    """The rows of an epoch in delivery order."""

    rows: I64  # row numbers, counted in file order
    window_ends: Sequence[int] = ()
    held: int = 0  # rows held at once


def in_windows(shape: Shape, seed: int, *, shuffle: bool = True, size: int | None = None, k: int = 1) -> Epoch:
    """The order that a plan gives."""
    options = PlanOptions(shuffle=shuffle, seed=seed, buffer_rows=size, open_splits=k)
    return in_plan(shape, TargetSizeSplitStrategy(split_rows=shape.split_rows), options)


def by_bytes(
    shape: Shape, seed: int, *, k: str | None = None, window: int = 128 * 2**20, split: int = 8 * 2**20
) -> Epoch:
    """The order of a plan with windows sized by bytes; the defaults are the loader's."""
    options = PlanOptions(shuffle=True, seed=seed, window_bytes=window, open_splits=k)
    return in_plan(shape, TargetSizeSplitStrategy(split), options)


def in_plan(shape: Shape, strategy: TargetSizeSplitStrategy, options: PlanOptions) -> Epoch:
    """The order that a plan gives."""
    files = [shape.data_file(number) for number in range(shape.files)]
    (pieces,) = Plan(files, make_splits(strategy, files), options).rank(0, 0).shards
    first = {file.info.path: number * file.info.record_count for number, file in enumerate(files)}
    rows = np.concatenate([row_numbers(piece, first) for piece in pieces])
    ends = np.cumsum([len(piece) for piece in pieces]).tolist() if options.shuffles_rows else []
    return Epoch(rows, ends, rows_held(pieces))


def row_numbers(piece: Piece, first: Mapping[str, int]) -> I64:
    """The row numbers of a piece in delivery order; `first` is the number of each file's first row."""
    if not isinstance(piece.source, Window):
        return first[piece.source.file.path] + piece.rows.numbers()
    rows = np.concatenate([row_numbers(part, first) for part in piece.source.pieces])
    return rows[window_order(len(rows), piece.source.key)][piece.rows.numbers()]


def rows_held(pieces: Sequence[Piece]) -> int:
    """The number of rows that row shuffle holds at once: the open runs, and three windows."""
    runs: dict[int, int] = {}
    windows = [piece for piece in pieces if isinstance(piece.source, Window)]
    for piece in windows:
        runs[piece.source.task] = runs.get(piece.source.task, 0) + len(piece)
    return max(runs.values(), default=0) + 3 * max(map(len, windows), default=0)


def through_buffer(shape: Shape, seed: int, *, shuffle: bool, size: int = BUFFER) -> Epoch:
    """The order of rows from a buffer: a row leaves when a new one replaces it; the last rows leave in random order."""
    rows = in_windows(shape, seed, shuffle=shuffle).rows
    drawn = random_words(len(rows) - size, derive_key("slots", seed)) % np.uint64(size)
    slots = np.concatenate([np.arange(size), drawn]).astype(np.uint16)
    by_slot = np.argsort(slots, kind="stable")  # the rows of a slot, one after another
    place = np.empty(len(rows), dtype=np.int64)
    place[by_slot[:-1]] = by_slot[1:] - size
    last = np.append(np.flatnonzero(np.diff(slots[by_slot])), len(rows) - 1)
    place[by_slot[last]] = len(rows) - size + permutation(size, derive_key("rest", seed))
    out = np.empty_like(rows)
    out[place] = rows
    return Epoch(out, held=size)


def permuted(shape: Shape, seed: int) -> Epoch:
    """All rows in random order."""
    return Epoch(permutation(shape.rows, derive_key("all", seed)), held=shape.rows)


def ways(shape: Shape) -> dict[str, Callable[[int], Epoch]]:
    """The ways to shuffle, by name: each is a function of the seed."""
    windows = windows_tried(shape)
    return {
        "no shuffle": partial(in_windows, shape, shuffle=False),
        "`shuffle='splits'`": partial(in_windows, shape),
        "`shuffle=True`": partial(by_bytes, shape),
        "`shuffle='all'`": partial(by_bytes, shape, k="all"),
        f"buffer of {BUFFER:,}": partial(through_buffer, shape, shuffle=False),
        f"shuffled splits, buffer of {BUFFER:,}": partial(through_buffer, shape, shuffle=True),
        **{way_name(shape, size, k): partial(in_windows, shape, size=size, k=k) for size, k in windows},
        "full permutation": partial(permuted, shape),
    }


def windows_tried(shape: Shape) -> list[tuple[int, int]]:
    """The windows to measure, as (rows of a window, open splits)."""
    return [(BUFFER, 2), (BUFFER, 4), *((WINDOW, k) for k in OPEN), (WINDOW, shape.all_splits)]


def way_name(shape: Shape, size: int, k: int) -> str:
    return f"windows of {size:,}, k = {'all' if k == shape.all_splits else k}"


@dataclass(frozen=True)
class Quality:
    """The measures that the module's docstring explains, the last three by batch size. NaN: there are no windows."""

    travel: float
    stays: float
    splits: dict[int, float]
    global_ratio: dict[int, float]
    window_ratio: dict[int, float]


def quality(epoch: Epoch, shape: Shape, batches: Sequence[int] = BATCHES) -> Quality:
    """The measures of an order."""
    far = np.abs(epoch.rows - np.arange(shape.rows)) / shape.rows
    return Quality(
        float(far.mean()),
        float((far < 0.01).mean()),
        {size: splits_drawn(epoch.rows, size, shape.split_rows) for size in batches},
        {size: global_ratio(epoch.rows, size) for size in batches},
        {size: window_ratio(epoch, size) for size in batches},
    )


def batch_means(rows: I64, size: int) -> npt.NDArray[np.float64]:
    """The mean label of each full batch, as a share of all rows: 0.5 on average."""
    full = len(rows) // size
    return rows[: full * size].reshape(full, size).mean(axis=1) / len(rows)


def splits_drawn(rows: I64, size: int, split_rows: int) -> float:
    """The number of splits that a batch draws from: the mean over batches spread over the epoch."""
    starts = np.linspace(0, len(rows) - size, COUNTED_BATCHES).astype(int)
    return float(np.mean([len(np.unique(rows[start : start + size] // split_rows)) for start in starts]))


def global_ratio(rows: I64, size: int) -> float:
    """The variance of batch means, relative to that of batches drawn from all rows."""
    return float(np.square(batch_means(rows, size) - 0.5).mean() * 12 * size)


def window_ratio(epoch: Epoch, size: int) -> float:
    """The variance of batch means within windows, relative to that of drawing without replacement from the window."""
    found, expected = 0.0, 0.0
    begin = 0
    for end in epoch.window_ends:
        first = -(-begin // size) * size  # the first row of the first batch that lies in this window
        window, inside = epoch.rows[begin:end], epoch.rows[first:end]
        means = inside[: len(inside) // size * size].reshape(-1, size).mean(axis=1)
        n = end - begin
        found += float(np.square(means - window.mean()).sum())
        expected += len(means) * float(window.var()) / size * (n - size) / (n - 1)
        begin = end
    return found / expected if expected else float("nan")


def mean_quality(make: Callable[[int], Epoch], shape: Shape, seeds: int) -> Quality:
    """The measures of a way, as means over seeds."""
    found = [quality(make(seed), shape) for seed in range(seeds)]

    def by_size(name: str) -> dict[int, float]:
        return {size: float(np.mean([getattr(each, name)[size] for each in found])) for size in BATCHES}

    return Quality(
        float(np.mean([each.travel for each in found])),
        float(np.mean([each.stays for each in found])),
        *map(by_size, ("splits", "global_ratio", "window_ratio")),
    )


def mixing_table(found: Mapping[str, Quality]) -> Iterator[str]:
    """The lines of the table that shows how well each way mixes."""
    columns = [f"{name}, B = {size:,}" for name in ("splits", "global ratio", "window ratio") for size in BATCHES]
    yield f"| | travel | stays | {' | '.join(columns)} |"
    yield "|---|" + "--:|" * (2 + len(columns))
    for name, each in found.items():
        splits, ratios = ([f"{values[size]:,.1f}" for size in BATCHES] for values in (each.splits, each.global_ratio))
        inside = ["" if np.isnan(each.window_ratio[size]) else f"{each.window_ratio[size]:.3f}" for size in BATCHES]
        yield f"| {name} | {each.travel:.3f} | {each.stays:.3f} | {' | '.join([*splits, *ratios, *inside])} |"


def memory_table(shape: Shape) -> Iterator[str]:
    """The lines of the table that shows how many rows windows hold."""
    yield "| | rows of a window | rows held at once | of the table `wide` |"
    yield "|---|--:|--:|--:|"
    for name, make in ways(shape).items():
        epoch = make(0)
        if epoch.window_ends:
            window = max(np.diff([0, *epoch.window_ends]))
            yield f"| {name} | {window:,} | {epoch.held:,} | {mebibytes(epoch):,.0f} MiB |"


def mebibytes(epoch: Epoch) -> float:
    """The size of the rows held at once, in MiB of the table `wide`."""
    return epoch.held * ROW_BYTES / 2**20


SHOWN = {
    "no shuffle": "no shuffle",
    f"shuffled splits, buffer of {BUFFER:,}": f"shuffled splits,\n{BUFFER:,}-row buffer",
    "`shuffle=True`": "shuffle=True",
    f"windows of {WINDOW:,}, k = 8": "windows, k = 8",
    f"windows of {WINDOW:,}, k = 32": "windows, k = 32",
    "`shuffle='all'`": "shuffle='all'",
}
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # distinguishable for everyone (Okabe and Ito)


def plot(shape: Shape, found: Mapping[str, Quality], path: Path) -> None:
    """Write the picture for the documentation."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}
    with pyplot.rc_context(settings):
        figure = pyplot.figure(figsize=(10, 6.6), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.15), hspace=0.04)
        plot_means(shape, top)
        left, right = bottom.subplots(1, 2)
        plot_ratio(shape, found, left)
        plot_memory(shape, right)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def plot_means(shape: Shape, figure: Any) -> None:
    """The mean label of batches over an epoch, for some ways to shuffle."""
    size = BATCHES[-1]
    spread = 3 / np.sqrt(12 * size)
    panels = figure.subplots(1, len(SHOWN), sharey=True)
    figure.suptitle(f"Mean label of each batch of {size:,} rows over an epoch; data sorted by label", fontsize=11)
    for panel, (name, title) in zip(panels, SHOWN.items(), strict=True):
        means = batch_means(ways(shape)[name](0).rows, size)[::8]
        panel.scatter(np.linspace(0, 1, len(means)), means, s=1.5, color=BLUE, linewidths=0, rasterized=True)
        for edge in (0.5 - spread, 0.5 + spread):
            panel.axhline(edge, color=ORANGE, linewidth=1)
        panel.set(title=title, xlim=(0, 1), ylim=(0, 1), xticks=())
    panels[0].set(ylabel="mean label", xlabel="first batch to last")
    panels[-1].text(0.5, 0.60, "full shuffle:\n±3 std. deviations", color=ORANGE, ha="center", fontsize=8.5)


def plot_ratio(shape: Shape, found: Mapping[str, Quality], panel: Any) -> None:
    """The global ratio by the number of open splits."""
    opened = [*OPEN, shape.all_splits]
    for size, color, marker in zip(BATCHES, (GREEN, BLUE), ("s", "o"), strict=True):
        ratios = [found[way_name(shape, WINDOW, k)].global_ratio[size] for k in opened]
        panel.plot([1, *opened], [size, *ratios], color=color, marker=marker, label=f"batches of {size:,} rows")
    panel.axhline(1, color=ORANGE, linewidth=1, linestyle="--")
    panel.text(1, 1.15, "full shuffle", color=ORANGE, fontsize=8.5)
    panel.set(xscale="log", yscale="log", ylim=(0.7, 2000), xlabel="open splits k (1: shuffle='splits')")
    panel.set(title="Variance of a batch's mean label, over a full shuffle's", ylabel="global ratio")
    panel.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    label_opened(panel, [1, *opened], [1, *opened], shape)
    panel.legend(frameon=False)


def plot_memory(shape: Shape, panel: Any) -> None:
    """The memory that windows take, by the number of open splits."""
    opened = [*OPEN, shape.all_splits]
    held = [mebibytes(in_windows(shape, 0, size=WINDOW, k=k)) for k in opened]
    bars = panel.bar(range(len(opened)), held, 0.55, color=BLUE)
    panel.bar_label(bars, fmt="{:,.0f}", padding=2)
    panel.set(xlabel="open splits k", ylabel="MiB held at once by a worker", ylim=(0, 1.15 * max(held)))
    panel.set(title=f"Windows of {WINDOW:,} rows of {ROW_BYTES} bytes")
    label_opened(panel, range(len(opened)), opened, shape)


def label_opened(panel: Any, places: Sequence[int], opened: Sequence[int], shape: Shape) -> None:
    panel.set_xticks(places, [f"all ({k})" if k == shape.all_splits else str(k) for k in opened])
    panel.minorticks_off()


def main() -> None:
    """Print the tables, and write the picture if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="epochs that each figure is the mean of")
    parser.add_argument("--plot", type=Path, help="where to write the picture (needs matplotlib)")
    given = parser.parse_args()
    shape = Shape()
    found = {name: mean_quality(make, shape, given.seeds) for name, make in ways(shape).items()}
    print(*mixing_table(found), "", *memory_table(shape), sep="\n")
    if given.plot is not None:
        plot(shape, found, given.plot)


if __name__ == "__main__":
    main()
