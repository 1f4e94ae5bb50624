"""The rest of a mixed epoch: what is left of each lap of each dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from torch_dataloader_utils.model import Piece, Window, split_of, split_pieces
from torch_dataloader_utils.planning.rest import RemainingRows, merged, order_of
from torch_dataloader_utils.planning.splits import Splits

_BEGUN = -1  # comes before the laps


def rest_of_mix(splits: Splits, pieces: Sequence[Piece], epoch: int, phase: int, parts: int) -> RemainingRows:
    """The rest of an epoch that consists of these rows; a row may occur once in each lap.

    Args:
        splits: all splits.
        pieces: what no rank has delivered, without padding.
        epoch: the epoch.
        phase: the number of earlier phases.
        parts: the number of datasets.
    """
    by_lap: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_lap[_lap_of(piece, len(splits))].append(piece)
    keys = sorted(by_lap)
    laps = [merged(by_lap[key]) for key in keys]
    order = order_of(splits, [piece for lap in laps for piece in lap])
    units = pairwise(accumulate(map(len, laps), initial=0))
    orders = {key: order.units(first, last) for key, (first, last) in zip(keys, units, strict=True)}
    by_part = {part: tuple(orders[key] for key in some) for part, some in groupby(keys, key=lambda key: key[0])}
    return RemainingRows(epoch, phase, order, laps=tuple(by_part.get(part, ()) for part in range(parts)))


def _lap_of(piece: Piece, splits: int) -> tuple[int, int]:
    """The dataset of a piece, and its lap."""
    part = split_of(next(split_pieces([piece]))).file.part
    return part, _BEGUN if isinstance(piece.source, Window) else piece.order // splits
