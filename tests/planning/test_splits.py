"""Splits in columns: the same values as lists of `Split`s, cut as by hand, for any files."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import data_file, data_files
from tests.planning.test_strategies import pruned_files
from torch_dataloader_utils.model import DataFile, Rows, Split, split_numbers
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.splits import Splits, plan_spans
from torch_dataloader_utils.planning.strategies import SizeBalancedSplitStrategy, TargetSizeSplitStrategy, make_splits


def by_hand(file: DataFile, limit: int | None, by_rows: bool) -> list[tuple[Rows | None, tuple[int, int], int]]:
    """The rows, segments and bytes of each split of a file: segment after segment is added while it fits."""
    spans, found = plan_spans(file.layout), []
    fill, end = 0, None
    for place, segment in enumerate(file.layout.segments):
        start, stop = (None, None) if spans is None else spans[place]
        if start is not None and start == stop:
            continue
        size = stop - start if by_rows else segment.size_bytes
        if not found or start != end or (limit is not None and fill + size > limit):
            found.append([start, stop, place, place + 1, segment.size_bytes])
            fill = size
        else:
            found[-1][1], found[-1][3], found[-1][4] = stop, place + 1, found[-1][4] + segment.size_bytes
            fill += size
        end = stop
    return [(None if a is None else Rows(a, b), (first, last), size) for a, b, first, last, size in found]


def values(splits: Splits) -> list[tuple[str, Rows | None, tuple[int, int], int]]:
    return [(split.file.path, split.row_range, split.segments, split.size_bytes) for split in splits]


@given(pruned_files(), st.integers(0, 3), st.integers(1, 90))
def test_segments_are_added_to_a_split_while_they_fit(files: list[DataFile], unknown: int, limit: int) -> None:
    files += [data_file(f"unknown{number}", [None] * number) for number in range(unknown)]
    made = make_splits(TargetSizeSplitStrategy(limit), files)
    assert values(made) == [(file.info.path, *split) for file in files for split in by_hand(file, limit, False)]
    whole = make_splits(SizeBalancedSplitStrategy(), files)
    assert values(whole) == [(file.info.path, *split) for file in files for split in by_hand(file, None, False)]
    if not unknown:
        made = make_splits(TargetSizeSplitStrategy(split_rows=limit), files)
        assert values(made) == [(file.info.path, *split) for file in files for split in by_hand(file, limit, True)]


@given(pruned_files(), st.integers(1, 90))
def test_a_table_of_splits_is_a_sequence_of_them(files: list[DataFile], limit: int) -> None:
    files.append(data_file("unknown", [None, None]))
    splits = make_splits(TargetSizeSplitStrategy(limit), files)
    listed = TargetSizeSplitStrategy(limit).split(files)
    assert list(splits) == listed == [splits[number] for number in range(len(splits))]
    assert splits[-1] == listed[-1]
    assert splits[1::2] == listed[1::2]
    assert list(Splits.of(listed, files)) == listed == list(pickle.loads(pickle.dumps(splits)))
    assert splits.uncounted == next(split for split in listed if split.row_range is None)
    assert splits.rows is None


def test_joined_tables_number_their_splits_anew() -> None:
    first, second = data_files([[4, 4], [4]]), [data_file("b", [5])]
    joined = Splits.joined([make_splits(SizeBalancedSplitStrategy(), files) for files in (first, second)])
    assert [(split.file.path, split.index) for split in joined] == [("000.parquet", 0), ("001.parquet", 1), ("b", 2)]
    assert joined.rows == 17


def test_only_the_splits_that_a_rank_reads_are_created(monkeypatch) -> None:
    made = []
    create = Split.__post_init__
    monkeypatch.setattr(Split, "__post_init__", lambda split: (made.append(split.index), create(split))[1])
    files = data_files([[10] * 100] * 10)
    options = PlanOptions(batch_size=5, shuffle=True, window_bytes=1_000)
    plan = Plan(files, make_splits(TargetSizeSplitStrategy(1), files), options, 50)
    for epoch in range(2):
        made.clear()
        read = {number for shard in plan.rank(epoch, 7).shards for number in split_numbers(shard)}
        assert len(read) == 20
        assert set(made) <= read
