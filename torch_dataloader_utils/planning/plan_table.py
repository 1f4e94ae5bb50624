"""Which rows of which files a rank reads, as plain values and as a short table for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any

from torch_dataloader_utils.model import Piece, Unit, Window, split_of, split_pieces
from torch_dataloader_utils.planning.windows import ShuffleWindow
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.printing import Row, html_table, plural, shortened, text_table
from torch_dataloader_utils.redaction import printable, redacted

_SHOWN = 8  # pieces, over all workers
_LEAST_SHOWN = 2  # pieces of a worker
_WORKERS_SHOWN = 8
_FILE_WIDTH = 48

Read = dict[str, Any]


def reads(shards: Shards) -> Iterator[Read]:
    """The reads of all workers, worker by worker, in delivery order (see `RankPlan.table`)."""
    for worker, shard in enumerate(shards):
        yield from _reads_of(worker, shard)


def text_of_plan(title: str, shards: Shards, unit: str) -> str:
    """The title and a table of the first reads of each worker, in units such as rows, as text."""
    folder, header, rows = _short_table(shards, unit)
    below = [f"files in {folder}"] if folder else []
    return printable("\n".join([title, *below, *(f"  {line}" for line in text_table(header, rows))]))


def html_of_plan(title: str, shards: Shards, unit: str) -> str:
    """The title and a table of the first reads of each worker, in units such as rows, as HTML."""
    folder, header, rows = _short_table(shards, unit)
    below = f"<div>files in {escape(folder)}</div>" if folder else ""
    heading = escape(title).replace("\n", "<br/>")
    return printable(f"<div><b>{heading}</b>{below}{html_table(header, rows)}</div>")


def window_in_words(window: ShuffleWindow, batch_rows: int, unit: Unit = Unit.ROW) -> str:
    """How a window mixes rows, in words; the variance is that of data whose splits differ as much as possible.

    Args:
        window: the window.
        batch_rows: rows per batch.
        unit: what a row of the plan is.
    """
    if unit is Unit.BATCH:
        return f"{plural(window.windows, 'window')}, each sorted by length and cut into batches"
    rows = "" if window.rows is None else f" of {plural(window.rows, unit.planned)}"
    name = "part" if unit is Unit.WINDOW else "window"  # those that are planned are windows, too
    if window.windows == 1:
        return f"one {name}{rows}: every order is equally likely"
    return (
        f"{name}s{rows} from {window.splits:,} of {plural(window.of_splits, 'split')} (batch variance up to "
        f"{window.variance_ratio(batch_rows):,.2f} times that of random sampling)"
    )


def _reads_of(worker: int, shard: Sequence[Piece]) -> Iterator[Read]:
    order, windows = 0, 0
    for piece in shard:
        window = windows if isinstance(piece.source, Window) else None
        for part in split_pieces([piece]):
            yield _read(part, worker=worker, order=order, window=window, padding=piece.pad)
            order += 1
        windows += window is not None


def _read(piece: Piece, **place: Any) -> Read:
    rows, known = piece.rows, len(piece) > 0
    return {
        "worker": place["worker"],
        "order": place["order"],
        "file": redacted(split_of(piece).file.path),
        "first_row": rows.row(0) if rows is not None and known else None,
        "last_row": rows.row(len(rows) - 1) if rows is not None and known else None,
        "rows": None if rows is None else len(rows),
        "split": split_of(piece).index,
        "window": place["window"],
        "padding": place["padding"],
    }


def _short_table(shards: Shards, unit: str) -> tuple[str, list[str], list[Row]]:
    """The folder of the files shown, the table's header, and its rows: the first reads of each worker."""
    each = max(_LEAST_SHOWN, _SHOWN // max(1, len(shards)))
    shown = [list(islice(_reads_of(worker, shard), each)) for worker, shard in enumerate(shards[:_WORKERS_SHOWN])]
    folder = common_folder(read["file"] for part in shown for read in part)
    extra = [name for name in ("window", "padding") if any(read[name] for part in shown for read in part)]
    rows: list[Row] = []
    for worker, part in enumerate(shown):
        left = sum(1 for _ in split_pieces(shards[worker])) - len(part)
        rows += [_row(read, folder, extra) for read in part]
        if left or not part:
            note = f"... and {left:,} more" if left else "nothing"
            rows.append((str(worker), note, "", "", "", *("" for _ in extra)))
    if len(shards) > len(shown):
        rows.append(("...", plural(len(shards) - len(shown), "more worker"), "", "", "", *("" for _ in extra)))
    return folder, ["worker", "file", f"first {unit}", f"last {unit}", f"{unit}s", *extra], rows


def _row(read: Read, folder: str, extra: Sequence[str]) -> Row:
    file = shortened(read["file"].removeprefix(folder), _FILE_WIDTH)
    marks = {"window": "" if read["window"] is None else str(read["window"]), "padding": "yes" * read["padding"]}
    return str(read["worker"]), file, read["first_row"], read["last_row"], read["rows"], *(marks[n] for n in extra)


def common_folder(paths: Iterable[str]) -> str:
    """The folder that all paths have in common, with its trailing slash; "" if there is none."""
    start = os.path.commonprefix(list(paths))  # noqa: RUF071 - URLs are allowed; cut at a slash below
    return start[: start.rfind("/") + 1]
