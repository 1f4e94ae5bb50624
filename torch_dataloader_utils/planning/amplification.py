"""Read amplification: how much is decoded more than once because several ranks share a segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch_dataloader_utils.model import FileKey, FileLayout, Piece, split_of, split_pieces
from torch_dataloader_utils.planning.tasks import SegmentTable


def read_amplification(ranks: Iterable[Iterable[Piece]], layouts: Mapping[FileKey, FileLayout]) -> float:
    """Rows of the segments that each rank reads, summed over ranks, per row of the segments that any rank reads.

    Args:
        ranks: the pieces of each rank.
        layouts: the layout of each file, by its key.
    """
    segments, total = SegmentTable(layouts), 0
    by_any: set[tuple[FileKey, int]] = set()

    def rows(read: set[tuple[FileKey, int]]) -> int:
        found = (layouts[key].segments[number] for key, number in read)
        # Text has no other count than that of a scan.
        return sum((segment.live_rows if segment.rows is None else segment.rows) or 0 for segment in found)

    for pieces in ranks:
        by_rank = set()
        for piece in split_pieces(pieces):
            key = split_of(piece).file.key
            by_rank |= {(key, number) for number in segments[key].touched(piece)}
        total += rows(by_rank)
        by_any |= by_rank
    return total / rows(by_any) if by_any else 1.0
