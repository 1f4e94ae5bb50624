"""The files and splits of an epoch: together they have what was drawn, however splits are cut and shared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Split, stream

LENGTHS = (1, 7, 20, 3)  # rows of each file


class Cuts:
    """Cuts files after these rows, also within row groups."""

    def __init__(self, *cuts: int) -> None:
        self.cuts = cuts

    def split(self, files: Any) -> list[Split]:
        made = []
        for file in files:
            rows = file.layout.row_count
            ends = sorted({0, rows, *(cut for cut in self.cuts if cut < rows)})
            made += [Split(file.info, pair) for pair in pairwise(ends)]
        return made


@pytest.fixture(scope="module")
def open_loader(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    folder = tmp_path_factory.mktemp("epochs")
    for file, rows in enumerate(LENGTHS):
        pq.write_table(pa.table({"id": range(rows)}), folder / f"{file}.parquet", row_group_size=4)

    @cache
    def opened(rank: int, of: int, cuts: tuple[int, ...], sharding: str) -> Any:
        return stream(
            str(folder),
            batch_size=3,
            num_ranks=of,
            rank=rank,
            split_strategy=Cuts(*cuts),
            sharding=sharding,
            even="none",
        )

    return opened


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0.01, 10)), min_size=sum(LENGTHS), max_size=sum(LENGTHS)).filter(any),
    st.integers(1, 90),
    st.sampled_from([(), (1, 2), (5, 6, 17)]),
    st.sampled_from(["interleave", "contiguous", "strided"]),
    st.integers(0, 5),
)
def test_splits_and_ranks_have_all_that_is_drawn(
    open_loader: Callable[..., Any],
    values: list[float],
    number: int,
    cuts: tuple[int, ...],
    sharding: str,
    epoch: int,
) -> None:
    ranks = [open_loader(rank, 3, cuts, sharding) for rank in range(3)]
    for loader in ranks:
        loader.set_row_weights(values, rows_per_epoch=number)
    source = ranks[0].dataset._source.in_epoch(epoch)
    assert source.splits.rows == number
    drawn = []
    for place, file in enumerate(source.files):
        counts = [segment.live_rows for segment in file.layout.segments]
        assert counts == [len(file.draws.rows(at)) for at in range(len(counts))]
        of_file = source.splits.file == place
        starts, stops = source.splits.start[of_file].tolist(), source.splits.stop[of_file].tolist()
        assert [*starts, sum(counts)] == [0, *stops]  # one after another, from the first row drawn to the last
        drawn += counts
    assert sum(drawn) == number
    assert sum(loader.shard_size(epoch=epoch) for loader in ranks) == number
    pieces = [piece for loader in ranks for shard in loader.plan(epoch).shards for piece in shard]
    assert sum(map(len, pieces)) == number
    assert np.sum([len(piece) == 0 for piece in pieces]) == 0
