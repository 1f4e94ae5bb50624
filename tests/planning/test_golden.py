"""Frozen plans: a change here changes the order of every user's data, and makes saved positions wrong."""

import pytest

from tests.planning.helpers import data_files, make_plan
from torch_dataloader_utils import Rotate

FILES = [[5, 3, 4], [7], [2, 2, 2, 2], [6, 1]]


# Of each worker of each rank in epoch 1: (split, rows, step, padding).
PLANS = {
    "drop with two workers": (
        {"num_shards": 2, "even": "drop"},
        [
            [["3 0:6"], ["0 0:5", "4 0:4"]],
            [["2 11:12", "3 6:7", "7 6:7", "6 0:6"], ["1 5:8", "2 8:11"]],
        ],
        ["4 4:6", "5 6:8"],
    ),
    "pad with rotate": (
        {"sharding": "rotate", "even": "pad"},
        [
            [["5 6:8", "3 0:7", "1 5:8", "4 1:6", "5 6:7 pad"]],
            [["7 6:7", "2 8:12", "4 0:1", "0 0:5", "6 0:6", "7 6:7 pad"]],
        ],
        [],
    ),
    "drop with strided": (
        {"sharding": "strided", "even": "drop"},
        [
            [["0 0:5:2", "1 6:7", "4 0:3:2", "2 8:11:2", "3 0:7:2", "6 0:5:2"]],
            [["0 1:4:2", "1 5:8:2", "4 1:4:2", "2 9:12:2", "3 1:6:2", "7 6:7", "6 1:6:2"]],
        ],
        ["4 4:6", "5 6:8"],
    ),
    "total_shards": (
        {"sharding": Rotate(4)},
        [[["3 0:1", "5 6:8", "4 1:6"]], [["3 1:7", "1 5:8"]]],
        [],
    ),
}


def written(piece) -> str:
    rows = piece.rows
    step = "" if rows.step == 1 else f":{rows.step}"
    return f"{piece.source.index} {rows.start}:{rows.stop}{step}{' pad' if piece.pad else ''}"


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_frozen(name: str) -> None:
    options, ranks, left_out = PLANS[name]
    plan = make_plan(data_files(FILES), 2, split_rows=6, shuffle=True, seed=42, batch_size=3, **options)
    found = [[[written(piece) for piece in shard] for shard in plan.rank(1, rank).shards] for rank in range(2)]
    assert found == ranks
    assert [written(piece) for piece in plan.left_out(1)] == left_out
