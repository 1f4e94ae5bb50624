"""Best-fit decreasing: the longest document first, each into the fullest sequence that has room for it."""

from __future__ import annotations

import numpy as np

from torch_dataloader_utils.rows import I64, stable_order


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
