"""Shards that begin again: the rank's rows come round as a whole."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, cycle, islice

from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.planning.workers import begun_in_laps, delivered_by_shard, turns

LAPS = st.integers(1, 4).flatmap(
    lambda shards: st.lists(st.lists(st.integers(0, 25), min_size=shards, max_size=shards), min_size=1, max_size=6)
)


@given(laps=LAPS, size=st.integers(1, 12))
def test_no_batch_begins_before_all_of_the_lap_before_have_begun(laps: list[list[int]], size: int) -> None:
    shards = len(laps[0])
    ends = [list(accumulate(lap[shard] for lap in laps)) for shard in range(shards)]
    given_ = [0] * shards
    begun = []
    for shard in turns(laps, size):
        first = given_[shard] * size
        begun.append(next(lap for lap, end in enumerate(ends[shard]) if first < end))
        given_[shard] += 1
    assert begun == sorted(begun)
    assert given_ == [-(-end[-1] // size) for end in ends], "every row is in a batch"


@given(laps=LAPS, size=st.integers(1, 12), data=st.data())
def test_counting_and_taking_turns_agree(laps: list[list[int]], size: int, data: st.DataObject) -> None:
    order = list(turns(laps, size))
    taken = data.draw(st.integers(0, len(order)))
    left, found = taken, Counter[int]()
    for begun in begun_in_laps(laps, size):
        now, _ = delivered_by_shard(begun, min(left, sum(begun)))
        left -= sum(now)
        found.update(dict(enumerate(now)))
    assert {shard: count for shard, count in found.items() if count} == Counter(order[:taken])


def test_one_lap_is_drained_round_robin() -> None:
    assert list(turns([[30, 10, 25]], 10)) == [0, 1, 2, 0, 2, 0, 2]
    assert list(islice(turns(cycle([[100, 10]]), 10), 22)) == [0, 1, *[0] * 9] * 2
