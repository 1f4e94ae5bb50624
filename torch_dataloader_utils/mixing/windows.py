"""Shuffle windows of a mix: each holds rows of one lap of one dataset, so that no row repeats before all are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch_dataloader_utils.model import Piece, Window
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces
from torch_dataloader_utils.planning.tasks import TASK_ROWS, SegmentTable
from torch_dataloader_utils.planning.windows import windowed


def windowed_laps(
    laps: Sequence[Sequence[Pieces]], segments: SegmentTable, options: PlanOptions, key: tuple[int | str, ...]
) -> list[Sequence[Sequence[Piece]]]:
    """The laps of each dataset, with rows grouped into windows; memory is shared by the number of rows.

    Args:
        laps: of each dataset, in delivery order.
        segments: the segments of each file.
        options: the size of the windows of all datasets together.
        key: the key of the rank's windows; the numbers of a dataset and of a lap complete it.
    """
    rows = [sum(map(total_rows, each)) for each in laps]
    out: list[Sequence[Sequence[Piece]]] = []
    for number, each in enumerate(laps):
        own = _share_of(options, rows[number], sum(rows))
        shuffled = [
            windowed((lap,), segments, own, (*key, number, place), exact=True)[0] for place, lap in enumerate(each)
        ]
        out.append(list(_with_tasks(shuffled)))
    return out


def _share_of(options: PlanOptions, rows: int, total: int) -> PlanOptions:
    """The options for one dataset's windows."""
    if options.window_bytes is None:
        return options
    return replace(options, window_bytes=max(options.window_bytes * rows // max(total, 1), 1))


def _with_tasks(laps: Sequence[Sequence[Piece]]) -> Iterator[Sequence[Piece]]:
    """The laps with tasks of their own; consecutive small laps share a task, which decodes the rows once for all."""
    if len(laps) == 1:
        yield laps[0]
        return
    base, held, last = 0, 0, 0
    for lap in laps:
        rows, most = total_rows(lap), max((_task(piece) for piece in lap), default=0)
        if held and (last or most or held + rows > TASK_ROWS):
            base, held = base + last + 1, 0
        yield tuple(_moved(piece, base) for piece in lap)
        held, last = held + rows, most


def _task(piece: Piece) -> int:
    return piece.source.task if isinstance(piece.source, Window) else 0


def _moved(piece: Piece, by: int) -> Piece:
    window = piece.source
    return replace(piece, source=replace(window, task=window.task + by)) if isinstance(window, Window) else piece
