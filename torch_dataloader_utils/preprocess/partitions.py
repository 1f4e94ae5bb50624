"""Rows that are summed by key, in partitions by the hash of the key: in memory, or in files of a temporary folder."""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Generic, Protocol, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.schemas.value_hashes import array_hashes

PARTITIONS = 64

_FEW = 4096  # rows of a partition that are not worth a compaction

Piece = TypeVar("Piece")


class PieceForm(Protocol[Piece]):
    """How rows are held."""

    def rows(self, piece: Piece) -> int:
        """Number of rows."""

    def nbytes(self, piece: Piece) -> int:
        """Bytes in memory."""

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """One piece after another; there may be none."""

    def summed(self, pieces: Sequence[Piece]) -> Piece:
        """Each key once, with what is summed of it; at least one row."""

    def write(self, piece: Piece, path: Path) -> None:
        """Write a file."""

    def read(self, path: Path) -> Piece:
        """What was written."""


def rows_by_partition(keys: pa.Array) -> list[I64]:
    """The rows of each partition, int64, by the upper 6 bits of their keys' frozen hashes."""
    numbers = (array_hashes(keys) >> np.uint64(58)).astype(np.uint8)
    ends = np.cumsum(np.bincount(numbers, minlength=PARTITIONS))
    return np.split(np.argsort(numbers, kind="stable"), ends[:-1])


class KeyPartitions(Generic[Piece]):
    """64 partitions, each compacted when its rows have doubled; those that do not fit into memory go to files.

    Threads may append at once. `close`, and the object's end, remove the temporary folder.

    Args:
        form: how rows are held.
        memory: bytes that they may take, about.
    """

    def __init__(self, form: PieceForm[Piece], memory: int) -> None:
        self.memory = memory
        self._all = [KeyPartition(number, form) for number in range(PARTITIONS)]
        self._lock = threading.Lock()
        self._shrinking = threading.Lock()
        self._folder: Path | None = None
        self._removal: weakref.finalize[[Path, int], KeyPartitions[Piece]] | None = None

    def __getitem__(self, chosen: slice) -> Sequence[KeyPartition[Piece]]:
        return self._all[chosen]

    def __iter__(self) -> Iterator[KeyPartition[Piece]]:
        return iter(self._all)

    def settle(self) -> None:
        """Hold each key once."""
        for partition in self._all:
            partition.settle()
            self.shrink()

    def shrink(self) -> None:
        """Write the largest partitions to files if all take too much memory; a quarter is left to counting itself."""
        with self._shrinking:
            if self._nbytes() <= self.memory - self.memory // 4:
                return
            enough = self.memory // 2  # so little that this is rare
            for partition in self._largest_first():
                if self._nbytes() > enough:
                    partition.compact()
            for partition in self._largest_first():
                if self._nbytes() > enough:
                    partition.spill(self._spilled())

    def close(self) -> None:
        """Remove the temporary folder; what was in it cannot be read any more."""
        with self._lock:
            if self._removal is not None:
                self._removal()
            self._folder = self._removal = None

    def _largest_first(self) -> list[KeyPartition[Piece]]:
        return sorted(self._all, key=lambda partition: partition.nbytes, reverse=True)

    def _nbytes(self) -> int:
        return sum(partition.nbytes for partition in self._all)

    def _spilled(self) -> Path:
        """The temporary folder."""
        with self._lock:
            if self._folder is None:
                folder = Path(gettempdir(), f"tdu-counts-{uuid4().hex}")
                # Before there is one, so that an interrupt leaves none.
                self._removal = weakref.finalize(self, _remove, folder, os.getpid())
                folder.mkdir(mode=0o700)
                self._folder = folder
            return self._folder


class KeyPartition(Generic[Piece]):
    """The rows whose keys share the upper bits of their hash: in memory, and in files of rows of distinct keys in each.

    Args:
        number: of the partition.
        form: how rows are held.
    """

    def __init__(self, number: int, form: PieceForm[Piece]) -> None:
        self._number = number
        self._form = form
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._rows = 0  # in memory
        self._compacted = 0  # of these, those that were left by the last compaction
        self._files: list[tuple[Path, int]] = []  # and the rows of each
        self._written = 0  # number of files
        self.nbytes = 0  # in memory

    @property
    def rows(self) -> int:
        """Number of keys once they are settled."""
        return self._rows + sum(rows for _, rows in self._files)

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.nbytes + sum(path.stat().st_size for path, _ in self._files)

    def append(self, piece: Piece) -> None:
        """Add rows; keys may occur several times."""
        rows = self._form.rows(piece)
        with self._lock:
            if rows:
                self._pieces.append(piece)
            self._rows += rows
            self.nbytes += self._form.nbytes(piece)
            if self._rows > 2 * self._compacted + _FEW:
                self._compact()

    def compact(self) -> None:
        """Hold each key in memory once."""
        with self._lock:
            self._compact()

    def spill(self, folder: Path) -> None:
        """Move what is in memory to a file."""
        with self._lock:
            self._compact()
            for piece in self._pieces:  # one, or none
                path = folder / f"{self._number}-{self._written}.arrow"
                self._form.write(piece, path)
                self._written += 1
                self._files.append((path, self._form.rows(piece)))
            self._hold([])

    def settle(self) -> None:
        """Hold each key once, either in memory or in one file."""
        with self._lock:
            if len(self._files) + bool(self._pieces) > 1:
                self._hold([self._form.summed(self._read())])
                for path, _ in self._files:
                    path.unlink()
                self._files = []
            self._compact()

    def replace(self, piece: Piece) -> None:
        """Hold these rows instead, in memory; each key is there once."""
        with self._lock:
            for path, _ in self._files:
                path.unlink()
            self._files = []
            self._hold([piece] if self._form.rows(piece) else [])

    def held(self) -> Piece:
        """All rows, each key once if settled, in no order; what is in a file is read, and stays there."""
        with self._lock:
            return self._form.joined(self._read())

    def _read(self) -> list[Piece]:
        return [*(self._form.read(path) for path, _ in self._files), *self._pieces]

    def _compact(self) -> None:
        if self._compacted < self._rows:
            self._hold([self._form.summed(self._pieces)])

    def _hold(self, pieces: list[Piece]) -> None:
        """Hold these distinct keys, at most one piece, in memory instead."""
        self._pieces = pieces
        self._rows = self._compacted = sum(map(self._form.rows, pieces))
        self.nbytes = sum(map(self._form.nbytes, pieces))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has a copy of the object, but the folder is not its own
        shutil.rmtree(folder, ignore_errors=True)
