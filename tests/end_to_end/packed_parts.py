"""Loaders of packed documents, as parts of the grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.end_to_end.parts import Part, Seen, each_once
from tests.packing.helpers import LENGTH, documents, held, make, parts_of, write_documents
from tests.packing.pairs import TOGETHER, held_pairs, pairs, write_pairs
from tests.packing.test_wrapped_batches import tokens_of, wrapping

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


PACKED = {
    "best fit": Part(
        write_lists, in_sequences, each_once(parts_of(DOCUMENTS)), lambda batch: held([batch]), counted=False
    ),
    "pairs": Part(write_both_sides, together, each_once(pairs(PAIRS, LENGTH)), held_pairs, counted=False),
    "wrap": Part(write_lists, in_a_stream(), no_token_twice, tokens, tokens=STREAM.total()),
    "wrap, padded": Part(write_lists, in_a_stream(even="pad"), each_once(STREAM), tokens),
}
