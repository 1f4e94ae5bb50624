"""Splits: whole segments packed by size, and the checks on what strategies of the user return."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import all_rows, data_file, data_files, groups, make_plan, rank_rows, row_ids, split_of
from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.model import DataFile, DataFileInfo, Piece, Rows, Shard, Split
from torch_dataloader_utils.planning.generate import call_generate, generated_plan
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.strategies import (
    GenerateStrategy,
    RoundRobinSplitStrategy,
    SizeBalancedSplitStrategy,
    SplitStrategy,
    TargetSizeSplitStrategy,
    assignment_of,
    make_splits,
)


def spans(splits: tuple[Split, ...]) -> list[tuple[str, int, int]]:
    return [(split.file.path, split.row_range.start, split.row_range.stop) for split in splits]


@st.composite
def pruned_files(draw: st.DrawFn) -> list[DataFile]:
    """Files with empty, deleted and pruned row groups, counted by live or by physical rows."""
    files = []
    for i in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(st.integers(0, 9), max_size=6))
        gone = draw(st.sets(st.integers(0, 5), max_size=3))
        live = [draw(st.integers(0, n)) for n in rows] if draw(st.booleans()) else None
        files.append(data_file(f"f{i}", rows, pruned=gone, live=live))
    return files


@given(pruned_files(), st.integers(1, 20), st.booleans())
def test_splits_tile_the_rows_with_whole_segments(files: list[DataFile], limit: int, by_rows: bool) -> None:
    strategy = TargetSizeSplitStrategy(split_rows=limit) if by_rows else TargetSizeSplitStrategy(10 * limit)
    splits = make_splits(strategy, files)
    assert row_ids(Piece(split, split.row_range) for split in splits) == all_rows(files)
    assert [split.index for split in splits] == list(range(len(splits)))
    layouts = {file.info.path: file.layout for file in files}
    for split in splits:
        layout, (first, last) = layouts[split.file.path], split.segments
        starts = layout.plan_starts()
        assert len(split.row_range) > 0
        assert split.row_range.contiguous
        assert split.row_range.start == starts[first]
        inside = layout.segments[first:last]
        counts = [segment.live_rows if layout.counted else segment.rows for segment in inside]
        assert split.size_bytes == sum(s.size_bytes for s, count in zip(inside, counts, strict=True) if count)
        assert len(split.row_range) == sum(counts)
        size = sum(counts) if by_rows else split.size_bytes
        assert size <= limit * (1 if by_rows else 10) or sum(1 for count in counts if count) == 1


def test_consecutive_segments_are_added_while_they_fit_and_a_larger_one_stands_alone() -> None:
    files = data_files([[3, 3, 3, 9, 2, 2], [5]])
    expected = [("000.parquet", a, b) for a, b in ((0, 6), (6, 9), (9, 18), (18, 22))] + [("001.parquet", 0, 5)]
    assert spans(make_splits(TargetSizeSplitStrategy(split_rows=6), files)) == expected
    assert spans(make_splits(TargetSizeSplitStrategy(60), files)) == expected
    # Rows win when both are given.
    assert spans(make_splits(TargetSizeSplitStrategy(1, split_rows=6), files)) == expected


def test_the_default_is_128_mib() -> None:
    assert TargetSizeSplitStrategy().split_bytes == 128 * 2**20


def test_a_split_never_spans_pruned_segments() -> None:
    files = [data_file("a", [4, 4, 4, 4], pruned=[1])]
    assert spans(make_splits(TargetSizeSplitStrategy(split_rows=100), files)) == [("a", 0, 4), ("a", 8, 16)]
    assert spans(make_splits(SizeBalancedSplitStrategy(), files)) == [("a", 0, 4), ("a", 8, 16)]
    # Live rows have no gaps.
    counted = [data_file("a", [4, 4, 4, 4], pruned=[1], live=[3, 4, 0, 2])]
    assert spans(make_splits(TargetSizeSplitStrategy(split_rows=100), counted)) == [("a", 0, 5)]


def test_file_strategies_make_one_split_per_file() -> None:
    files = data_files([[3, 3], [0], [5]])
    for strategy, assignment in ((RoundRobinSplitStrategy(), "turn"), (SizeBalancedSplitStrategy(), "lpt")):
        assert spans(make_splits(strategy, files)) == [("000.parquet", 0, 6), ("002.parquet", 0, 5)]
        assert assignment_of(strategy) == assignment
        assert isinstance(strategy, SplitStrategy)
        assert not isinstance(strategy, GenerateStrategy)


def test_unknown_counts_make_splits_by_bytes_without_rows() -> None:
    files = [data_file("a.csv", [None, None, None])]
    splits = make_splits(TargetSizeSplitStrategy(200), files)
    assert [(split.row_range, split.segments, split.size_bytes) for split in splits] == [
        (None, (0, 2), 200),
        (None, (2, 3), 100),
    ]
    with pytest.raises(CountsRequiredError, match=r"split_rows=5.*a\.csv.*count_rows=True"):
        make_splits(TargetSizeSplitStrategy(split_rows=5), files)


# ---------------------------------------------------------------- split strategies of the user


class Custom:
    def __init__(self, *splits: Split) -> None:
        self.splits = list(splits)

    def split(self, files: list[DataFile]) -> list[Split]:
        return self.splits


def test_custom_splits_are_located_and_numbered_in_their_order() -> None:
    files = data_files([[4, 4], [6]])
    a, b = files
    splits = make_splits(Custom(split_of(b, 0, 6), split_of(a, 5, 8), Split(a.info, (0, 5))), files)
    assert spans(splits) == [("001.parquet", 0, 6), ("000.parquet", 5, 8), ("000.parquet", 0, 5)]
    assert [(split.index, split.segments, split.size_bytes) for split in splits] == [
        (0, (0, 1), 60),
        (1, (1, 2), 30),
        (2, (0, 2), 50),
    ]


def test_custom_splits_may_name_files_segments_or_nothing_more() -> None:
    files = data_files([[4, 4], [6]])
    splits = make_splits(
        Custom(Split(files[0].info, segments=(1, 2)), Split(files[0].info, segments=(0, 1)), Split(files[1].info)),
        files,
    )
    assert spans(splits) == [("000.parquet", 4, 8), ("000.parquet", 0, 4), ("001.parquet", 0, 6)]


def test_custom_splits_lose_pruned_rows_and_empty_ranges() -> None:
    files = [data_file("a", [4, 4, 4], pruned=[1])]
    splits = make_splits(Custom(split_of(files[0], 0, 0), split_of(files[0], 0, 10), split_of(files[0], 10, 12)), files)
    assert spans(splits) == [("a", 0, 4), ("a", 8, 10), ("a", 10, 12)]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([Split(DataFileInfo("other", 1, 8))], "expected a Split of one of the files"),
        (["a"], "expected a Split of one of the files"),
        ([Split(DataFileInfo("a", 1), (0, 9))], "expected .start, stop. with 0 <= start <= stop <= 8"),
        ([Split(DataFileInfo("a", 1), (-1, 8))], "expected .start, stop."),
        ([Split(DataFileInfo("a", 1), Rows(0, 8, 2))], "expected .start, stop."),
        ([Split(DataFileInfo("a", 1), segments=(0, 3))], "expected 0 to 2"),
        ([Split(DataFileInfo("a", 1), (0, 5)), Split(DataFileInfo("a", 1), (4, 8))], "overlap at 4"),
        ([Split(DataFileInfo("a", 1), (0, 5))], "left out rows of 'a'"),
        ([], "left out rows of 'a'"),
    ],
)
def test_custom_splits_that_cannot_work(splits: list[Split], message: str) -> None:
    with pytest.raises(OptionError, match=f"^Custom.*{message}"):
        make_splits(Custom(*splits), [data_file("a", [4, 4])])


def test_custom_rows_of_a_file_without_counts() -> None:
    files = [data_file("a.csv", [None, None])]
    assert [split.segments for split in make_splits(Custom(Split(files[0].info)), files)] == [(0, 2)]
    with pytest.raises(CountsRequiredError, match=r"a\.csv.*count_rows=True"):
        make_splits(Custom(split_of(files[0], 0, 5)), files)


@given(groups, st.data())
def test_custom_splits_get_everything_that_splits_of_ours_get(sizes: list[list[int]], data: st.DataObject) -> None:
    files = data_files(sizes)
    splits = []
    for file in files:
        edges = data.draw(st.sets(st.integers(1, file.info.record_count), max_size=3)) | {0, file.info.record_count}
        edges = sorted(edges)
        splits += [split_of(file, a, b) for a, b in itertools.pairwise(edges)]
    made = make_splits(Custom(*data.draw(st.permutations(splits))), files)
    plan = Plan(files, made, PlanOptions(batch_size=2, num_shards=2, shuffle=True), 2)
    assert sorted(rank_rows(plan, 0, 0) + rank_rows(plan, 0, 1)) == all_rows(files)


# ---------------------------------------------------------------- generate


class Generate:
    """One shard per worker and file; notes what it was called with."""

    def generate(self, files, num_workers, epoch, num_ranks, rank):
        self.called = [file.record_count for file in files], num_workers, epoch, num_ranks, rank
        mine = files[rank::num_ranks]
        return [Shard(w, tuple(Split(file) for file in mine[w::num_workers])) for w in range(num_workers)]


class KeywordGenerate(Generate):
    def generate(self, files, num_workers, epoch, *, num_ranks, rank):
        return super().generate(files, num_workers, epoch, num_ranks, rank)


class OtherNamesGenerate(Generate):
    def generate(self, files, workers, epoch, world_size, me):
        return super().generate(files, workers, epoch, world_size, me)


class OldGenerate:
    def generate(self, files, num_workers, epoch):
        self.called = [file.path for file in files], num_workers, epoch
        return [Shard(0, tuple(Split(file) for file in files))]


@pytest.mark.parametrize("strategy", [Generate(), KeywordGenerate(), OtherNamesGenerate()])
def test_generate_is_called_with_the_rank(strategy: Generate) -> None:
    shards, received_all = call_generate(strategy, data_files([[3], [4], [5]]), 2, 7, 2, 1)
    assert strategy.called == ([3, 4, 5], 2, 7, 2, 1)
    assert [shard.splits[0].file.path for shard in shards if shard.splits] == ["001.parquet"]
    assert not received_all


def test_generate_of_three_arguments_receives_all_files_whatever_the_rank() -> None:
    files, strategy = data_files([[3], [4]]), OldGenerate()
    assert call_generate(strategy, files, 0, 7, 2, 1)[1] is True
    assert strategy.called == (["000.parquet", "001.parquet"], 1, 7)
    assert call_generate(strategy, files, 0, 7, 1, 0)[1] is False


def test_generate_sees_live_counts() -> None:
    strategy = Generate()
    call_generate(strategy, [data_file("a", [4, 4], live=[1, 2])], 1, 0, 1, 0)
    assert strategy.called[0] == [3]


class Returns:
    def __init__(self, *shards: object) -> None:
        self.shards = shards

    def generate(self, files, num_workers, epoch):
        return list(self.shards)


class TwoArguments:
    def generate(self, files, num_workers):
        return []


def test_generate_that_cannot_work() -> None:
    files = data_files([[3]])
    with pytest.raises(OptionError, match="2 shards for num_workers=1: expected at most 1"):
        call_generate(Returns(Shard(0, ()), Shard(1, ())), files, 1, 0, 1, 0)
    with pytest.raises(OptionError, match="expected a list of Shard"):
        call_generate(Returns("x"), files, 1, 0, 1, 0)
    with pytest.raises(OptionError, match="expected generate"):
        call_generate(TwoArguments(), files, 1, 0, 1, 0)


def test_generated_shards_are_delivered_as_given() -> None:
    files = data_files([[4, 4], [5], [2]])
    options = PlanOptions(batch_size=3, num_shards=3)
    shards = [
        Shard(0, (split_of(files[1], 0, 5), split_of(files[0], 2, 8))),
        Shard(1, (split_of(files[0], 0, 2),)),
    ]
    plan = generated_plan(shards, files, options, 0, 0, exact=True)
    assert [row_ids(shard) for shard in plan.shards] == [
        [("001.parquet", i) for i in range(5)] + [("000.parquet", i) for i in range(2, 8)],
        [("000.parquet", 0), ("000.parquet", 1)],
        [],
    ]
    assert (plan.steps, plan.rows, plan.num_splits) == (4 + 1, 13, 3)
    assert [task.rows for task in plan.tasks(0)] == [5, 6]
    dropped = generated_plan(
        shards, files, PlanOptions(batch_size=3, num_shards=3, last_batch="drop"), 0, 0, exact=True
    )
    assert (dropped.steps, dropped.rows) == (3, 9)
    padded = generated_plan(shards, files, PlanOptions(batch_size=3, num_shards=3, last_batch="pad"), 0, 0, exact=True)
    assert (padded.steps, padded.rows) == (5, 13)
    assert row_ids(padded.shards[1]) == [("000.parquet", 0), ("000.parquet", 1), ("000.parquet", 0)]
    assert generated_plan(shards, files, options, 0, 0, exact=False).steps is None


def test_generated_shards_that_cannot_work() -> None:
    files = data_files([[4, 4]])
    twice = [Shard(0, (split_of(files[0], 0, 5),)), Shard(1, (split_of(files[0], 4, 8),))]
    with pytest.raises(OptionError, match="overlap at 4"):
        generated_plan(twice, files, PlanOptions(num_shards=2), 0, 0, exact=True)


def test_a_plan_of_default_splits() -> None:
    files = data_files([[3, 3], [4]])
    assert rank_rows(make_plan(files, split_rows=3, batch_size=4), 0, 0) == all_rows(files)
