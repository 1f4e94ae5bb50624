"""Draws docs/images/plan.svg from a real plan: which rows of four files each worker of two ranks delivers.

python scripts/draw_plan.py          # draw
python scripts/draw_plan.py --check  # exit with 1 if the picture differs from the plan
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pictures import box, settle, svg, text

from torch_dataloader_utils import StructuredDataset

FILE_ROWS = (30_000, 50_000, 20_000, 26_000)
GROUP_ROWS = 10_000  # rows of a row group, and of a split
RANKS, WORKERS, BATCH = 2, 2, 1024
OPTIONS = {"batch_size": BATCH, "shuffle": True, "even": "drop", "num_workers": WORKERS, "split_rows": GROUP_ROWS}

WIDTH, MARGIN, GAP = 800.0, 12.0, 16.0
BAR = 30.0  # height of a row of splits
FILES_TOP, RANKS_TOP, LANE = 60.0, 190.0, 52.0
PANEL = (WIDTH - 2 * MARGIN - GAP * (RANKS - 1)) / RANKS  # width of a rank
LANE_LEFT = 78.0  # within a rank's panel
COLOURS = (("#0f766e", "#2dd4bf"), ("#1d4ed8", "#60a5fa"), ("#b45309", "#fbbf24"), ("#9d174d", "#f472b6"))


class Piece(NamedTuple):
    """Rows `[start, stop)` of a file."""

    file: int
    start: int
    stop: int


class Placed(NamedTuple):
    """A piece, and its place in the picture."""

    piece: Piece
    left: float
    top: float
    width: float


def style() -> str:
    """The colours of the files, for light and dark pages."""
    rules = ["rect { stroke-width: 1; } .number { font-size: 12px; font-weight: 600; }"]
    rules += ["path { fill: none; stroke-width: 1.5; opacity: .55; }"]
    light, dark = (
        "".join(f".f{i} {{ fill: {c}; stroke: {edge}; }} path.f{i} {{ fill: none; stroke: {c}; }} " for i, c in colours)
        for edge, colours in zip(("#ffffff", "#14181c"), map(enumerate, zip(*COLOURS, strict=True)), strict=True)
    )
    rules += [light + ".number { fill: #ffffff; }"]
    rules += ["@media (prefers-color-scheme: dark) { " + dark + ".number { fill: #14181c; } }"]
    return "\n".join(rules) + "\n"


def planned(folder: Path) -> tuple[list[list[list[Piece]]], list[int], int]:
    """The pieces of each worker of each rank in epoch 0, the rows of each rank, and the steps of every rank."""
    first = 0
    for number, rows in enumerate(FILE_ROWS):
        table = pa.table({"id": range(first, first + rows)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=GROUP_ROWS)
        first += rows
    _, dataset = StructuredDataset.create_dataloader(folder, num_ranks=RANKS, rank=0, **OPTIONS)
    plans = [dataset.plan(0, rank) for rank in range(RANKS)]
    pieces = [
        [
            [Piece(int(Path(split.file.path).stem[-1]), split.row_range.start, split.row_range.stop) for split in shard]
            for shard in (plan.shard(worker).splits for worker in range(WORKERS))
        ]
        for plan in plans
    ]
    return pieces, [plan.rows for plan in plans], plans[0].steps


def placed_files() -> list[Placed]:
    """The splits of the files, side by side."""
    scale = (WIDTH - 2 * MARGIN - GAP * (len(FILE_ROWS) - 1)) / sum(FILE_ROWS)
    left, found = MARGIN, []
    for file, rows in enumerate(FILE_ROWS):
        for start in range(0, rows, GROUP_ROWS):
            stop = min(start + GROUP_ROWS, rows)
            found.append(Placed(Piece(file, start, stop), left + start * scale, FILES_TOP, (stop - start) * scale))
        left += rows * scale + GAP
    return found


def placed_lane(pieces: list[Piece], rank: int, worker: int) -> list[Placed]:
    """The pieces of a worker, in a lane of its rank's panel."""
    scale = (PANEL - LANE_LEFT - 10) / (sum(FILE_ROWS) / RANKS / WORKERS * 1.03)
    left, found = panel_left(rank) + LANE_LEFT, []
    for piece in pieces:
        width = (piece.stop - piece.start) * scale
        found.append(Placed(piece, left, RANKS_TOP + 36 + worker * LANE, width))
        left += width
    return found


def drawn_piece(place: Placed) -> str:
    number = f"{place.piece.file}.{place.piece.start // GROUP_ROWS}"  # file and row group
    shape = box(place.left, place.top, place.width, BAR, f"f{place.piece.file}")
    if place.width < 26:
        return shape
    return shape + text(place.left + place.width / 2, place.top + BAR / 2 + 4.5, number, "number", "middle")


def drawn_line(piece: Placed, splits: list[Placed]) -> str:
    """A line from the middle of the piece's rows in its file to the piece."""
    file, start, stop = piece.piece
    split = next(one for one in splits if one.piece.file == file and one.piece.start <= start < one.piece.stop)
    rows = split.piece.stop - split.piece.start
    x = split.left + ((start + stop) / 2 - split.piece.start) / rows * split.width
    y, to_x, to_y = split.top + BAR, piece.left + piece.width / 2, piece.top
    bend = (to_y - y) * 0.55
    curve = f"M{x:.1f} {y:.1f} C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path class="f{file}" d="{curve}"/>'


def captions(splits: list[Placed]) -> list[str]:
    words = [text(MARGIN, 20, "Four files: each box is a row group (file.group)", "strong")]
    for file, rows in enumerate(FILE_ROWS):
        left = next(one.left for one in splits if one.piece.file == file)
        words.append(text(left, FILES_TOP - 8, f"part-{file}: {rows:,}", "faint"))
    return words


def panel_left(rank: int) -> float:
    return MARGIN + rank * (PANEL + GAP)


def labels(rank: int, rows: int, steps: int) -> str:
    left = panel_left(rank)
    title = text(left + 10, RANKS_TOP + 22, f"rank {rank}: {steps} steps of {BATCH:,} rows = {rows:,}", "strong over")
    lanes = [text(left + 10, RANKS_TOP + 55 + worker * LANE, f"worker {worker}", "over") for worker in range(WORKERS)]
    return title + "".join(lanes)


def drawn(pieces: list[list[list[Piece]]], rows: list[int], steps: int) -> str:
    splits = placed_files()
    lanes = [
        piece
        for rank, workers in enumerate(pieces)
        for worker, shard in enumerate(workers)
        for piece in placed_lane(shard, rank, worker)
    ]
    height = 36 + WORKERS * LANE
    left_out = sum(FILE_ROWS) - sum(rows)
    foot = f'even="drop": {left_out:,} of {sum(FILE_ROWS):,} rows sit out this epoch; the next epoch leaves out others.'
    parts = [
        *captions(splits),
        *(box(panel_left(rank), RANKS_TOP, PANEL, height, "panel") for rank in range(RANKS)),
        *(drawn_line(piece, splits) for piece in lanes),
        *(labels(rank, rows[rank], steps) for rank in range(RANKS)),
        *map(drawn_piece, [*splits, *lanes]),
        text(MARGIN, RANKS_TOP + height + 26, foot, "faint"),
    ]
    title = "A plan: which row groups of four files each worker of two ranks delivers in an epoch"
    return svg(WIDTH, RANKS_TOP + height + 40, title, style(), parts)


with tempfile.TemporaryDirectory() as temporary:
    settle("plan.svg", drawn(*planned(Path(temporary))))
