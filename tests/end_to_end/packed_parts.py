"""Loaders of packed documents, as parts of the grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tests.end_to_end.parts import Part, Seen, each_once
from tests.packing.helpers import LENGTH, documents, held, make, parts_of, write_documents
from tests.packing.pairs import TOGETHER, held_pairs, pairs, write_pairs
from tests.packing.test_wrapped_batches import WRAP, tokens_of, wrapping
from torch_dataloader_utils import Buckets, Pack, combine

DOCUMENTS = np.random.default_rng(0).integers(0, 24, 45).tolist()
PAIRS = np.random.default_rng(2).integers(1, 24, (45, 2)).tolist()
STREAM = Counter(token for document in documents(DOCUMENTS) for token in document)


def write_lists(folder: Path) -> str:
    return write_documents(folder, DOCUMENTS, row_group_size=4)


def in_sequences(path: str, **place: Any) -> Any:
    return make(path, **{"batch_size": 2, "split_rows": 4, "shuffle": True, "shuffle_buffer_size": 8, **place})


def write_both_sides(folder: Path) -> str:
    return write_pairs(folder, PAIRS)


def together(path: str, **place: Any) -> Any:
    return in_sequences(path, pack=TOGETHER.replace(long="truncate"), **place)


def in_a_stream(**options: Any) -> Callable[..., Any]:
    given = {"batch_size": 2, "split_rows": 40, "shuffle": True, "shuffle_buffer_size": 4, **options}
    return lambda path, **place: wrapping(path, **given, **place)


def no_token_twice(epochs: list[Seen]) -> None:
    assert all(seen <= STREAM for seen in epochs)


def tokens(batch: Any) -> list[int]:
    return tokens_of([batch])


SIZES = {"a": (45, 24), "b": (60, 9), "c": (6, 5)}  # documents, and the tokens of the longest


def of_dataset(name: str) -> tuple[list[int], list[int]]:
    """The tokens of a dataset, all different, and the lengths of its documents."""
    count, longest = SIZES[name]
    lengths = np.random.default_rng(count).integers(0, longest, count).tolist()
    return [token for document in documents(lengths) for token in document], lengths


def write_datasets(folder: Path) -> dict[str, str]:
    paths = {}
    for name in SIZES:
        (folder / name).mkdir()
        paths[name] = write_documents(folder / name, of_dataset(name)[1], row_group_size=4)
    return paths


def mixed_sequences(**options: Any) -> Callable[..., Any]:
    given = {"pack": WRAP, "batch_size": 2, "split_rows": 40, "shuffle": True, "shuffle_buffer_size": 4, **options}
    return lambda paths, **place: combine(paths, source_key="dataset", **given, **place)


def of_datasets(batch: Any) -> list[tuple[int, int]]:
    """The real tokens, each with its dataset; a sequence is of one."""
    batch, numbers = dict(batch), batch["dataset"].tolist()
    assert batch["dataset"].shape == (len(batch["input_ids"]),)
    del batch["dataset"]
    found = []
    for place, number in enumerate(numbers):
        one = {key: value[place : place + 1] for key, value in batch.items() if key in ONE_EACH}
        valid = one.pop("valid", None)
        real = one["input_ids"] if valid is None else one["input_ids"][valid]
        found += [(number, token) for token in real.reshape(-1).tolist()]
    return found


ONE_EACH = ("input_ids", "valid")
WHOLE = Counter((number, token) for number, name in enumerate(SIZES) for token in of_dataset(name)[0])


def full_sequences(epochs: list[Seen]) -> None:
    """Each epoch has no token twice, and lacks of each dataset less than a sequence."""
    for seen in epochs:
        assert seen <= WHOLE
        for number in range(len(SIZES)):
            lacking = sum(n for (of, _), n in (WHOLE - seen).items() if of == number)
            assert lacking < LENGTH


def shares(*tokens: int) -> Callable[[list[Seen]], None]:
    """Each epoch has so many tokens of each dataset, and over all epochs each token as often as others, within one."""

    def law(epochs: list[Seen]) -> None:
        times: Seen = Counter()
        for seen in epochs:
            times.update(seen)
            assert [sum(n for (of, _), n in seen.items() if of == number) for number in range(3)] == list(tokens)
        for number in range(3):
            of_each = [times[token] for token in WHOLE if token[0] == number]
            assert max(of_each) - min(of_each) <= 1

    return law


def of_whole_sequences(batch: Any) -> list[int]:
    """The dataset of each sequence; its tokens are of it."""
    for number, tokens, real in zip(batch["dataset"], batch["input_ids"], batch["document_ids"] >= 0, strict=True):
        assert {(int(number), token) for token in tokens[real].tolist()} <= WHOLE.keys()
    return list(map(int, batch["dataset"]))


def by_weight(epochs: list[Seen]) -> None:
    """Each epoch has 36 sequences, less those that fill no step of the last ranks, of each dataset in its share."""
    for seen in epochs:
        assert 30 < seen.total() <= 36
        assert all(abs(seen[number] - seen.total() * weight / 4) <= 4 for number, weight in enumerate(HALF.values()))


DELIVERED = sum(len(of_dataset(name)[0]) // LENGTH * LENGTH for name in SIZES)
HALF = {"a": 1, "b": 2, "c": 1}
BEST_FIT = WRAP.replace(method="best_fit")


def stream_of(pack: Pack) -> Part:
    budget = {"tokens_per_epoch": 36 * LENGTH, "shuffle_buffer_size": 40}
    make = mixed_sequences(weights=HALF, pack=pack, **budget)
    filtered = pc.list_value_length(ds.field("input_ids")) >= 0  # nobody knows how many tokens there are

    def made(paths: dict[str, str], **place: Any) -> Any:
        return make({name: {"source": path, "filters": filtered} for name, path in paths.items()}, **place)

    return Part(write_datasets, made, by_weight, of_whole_sequences, counted=False, same=False)


def in_buckets(paths: dict[str, str], **place: Any) -> Any:
    """Batches with a budget of tokens, of one dataset each."""
    options: dict[str, Any] = {"shuffle": True, "shuffle_buffer_size": 40, "columns": ["input_ids"], "split_rows": 40}
    budget, weights = Buckets(LENGTH * 2, by="input_ids"), {"weights": HALF, "tokens_per_epoch": 36 * LENGTH * 2}
    return combine(paths, batch_tokens=budget, source_key="dataset", **weights, **options, **place)


def of_whole_batches(batch: Any) -> list[int]:
    """The dataset of the batch; its rows are of it."""
    (number,) = set(batch["dataset"].tolist())
    ids = batch["input_ids"]
    assert {(number, token) for token in ids["values"].tolist()} <= WHOLE.keys()
    assert int(ids["offsets"].diff().max()) * len(batch["dataset"]) <= LENGTH * 2
    return [number]


PACKED = {
    "best fit": Part(
        write_lists, in_sequences, each_once(parts_of(DOCUMENTS)), lambda batch: held([batch]), counted=False
    ),
    "pairs": Part(write_both_sides, together, each_once(pairs(PAIRS, LENGTH)), held_pairs, counted=False),
    "wrap": Part(write_lists, in_a_stream(), no_token_twice, tokens, tokens=STREAM.total()),
    "wrap, padded": Part(write_lists, in_a_stream(even="pad"), each_once(STREAM), tokens),
    "wrap, mixed": Part(write_datasets, mixed_sequences(weights=HALF), full_sequences, of_datasets, tokens=DELIVERED),
    "wrap, mixed, padded": Part(
        write_datasets, mixed_sequences(weights=HALF, even="pad"), full_sequences, of_datasets, tokens=DELIVERED
    ),
    "wrap, mixed, tokens per epoch": Part(
        write_datasets, mixed_sequences(weights=HALF, tokens_per_epoch=12 * LENGTH), shares(48, 96, 48), of_datasets
    ),
    "best fit, mixed": stream_of(BEST_FIT),
    "wrap, mixed, uncounted": stream_of(WRAP),
    "buckets, mixed": Part(write_datasets, in_buckets, by_weight, of_whole_batches, counted=False, same=False),
}
