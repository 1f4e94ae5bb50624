"""Windows of rows that are read together: consecutive segments, planned without reading.

What is made of them, such as sequences of documents, is worse the fewer they are. So a window has at least some
thousand rows, of several segments, splits or files if need be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_dataloader_utils.model import Piece, Window
from torch_dataloader_utils.planning.options import ReadTogether
from torch_dataloader_utils.planning.tasks import SegmentTable
from torch_dataloader_utils.planning.windows import OpenPiece, Run, is_begun, opened_pieces
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import window_key

_MOST_BYTES = 64 << 20  # enough for a window, however few rows that are


def in_windows(
    shards: Shards, segments: SegmentTable, together: ReadTogether, seed: int, key: tuple[int | str, ...]
) -> Shards:
    """The shards of a rank, with rows grouped into windows that are read together, in their order.

    Begun windows and padding are not changed. A window has whole segments of one or several splits.

    Args:
        shards: the pieces of each worker, in delivery order.
        segments: the segments of each file.
        together: the size of windows, and whether they have keys.
        seed: of the keys.
        key: the key of the rank's windows; a worker's number and a window's number complete it.
    """
    return tuple(
        (
            *(piece for piece in shard if is_begun(piece)),
            *_windows(opened_pieces(shard, segments), together, seed, (*key, worker)),
            *(piece for piece in shard if piece.pad),
        )
        for worker, shard in enumerate(map(tuple, shards))
    )


def _windows(
    opened: Sequence[OpenPiece], together: ReadTogether, seed: int, key: tuple[int | str, ...]
) -> Iterator[Piece]:
    for task, runs in enumerate(_runs(opened, together.rows, together.size_bytes)):
        size = sum(size for _, size in runs)
        permuted = window_key(seed, *key, task) if together.keyed else None
        yield Piece(Window(tuple(piece for piece, _ in runs), permuted, None, size, task), None, -1)


def _runs(opened: Sequence[OpenPiece], rows: int, least: int) -> Iterator[list[Run]]:
    """Consecutive runs with at least so many rows and bytes together, but not many more; the last has what is left."""
    runs: list[Run] = []
    found = size = 0
    for each in opened:
        while each.left:
            piece, taken = each.run_of_rows(max(1, rows - found), least - size, _MOST_BYTES - size)
            runs.append((piece, taken))
            found += rows if piece.rows is None else len(piece)
            size += taken
            if (found >= rows and size >= least) or size >= _MOST_BYTES:
                yield runs
                runs, found, size = [], 0, 0
    if runs:
        yield runs
