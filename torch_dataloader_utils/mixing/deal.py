"""Who gets the units of a mix: those of each step of all ranks, in the order of their sources, are dealt like cards.

So every batch has of each source the rows of its step divided by the ranks, rounded up or down, and no global batch
holds a burst of one source. Card p goes to rank (p + u) % ranks, where u is drawn anew in each step, so that none is
preferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.turns import Turns
from torch_dataloader_utils.planning.rank_plan import Endless
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.seeding import random_words

_STEPS = 1024  # computed at a time
_MARK = 64  # steps: how often the rows of a rank up to a step are kept


@dataclass(frozen=True)
class Deal:
    """The steps of all ranks, each of which takes the next units.

    Attributes:
        turns: the units of the turns: rows (with `pack` sequences, which are called rows here), or with `single` steps.
        rows: the rows of each source.
        num_ranks: the number of ranks (R).
        batch_rows: rows per batch of a rank (B).
        single: whether each step has rows of one source.
        key: of all draws.
    """

    turns: Turns
    rows: tuple[int, ...]
    num_ranks: int
    batch_rows: int
    single: bool
    key: int

    @cached_property
    def steps(self) -> int:
        """The number of steps; the last one (with `single`, that of each source) may be short."""
        return self.turns.total if self.single else -(-self.turns.total // self.step_rows)

    @cached_property
    def short_steps(self) -> list[int]:
        """The steps, ascending, that have fewer rows than others."""
        if not self.single:
            return [self.steps - 1] * (self.turns.total % self.step_rows > 0)
        pairs = zip(self.rows, self.turns.of_each, strict=True)
        return sorted(
            self.turns.place(source, steps)
            for source, (rows, steps) in enumerate(pairs)
            if rows < steps * self.step_rows
        )

    @property
    def step_rows(self) -> int:
        """Rows per step of all ranks."""
        return self.num_ranks * self.batch_rows

    def taken(self, steps: I64) -> I64:
        """The rows of each source in so many first steps, ascending, of all ranks: int64 [numbers, sources]."""
        if self.single:
            return np.minimum(self.turns.counts(steps) * self.step_rows, np.array(self.rows, np.int64))
        return self.turns.counts(np.minimum(steps * self.step_rows, self.turns.total))

    def of_rank(self, rank: int, first: int, last: int) -> I64:
        """The rows of each source that a rank gets in the steps `[first, last)`, int64 [steps, sources]."""
        ends = np.cumsum(self._cards(first, last), axis=1)
        begins = np.pad(ends, ((0, 0), (1, 0)))
        own = (rank - self._shifts(first, last)) % self.num_ranks  # the first card of the rank
        before = (begins - own[:, None] + self.num_ranks - 1) // self.num_ranks
        cards: I64 = np.diff(before, axis=1)
        return cards

    @cached_property
    def draws(self) -> I64:
        """The rows of each source that each rank gets in all steps, int64 [sources, ranks]."""
        if self.num_ranks == 1:
            return np.array(self.rows, np.int64)[:, None]
        found = np.zeros((len(self.rows), self.num_ranks), np.int64)
        changes = np.zeros_like(found)  # from each rank to the next
        sources = np.arange(len(self.rows))
        for first, last in self._chunks():
            cards = self._cards(first, last)
            begins = (np.cumsum(cards, axis=1) - cards + self._shifts(first, last)[:, None]) % self.num_ranks
            ends = begins + cards % self.num_ranks
            found += ((cards // self.num_ranks).sum(axis=0) + (ends >= self.num_ranks).sum(axis=0))[:, None]
            np.add.at(changes, (sources, begins), 1)
            np.subtract.at(changes, (sources, ends % self.num_ranks), 1)
        found += np.cumsum(changes, axis=1)
        return found

    def marks(self, rank: int) -> I64:
        """The rows of each source that a rank has got by every `_MARK`-th step and the last, int64 [marks, sources]."""
        if self.num_ranks == 1:
            return self.taken(np.minimum(np.arange(0, self.steps + _MARK, _MARK), self.steps))
        found = [np.zeros((1, len(self.rows)), np.int64)]
        for first, last in self._chunks():
            ends = np.minimum(np.arange(_MARK, last - first + _MARK, _MARK), last - first)
            found.append(found[-1][-1] + np.cumsum(self.of_rank(rank, first, last), axis=0)[ends - 1])
        return np.concatenate(found)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        return ((first, min(first + _STEPS, self.steps)) for first in range(0, self.steps, _STEPS))

    def _cards(self, first: int, last: int) -> I64:
        cards: I64 = np.diff(self.taken(np.arange(first, last + 1)), axis=0)
        return cards

    def _shifts(self, first: int, last: int) -> I64:
        """The rank of the first card in each of the steps `[first, last)`, int64 [steps]."""
        words = random_words(last - first, self.key, first) >> np.uint64(32)
        return (words * np.uint64(self.num_ranks) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class Schedule:
    """The rows of each source in the batches of a rank, or, if rows of a plan are tokens, these.

    Attributes:
        deal: of all ranks, in rows or sequences, as all below.
        rank: the rank.
        of_each: the rank's rows of each source, without those that it leaves out.
        absent: the steps, ascending, in which it has no batch: it gets no row, or leaves out a short batch.
        padding: repeats after all rows, as a source of their own; 0 for none.
        unit_rows: the rows of the plan in each: 1, or the tokens of a sequence (L).
        endless: of each source, if it is read without end; rows are then those that are made of what is read.
    """

    deal: Deal
    rank: int
    of_each: tuple[int, ...]
    absent: tuple[int, ...] = ()
    padding: int = 0
    unit_rows: int = 1
    endless: tuple[Endless, ...] = ()

    @property
    def batch_rows(self) -> int:
        """Rows of the plan per batch."""
        return self.deal.batch_rows * self.unit_rows

    @property
    def single(self) -> bool:
        """Whether each batch is of one source; the last one of a source may then be short."""
        return self.deal.single

    @property
    def rows(self) -> int:
        """The number of rows of the plan, without padding."""
        return sum(self.of_each) * self.unit_rows

    @cached_property
    def steps(self) -> int:
        """The number of batches."""
        return self.deal.steps - len(self.absent)

    def after(self, steps: int) -> list[int]:
        """The rows of the plan of each source in the first `steps` batches."""
        counts: list[int] = self.table(steps, steps)[0].tolist()
        return counts

    def table(self, first: int, last: int) -> I64:
        """The rows of the plan of each source in so many first batches: int64 [last - first + 1, sources].

        Args:
            first: the fewest batches.
            last: the most.
        """
        return self._table(first, last) * self.unit_rows

    def _table(self, first: int, last: int) -> I64:
        own = np.clip(np.arange(first, last + 1), 0, self.steps)
        steps = own.copy()
        for absent in self.absent:
            steps += steps >= absent
        begin = int(steps[0])
        counts = np.minimum(self._taken(begin, int(steps[-1]))[steps - begin], np.array(self.of_each, np.int64))
        if not self.padding:
            return counts
        padded = np.clip(own * self.deal.batch_rows - sum(self.of_each), 0, self.padding)
        return np.column_stack([counts, padded])

    def first_rows(self, count: int) -> list[int]:
        """The rows of each source among the first ones, of all without padding, where only the last batch is short."""
        steps = min(-(-count // self.deal.batch_rows), self.steps)
        sources = len(self.of_each)
        before, after = (self._table(number, number)[0, :sources] for number in (max(steps - 1, 0), steps))
        ends = np.minimum(np.cumsum(after - before), max(count - int(before.sum()), 0))
        rows: list[int] = (before + np.diff(ends, prepend=0)).tolist()
        return rows

    def needed(self, shard: int, rows: Sequence[int]) -> list[float]:
        """When these rows of a source are delivered: about the step, as a part of a step.

        Args:
            shard: the number of the source; the padding is the last one.
            rows: row numbers of the plan, counted from its first.
        """
        rows = [row // self.unit_rows for row in rows]
        if shard == len(self.of_each):
            return [self.deal.steps + row / self.deal.batch_rows for row in rows]
        taken = self._marks[:, shard]
        mark = np.minimum(np.searchsorted(taken, rows, side="right") - 1, len(taken) - 2)
        within = (np.array(rows) - taken[mark]) / np.maximum(taken[mark + 1] - taken[mark], 1)
        places: list[float] = ((mark + within) * _MARK).tolist()
        return places

    def _taken(self, first: int, last: int) -> I64:
        """The rows of each source in so many steps of all ranks, from `first` to `last`, int64 [numbers, sources]."""
        if self.deal.num_ranks == 1:
            return self.deal.taken(np.arange(first, last + 1))
        mark = first // _MARK
        rows = self.deal.of_rank(self.rank, mark * _MARK, last)
        return np.cumsum(np.concatenate([self._mark(mark), rows]), axis=0)[first - mark * _MARK :]

    def _mark(self, number: int) -> I64:
        """One of the marks, int64 [1, sources]; an epoch without end may have very many, of which few are needed."""
        if not self.endless:
            return self._marks[number : number + 1]
        while len(self._some_marks) <= number:
            at = (len(self._some_marks) - 1) * _MARK
            rows = self.deal.of_rank(self.rank, at, at + _MARK).sum(axis=0)
            self._some_marks.append(self._some_marks[-1] + rows)
        return self._some_marks[number][None]

    @cached_property
    def _some_marks(self) -> list[I64]:
        """The first marks."""
        return [np.zeros(len(self.of_each), np.int64)]

    @cached_property
    def _marks(self) -> I64:
        return self.deal.marks(self.rank)
