"""Plans over several datasets: each is dealt by itself, then they are mixed on each rank."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.planning.helpers import all_rows, data_file, delivered, make_plan, settings_of
from torch_dataloader_utils import Rotate
from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, ShardingError
from torch_dataloader_utils.model import DataFile, Piece
from torch_dataloader_utils.planning.parts import Part
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits

# Of each dataset, of each file, the rows of its row groups.
layouts = st.lists(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4), min_size=1, max_size=3
)
PartRow = tuple[int, str, int]


def files_of(layout: Sequence[Sequence[Sequence[int]]]) -> list[list[DataFile]]:
    """Files that are called alike in all datasets: only the part tells them apart."""
    found = []
    for number, groups in enumerate(layout):
        files = [data_file(f"{i:03d}.parquet", rows) for i, rows in enumerate(groups)]
        found.append([replace(file, info=replace(file.info, part=number)) for file in files])
    return found


def combined(
    files: Sequence[Sequence[DataFile]],
    ranks: int = 1,
    parts: Sequence[Part] | None = None,
    split_rows: int | None = None,
    **options: object,
) -> Plan:
    splits = [split for part in files for split in make_splits(TargetSizeSplitStrategy(split_rows=split_rows), part)]
    return Plan(
        [file for part in files for file in part],
        [replace(split, index=index) for index, split in enumerate(splits)],
        PlanOptions(**options),
        ranks,
        parts=parts or [Part()] * len(files),
    )


def part_rows(pieces: Sequence[Piece]) -> list[PartRow]:
    return [(*piece.source.file.key, int(row)) for piece in pieces for row in piece.rows.numbers()]


def rows_of(plan: Plan, epoch: int, rank: int) -> list[PartRow]:
    """The real rows of a rank, shard after shard."""
    return part_rows([piece for shard in plan.rank(epoch, rank).shards for piece in shard if not piece.pad])


def everything(files: Sequence[Sequence[DataFile]]) -> list[PartRow]:
    return sorted((number, *row) for number, part in enumerate(files) for row in all_rows(part))


@given(layouts, st.integers(1, 20), settings_of(last_batch=["partial"]), st.integers(0, 5))
def test_every_row_once_and_equal_steps_for_every_policy(layout, split_rows, settings, epoch) -> None:
    ranks, options = settings
    files = files_of(layout)
    try:
        plan = combined(files, ranks, None, split_rows, **options)
    except (ShardingError, EmptyDatasetError):
        assume(False)
        raise
    found = [rows_of(plan, epoch, rank) for rank in range(ranks)]
    real = [row for rows in found for row in rows]
    free = combined(files, ranks, None, split_rows, **{**options, "even": "none"})
    expected = everything(files)
    if isinstance(options["sharding"], Rotate):
        expected = sorted(row for rank in range(ranks) for row in rows_of(free, epoch, rank))
    left_out = part_rows(plan.left_out(epoch))
    assert sorted(real + left_out) == expected
    per_step = ranks * plan.batch_rows
    steps = plan.steps(epoch)
    if plan.options.even == "drop":
        assert steps == [len(expected) // per_step] * ranks
        assert len(left_out) == len(expected) % per_step
    elif plan.options.even == "pad":
        assert steps == [-(-len(expected) // per_step)] * ranks
        assert not left_out
    assert plan.rows(epoch) == [len(rows) for rows in found]
    batches = [delivered(plan, epoch, rank) for rank in range(ranks)]
    assert [len(some) for some in batches] == steps
    assert all(len(batch) == plan.batch_rows for some in batches for batch in some[:-1])


@given(layouts, st.integers(1, 20), settings_of(["none"], ["interleave", "contiguous", "strided", "rotate"]))
def test_a_rank_has_of_each_dataset_what_the_policy_alone_gives_it(layout, split_rows, settings) -> None:
    ranks, options = settings
    files = files_of(layout)
    plan = combined(files, ranks, None, split_rows, **options | {"shuffle": False})
    for number, groups in enumerate(layout):
        alone = combined(files_of([groups]), ranks, None, split_rows, **options | {"shuffle": False})
        for rank in range(ranks):
            of_part = [row[1:] for row in rows_of(plan, 2, rank) if row[0] == number]
            assert sorted(of_part) == sorted(row[1:] for row in rows_of(alone, 2, rank))


@given(st.lists(st.integers(1, 200), min_size=2, max_size=4), st.data())
def test_each_beginning_holds_rows_near_the_weights(sizes, data) -> None:
    """Splits have at most 5 rows here: no dataset is more than a split ahead of another."""
    weights = data.draw(st.none() | st.lists(st.floats(0.1, 10), min_size=len(sizes), max_size=len(sizes)))
    sharding, ranks = data.draw(st.sampled_from(["contiguous", "interleave", "strided"])), data.draw(st.integers(1, 3))
    files = files_of([[[5] * (n // 5) + [n % 5] * (n % 5 > 0)] for n in sizes])
    parts = None if weights is None else [Part(weight) for weight in weights]
    plan = combined(files, ranks, parts, 5, sharding=sharding, shuffle=data.draw(st.booleans()))
    for rank in range(ranks):
        (pieces,) = plan.rank(0, rank).shards
        counts = Counter(part for part, _, _ in part_rows(pieces))
        share = counts if weights is None else dict(enumerate(weights))
        seen: Counter[int] = Counter()
        for piece in pieces:
            seen[piece.source.file.part] += len(piece)
            open_ = [part for part in counts if seen[part] < counts[part]]
            passed = [seen[part] / share[part] for part in open_]
            # In units of weight, those that have rows left are equally far: to within half a split of each.
            assert not passed or max(passed) - min(passed) <= max(5 / share[part] for part in open_) + 1e-9


def greedily_mixed(parts: Sequence[Sequence[Piece]], weights: Sequence[float]) -> list[PartRow]:
    """By the definition: next comes the dataset whose next piece has its middle soonest, in units of its weight."""
    at, done, rows = [0] * len(parts), [0] * len(parts), []
    while any(place < len(pieces) for place, pieces in zip(at, parts, strict=True)):
        left = [number for number, pieces in enumerate(parts) if at[number] < len(pieces)]
        best = min(left, key=lambda n: ((done[n] + len(parts[n][at[n]]) / 2) / weights[n], n))
        rows += part_rows([parts[best][at[best]]])
        done[best] += len(parts[best][at[best]])
        at[best] += 1
    return rows


@given(layouts, st.integers(1, 20), settings_of(["none"]), st.data())
def test_mixing_is_the_greedy_choice_piece_by_piece(layout, split_rows, settings, data) -> None:
    ranks, options = settings
    weights = [data.draw(st.sampled_from([0.5, 1, 3])) for _ in layout] if data.draw(st.booleans()) else None
    parts = None if weights is None else [Part(weight) for weight in weights]
    plan = combined(files_of(layout), ranks, parts, split_rows, **options | {"num_shards": 1})
    assume(len(layout) > 1)
    for mixture in plan._shares(1).orders:
        alone = [list(order.runs().pieces()) for order in mixture.orders]
        sizes = [max(sum(map(len, pieces)), 1) for pieces in alone]
        assert part_rows(mixture.runs().pieces()) == greedily_mixed(alone, weights or sizes)
        rows = part_rows(mixture.runs().pieces())
        first, last = sorted(data.draw(st.integers(0, len(rows))) for _ in range(2))
        assert part_rows(mixture.runs(first, last).pieces()) == rows[first:last]


def test_weights_of_one_to_three() -> None:
    """At weights 1 and 3, one row of the first comes with three of the other."""
    plan = combined(files_of([[[1] * 4], [[1] * 8]]), 1, [Part(1), Part(3)], 1)
    (pieces,) = plan.rank(0, 0).shards
    assert [piece.source.file.part for piece in pieces] == [1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0]
    by_size = combined(files_of([[[1] * 4], [[1] * 8]]), 1, None, 1)
    (pieces,) = by_size.rank(0, 0).shards
    assert [piece.source.file.part for piece in pieces] == [1, 0, 1] * 4


@given(layouts, st.integers(1, 20), settings_of(last_batch=["partial", "pad"]), st.integers(0, 3))
def test_a_combination_of_one_is_the_plain_plan(layout, split_rows, settings, epoch) -> None:
    ranks, options = settings
    if options["even"] != "none":
        options = options | {"last_batch": "partial"}
    files = files_of(layout[:1])
    try:
        plain = make_plan(files[0], ranks, split_rows=split_rows, **options)
    except (ShardingError, EmptyDatasetError):
        assume(False)
        raise
    for weight in (None, 3.0):
        plan = combined(files, ranks, [Part(weight)], split_rows, **options)
        assert [plan.rank(epoch, rank) for rank in range(ranks)] == [plain.rank(epoch, rank) for rank in range(ranks)]
        assert plan.left_out(epoch) == plain.left_out(epoch)
        assert plan.read_amplification(epoch) == plain.read_amplification(epoch)


@pytest.mark.parametrize("options", [{}, {"sharding": "rotate"}, {"sharding": Rotate(4)}])
def test_equal_datasets_get_unequal_orders_and_the_first_that_of_the_plain_plan(options) -> None:
    layout = [[1] * 40]
    plan = combined(files_of([layout, layout]), 1, None, 1, shuffle=True, **options)
    plain = combined(files_of([layout]), 1, None, 1, shuffle=True, **options)
    (pieces,) = plan.rank(1, 0).shards
    orders = [[row for number, _, row in part_rows(pieces) if number == part] for part in range(2)]
    assert orders[0] != orders[1]
    assert orders[0] == [row for _, _, row in rows_of(plain, 1, 0)]


def test_a_rank_computes_its_share_without_the_others() -> None:
    files = files_of([[[7, 5], [3]], [[2] * 6]])
    options = {"sharding": "strided", "even": "drop", "batch_size": 2, "shuffle": True}
    first, again = combined(files, 3, None, 4, **options), combined(files, 3, None, 4, **options)
    for rank in (2, 0, 1):
        again.rank(rank, rank)
    assert [first.rank(1, rank) for rank in range(3)] == [again.rank(1, rank) for rank in range(3)]


def test_unknown_counts_are_mixed_by_bytes_and_dealt_whole() -> None:
    files = [
        [replace(file, info=replace(file.info, part=number)) for file in part]
        for number, part in enumerate([[data_file(f"{i}.csv", [None]) for i in range(4)], [data_file("x.csv", [None])]])
    ]
    (pieces,) = combined(files).rank(0, 0).shards
    assert [piece.source.file.part for piece in pieces] == [0, 0, 1, 0, 0]
    assert all(piece.rows is None for piece in pieces)
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        combined(files, 2, sharding="contiguous")


# ------------------------------------------------------------------------------- datasets that make their own shards


def given_shards(lengths: Sequence[int], part: int = 0) -> list[DataFile]:
    """A file for each shard, of segments of 2 rows."""
    files = [data_file(f"shard {i}", [2] * (n // 2) + [1] * (n % 2)) for i, n in enumerate(lengths)]
    return [replace(file, info=replace(file.info, part=part)) for file in files]


shard_lengths = st.integers(1, 4).flatmap(
    lambda ranks: st.tuples(
        st.just(ranks),
        st.integers(1, 3).flatmap(lambda m: st.lists(st.integers(0, 9), min_size=m * ranks, max_size=m * ranks)),
    )
)


@given(shard_lengths, st.booleans(), st.booleans(), st.integers(0, 12), st.sampled_from([None, 1, 4]))
def test_given_shards_are_rotated_whole(lengths, shuffle, full, epoch, split_rows) -> None:
    ranks, rows = lengths
    assume(any(rows))
    total = len(rows)
    plan = combined(
        [given_shards(rows)], ranks, [Part(total_shards=total, dist_world_size=ranks)], split_rows,
        sharding=Rotate(total, full_rotation=full), shuffle=shuffle,
    )  # fmt: skip
    for rank in range(ranks):
        place = (rank + epoch // (total // ranks)) % ranks if full else rank
        number = (epoch * ranks + place) % total
        found = rows_of(plan, epoch, rank)
        assert {name for _, name, _ in found} <= {f"shard {number}"}
        numbers = [row for _, _, row in found]
        assert sorted(numbers) == list(range(rows[number]))
        assert shuffle or numbers == sorted(numbers)


@given(shard_lengths, st.booleans(), st.integers(0, 5), st.sampled_from(["drop", "pad"]), st.integers(1, 4))
def test_given_shards_with_equal_steps(lengths, shuffle, epoch, even, size) -> None:
    """Rows of this epoch's shards, and of no others, are moved between ranks."""
    ranks, rows = lengths
    total = len(rows)
    other = files_of([[[3] * 7]])[0]
    other = [replace(file, info=replace(file.info, part=1)) for file in other]
    options = {"sharding": Rotate(total), "shuffle": shuffle, "batch_size": size}
    parts = [Part(total_shards=total, dist_world_size=ranks), Part()]
    try:
        plan = combined([given_shards(rows), other], ranks, parts, 4, even=even, **options)
    except ShardingError:
        assume(False)
        raise
    free = combined([given_shards(rows), other], ranks, parts, 4, **options)
    expected = sorted(row for rank in range(ranks) for row in rows_of(free, epoch, rank))
    found = [row for rank in range(ranks) for row in rows_of(plan, epoch, rank)]
    assert sorted(found + part_rows(plan.left_out(epoch))) == expected
    assert len(set(plan.steps(epoch))) == 1


def test_even_drop_looks_at_the_epochs_with_the_smallest_shards() -> None:
    parts = [Part(total_shards=4, dist_world_size=2)]
    options = {"sharding": Rotate(4), "batch_size": 3, "even": "drop"}
    with pytest.raises(ShardingError, match="N=5 rows in an epoch"):
        combined([given_shards([9, 9, 2, 3])], 2, parts, **options)
    assert combined([given_shards([9, 9, 3, 3])], 2, parts, **options).steps(1) == [1, 1]


def test_other_policies_deal_given_shards_as_files() -> None:
    parts = [Part(total_shards=4, dist_world_size=2)]
    plan = combined([given_shards([2, 2, 2, 2])], 2, parts, sharding="interleave")
    assert [{name for _, name, _ in rows_of(plan, 0, rank)} for rank in range(2)] == [
        {"shard 0", "shard 2"},
        {"shard 1", "shard 3"},
    ]


def test_as_many_given_shards_as_total_shards() -> None:
    with pytest.raises(ShardingError, match="total_shards=4, but dataset 'speech' has 2 shards"):
        combined(
            [given_shards([2, 2])],
            2,
            [Part(total_shards=2, name="dataset 'speech'")],
            sharding=Rotate(4),
        )


def test_a_dataset_is_made_for_a_number_of_ranks() -> None:
    Part(total_shards=8, dist_world_size=4).check_ranks(4)
    Part().check_ranks(3)
    with pytest.raises(ShardingError, match="dist_world_size=1 must match the distributed world size, num_ranks=4"):
        Part(total_shards=1, dist_world_size=1).check_ranks(4)
    with pytest.raises(ShardingError, match="total_shards=10 of a dataset must be divisible by num_ranks=8"):
        Part(total_shards=10, dist_world_size=8).check_ranks(8)


def test_frozen_mixture() -> None:
    """A change here changes the order of every user's data."""
    plan = combined(files_of([[[5, 3, 4]], [[2, 2, 2]]]), 2, None, 5, shuffle=True, batch_size=3, even="drop")
    found = [[(p.source.index, p.rows.start, p.rows.stop) for p in plan.rank(1, r).shards[0]] for r in range(2)]
    assert found == [[(0, 0, 5), (4, 4, 6), (2, 8, 10)], [(1, 5, 8), (3, 0, 4), (2, 10, 12)]]


def test_read_amplification_counts_segments_that_ranks_share() -> None:
    files = files_of([[[4], [4]], [[8]]])
    assert combined(files, 2, None, 4).read_amplification(0) == 1.0
    assert combined(files, 2, None, 4, sharding="strided").read_amplification(0) == 2.0
    # Contiguous halves: each dataset is cut in two, the first one between its files.
    assert combined(files, 2, None, 4, sharding="contiguous").read_amplification(0) == 1.5
