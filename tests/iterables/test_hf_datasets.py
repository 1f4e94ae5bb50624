"""`streaming_shard` of a real `datasets.IterableDataset`, before its `map` (Hugging Face datasets issue 8253)."""

import os
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import ClassVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torch_dataloader_utils.errors import ShardingError, UnsupportedTypeError
from torch_dataloader_utils.iterables import streaming_shard

datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")

BOTH_SOURCES = pytest.mark.parametrize("kind", ["arrow", "generator"])


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    """Where datasets locks what `from_generator` makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


def rows_of_files(files):
    for start, stop in files:
        for row in range(start, stop):
            yield {"id": row, "text": f"text {row}"}


def stream(n, files=3, kind="arrow"):
    """A streaming dataset of rows 0..n-1 in that many files, from Arrow tables or from a generator."""
    if kind == "arrow":
        table = datasets.Dataset.from_dict({"id": list(range(n)), "text": [f"text {row}" for row in range(n)]})
        return table.to_iterable_dataset(num_shards=files)
    cuts = [i * n // files for i in range(files + 1)]
    shares = list(pairwise(cuts))
    return datasets.IterableDataset.from_generator(rows_of_files, gen_kwargs={"files": shares})


def ids(dataset):
    return [int(row["id"]) for row in dataset]


def shards(dataset, num_shards, **options):
    return [ids(streaming_shard(dataset, num_shards, index, **options)) for index in range(num_shards)]


# ---------------------------------------------------------------- the issue


@BOTH_SOURCES
def test_hf_issue_8253_every_other_sample_of_a_streaming_dataset(kind):
    assert shards(stream(8, kind=kind), 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@BOTH_SOURCES
@pytest.mark.parametrize(("files", "ranks"), [(4, 64), (3, 5), (1, 2)])
def test_hf_issue_8253_fewer_files_than_ranks(kind, files, ranks):
    rank_rows = shards(stream(200, files, kind), ranks)
    assert rank_rows == [list(range(index, 200, ranks)) for index in range(ranks)]


@BOTH_SOURCES
@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_size": 8, "split_batches": True}])
def test_hf_issue_8253_each_rank_maps_only_its_own_rows(kind, options):
    mapped = {}
    for index in range(4):
        calls = mapped[index] = []

        def tokenize(row, calls=calls):
            calls.append(row["id"])
            return {"length": len(row["text"])}

        dataset = streaming_shard(stream(70, kind=kind), 4, index, even_batches=False, **options).map(tokenize)
        assert [row["length"] for row in dataset] == [len(f"text {row}") for row in calls]
    assert sorted(row for calls in mapped.values() for row in calls) == list(range(70))
    assert all(15 <= len(calls) <= 20 for calls in mapped.values())


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 5),
    ranks=st.integers(1, 4),
    split_batches=st.booleans(),
    drop_last=st.booleans(),
    kind=st.sampled_from(["arrow", "generator"]),
)
def test_hf_issue_8253_same_rows_as_accelerate(n, batch, ranks, split_batches, drop_last, kind):
    accelerate = pytest.importorskip("accelerate.data_loader", reason="needs accelerate")
    size = batch * ranks if split_batches else batch
    for index in range(ranks):
        theirs = accelerate.IterableDatasetShard(range(n), size, drop_last, ranks, index, split_batches)
        ours = streaming_shard(
            stream(n, min(n, 3), kind), ranks, index, size, split_batches=split_batches, drop_last=drop_last
        )
        assert ids(ours) == list(theirs)


def test_hf_issue_8253_question_6_even_batches_false_gives_a_short_batch_or_none():
    assert shards(stream(9), 4, batch_size=2, even_batches=False) == [[0, 1, 8], [2, 3], [4, 5], [6, 7]]
    # As of any other iterable: the last round of samples is left out.
    assert shards(stream(5), 2, drop_last=True) == [[0, 2], [1, 3]]


# ---------------------------------------------------------------- the chain goes on


def test_hf_issue_8253_question_5_a_function_that_gives_a_streaming_dataset_again():
    source = stream(10)
    shard = streaming_shard(source, 2, 0)
    assert isinstance(shard, datasets.IterableDataset)
    assert shard.features == source.features
    assert shard.num_shards == source.num_shards == 3


@BOTH_SOURCES
def test_map_filter_and_batch_follow(kind):
    shard = streaming_shard(stream(20, kind=kind), 2, 1)
    chain = shard.map(lambda row: {"id": 10 * row["id"]}).filter(lambda row: row["id"] % 50 == 0)
    assert ids(chain) == [50, 150]
    assert next(iter(shard.batch(3)))["id"] == [1, 3, 5]


@BOTH_SOURCES
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_hf_issue_8253_question_4_shuffle_before_it_follows_the_epoch_of_the_chain(kind, options):
    by_epoch = []
    for epoch in range(3):
        rank_rows = []
        for index in range(2):
            shard = streaming_shard(stream(48, 4, kind).shuffle(seed=1, buffer_size=8), 2, index, **options)
            chain = shard.map(lambda row: {"double": 2 * row["id"]})
            chain.set_epoch(epoch)
            rank_rows.append(ids(chain))
        assert sorted(rank_rows[0] + rank_rows[1]) == list(range(48))
        by_epoch.append(rank_rows)
    assert by_epoch[0] != by_epoch[1] != by_epoch[2] != by_epoch[0]


def test_hf_issue_8253_question_4_shuffle_after_it_keeps_shards_apart_at_one_seed():
    for epoch in range(2):
        rank_rows = []
        for index in range(3):
            chain = streaming_shard(stream(50, 4), 3, index).shuffle(seed=5, buffer_size=6)
            chain.set_epoch(epoch)
            rank_rows.append(ids(chain))
        assert sorted(row for rows in rank_rows for row in rows) == list(range(50))
        assert all(rows != sorted(rows) for rows in rank_rows)


@pytest.mark.parametrize("files", [1, 4, 15])
def test_hf_issue_8253_question_4_shuffle_after_it_keeps_ranks_even(files):
    """Read side by side, files are shared and completed by themselves: no row is lost, and ranks have as many rows."""
    parts = [streaming_shard(stream(101, files), 3, index, batch_size=4) for index in range(3)]
    rank_rows = [ids(shard.shuffle(seed=5, buffer_size=6)) for shard in parts]
    assert len({len(rows) for rows in rank_rows}) == 1
    assert {row for rows in rank_rows for row in rows} == set(range(101))


@BOTH_SOURCES
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": 3, "even_batches": False}]
)
def test_a_saved_state_continues_where_it_was(kind, options):
    whole = ids(streaming_shard(stream(50, kind=kind), 4, 1, **options))
    for taken in range(len(whole)):
        running = streaming_shard(stream(50, kind=kind), 4, 1, **options)
        assert ids(islice(running, taken)) == whole[:taken]
        resumed = streaming_shard(stream(50, kind=kind), 4, 1, **options)
        resumed.load_state_dict(running.state_dict())
        rest = ids(resumed)
        assert len(rest) == len(whole) - taken
        if options != {"batch_size": 3} or taken <= 3:
            assert rest == whole[taken:]
        else:  # the first round was not read again: only the repeated rows can differ
            own = 12  # rows before the repeated ones
            assert rest[: max(0, own - taken)] == whole[taken:own]


def test_passes_after_each_other_complete_by_their_own_first_round():
    shard = streaming_shard(stream(20, 4).shuffle(seed=1, buffer_size=4), 4, 3, batch_size=3)
    for epoch in (0, 1, 0):
        shard.set_epoch(epoch)
        source = stream(20, 4).shuffle(seed=1, buffer_size=4)
        source.set_epoch(epoch)
        order = ids(source)
        assert ids(shard) == order[9:12] + order[1:4]


@pytest.mark.slow
def test_the_workers_of_a_data_loader_share_the_files():
    rank_rows = []
    for index in range(2):
        shard = streaming_shard(stream(60, 4), 2, index, batch_size=3, even_batches=False)
        loader = DataLoader(shard, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
        rank_rows.append(ids(loader))
    assert sorted(rank_rows[0] + rank_rows[1]) == list(range(60))


# ---------------------------------------------------------------- formats


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # any batched map of datasets 5 does that
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}])
def test_a_torch_format_stays(options):
    source = stream(10).with_format("torch")
    rows = list(streaming_shard(source, 4, 1, **options))
    assert [int(row["id"]) for row in rows] == ids(streaming_shard(stream(10), 4, 1, **options))
    assert all(isinstance(row["id"], torch.Tensor) for row in rows)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}])
def test_an_arrow_format_stays(options):
    tables = list(streaming_shard(stream(10).with_format("arrow"), 4, 1, **options))
    rank_rows = [row for table in tables for row in table["id"].to_pylist()]
    assert rank_rows == ids(streaming_shard(stream(10), 4, 1, **options))


def test_a_format_of_other_tables_is_refused():
    pytest.importorskip("pandas")
    with pytest.raises(UnsupportedTypeError, match="DataFrame: call streaming_shard before with_format"):
        next(iter(streaming_shard(stream(10).with_format("pandas"), 2, 0)))


def test_columns_that_only_some_rows_have_are_none_in_others():
    rows = [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}, {"a": 5, "b": 6}]
    dataset = datasets.IterableDataset.from_generator(lambda: iter(rows))
    assert list(streaming_shard(dataset, 2, 0, batch_size=2)) == [
        {"a": 1},
        {"a": 2},
        {"a": 5, "b": 6},
        {"a": 1, "b": None},
    ]


@dataclass
class Media(datasets.Image):
    """An image column that notes what is decoded, and needs no image library."""

    decoded: ClassVar[list[str]] = []

    def encode_example(self, value):
        return value

    def decode_example(self, value, token_per_repo_id=None):
        self.decoded.append(value["path"])
        return value["path"].upper()


def test_nobody_decodes_the_rows_of_other_shards():
    features = datasets.Features({"id": datasets.Value("int64"), "image": Media()})
    paths = [{"path": f"{row}.png", "bytes": b"x"} for row in range(12)]
    table = datasets.Dataset.from_dict({"id": list(range(12)), "image": paths}, features=features)
    source = table.to_iterable_dataset(num_shards=2)
    Media.decoded.clear()
    shard = streaming_shard(source, 3, 1)
    assert shard.features == source.features
    assert [row["image"] for row in shard] == ["1.PNG", "4.PNG", "7.PNG", "10.PNG"]
    assert Media.decoded == ["1.png", "4.png", "7.png", "10.png"]


# ---------------------------------------------------------------- bad input


def test_hf_issue_8253_question_3_contiguous_needs_a_length():
    with pytest.raises(TypeError, match="contiguous=True for a IterableDataset"):
        streaming_shard(stream(10), 2, 0, contiguous=True)


def test_a_dataset_that_is_split_already_is_refused():
    from datasets.distributed import split_dataset_by_node

    with pytest.raises(ShardingError, match="split_dataset_by_node already"):
        streaming_shard(split_dataset_by_node(stream(10), rank=0, world_size=2), 2, 0)


def test_a_dict_of_splits_is_refused():
    splits = datasets.IterableDatasetDict({"train": stream(10), "test": stream(4)})
    with pytest.raises(TypeError, match=r"keys \['train', 'test'\]"):
        streaming_shard(splits, 2, 0)


def test_a_dataset_with_a_length_is_any_iterable():
    table = datasets.Dataset.from_dict({"id": list(range(10))})
    assert shards(table, 3, contiguous=True) == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
