"""Batches that are sent to a device: copies that are still under way, what is ahead, and what stays where it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.batching.batches import BatchSize, in_step, shard_batches
from torch_dataloader_utils.batching.devices import HostTarget
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.batching.sent import AHEAD, SentForm, on_current_stream, prefetched
from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.convert.columns import Dense, Objects, Ragged, Text
from torch_dataloader_utils.convert.grouped import Grouped
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.length_buckets.batches import BucketMaker
from torch_dataloader_utils.reading.blocks import Block


class ThreadTarget:
    """Copies in a thread, in order, as a GPU's copy engine does: memory that was sent holds nothing until a wait.

    Attributes:
        sent: the number of copies begun.
        waits: the number of tensors of each wait.
        gate: copies begin while it is set.
    """

    def __init__(self) -> None:
        self._engine = ThreadPoolExecutor(1)
        self.gate = threading.Event()
        self.gate.set()
        self.sent = 0
        self.waits: list[int] = []
        self._last: Future[None] | None = None
        self.inside = False

    def copying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        self.sent += 1
        source, there = tensor.clone(), torch.full_like(tensor, 113)
        self._last = self._engine.submit(lambda: self._copy(source, there))
        return there

    def _copy(self, source: torch.Tensor, there: torch.Tensor) -> None:
        assert self.gate.wait(10)
        there.copy_(source)

    def mark(self) -> Any:
        return self._last

    def place(self) -> int:
        return threading.get_ident()

    def wait(self, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        self.waits.append(len(tensors))
        if mark is not None:
            mark.result(10)

    def close(self) -> None:
        self.gate.set()
        self._engine.shutdown()


@pytest.fixture
def target() -> Iterator[ThreadTarget]:
    engine = ThreadTarget()
    yield engine
    engine.close()


KEYS = ["id", "vector", "items", "padded", "ends", "flat", "longest", "a", "b", "word", "dict"]
ENTRIES = ["id", "vector", "items", "padded", "ends", "flat", "longest", "joined", "word", "dict"]
JAGGED = {"joined": ["a", "b"]}
ON_HOST = ("longest", "word", "dict")


def block(first: int, rows: int) -> Block:
    """Rows numbered from `first`, with a column of every kind."""
    ids = np.arange(first, first + rows)
    lengths = ids % 4 + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.arange(offsets[-1], dtype=np.int32) + first
    words = pa.array([f"row {row}" for row in ids])
    text = "".join(words.to_pylist()).encode()
    word_offsets = np.concatenate([[0], np.cumsum([len(word) for word in words.to_pylist()])]).astype(np.int64)
    lists = {
        key: Ragged(values.copy(), offsets, layout)
        for key, layout in [
            ("items", "ragged"), ("padded", Padding(-1, 3)), ("ends", "ends"), ("flat", "flat"), ("longest", "longest"),
            ("a", "ragged"), ("b", "ragged"),
        ]
    }  # fmt: skip
    columns = {
        "id": Dense(ids),
        "vector": Dense(np.stack([ids, ids * 2], axis=1).astype(np.float32)),
        **lists,
        "word": Text(np.frombuffer(text, np.uint8), word_offsets, None, False),
        "dict": Objects(pa.chunked_array([pa.array([{"row": row} for row in ids.tolist()])])),
    }
    return Block.of_columns(rows, {key: columns[key] for key in KEYS})


class Blocks:
    """A driver that hands on these blocks."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = iter(blocks)

    def next_block(self, shard: int) -> Block | None:
        return next(self._blocks, None)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def cut(counts: Sequence[int], size: int, form: Any) -> Iterator[Any]:
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    blocks = [block(start, rows) for start, rows in zip(starts, counts, strict=False) if rows]
    return shard_batches(Blocks(blocks), 0, BatchSize(size), form, BlockLog(), lambda: iter(blocks))


def plain(value: Any) -> Any:
    """A batch as comparable values, with dtypes and shapes."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return (value.dtype, value.shape, value.tolist()) if isinstance(value, torch.Tensor) else value


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=5), st.integers(1, 15), st.integers(0, 3))
def test_what_is_handed_over_has_arrived_and_is_what_stays_at_home(counts, size, number) -> None:
    expected = [plain(batch) for batch in cut(counts, size, make_form("torch", KEYS, False, JAGGED))]
    target = ThreadTarget()
    try:
        sent = prefetched(cut(counts, size, SentForm(KEYS, JAGGED, target)), number)
        assert [plain(batch) for batch in on_current_stream(sent)] == expected
    finally:
        target.close()


def test_each_column_of_a_block_is_sent_once(target: ThreadTarget) -> None:
    """Columns that become one tensor need one copy; those with offsets or lengths, two."""
    form = SentForm(KEYS, JAGGED, target)
    batches = list(form.slices(block(0, 40), 2, 6, 6))
    assert len(batches) == 6
    assert target.sent == 1 + 1 + 2 + 2 + 1 + 1 + 2  # id, vector, items, padded, ends, flat, joined
    assert target.waits == []  # nobody waits before a batch is handed over
    for batch in on_current_stream(iter(batches)):
        assert list(batch) == ENTRIES
    assert target.waits == [10]  # once for all batches of the block


def test_groups_of_views_share_the_copy_of_their_block(target: ThreadTarget) -> None:
    """Views are created in groups of hundreds; whole columns are sent once whatever the number of groups."""
    form = SentForm(["id", "items"], {}, target)
    rows = 1000
    batches = list(on_current_stream(form.slices(block(0, rows), 0, rows, 1)))
    assert [batch["id"].item() for batch in batches] == list(range(rows))
    assert target.sent == 3
    assert len(target.waits) == 4  # 600 views are 300 batches of two columns


def test_large_blocks_are_sent_in_pieces(target: ThreadTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffle window may hold gigabytes: neither the GPU nor page-locked memory holds it whole."""
    whole = block(0, 40)
    limit = whole.columns["vector"].nbytes + whole.columns["id"].nbytes
    form = SentForm(["id", "vector"], {}, target)
    small = Block.of_columns(40, {key: whole.columns[key] for key in ("id", "vector")})
    monkeypatch.setattr("torch_dataloader_utils.batching.sent._AT_A_TIME", limit // 3)
    begun, ids = [], []
    for sent in form.slices(small, 0, 10, 4):
        begun.append(target.sent)
        ids += sent.handed()["id"].tolist()
    assert begun == [2] * 3 + [4] * 3 + [6] * 3 + [8]
    assert ids == list(range(40))


def test_another_place_waits_by_itself(target: ThreadTarget) -> None:
    """Threads may share an iterator, each with a stream of its own."""
    form = SentForm(["id"], {}, target)
    sent = list(form.slices(block(0, 12), 0, 4, 3))
    sent[0].handed()
    with ThreadPoolExecutor(1) as other:
        other.submit(sent[1].handed).result()
        other.submit(sent[2].handed).result()
    sent[3].handed()
    assert target.waits == [1, 1]


def test_the_next_block_is_sent_two_batches_before_its_first(target: ThreadTarget) -> None:
    batches = on_current_stream(prefetched(cut([12, 12, 12], 3, SentForm(["id"], {}, target))))
    begun = []
    for batch in batches:
        assert len(batch["id"]) == 3
        begun.append(target.sent)
    assert AHEAD == 2
    assert begun == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]


def test_a_block_is_sent_while_the_loop_works_on_the_one_before(target: ThreadTarget) -> None:
    batches = on_current_stream(prefetched(cut([6, 6], 3, SentForm(["id"], {}, target))))
    assert next(batches)["id"].tolist() == [0, 1, 2]
    target.gate.clear()  # no copy ends from now on, and yet:
    assert target.sent == 2
    assert next(batches)["id"].tolist() == [3, 4, 5]
    target.gate.set()
    assert next(batches)["id"].tolist() == [6, 7, 8]


def test_strings_objects_and_numbers_stay_at_home() -> None:
    form = SentForm(KEYS, JAGGED, HostTarget(lambda tensor: tensor.to("meta")))
    whole = block(0, 12)
    batches = [*form.slices(whole, 0, 2, 4), form.join([(whole, 8, 12), (block(12, 4), 0, 2)])]
    for batch in on_current_stream(iter(batches)):
        for key, value in batch.items():
            tensors = [value] if isinstance(value, torch.Tensor) else [
                item for item in (value.values() if isinstance(value, dict) else ()) if isinstance(item, torch.Tensor)
            ]  # fmt: skip
            assert len(tensors) == (0 if key in ON_HOST else 1 if isinstance(value, torch.Tensor) else 2), key
            assert all(tensor.is_meta for tensor in tensors)
    assert batch["word"] == [f"row {row}" for row in [8, 9, 10, 11, 12, 13]]
    assert batch["joined"]["keys"] == ["a", "b"]


def test_nested_tensors_are_there(target: ThreadTarget) -> None:
    ragged = block(0, 10).columns["items"]
    nested = Block.of_columns(10, {"items": Ragged(ragged.values, ragged.offsets, "nested")})
    expected = [batch["items"] for batch in make_form("torch", ["items"], False).slices(nested, 1, 3, 3)]
    found = [batch["items"] for batch in on_current_stream(SentForm(["items"], {}, target).slices(nested, 1, 3, 3))]
    assert [[row.tolist() for row in each.unbind()] for each in found] == [
        [row.tolist() for row in each.unbind()] for each in expected
    ]
    assert target.sent == 2


def test_batches_of_groups_are_sent(target: ThreadTarget) -> None:
    rows = block(0, 10)
    groups = Block.of_columns(
        3, {key: Grouped(column, np.array([0, 2, 7, 10])) for key, column in (rows.columns or {}).items()}
    )
    form = BucketMaker(SentForm(KEYS, JAGGED, target))
    assert [batch["id"].tolist() for batch in on_current_stream(form.slices(groups, 0, 3, 1))] == [
        [0, 1], [2, 3, 4, 5, 6], [7, 8, 9],
    ]  # fmt: skip


def test_mixed_batches_are_sent(target: ThreadTarget) -> None:
    parts = [(block(0, 10), 0, 4), (block(100, 10), 2, 4)]
    quotas = np.array([[2, 1], [2, 1]])
    expected = [batch["id"].tolist() for batch in make_form("torch", ["id"], False).mix(parts, quotas)]
    mixed = SentForm(["id"], {}, target).mix(parts, quotas)
    assert [batch["id"].tolist() for batch in on_current_stream(mixed)] == expected


def test_batches_can_be_trained_on_and_changed_in_place(target: ThreadTarget) -> None:
    with torch.inference_mode():
        sent = list(SentForm(["id", "vector"], {}, target).slices(block(0, 12), 0, 3, 4))
        first, second, _ = on_current_stream(iter(sent))
    weight = torch.ones(2, requires_grad=True)
    loss = (first["vector"] * weight).sum()
    second["vector"].zero_()  # another batch, of the same memory
    loss.backward()
    assert weight.grad.tolist() == [6, 12]
    assert first["id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_ahead_keeps_order_and_takes_as_few_as_it_says(number: int) -> None:
    taken = []

    def source() -> Iterator[int]:
        for item in range(7):
            taken.append(item)
            yield item

    for place, item in enumerate(prefetched(source(), number)):
        assert item == place
        assert len(taken) == min(7, place + 1 + number)


def test_an_error_takes_its_turn() -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        raise ValueError("damaged")

    found = prefetched(source(), 2)
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="damaged"):
        next(found)
    assert list(found) == []


def test_the_end_of_a_pass_does_not_wait_for_its_turn() -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        raise StaleIteratorError("ended")

    found = prefetched(source(), 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(StaleIteratorError):
        next(found)


def test_ranks_meet_at_the_same_batches_whatever_is_ahead() -> None:
    """A rank on a GPU and one on none enter the collective of even="sync" after as many batches."""
    asked: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for is_ahead, calls in asked.items():
        taken = 0

        def agree(at_hand: int, calls: list[tuple[int, int]] = calls) -> int:
            calls.append((taken, at_hand))  # noqa: B023 - called in this round
            return min(at_hand, 3)

        batches = iter(range(11))
        for _ in in_step(prefetched(batches) if is_ahead else batches, 3, agree):
            taken += 1
        assert taken == 11
    assert asked[True] == asked[False]
