"""Every number about sharding in the documents that this package answers to, one test for each example.

- "Distributed Data Loading", the guide for two-level sharding over ranks and I/O workers;
- "Sharding" of NVIDIA DALI: the formulas of shard sizes, and what becomes of the last batch;
- "Dataset Sharding" of ESPnet3: the rotation of `total_shards`;
- Hugging Face datasets, issue 8253: sharding by rows and by batches.
"""

import pytest

from tests.planning.helpers import (
    all_rows,
    chunk_files,
    chunks,
    data_file,
    delivered,
    make_plan,
    numbers,
    rank_rows,
    row_ids,
)
from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.model import Shard, Split
from torch_dataloader_utils.planning.generate import call_generate
from torch_dataloader_utils.planning.options import PlanOptions, PlanShape
from torch_dataloader_utils.planning.sharding import shard_number


def names(*numbers: int) -> list[str]:
    return [f"C{i}" for i in numbers]


# ---------------------------------------------------------------- Distributed Data Loading


def test_distributed_data_loading_nine_chunks_on_three_ranks() -> None:
    plan = make_plan(chunk_files(*[4] * 9), 3)
    assert [chunks(plan.rank(0, rank)) for rank in range(3)] == [names(0, 3, 6), names(1, 4, 7), names(2, 5, 8)]


def test_distributed_data_loading_seven_chunks_on_three_ranks() -> None:
    plan = make_plan(chunk_files(*[4] * 7), 3)
    assert [plan.rank(0, rank).num_splits for rank in range(3)] == [3, 2, 2]


def test_distributed_data_loading_two_chunks_on_four_ranks() -> None:
    plan = make_plan(chunk_files(4, 4), 4)
    assert [chunks(plan.rank(0, rank)) for rank in range(4)] == [["C0"], ["C1"], [], []]
    assert plan.steps(0) == [1, 1, 0, 0]


def test_distributed_data_loading_each_chunk_has_one_rank_and_one_worker() -> None:
    # Three ranks of two workers; batches of one row, so that no row moves to fill a batch.
    plan = make_plan(chunk_files(*[1] * 13), 3, num_shards=2, batch_size=1)
    owners = [
        (piece.source.file.path, rank, worker)
        for rank in range(3)
        for worker, shard in enumerate(plan.rank(0, rank).shards)
        for piece in shard
    ]
    assert sorted(chunk for chunk, _, _ in owners) == sorted(names(*range(13)))
    assert {(rank, worker) for _, rank, worker in owners} == {(r, w) for r in range(3) for w in range(2)}


def test_distributed_data_loading_shuffle_comes_before_slicing() -> None:
    shuffled = make_plan(chunk_files(*[4] * 9), 3, shuffle=True, seed=42)
    order = chunks(make_plan(chunk_files(*[4] * 9), 1, shuffle=True, seed=42).rank(5, 0))
    assert order != names(*range(9))
    assert [chunks(shuffled.rank(5, rank)) for rank in range(3)] == [order[rank::3] for rank in range(3)]


def test_distributed_data_loading_epochs_differ_with_shuffle_only() -> None:
    files = chunk_files(*[4] * 9)
    shuffled, plain = make_plan(files, 3, shuffle=True), make_plan(files, 3)
    assert len({tuple(chunks(shuffled.rank(epoch, 0))) for epoch in range(4)}) > 1
    assert plain.rank(0, 1).shards == plain.rank(7, 1).shards


def test_distributed_data_loading_one_rank_is_a_single_process() -> None:
    files = chunk_files(3, 4, 5)
    assert rank_rows(make_plan(files), 0, 0) == all_rows(files)


def test_distributed_data_loading_eight_ranks_of_four_workers_and_1024_rows() -> None:
    files = chunk_files(*[3000] * 32)
    plan = make_plan(files, 8, num_shards=4, batch_size=1024, shuffle=True, seed=42)
    assert plan.steps(0) == [12] * 8  # 4 chunks of 3,000 rows each: 11 batches of 1,024 rows and one of 736
    lengths = [len(batch) for batch in delivered(plan, 0, 3)]
    assert lengths == [1024] * 11 + [736]


def test_distributed_data_loading_the_global_rank_counts() -> None:
    """Two nodes of four GPUs: the local rank would give nodes the same rows, the global rank gives each its own."""
    files = chunk_files(*[2] * 16)
    plan = make_plan(files, 8)
    by_global = [rank_rows(plan, 0, 4 * node + gpu) for node in range(2) for gpu in range(4)]
    assert sorted(row for rows in by_global for row in rows) == sorted(all_rows(files))
    by_local = [rank_rows(plan, 0, gpu) for node in range(2) for gpu in range(4)]
    assert by_local[0] == by_local[4]


class FirstVersion:
    def generate(self, files, num_workers, epoch):
        return [Shard(w, tuple(Split(file) for file in files[w::num_workers])) for w in range(num_workers)]


def test_distributed_data_loading_strategies_of_the_first_version_receive_all_chunks() -> None:
    files = chunk_files(4, 4, 4)
    for rank in range(3):
        shards, received_all = call_generate(FirstVersion(), files, 2, 0, 3, rank)
        assert [split.file.path for shard in shards for split in shard.splits] == names(0, 2, 1)
        assert received_all


# ---------------------------------------------------------------- NVIDIA DALI


@pytest.mark.parametrize(("size", "shards"), [(10, 3), (11, 4), (100, 7), (5, 8), (1_281_167, 8)])
@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_dali_shard_sizes(size: int, shards: int, epoch: int) -> None:
    files = chunk_files(size)
    stick = make_plan(files, shards, sharding=Rotate(stick_to_shard=True))
    assert stick.rows(epoch) == [(i + 1) * size // shards - i * size // shards for i in range(shards)]
    assert make_plan(files, shards, sharding="contiguous").rows(epoch) == stick.rows(epoch)
    rotating = make_plan(files, shards, sharding="rotate")
    moved = [(i + epoch) % shards for i in range(shards)]
    assert rotating.rows(epoch) == [(i + 1) * size // shards - i * size // shards for i in moved]


def test_dali_advances_to_the_next_shard_after_each_epoch() -> None:
    plan = make_plan(chunk_files(10), 2, sharding="rotate")
    assert [numbers(plan, epoch, 0)[0] for epoch in range(3)] == [0, 5, 0]


def test_dali_last_batch_policies() -> None:
    # 10 samples in 2 shards, batches of 3: shards of 5.
    files = chunk_files(10)
    partial, drop, wrap = (
        make_plan(files, 2, sharding="contiguous", batch_size=3, last_batch=how) for how in ("partial", "drop", "wrap")
    )
    assert [len(batch) for batch in delivered(partial, 0, 0)] == [3, 2]
    assert [len(batch) for batch in delivered(drop, 0, 0)] == [3]
    # FILL takes the next shard's data ...
    assert [[row for (_, row), _ in batch] for batch in delivered(wrap, 0, 0)] == [[0, 1, 2], [3, 4, 5]]
    # ... or, with pad_last_batch, repeats the shard's own.
    padded = make_plan(files, 2, sharding="contiguous", batch_size=3, last_batch="pad")
    assert delivered(padded, 0, 1)[1] == [(("C0", 8), True), (("C0", 9), True), (("C0", 5), False)]


def test_dali_pad_last_batch_gives_all_shards_the_same_number_of_batches() -> None:
    """One shard divides by the batch size and another is bigger by one sample."""
    files = chunk_files(13)
    plan = make_plan(files, 3, sharding="contiguous", batch_size=4)
    assert plan.rows(0) == [4, 4, 5]
    assert plan.steps(0) == [1, 1, 2]
    padded = make_plan(files, 3, sharding="contiguous", batch_size=4, even="pad")
    assert padded.steps(0) == [2, 2, 2]
    assert [[len(batch) for batch in delivered(padded, 0, rank)] for rank in range(3)] == [[4, 4]] * 3


# ---------------------------------------------------------------- ESPnet3


@pytest.mark.parametrize(("total", "ranks"), [(8, 4), (16, 16), (32, 8), (1, 1)])
def test_espnet3_rotation_formula(total: int, ranks: int) -> None:
    options = PlanOptions(sharding=Rotate(total))
    for epoch in range(2 * total):
        found = [shard_number(PlanShape(rank, ranks, epoch, options)) for rank in range(ranks)]
        assert found == [(epoch * ranks + rank) % total for rank in range(ranks)]
        assert len(set(found)) == ranks
    rounds = {shard_number(PlanShape(r, ranks, e, options)) for e in range(total // ranks) for r in range(ranks)}
    assert rounds == set(range(total))


def test_espnet3_as_many_shards_as_ranks_stay_where_they_are() -> None:
    plan = make_plan(chunk_files(*[10] * 16), 16, sharding=Rotate(16))
    assert [chunks(plan.rank(epoch, 5)) for epoch in range(3)] == [["C5"]] * 3


def test_espnet3_eight_shards_on_four_gpus() -> None:
    plan = make_plan(chunk_files(*[3] * 8), 4, sharding=Rotate(8))
    assert [[chunks(plan.rank(epoch, rank)) for rank in range(4)] for epoch in range(2)] == [
        [["C0"], ["C1"], ["C2"], ["C3"]],
        [["C4"], ["C5"], ["C6"], ["C7"]],
    ]


def test_espnet3_claims_that_every_rank_meets_every_shard_which_full_rotation_keeps() -> None:
    """The page promises it after S / R epochs; its formula gives a rank only every R-th shard. Ours takes S epochs."""
    files = chunk_files(*[3] * 8)
    plain = make_plan(files, 4, sharding=Rotate(8))
    assert {chunks(plain.rank(epoch, 1))[0] for epoch in range(8)} == {"C1", "C5"}
    full = make_plan(files, 4, sharding=Rotate(8, full_rotation=True))
    assert sorted(chunks(full.rank(epoch, 1))[0] for epoch in range(8)) == names(*range(8))


def test_espnet3_example_drops_rows_that_no_shard_here_loses() -> None:
    """Its `shard()` makes shards of N // S rows: of 21 rows in 8 shards, 5 are in none."""
    plan = make_plan(chunk_files(21), 4, sharding=Rotate(8))
    rows = sorted(row for epoch in range(2) for rank in range(4) for row in numbers(plan, epoch, rank))
    assert rows == list(range(21))


def test_espnet3_single_gpu_reads_the_full_dataset() -> None:
    plan = make_plan(chunk_files(7, 5), 1, sharding=Rotate(1))
    assert rank_rows(plan, 3, 0) == all_rows(plan.files)


def test_espnet3_ten_shards_on_eight_ranks_fail() -> None:
    with pytest.raises(ShardingError, match="total_shards=10 with num_ranks=8") as caught:
        make_plan(chunk_files(100), 8, sharding=Rotate(10))
    assert isinstance(caught.value, RuntimeError)  # as there


# ---------------------------------------------------------------- Hugging Face datasets, issue 8253


def test_hf_8253_samples_of_two_shards() -> None:
    plan = make_plan(chunk_files(8), 2, sharding="strided")
    assert [numbers(plan, 0, rank) for rank in range(2)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_hf_8253_batches_as_iterable_dataset_shard_deals_them() -> None:
    """accelerate's documented example: 12 elements, batches of 4, two processes."""
    files = [data_file("a", [12])]
    whole = make_plan(files, 2, sharding=Strided("batch"), batch_size=4)
    assert [numbers(whole, 0, rank) for rank in range(2)] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7]]
    split = make_plan(files, 2, sharding=Strided("split_batch"), batch_size=4)
    assert [numbers(split, 0, rank) for rank in range(2)] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


def test_hf_8253_sixty_four_ranks_and_four_files() -> None:
    files = chunk_files(*[640] * 4)
    by_file = make_plan(files, 64, batch_size=10)
    assert sum(steps > 0 for steps in by_file.steps(0)) == 4
    for sharding in ("strided", "contiguous"):
        by_row = make_plan(files, 64, batch_size=10, sharding=sharding)
        assert by_row.steps(0) == [4] * 64
        rows = [row for rank in range(64) for row in row_ids(by_row.rank(0, rank).shards[0])]
        assert sorted(rows) == all_rows(files)
