"""Names of tasks in messages."""

from __future__ import annotations

from torch_dataloader_utils.model import Task, split_of, split_pieces


def describe(task: Task) -> str:
    """What a task reads, for messages: its file and rows, or the files whose rows it shuffles."""
    pieces = list(split_pieces(task.pieces))
    paths = list(dict.fromkeys(split_of(piece).file.path for piece in pieces))
    if len(paths) > 1:
        return f"{', '.join(paths[:3])}{f' and {len(paths) - 3} more files' if len(paths) > 3 else ''}"
    rows = pieces[0].rows
    where = "" if rows is None or len(pieces) > 1 else f", rows {rows.start} to {rows.stop}"
    return f"{paths[0]}{where}"
