"""Where the tokens of documents go in sequences of one length, as arrays: no loop over documents or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torch_dataloader_utils.rows import I64, stable_order


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences as runs of tokens. A run is a document, a part of a split one, or the padding at a sequence's end.

    Attributes:
        capacity: tokens of a sequence (L).
        sources: cuts the documents' tokens, and the padding after them, into all runs: offsets, shape [sources + 1].
        padding: the number of tokens of all padding.
        runs: the source of each run, in order of delivery, shape [runs].
        documents: the number of the run's document in its sequence, -1 for padding, shape [runs].
        offsets: the runs of each sequence, shape [sequences + 1].
    """

    capacity: int
    sources: I64
    padding: int
    runs: I64
    documents: I64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> I64:
        """The number of tokens of each run, shape [runs]."""
        return np.diff(self.sources)[self.runs]


def sequences_of(
    lengths: I64, capacity: int, long: str, window: tuple[int, int], order: I64 | None = None
) -> Sequences:
    """The documents packed window by window: each document whole, in one sequence, in the order given.

    Args:
        lengths: tokens of each document; empty ones are left out.
        capacity: tokens of a sequence (L).
        long: documents with more than L tokens: "split" makes documents of L tokens of them and one of the rest,
            "truncate" keeps the first L tokens, "drop" leaves them out.
        window: the fewest documents, and sequences, of a window, if there are as many.
        order: the documents in the order of the stream, shape [documents]; None for the order in which they are stored.
    """
    return side_by_side([lengths], capacity, long, window, order)[0]


def side_by_side(
    sides: Sequence[I64], capacity: int, long: str, window: tuple[int, int], order: I64 | None = None
) -> list[Sequences]:
    """The same of pairs, for each side: a pair is one item of its longer side, so document k of both is the same pair.

    Args:
        sides: tokens of each document on each side; a document is empty on all sides or on none.
        capacity: tokens of a sequence (L).
        long: pairs of which a side has more than L tokens: "truncate" or "drop"; with one side also "split".
        window: as above.
        order: as above.
    """
    longest = np.maximum.reduce(sides)
    sizes, kept = _parts(longest, longest, capacity, long, order)
    sequences = _packed(sizes[kept], capacity, window)
    parts = [(sizes, kept)] if len(sides) == 1 else [_parts(side, longest, capacity, long, order) for side in sides]
    return [_padded(sequences, sizes[kept], kept, sizes, capacity) for sizes, kept in parts]


def _parts(lengths: I64, longest: I64, capacity: int, long: str, order: I64 | None) -> tuple[I64, I64]:
    """The tokens of each part of the documents as stored, and the numbers of the parts to pack, in stream order.

    Args:
        lengths: tokens of each document.
        longest: those of its longest side.
        capacity: tokens of a sequence (L).
        long: what becomes of documents with more tokens.
        order: the documents in the order of the stream; None for that in which they are stored.
    """
    if _are_whole(lengths, longest, capacity):
        return lengths, np.arange(len(lengths)) if order is None else order
    parts = -(-lengths // capacity)
    last = np.cumsum(parts) - 1
    sizes = np.full(int(parts.sum()), capacity)
    some = parts > 0
    sizes[last[some]] = (lengths - (parts - 1) * capacity)[some]
    kept = np.arange(len(sizes))
    if long != "split":
        kept = (last - parts + 1)[some if long == "truncate" else some & (longest <= capacity)]
    if order is None:
        return sizes, kept
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return sizes, kept[stable_order(np.repeat(places, parts)[kept])]


def owners_of(lengths: I64, longest: I64, capacity: int) -> I64:
    """The document of each source of sequences, shape [sources]; arguments as of `side_by_side`."""
    documents = np.arange(len(lengths))
    return documents if _are_whole(lengths, longest, capacity) else np.repeat(documents, -(-lengths // capacity))


def _are_whole(lengths: I64, longest: I64, capacity: int) -> bool:
    """Whether each document is one source: none is cut, and none is empty."""
    return bool(longest.max(initial=0) <= capacity and lengths.min(initial=1))


def _packed(sizes: I64, capacity: int, window: tuple[int, int]) -> I64:
    """The sequence of each document, packed within windows of consecutive documents."""
    found, count = [np.empty(0, np.int64)], 0
    for first, stop in _windows(sizes, capacity, window):
        sequences = best_fit(sizes[first:stop], capacity) + count
        count = int(sequences.max()) + 1
        found.append(sequences)
    return np.concatenate(found)


def _windows(sizes: I64, capacity: int, window: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Consecutive documents in windows of nearly as many documents each."""
    if not len(sizes):
        return
    documents, sequences = window
    number = max(1, min(len(sizes) // documents, int(sizes.sum()) // (sequences * capacity)))
    cuts = [len(sizes) * i // number for i in range(number + 1)]
    yield from pairwise(cuts)


def _padded(sequences: I64, packed: I64, kept: I64, sizes: I64, capacity: int) -> Sequences:
    """The layout of documents in these sequences, in stream order within each, with padding at its end.

    Args:
        sequences: the sequence of each packed document.
        packed: the tokens of these documents.
        kept: their sources.
        sizes: tokens of each source, packed or not.
        capacity: tokens of a sequence.
    """
    counts = np.bincount(sequences)
    room = capacity - np.bincount(sequences, packed).astype(np.int64)
    unfilled = np.flatnonzero(room)
    ends, pads = np.cumsum(counts), len(sizes) + np.arange(len(unfilled))
    runs = np.insert(kept[stable_order(sequences)], ends[unfilled], pads)
    offsets = np.concatenate([[0], np.cumsum(counts + (room > 0))])
    documents = np.arange(len(runs)) - np.repeat(offsets[:-1], np.diff(offsets))
    documents[runs >= len(sizes)] = -1
    sources = np.concatenate([[0], np.cumsum(np.concatenate([sizes, room[unfilled]]))])
    return Sequences(capacity, sources, int(room.sum()), runs, documents, offsets)


# Best-fit decreasing: the longest document first, each into the fullest sequence that has room for it.


def best_fit(lengths: I64, capacity: int) -> I64:
    """The sequence of each document, numbered in the order of their longest documents, shape [documents].

    The longest document of a sequence says nothing about how many others it holds. So if documents are in random order,
    the sequences are, too.

    Args:
        lengths: tokens of each document, each at least 1 and at most `capacity`.
        capacity: tokens of a sequence.
    """
    longest_first = stable_order(capacity - lengths)
    owners, count = _owners(lengths[longest_first], capacity)
    # In this order, the first document of a sequence is its longest.
    openers = np.empty(count, np.int64)
    openers[owners[::-1]] = longest_first[::-1]
    numbers = np.empty(count, np.int64)
    numbers[np.argsort(openers)] = np.arange(count)
    sequences = np.empty(len(lengths), np.int64)
    sequences[longest_first] = numbers[owners]
    return sequences


def _owners(falling: I64, capacity: int) -> tuple[I64, int]:
    """The sequence of each document in order of falling length, and how many sequences there are.

    Documents of one length are placed together: the first sequence that has room for one takes as many as fit, because
    each of them makes it the fullest. Bit r of `rooms` says whether `opened[r]` names a sequence with room for r. So a
    window of 4,096 documents takes 2 to 3 ms.
    """
    ends = np.append(np.flatnonzero(np.diff(falling)) + 1, len(falling))
    sequences: list[int] = []
    taken: list[int] = []  # documents that each of these takes
    opened: dict[int, list[int]] = {}
    rooms = count = at = 0
    for size, end in zip(falling[ends - 1].tolist(), ends.tolist(), strict=True):
        while at < end:
            fitting = rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                sequence = opened[room].pop()
                if not opened[room]:
                    rooms ^= 1 << room
            else:
                room, sequence, count = capacity, count, count + 1
            placed = min(end - at, room // size)
            sequences.append(sequence)
            taken.append(placed)
            at += placed
            room -= placed * size
            if room:
                opened.setdefault(room, []).append(sequence)
                rooms |= 1 << room
    return np.repeat(sequences, taken), count
