"""The sharding utilities of Hugging Face datasets: every example of the page "Huggingface Datasets Sharding Utils".

Where the page is silent (no job, jobs that do not match), the answer is an error, and not a lost shard.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import DataLoaderUtilsError, ShardingError
from torch_dataloader_utils.iterables import (
    distribute_shards,
    merge_gen_kwargs,
    number_of_shards,
    shuffle_gen_kwargs,
    split_gen_kwargs,
)

FOUR_FILES = {"filepaths": ["shard_0.jsonl", "shard_1.jsonl", "shard_2.jsonl", "shard_3.jsonl"], "split": "train"}


def test_hf_sharding_utils_two_shards_for_four_jobs():
    assert distribute_shards(2, max_num_jobs=4) == [range(1), range(1, 2)]


def test_hf_sharding_utils_ten_shards_for_three_jobs():
    assert distribute_shards(10, max_num_jobs=3) == [range(4), range(4, 7), range(7, 10)]


def test_hf_sharding_utils_splitting_work_across_two_workers():
    assert split_gen_kwargs(FOUR_FILES, max_num_jobs=2) == [
        {"filepaths": ["shard_0.jsonl", "shard_1.jsonl"], "split": "train"},
        {"filepaths": ["shard_2.jsonl", "shard_3.jsonl"], "split": "train"},
    ]


def test_hf_sharding_utils_shuffling_with_aligned_lists():
    files, metadata = ["a.jsonl", "b.jsonl", "c.jsonl"], ["meta_a", "meta_b", "meta_c"]
    given_kwargs = {"filepaths": files, "metadata": metadata, "split": "train"}
    pairs = dict(zip(files, metadata, strict=True))
    orders = set()
    for seed in range(42, 62):
        shuffled = shuffle_gen_kwargs(np.random.default_rng(seed), given_kwargs)
        assert sorted(shuffled["filepaths"]) == files
        assert [pairs[file] for file in shuffled["filepaths"]] == shuffled["metadata"]
        assert shuffled["split"] == "train"
        orders.add(tuple(shuffled["filepaths"]))
    assert len(orders) > 2
    assert given_kwargs == {"filepaths": files, "metadata": metadata, "split": "train"}


def test_hf_sharding_utils_number_of_shards_is_the_length_of_the_lists_and_at_least_one():
    assert number_of_shards(FOUR_FILES) == 4
    assert number_of_shards({"files": ["a", "b"], "sizes": [1, 2], "split": "train"}) == 2
    assert number_of_shards({"files": ("a", "b"), "split": "train"}) == 1
    assert number_of_shards({"files": []}) == 1
    assert number_of_shards({}) == 1


@pytest.mark.parametrize("ask", [number_of_shards, lambda gen_kwargs: split_gen_kwargs(gen_kwargs, 2)])
def test_hf_sharding_utils_lists_of_different_lengths_are_a_runtime_error(ask):
    with pytest.raises(RuntimeError, match=r"'files': 2, 'sizes': 3") as caught:
        ask({"files": ["a", "b"], "sizes": [1, 2, 3]})
    assert isinstance(caught.value, ShardingError)
    assert isinstance(caught.value, DataLoaderUtilsError)


def test_hf_sharding_utils_merging_is_the_inverse_of_splitting():
    assert merge_gen_kwargs(split_gen_kwargs(FOUR_FILES, 3)) == FOUR_FILES


def test_one_shard_is_not_split():
    only = {"files": ["a"], "columns": ("x", "y")}
    assert split_gen_kwargs(only, 8) == [only]
    assert split_gen_kwargs({"split": "train"}, 8) == [{"split": "train"}]


def test_lists_of_other_lengths_are_shuffled_on_their_own():
    letters, numbers = list("abcdefgh"), list(range(20))
    shuffled = shuffle_gen_kwargs(np.random.default_rng(0), {"letters": letters, "numbers": numbers})
    assert shuffled["letters"] != letters
    assert shuffled["numbers"] != numbers
    assert sorted(shuffled["letters"]) == letters
    assert sorted(shuffled["numbers"]) == numbers


@given(st.integers(0, 200), st.integers(1, 50))
def test_distributed_ranges_tile_the_shards_evenly_in_order(shards, jobs):
    ranges = distribute_shards(shards, jobs)
    assert [shard for job in ranges for shard in job] == list(range(shards))
    assert len(ranges) == min(shards, jobs)
    lengths = [len(job) for job in ranges]
    assert lengths == sorted(lengths, reverse=True)
    assert not lengths or lengths[0] - lengths[-1] <= 1


@given(st.lists(st.integers(), max_size=30), st.integers(1, 10))
def test_split_and_merge_are_inverse(entries, jobs):
    gen_kwargs = {"files": entries, "sizes": [2 * x for x in entries], "split": "train", "columns": ("x",)}
    parts = split_gen_kwargs(gen_kwargs, jobs)
    assert len(parts) == min(max(1, len(entries)), jobs)
    assert merge_gen_kwargs(parts) == gen_kwargs


@pytest.mark.parametrize(("shards", "jobs"), [(4, 0), (-1, 2), (4, -3)])
def test_no_job_is_an_error_and_not_a_lost_shard(shards, jobs):
    with pytest.raises(ShardingError, match=rf"num_shards={shards} and max_num_jobs={jobs}"):
        distribute_shards(shards, jobs)


@pytest.mark.parametrize("parts", [[], [{"files": ["a"]}, {"paths": ["b"]}]])
def test_jobs_that_do_not_match_cannot_be_merged(parts):
    with pytest.raises(ShardingError, match=f"of {len(parts)} jobs"):
        merge_gen_kwargs(parts)


@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 5))
def test_same_results_as_hugging_face(entries, jobs, seed):
    theirs = pytest.importorskip("datasets.utils.sharding", reason="needs Hugging Face datasets")
    gen_kwargs = {"files": [f"f{i}" for i in range(entries)], "sizes": list(range(entries)), "split": "train"}
    assert number_of_shards(gen_kwargs) == theirs._number_of_shards_in_gen_kwargs(gen_kwargs)
    assert distribute_shards(entries, jobs) == theirs._distribute_shards(entries, jobs)
    parts = theirs._split_gen_kwargs(gen_kwargs, jobs)
    assert split_gen_kwargs(gen_kwargs, jobs) == parts
    assert merge_gen_kwargs(parts) == theirs._merge_gen_kwargs(parts)
    ours = shuffle_gen_kwargs(np.random.default_rng(seed), gen_kwargs)
    assert ours == theirs._shuffle_gen_kwargs(np.random.default_rng(seed), gen_kwargs)
