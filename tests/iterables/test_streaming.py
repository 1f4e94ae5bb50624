"""`streaming_shard` of any iterable: Hugging Face datasets issue 8253, and its six open questions."""

import gc
import pickle
import subprocess
import sys
import weakref
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from torch_dataloader_utils.errors import DataLoaderUtilsError, ShardingError
from torch_dataloader_utils.iterables import streaming_shard

EIGHT = range(8)


def shards(samples, num_shards, **options):
    return [list(streaming_shard(samples, num_shards, index, **options)) for index in range(num_shards)]


class Lines:
    """An iterable without a length that counts its passes, as a file would be."""

    def __init__(self, n):
        self.n = n
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(range(self.n))


# ---------------------------------------------------------------- the examples of the issue


def test_hf_issue_8253_every_other_sample():
    assert shards(EIGHT, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_hf_issue_8253_four_files_for_64_ranks():
    """More ranks than files: every rank gets its own samples all the same."""
    files = [range(start, start + 1000) for start in range(0, 4000, 1000)]
    rank_rows = shards([row for file in files for row in file], 64)
    assert sorted(row for rows in rank_rows for row in rows) == list(range(4000))
    assert {len(rows) for rows in rank_rows} == {62, 63}


def test_hf_issue_8253_each_rank_maps_only_its_own_samples():
    for index in range(4):
        mapped = []

        def tokenize(row, mapped=mapped):
            mapped.append(row)
            return 10 * row

        rank_rows = list(map(tokenize, streaming_shard(Lines(20), 4, index)))
        assert mapped == list(range(index, 20, 4))
        assert rank_rows == [10 * row for row in mapped]


# ---------------------------------------------------------------- question 1: IterableDatasetShard, exactly


def test_hf_issue_8253_question_1_the_two_batch_modes_of_iterable_dataset_shard():
    assert shards(EIGHT, 2, batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shards(EIGHT, 2, batch_size=4, split_batches=True) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@given(
    n=st.integers(0, 70),
    batch=st.integers(1, 6),
    ranks=st.integers(1, 5),
    split_batches=st.booleans(),
    drop_last=st.booleans(),
)
def test_hf_issue_8253_question_1_same_samples_as_accelerate(n, batch, ranks, split_batches, drop_last):
    accelerate = pytest.importorskip("accelerate.data_loader", reason="needs accelerate")
    size = batch * ranks if split_batches else batch
    for index in range(ranks):
        theirs = accelerate.IterableDatasetShard(range(n), size, drop_last, ranks, index, split_batches)
        ours = streaming_shard(range(n), ranks, index, size, split_batches=split_batches, drop_last=drop_last)
        assert list(ours) == list(theirs)
        assert len(ours) == len(list(ours))


# ---------------------------------------------------------------- question 2: sample level and batches


@given(
    n=st.integers(0, 80),
    batch=st.none() | st.integers(1, 6),
    ranks=st.integers(1, 5),
    split_batches=st.booleans(),
    contiguous=st.booleans(),
)
def test_hf_issue_8253_question_2_every_sample_in_exactly_one_shard(n, batch, ranks, split_batches, contiguous):
    split_batches = split_batches and batch is not None
    contiguous = contiguous and batch is None
    size = batch * ranks if split_batches else batch
    rank_rows = shards(
        Lines(n) if not contiguous else range(n),
        ranks,
        batch_size=size,
        split_batches=split_batches,
        even_batches=False,
        contiguous=contiguous,
    )
    assert sorted(row for rows in rank_rows for row in rows) == list(range(n))
    assert all(rows == sorted(rows) for rows in rank_rows)
    block = 1 if batch is None else batch
    if not contiguous:
        assert all((row // block) % ranks == index for index, rows in enumerate(rank_rows) for row in rows)


# ---------------------------------------------------------------- question 3: strided and contiguous


@given(n=st.integers(0, 100), ranks=st.integers(1, 7))
def test_hf_issue_8253_question_3_contiguous_parts_by_the_floor_formula(n, ranks):
    for index in range(ranks):
        shard = streaming_shard(range(n), ranks, index, contiguous=True)
        expected = list(range(index * n // ranks, (index + 1) * n // ranks))
        assert list(shard) == expected
        assert len(shard) == len(expected)


def test_hf_issue_8253_question_3_contiguous_needs_a_length():
    with pytest.raises(TypeError, match="contiguous=True for a Lines") as caught:
        streaming_shard(Lines(8), 2, 0, contiguous=True)
    assert isinstance(caught.value, DataLoaderUtilsError)


# ---------------------------------------------------------------- question 4: epochs


class Shuffled:
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(row + self.epoch) % 10 for row in range(10)])


def test_hf_issue_8253_question_4_the_epoch_reaches_the_source():
    rank_rows = []
    for index in range(2):
        shard = streaming_shard(Shuffled(), 2, index)
        shard.set_epoch(3)
        rank_rows.append(list(shard))
    assert rank_rows == [[3, 5, 7, 9, 1], [4, 6, 8, 0, 2]]


def test_hf_issue_8253_question_4_a_source_without_epochs_takes_any():
    shard = streaming_shard(EIGHT, 2, 1)
    shard.set_epoch(3)
    assert list(shard) == [1, 3, 5, 7]


# ---------------------------------------------------------------- question 6: drop_last, even_batches, split_batches


def test_hf_issue_8253_question_6_ten_samples_on_four_ranks():
    assert shards(range(10), 4, batch_size=2) == [[0, 1, 8, 9], [2, 3, 0, 1], [4, 5, 2, 3], [6, 7, 4, 5]]
    assert shards(range(10), 4, batch_size=2, drop_last=True) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shards(range(10), 4, batch_size=2, even_batches=False) == [[0, 1, 8, 9], [2, 3], [4, 5], [6, 7]]
    assert shards(range(9), 4, batch_size=2, even_batches=False) == [[0, 1, 8], [2, 3], [4, 5], [6, 7]]


def test_hf_issue_8253_question_6_even_batches_acts_only_with_a_batch_size():
    assert shards(range(5), 2) == shards(range(5), 2, even_batches=False) == [[0, 2, 4], [1, 3]]
    assert shards(range(5), 2, drop_last=True) == [[0, 2], [1, 3]]


def test_hf_issue_8253_question_6_fewer_samples_than_a_round_repeat_from_the_first():
    assert shards(range(3), 2, batch_size=4) == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert shards([], 2, batch_size=4) == [[], []]


def test_hf_issue_8253_question_6_a_batch_that_cannot_be_split():
    with pytest.raises(ShardingError, match="batch_size=6 with num_shards=4 and split_batches=True"):
        streaming_shard(EIGHT, 4, 0, batch_size=6, split_batches=True)
    # IterableDatasetShard accepts a batch of one sample, of which every part is empty: nothing would be delivered.
    with pytest.raises(ShardingError, match="batch_size=1 with num_shards=4"):
        streaming_shard(EIGHT, 4, 0, batch_size=1, split_batches=True)


# ---------------------------------------------------------------- an iterable like its source


@given(
    n=st.integers(0, 60),
    batch=st.none() | st.integers(1, 4),
    ranks=st.integers(1, 4),
    drop_last=st.booleans(),
    even_batches=st.booleans(),
)
def test_length_is_what_iterating_gives(n, batch, ranks, drop_last, even_batches):
    for index in range(ranks):
        shard = streaming_shard(range(n), ranks, index, batch, drop_last=drop_last, even_batches=even_batches)
        assert len(shard) == len(list(shard))


def test_without_a_length_len_is_a_type_error_and_the_shard_still_true():
    shard = streaming_shard(Lines(8), 2, 0)
    with pytest.raises(TypeError, match="Lines"):
        len(shard)
    assert shard
    assert list(shard) == [0, 2, 4, 6]


def test_iterated_again_it_reads_its_source_again():
    source = Lines(8)
    shard = streaming_shard(source, 2, 1, batch_size=2)
    assert source.passes == 0
    assert list(shard) == list(shard) == [2, 3, 6, 7]
    assert source.passes == 2


def test_two_iterators_at_once_do_not_meet():
    shard = streaming_shard(range(10), 4, 1, batch_size=2)
    first, second = iter(shard), iter(shard)
    assert [value for _ in range(4) for value in (next(first), next(second))] == [2, 2, 3, 3, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 3}, {"batch_size": 3, "even_batches": False}, {"batch_size": 3, "drop_last": True}]
)
def test_an_endless_stream_is_read_no_further_than_the_round(options):
    read = []
    stream = (read.append(i) or i for i in count())
    shard = streaming_shard(stream, 4, 1, **options)
    assert read == []
    block = options.get("batch_size", 1)
    assert list(islice(shard, 2 * block)) == [i for i in range(8 * block) if i // block % 4 == 1]
    assert len(read) <= 8 * block


class Sample:
    """Something that a weak reference can watch."""


@pytest.mark.parametrize(
    ("options", "most"), [({"even_batches": False}, 1), ({"drop_last": True}, 3), ({"even_batches": True}, 12)]
)
def test_keeps_a_round_at_most(options, most):
    """Of 4 shards with batches of 3: nothing but the sample at hand, its own batch, or the first round."""
    alive, peak = weakref.WeakSet(), 0

    def stream():
        nonlocal peak
        for _ in range(200):
            sample = Sample()
            alive.add(sample)
            peak = max(peak, len(alive))
            yield sample

    for sample in streaming_shard(stream(), 4, 1, batch_size=3, **options):
        del sample
    gc.collect()
    assert peak <= most + 2  # the one just made, and the one before it in a loop's variable


def test_a_pickled_shard_is_the_same():
    shard = streaming_shard(range(10), 4, 1, batch_size=2)
    assert list(pickle.loads(pickle.dumps(shard))) == list(shard)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_the_shard_of_a_torch_iterable_dataset_goes_into_a_data_loader():
    shard = streaming_shard(Stream(), 4, 1, batch_size=2)
    assert isinstance(shard, IterableDataset)
    assert [batch.tolist() for batch in DataLoader(shard, batch_size=2)] == [[2, 3], [0, 1]]
    assert list(pickle.loads(pickle.dumps(shard))) == [2, 3, 0, 1]


def test_without_datasets_and_torch_neither_is_imported():
    program = (
        "import sys\n"
        "from torch_dataloader_utils.iterables import streaming_shard\n"
        "assert list(streaming_shard(range(8), 2, 1, batch_size=2)) == [2, 3, 6, 7]\n"
        "print([name for name in ('datasets', 'torch', 'pyarrow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# ---------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 0), "num_shards=0 and index=0"),
        ((4, 4), "num_shards=4 and index=4"),
        ((4, -1), "num_shards=4 and index=-1"),
        ((4, 0, 0), "batch_size=0"),
        ((4, 0, -2), "batch_size=-2"),
    ],
)
def test_numbers_that_do_not_fit_are_named(arguments, named):
    with pytest.raises(ShardingError, match=named):
        streaming_shard(EIGHT, *arguments)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split_batches": True}, "split_batches=True without batch_size"),
        ({"contiguous": True, "batch_size": 2}, "contiguous=True with batch_size=2"),
        ({"contiguous": True, "drop_last": True}, "drop_last=True"),
    ],
)
def test_options_that_exclude_each_other_are_named(options, named):
    with pytest.raises(ShardingError, match=named):
        streaming_shard(EIGHT, 2, 0, **options)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((EIGHT, 2.0, 0), r"num_shards=2\.0"),
        ((EIGHT, 2, "0"), "index='0'"),
        ((EIGHT, 2, True), "index=True"),
        ((EIGHT, 2, 0, 1.5), r"batch_size=1\.5"),
        ((17, 2, 0), "Cannot shard 17"),
        (("data.jsonl", 2, 0), "Cannot shard 'data.jsonl'"),
        (({"train": EIGHT, "test": EIGHT}, 2, 0), r"keys \['train', 'test'\]"),
    ],
)
def test_wrong_types_are_named(arguments, named):
    with pytest.raises(TypeError, match=named) as caught:
        streaming_shard(*arguments)
    assert isinstance(caught.value, DataLoaderUtilsError)
