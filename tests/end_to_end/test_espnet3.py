"""What ESPnet3's page "Dataset Sharding" states, number by number, for datasets that are written as it says."""

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, Subset

from tests.end_to_end.sharded import Plain, Utterances, epoch_of, structured, write
from torch_dataloader_utils import Rotate, ShardingError, combine

ROTATE = {"batches": "splits", "sharding": Rotate(8)}
FULL = {**ROTATE, "sharding": Rotate(8, full_rotation=True)}


def test_each_rank_gets_the_shard_of_the_formula_as_the_dataset_makes_it() -> None:
    """total_shards=8, dist_world_size=4: shard_idx = (epoch x world_size + rank) % total_shards."""
    utterances = Utterances(64)
    for shuffle in (False, True):
        for epoch in range(3):
            found = epoch_of([utterances], 4, epoch, **ROTATE, batch_size=3, shuffle=shuffle, split_rows=2)
            for rank, rows in enumerate(found):
                shard = utterances.shard((epoch * 4 + rank) % 8)
                expected = [shard[i]["id"] for i in range(len(shard))]
                assert (sorted(rows) if shuffle else rows) == expected


def test_every_rank_sees_every_shard_with_full_rotation() -> None:
    """The page promises it after total_shards / world_size epochs; a rank of its formula never meets other shards."""
    plain = [epoch_of([Utterances(64)], 4, epoch, **ROTATE, batch_size=3) for epoch in range(8)]
    assert {row // 8 for epoch in plain for row in epoch[1]} == {1, 5}
    full = [epoch_of([Utterances(64)], 4, epoch, **FULL, batch_size=3) for epoch in range(8)]
    for rank in range(4):
        assert sorted(row for epoch in full for row in epoch[rank]) == list(range(64))
    for first in range(0, 8, 2):
        assert sorted(row for epoch in full[first : first + 2] for rank in epoch for row in rank) == list(range(64))


def test_sixteen_shards_for_sixteen_ranks_stay() -> None:
    """The page's YAML: total_shards: 16, dist_world_size: 16. Each GPU owns one shard forever."""
    options = {"sharding": Rotate(16), "batch_size": 3}
    first = epoch_of([Utterances(48, 16, 16)], 16, 0, **options)
    assert first == [list(range(rank * 3, rank * 3 + 3)) for rank in range(16)]
    assert epoch_of([Utterances(48, 16, 16)], 16, 1, **options) == first


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_two_to_four_times_dist_world_size(factor: int) -> None:
    """The page's default: the union over ranks is complete after that many epochs."""
    total = 4 * factor
    options = {"sharding": Rotate(total), "batch_size": 4}
    found = [epoch_of([Utterances(5 * total, total)], 4, epoch, **options) for epoch in range(factor)]
    assert sorted(row for epoch in found for rank in epoch for row in rank) == list(range(5 * total))


def test_single_gpu_reads_the_full_dataset_as_it_is() -> None:
    """Both at 1: no sharding is applied, shard() is not called."""

    class Whole(Utterances):
        def shard(self, shard_idx: int) -> Dataset:
            raise AssertionError(shard_idx)

    for options in ({}, {"sharding": Rotate(1)}):
        assert epoch_of([Whole(21, 1, 1)], 1, 5, batch_size=4, **options) == [list(range(21))]


def test_the_page_s_shard_leaves_out_the_remainder(caplog: pytest.LogCaptureFixture) -> None:
    """`shard_size = n // self.total_shards`: of 21 samples in 8 shards, 5 never come. We say so, and leave it to it."""
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        found = [epoch_of([Utterances(21)], 4, epoch, **ROTATE, batch_size=4) for epoch in range(2)]
    assert sorted(row for epoch in found for rank in epoch for row in rank) == list(range(16))
    assert "dataset 0 (Utterances): its 8 shards have 16 of 21 samples; the other 5 are in no shard" in caplog.text


def test_shards_may_be_anything_with_len_and_getitem() -> None:
    class Lists(Utterances):
        def shard(self, shard_idx: int) -> Any:
            return [self[i] for i in range(shard_idx, self.n, self.total_shards)]

    found = epoch_of([Lists(21)], 4, 0, **ROTATE, batch_size=2)
    assert found == [[0, 8, 16], [1, 9, 17], [2, 10, 18], [3, 11, 19]]


def test_several_datasets_are_sharded_alike() -> None:
    """CombinedDataset.shard(i) is made of shard(i) of each; total_shards: 8 and dist_world_size: 4, as on the page."""
    found = epoch_of([Utterances(64), Utterances(24, first=1000)], 4, 1, **ROTATE, batch_size=4)
    for rank, rows in enumerate(found):
        shard = (4 + rank) % 8
        assert sorted(rows) == [*range(shard * 8, shard * 8 + 8), *range(1000 + shard * 3, 1000 + shard * 3 + 3)]


@pytest.mark.parametrize("count", [1, 2])
def test_datasets_with_its_attributes_rotate_without_a_keyword(count: int) -> None:
    datasets = [Utterances(64, first=1000 * number) for number in range(count)]
    for epoch in range(3):
        found = epoch_of(datasets, 4, epoch, batch_size=4)
        assert found == epoch_of(datasets, 4, epoch, **ROTATE, batch_size=4)
        for rank, rows in enumerate(found):
            shard = (epoch * 4 + rank) % 8
            assert sorted(rows) == [1000 * n + row for n in range(count) for row in range(shard * 8, shard * 8 + 8)]
    # Any other choice is the user's; one shard is the whole dataset.
    every = sorted(1000 * n + row for n in range(count) for row in range(64))
    for options in ({"sharding": "contiguous", "batches": "splits"}, {"batches": "proportional"}):
        assert sorted(row for rows in epoch_of(datasets, 4, 1, **options) for row in rows) == every
    assert epoch_of([Utterances(8, 1, 1)], 1, 1) == [list(range(8))]


def test_equal_steps_for_unequal_shards() -> None:
    """What the page leaves to shards of equal length."""

    class Uneven(Utterances):
        def shard(self, shard_idx: int) -> Dataset:
            bounds = [0, 1, 20, 22, 30, 31, 35, 36, 40]
            return Subset(self, range(bounds[shard_idx], bounds[shard_idx + 1]))

    found = epoch_of([Uneven(40)], 4, 0, **ROTATE, batch_size=2, shuffle=True, even="drop")
    assert [len(rank) for rank in found] == [6] * 4
    assert len({row for rank in found for row in rank} & set(range(30))) == 24
    padded = epoch_of([Uneven(40)], 4, 1, **ROTATE, batch_size=2, shuffle=True, even="pad")
    assert sorted(row for rank in padded for row in rank) == list(range(30, 40))


def test_samples_that_are_drawn_anew_each_time_do_not_change_the_plan() -> None:
    """Ranks guess a sample's size each from its own first samples: their splits must be the same for all that."""

    class Noisy(Utterances):
        scale = 1

        def __getitem__(self, idx: int) -> dict[str, Any]:
            sample = super().__getitem__(idx)
            return {**sample, "speech": sample["speech"].repeat(self.scale)}

    splits = []
    for scale in (1, 100_000):
        noisy = Noisy(640)
        noisy.scale = scale
        dataset = combine([noisy], num_ranks=4, rank=0, **ROTATE, shuffle=True, split_rows=10).dataset
        splits.append([(split.file.path, split.row_range) for split in dataset._source.splits])
        tasks = dataset.plan(0).tasks(0)
        assert all(task.size_bytes <= 2**26 for task in tasks)
    assert splits[0] == splits[1]


# ------------------------------------------------------------------------------------------------------ the five rules


def rule(datasets: list[Any], ranks: int, **options: Any) -> str:
    """The message of the error, which is a RuntimeError as there, and comes at construction."""
    with pytest.raises(RuntimeError) as caught:
        combine(datasets, num_ranks=ranks, rank=0, **options)
    assert isinstance(caught.value, ShardingError)
    return str(caught.value)


def test_dist_world_size_matches_the_world_size(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "dist_world_size={} must match the distributed world size, num_ranks={}"
    assert told.format(4, 2) in rule([Utterances(64)], 2, **ROTATE)
    # Left at 1 for a multi-GPU run.
    assert told.format(1, 4) in rule([Utterances(64, 8, 1)], 4, **ROTATE)
    assert told.format(1, 4) in rule([Utterances(64, 1, 1)], 4)
    # Found from the launcher: at first use.
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    loader = combine([Utterances(64)], **ROTATE)
    for use in (lambda: len(loader), lambda: next(iter(loader))):
        with pytest.raises(ShardingError, match=r"dist_world_size=4 must match .* num_ranks=2"):
            use()


def test_total_shards_is_divisible_by_the_world_size() -> None:
    """The page's example: total_shards: 10 with dist_world_size: 8."""
    told = rule([Utterances(80, 10, 8)], 8, sharding=Rotate(10))
    assert "total_shards=10 of dataset 0 must be divisible by num_ranks=8" in told


def test_total_shards_needs_shard() -> None:
    told = rule([Plain(64)], 4, **ROTATE)
    assert "total_shards=8 is set but shard() is not implemented: dataset 0 (Plain) needs" in told
    half = Plain(64)
    half.total_shards, half.dist_world_size = 8, 4
    assert "total_shards=8 is set but shard() is not implemented" in rule([half], 4)
    unset = Utterances(64)
    unset.total_shards = None
    assert "dataset 0 (Utterances) has shard(), but total_shards=None: expected a whole number" in rule(
        [unset], 4, **ROTATE
    )
    unset.total_shards, unset.dist_world_size = 8, None
    assert "dist_world_size=None: expected a whole number" in rule([unset], 4, **ROTATE)


def test_a_base_class_without_shard_is_the_same_error() -> None:
    class Unfinished(Utterances):
        def shard(self, shard_idx: int) -> Dataset:
            raise NotImplementedError

    for options in ({}, ROTATE, {"sharding": "contiguous"}):
        told = rule([Unfinished(64)], 4, **options)
        assert "total_shards=8 is set but shard() is not implemented: dataset 0 (Unfinished) needs shard(i)" in told
    assert epoch_of([Unfinished(8, 1, 1)], 1, 0) == [list(range(8))]


def test_sharded_and_plain_are_not_mixed(tmp_path: Path) -> None:
    told = rule({"read": Utterances(64), "spoken": Plain(8)}, 4)
    assert "datasets are mixed (dataset 'read' (Utterances): sharded, dataset 'spoken' (Plain): plain)" in told
    # Files are cut into any number of shards: they go with both.
    files = structured(write(tmp_path / "a", 100, 60))
    assert sum(map(len, epoch_of([files, Utterances(64)], 4, **ROTATE))) == 30 + 32
    assert sum(map(len, epoch_of([files, Plain(64)], 4))) == 60 + 64


def test_datasets_agree_on_total_shards_and_dist_world_size() -> None:
    told = rule({"read": Utterances(64), "spoken": Utterances(64, 16)}, 4, sharding="rotate")
    assert "must share one total_shards and dist_world_size: dataset 'read' (Utterances): 8 and 4" in told
    assert "dataset 'spoken' (Utterances): 16 and 4." in told
    assert "dataset 1 (Utterances): 8 and 2" in rule([Utterances(64), Utterances(64, 8, 2)], 4)
    told = rule([Utterances(64)], 4, **ROTATE | {"sharding": Rotate(16)})
    assert "total_shards=16, but dataset 0 (Utterances) has total_shards=8" in told


def test_overlapping_shards_are_found() -> None:
    """Verify shard coverage by sum(len(ds.shard(i)) for i in range(total_shards)) == len(ds)."""

    class Overlapping(Utterances):
        def shard(self, shard_idx: int) -> Dataset:
            return Subset(self, range(shard_idx * 8, min(shard_idx * 8 + 9, 64)))

    told = rule([Overlapping(64)], 4, **ROTATE)
    assert "dataset 0 (Overlapping): its 8 shards have 71 samples, but the dataset has 64: shards overlap" in told
