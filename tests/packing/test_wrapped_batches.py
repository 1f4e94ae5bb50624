"""`Pack(method="wrap")` end to end: one stream of tokens per rank and worker, counted before it is read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import IGNORED, LENGTH, documents, make, write_documents
from tests.resume.helpers import batches, pass_with_states, through_json
from torch_dataloader_utils import Pack, StructuredDataset, combine, merge_state_dicts
from torch_dataloader_utils.errors import (
    CountsRequiredError,
    EmptyDatasetError,
    FileReadError,
    NullValueError,
    OptionError,
    ShardingError,
)

LENGTHS = np.random.default_rng(0).integers(0, 40, 60).tolist()
TOKENS = sum(LENGTHS)
ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "splits"},
    {"shuffle": True},
    {"shuffle": True, "shuffle_buffer_size": 4},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("documents"), LENGTHS)


WRAP = Pack(LENGTH, method="wrap")


def wrapping(path: str, **options: Any) -> Any:
    """A loader of small batches of sequences."""
    return make(path, **{"pack": WRAP, "split_rows": 150} | options)


def ranks_of(path: str, num_ranks: int, **options: Any) -> list[Any]:
    return [wrapping(path, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]


def tokens_of(batches: Any, length: int = LENGTH) -> list[int]:
    """The real tokens of these batches; all other keys are checked against them."""
    return [
        token for batch in batches for token in _tokens_of_one({k: np.asarray(v) for k, v in batch.items()}, length)
    ]


def _tokens_of_one(batch: dict[str, Any], length: int) -> list[int]:
    tokens, numbers, positions = (batch[key] for key in ("input_ids", "document_ids", "position_ids"))
    assert tokens.shape == numbers.shape == positions.shape == (len(tokens), length)
    begins = np.ones(tokens.shape, bool)
    begins[:, 1:] = np.diff(numbers) == 1
    assert (batch["labels"] == np.where(begins, IGNORED, -tokens)).all()
    assert (numbers == np.cumsum(begins, axis=1) - 1).all()
    assert ((np.diff(tokens) == 1) | begins[:, 1:]).all()  # the tokens of a document count on
    places = np.flatnonzero(begins)
    ends = np.append(places, tokens.size)
    assert batch["cu_seqlens"].tolist() == ends.tolist()
    assert batch["max_seqlen"] == np.diff(ends).max()
    assert positions.ravel().tolist() == [i for first, last in pairwise(ends) for i in range(last - first)]
    found: list[int] = tokens[batch.get("valid", np.ones(tokens.shape, bool))].tolist()
    return found


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=50),
    length=st.integers(1, 30),
    num_ranks=st.integers(1, 3),
    num_workers=st.sampled_from([0, 2]),
    order=st.sampled_from(ORDERS),
    row_group_size=st.integers(1, 20),
    sharding=st.sampled_from(["interleave", "contiguous", "rotate"]),
    even=st.sampled_from(["none", "pad"]),
)
def test_each_token_is_delivered_once_but_for_a_short_tail(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    num_ranks: int,
    num_workers: int,
    order: dict[str, Any],
    row_group_size: int,
    sharding: str,
    even: str,
) -> None:
    lengths = [*lengths, length * 3 * num_ranks]
    path = write_documents(tmp_path_factory.mktemp("any"), lengths, files=2, row_group_size=row_group_size)
    options = {
        "num_workers": num_workers,
        "sharding": sharding,
        "pack": WRAP.replace(length=length),
        "even": even,
        **order,
    }
    found: list[int] = []
    for loader in ranks_of(path, num_ranks, **options):
        steps, taken = len(loader), list(loader)
        assert len(taken) == steps
        found += tokens_of(taken, length)
    every = [token for document in documents(lengths) for token in document]
    assert len(set(found)) == len(found)
    assert set(found) <= set(every)
    missing = len(every) - len(found)
    assert missing == 0 if even == "pad" else missing < length * num_ranks


def test_one_rank_delivers_the_documents_in_file_order(data: str) -> None:
    every = [token for document in documents(LENGTHS) for token in document]
    assert tokens_of(wrapping(data, shuffle=False)) == every[: TOKENS // LENGTH * LENGTH]


@pytest.mark.parametrize("order", ORDERS[2:], ids=str)
def test_shuffling_permutes_whole_documents(data: str, order: dict[str, Any]) -> None:
    loader = wrapping(data, **order)
    epochs = []
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        epochs.append(tokens_of(loader))
    assert epochs[0] != epochs[1]
    for tokens in epochs:
        assert tokens != sorted(tokens)
        cuts = sum(1 for before, after in pairwise(tokens) if after != before + 1 and after % 1000)
        windows = 1 if len(order) == 1 else TOKENS // (4 * LENGTH) + 1
        assert cuts <= 5 * windows  # of each of its four splits, a window may cut the first and the last document


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_ranks_have_equal_steps_without_reading(data: str, even: str) -> None:
    for num_ranks in (2, 3):
        steps = {len(loader) for loader in ranks_of(data, num_ranks, even=even)}
        whole, left = divmod(TOKENS, num_ranks * 3 * LENGTH)
        assert steps == {whole + (even == "pad" and left > 0)}


def test_too_few_tokens_for_a_step_are_an_error(data: str) -> None:
    message = f"N={TOKENS} tokens in an epoch, R=2 ranks and batches of B={1000 * LENGTH}"
    with pytest.raises(ShardingError, match=message):
        len(wrapping(data, num_ranks=2, even="drop", batch_size=1000))


def test_the_last_batch_may_be_filled_up(data: str) -> None:
    every = {token for document in documents(LENGTHS) for token in document}
    for last_batch in ("pad", "wrap"):
        taken = list(wrapping(data, last_batch=last_batch))
        assert {batch["input_ids"].shape for batch in taken} == {(3, LENGTH)}
        assert set(tokens_of(taken)) == every
        assert int((~taken[-1]["valid"]).sum()) == len(taken) * 3 * LENGTH - TOKENS


def test_threads_and_processes_deliver_the_same_batches(data: str) -> None:
    for order in ORDERS:
        threads = wrapping(data, num_workers=2, **order)
        processes = wrapping(data, num_workers=2, worker_mode="processes", **order)
        assert batches(processes) == batches(threads)
        processes.dataset.close()
    assert batches(wrapping(data, num_workers=None)) == batches(wrapping(data, num_workers=0))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", [*ORDERS, {"steps_per_epoch": 40}], ids=str)
def test_a_pass_resumes_at_every_step(data: str, order: dict[str, Any], num_workers: int) -> None:
    whole, states = pass_with_states(wrapping(data, num_workers=num_workers, **order))
    assert len(whole) > 20
    for taken, state in enumerate(states[:-1]):
        loader = wrapping(data, num_workers=num_workers, **order)
        loader.load_state_dict(state)
        assert batches(loader) == whole[taken:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_other_ranks_and_workers_finish_the_epoch(data: str, order: dict[str, Any], num_workers: int) -> None:
    for taken in range(0, 12, 3):
        done, state = taken_by(ranks_of(data, 2, num_workers=num_workers, **order), taken)
        for num_ranks, workers in ((1, 2), (3, 0)):
            again, second = taken_by(ranks_of(data, num_ranks, num_workers=workers, **order), 1, state)
            rest = ranks_of(data, 2, num_workers=0, **order)
            for loader in rest:
                loader.load_state_dict(second)
            found = [*done, *again, *(token for loader in rest for token in tokens_of(loader))]
            assert len(set(found)) == len(found)
            assert TOKENS - len(found) < (2 + num_ranks + 2) * LENGTH  # a tail of each rank in each phase


def taken_by(loaders: list[Any], steps: int, state: Any = None) -> tuple[list[int], Any]:
    """The tokens of the first batches of each loader, and their merged state."""
    done, states = [], []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        taking = iter(loader)
        done += tokens_of(batch for batch in (next(taking, None) for _ in range(steps)) if batch is not None)
        states.append(loader.state_dict())
        loader.dataset.close()
    return done, through_json(merge_state_dicts(states))


def test_tokens_of_filtered_and_transformed_documents_are_counted(tmp_path: Path) -> None:
    path = write_documents(tmp_path, LENGTHS)
    table = pq.read_table(tmp_path / "0.parquet")
    pq.write_table(table.append_column("keep", pa.array(np.arange(len(table)) % 2)), tmp_path / "0.parquet")
    kept = [token for number in range(1, len(table), 2) for token in documents(LENGTHS)[number]]
    options = {"filters": [("keep", "=", 1)], "columns": ["input_ids", "labels"], "shuffle": False}
    with pytest.raises(CountsRequiredError, match=r"needs the number of tokens.*Use count_rows=True"):
        wrapping(path, **options)
    loader = wrapping(path, **options, count_rows=True)
    steps, found = len(loader), list(loader)
    assert len(found) == steps
    assert tokens_of(found) == kept[: len(kept) // LENGTH * LENGTH]
    halved = wrapping(path, columns=["input_ids", "labels"], transform=_halved, shuffle=False, count_rows=True)
    assert len(halved) == -(-(sum(length // 2 for length in LENGTHS) // LENGTH) // 3) == len(list(halved))


def _halved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first half of each document."""
    columns = [[each[: len(each) // 2] for each in column.to_pylist()] for column in batch.columns]
    arrays = [pa.array(values, item.type) for values, item in zip(columns, batch.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def test_formats_without_counts_of_values_are_scanned(tmp_path: Path) -> None:
    rows = "\n".join(f'{{"input_ids": {list(document)}}}' for document in documents(LENGTHS))
    (tmp_path / "documents.jsonl").write_text(rows)
    options: dict[str, Any] = {"shuffle": False}
    with pytest.raises(CountsRequiredError, match=r"Use .*pack=Pack\(16\)"):
        wrapping(str(tmp_path), **options)
    loader = wrapping(str(tmp_path), **options, count_rows=True)
    assert len(loader) == -(-(TOKENS // LENGTH) // 3)
    found = [token for batch in loader for token in batch["input_ids"].flatten().tolist()]
    assert found == [token for document in documents(LENGTHS) for token in document][: len(found)]


def test_footers_without_statistics_need_a_scan(tmp_path: Path) -> None:
    path = write_documents(tmp_path, LENGTHS, files=1)
    pq.write_table(pq.read_table(f"{path}/0.parquet"), f"{path}/0.parquet", write_statistics=False)
    with pytest.raises(CountsRequiredError, match="statistics"):
        wrapping(path)
    assert len(wrapping(path, count_rows=True)) == -(-(TOKENS // LENGTH) // 3)


def test_a_share_shorter_than_a_sequence_is_the_cause_and_padding_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]]}), tmp_path / "0.parquet")
    options: dict[str, Any] = {"shuffle": False, "num_workers": 0}
    assert list(wrapping(str(tmp_path), **options, pack=WRAP.replace(length=8))) == []
    assert "its 3 tokens fill no sequence of 8; use a smaller Pack(length), or even='pad'" in caplog.text
    (batch,) = wrapping(str(tmp_path), **options, pack=WRAP.replace(length=8), even="pad")
    assert batch["input_ids"][batch["valid"]].tolist() == [1, 2, 3]
    assert [b["input_ids"].tolist() for b in wrapping(str(tmp_path), **options, pack=WRAP.replace(length=3))] == [
        [[1, 2, 3]]
    ]
    ranks_of(str(tmp_path), 2, **options, pack=WRAP.replace(length=2))
    assert "has no tokens in epoch 0 (tokens per rank: 2, 0): there are 3 tokens, which do not fill" in caplog.text


@pytest.mark.parametrize("method", ["wrap", "best_fit"])
def test_documents_without_tokens_are_named_as_the_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    pq.write_table(pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int64()))}), tmp_path / "0.parquet")
    options = {"pack": WRAP.replace(method=method), "shuffle": False, "num_workers": 0}
    assert list(wrapping(str(tmp_path), **options)) == []
    assert (
        "the documents hold no token" if method == "wrap" else "no document of its share holds a token"
    ) in caplog.text
    units = "token" if method == "wrap" else "sequence"
    with pytest.raises(EmptyDatasetError, match=f"this rank has no {units} to repeat"):
        list(wrapping(str(tmp_path), **options, steps_per_epoch=2))
    if method == "wrap":
        with pytest.raises(EmptyDatasetError, match=r"no token to deliver \(N=0 tokens"):
            wrapping(str(tmp_path), **options, even="pad")


def test_null_documents_are_dropped_or_an_error(tmp_path: Path) -> None:
    tokens = pa.array([[1, 2, 3], None, [], [4, 5]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": tokens}), tmp_path / "0.parquet")
    options = {"pack": WRAP.replace(length=2), "batch_size": 4, "shuffle": False}
    with pytest.raises(NullValueError, match="null"):
        list(wrapping(str(tmp_path), **options))
    loader = wrapping(str(tmp_path), **options, nulls={"input_ids": "drop"}, count_rows=True)
    assert [batch["input_ids"].tolist() for batch in loader] == [[[1, 2], [3, 4]]]


def test_a_footer_with_wrong_counts_is_an_error(tmp_path: Path) -> None:
    tokens = pa.array([[1, None, 3]], pa.list_(pa.int32()))  # statistics count the null as no value
    pq.write_table(pa.table({"input_ids": tokens}), tmp_path / "0.parquet")
    loader = wrapping(str(tmp_path), pack=WRAP.replace(length=1), dtypes={"input_ids": "float32"}, shuffle=False)
    with pytest.raises((FileReadError, NullValueError)):
        list(loader)


def test_tokens_of_combined_datasets_are_counted_if_their_rows_were(tmp_path: Path) -> None:
    """Whatever keeps footers from telling them: a filter, a transform, a format, a null rule, a combination between."""
    lengths = [row % 7 for row in range(40)]
    table = pa.table({"input_ids": [[row] * size for row, size in enumerate(lengths)], "keep": np.arange(40) % 2})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)

    def part(name: str, **options: Any) -> Any:
        return StructuredDataset.create_dataloader(tmp_path / name, columns=["input_ids"], **options)[1]

    def combined(*parts: Any) -> Any:
        packed = {"pack": WRAP, "batch_size": 3}
        return combine(parts, batches="splits", split_rows=20, num_ranks=1, rank=0, num_workers=0, **packed)

    plain, filters = part("a.parquet"), [("keep", "=", 1)]
    odd = sum(size for row, size in enumerate(lengths) if row % 2)
    for name, options, tokens in (
        ("a.parquet", {"filters": filters}, odd),
        ("b.arrow", {}, sum(lengths)),
        ("b.arrow", {"filters": filters}, odd),
        ("a.parquet", {"transform": _halved}, sum(size // 2 for size in lengths)),
    ):
        expected = (sum(lengths) + tokens) // LENGTH
        for parts in ([plain], [combine([plain], batches="splits")]):
            with pytest.raises(CountsRequiredError, match=r"dataset '?1'? .*Use count_rows=True"):
                combined(*parts, part(name, **options))
            loader = combined(*parts, part(name, count_rows=True, **options))
            steps = len(loader)
            assert sum(len(batch["input_ids"]) for batch in loader) == expected
            assert steps == -(-expected // 3)
        nested = combined(plain, combine([part(name, count_rows=True, **options)], batches="splits"))
        assert sum(len(batch["input_ids"]) for batch in nested) == expected
    with pytest.raises(CountsRequiredError, match="limit, in rows"):
        combined(plain, part("a.parquet", limit=9, count_rows=True))


def test_combined_documents_are_one_stream(data: str, tmp_path: Path) -> None:
    other = write_documents(tmp_path, [50] * 8)
    options: dict[str, Any] = {"num_ranks": 1, "rank": 0, "num_workers": 0}
    parts = [StructuredDataset.create_dataloader(path, **options)[1] for path in (data, other)]
    packing = {"pack": WRAP, "batch_size": 3}
    loader = combine(parts, batches="splits", **packing, **options)
    steps, found = len(loader), list(loader)
    assert len(found) == steps
    assert sum(batch["input_ids"].numel() for batch in found) == (TOKENS + 400) // LENGTH * LENGTH
    filtered = StructuredDataset.create_dataloader(data, fraction=0.5, **options)[1]
    with pytest.raises(CountsRequiredError, match="dataset 0 ") as caught:
        combine([filtered, parts[1]], batches="splits", **packing, **options)
    for remedy in caught.value.remedies:
        assert list(combine([filtered, parts[1]], batches="splits", **remedy.applied({**packing, **options})))
    limited = StructuredDataset.create_dataloader(data, limit=3, **options)[1]
    given = {**packing, **options, "even": "pad", "count_rows": True}
    with pytest.raises(CountsRequiredError, match=r"limit, in rows\. Use pack=Pack\(16\) and even='sync'") as caught:
        combine([limited, parts[1]], batches="splits", **given)
    (remedy,) = caught.value.remedies
    assert list(combine([limited, parts[1]], batches="splits", **remedy.applied(given)))


@pytest.mark.parametrize("filled", [{"even": "pad"}, {"last_batch": "pad"}, {"steps_per_epoch": 60}], ids=str)
def test_the_mask_of_combined_documents_is_that_of_sequences(data: str, filled: dict[str, Any]) -> None:
    """It is not a column that would have to be packed."""
    packing = {"pack": WRAP, "batch_size": 3}
    given = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batches": "splits"}
    loader = combine({"a": data}, **packing, **given, **filled)
    batches = list(loader)
    assert {batch["valid"].shape for batch in batches} == {(3, LENGTH)}
    every = [token for document in documents(LENGTHS) for token in document]
    missing = TOKENS % LENGTH if "steps_per_epoch" in filled else 0
    assert sorted(tokens_of(batches)) == sorted(every[: TOKENS - missing])


@pytest.mark.parametrize("shuffle", [False, "splits"])
def test_rows_of_a_step_are_its_tokens(data: str, shuffle: Any) -> None:
    loader = wrapping(data, shuffle=shuffle)
    per_file: dict[str, list[int]] = {}
    for number in range(3):
        column = pq.read_table(f"{data}/{number}.parquet")["input_ids"].combine_chunks()
        per_file[f"{data}/{number}.parquet"] = column.values.to_pylist()
    for step, batch in enumerate(loader):
        found = [
            token for part in loader.dataset.rows_of(0, step) for token in per_file[part.path][part.start : part.stop]
        ]
        assert sorted(found) == sorted(batch["input_ids"].flatten().tolist())
    with pytest.raises(CountsRequiredError, match=r"rows_of: a window permutes documents"):
        wrapping(data, shuffle=True).dataset.rows_of(0, 1)
    with pytest.raises(CountsRequiredError, match=r"rows_of: a window permutes documents"):
        wrapping(data, shuffle=True, pack=WRAP.replace(length=1)).dataset.rows_of(0, 1)


def test_descriptions_and_plans_count_tokens(data: str) -> None:
    loader = wrapping(data, shuffle=True)
    text = repr(loader.dataset.describe())
    assert f"tokens      {TOKENS:,}" in text
    assert f"B = 3 sequences of {LENGTH} tokens" in text
    assert f"documents are permuted in one window of {TOKENS // LENGTH * LENGTH:,} tokens" in text
    assert "documents   " not in text
    plan = repr(loader.dataset.plan())
    assert f"{TOKENS // LENGTH * LENGTH:,} tokens in {len(loader)} steps (batches of {3 * LENGTH} tokens)" in plan
    assert "first token  last token" in plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding": "strided"}, r"single tokens in turn. Use sharding=Strided\('batch'\)"),
        ({"canonical_ranks": 2}, r"canonical_ranks=2 with Pack\(method='wrap'\)"),
        ({"limit": 5}, r"limit=5 with Pack\(method='wrap'\): limit counts rows"),
    ],
)
def test_what_cannot_work_is_an_error_at_construction(data: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        wrapping(data, **options)
