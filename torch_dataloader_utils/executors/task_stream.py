"""Tasks without end: those of a dataset that is read lap after lap, made while a pass needs them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from torch_dataloader_utils.model import Task, WorkerCursor
from torch_dataloader_utils.storage.locks import ForkLock

_KEPT = 4096  # tasks that a driver may still ask for: those read ahead, and the ones that workers were sent


class TaskStream(Sequence[Task]):
    """A sequence without end, of which only the last tasks are kept; for any thread.

    Args:
        tasks: makes them.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = iter(tasks)
        self._lock = ForkLock()
        self._made: deque[Task] = deque()
        self._first = 0  # the number of the first one that is kept

    def __len__(self) -> int:
        return sys.maxsize

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        with self._lock:
            self._make(index)
            if index < self._first:
                raise IndexError(f"task {index} is not kept any more")
            return self._made[index - self._first]

    def _make(self, number: int) -> None:
        """Make the tasks up to this one."""
        while number >= self._first + len(self._made):
            self._made.append(next(self._tasks))
            if len(self._made) > _KEPT:
                self._made.popleft()
                self._first += 1

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while True:
            yield self[number]
            number += 1


class LapStream(TaskStream):
    """The tasks of one shard, lap after lap.

    Args:
        of_lap: returns the tasks of a lap; some laps have none, but not all.
        start: where it begins.
    """

    def __init__(self, of_lap: Callable[[int], Sequence[Task]], start: WorkerCursor) -> None:
        self._of_lap = of_lap
        self._start = start
        self._laps: list[tuple[int, int]] = []  # each lap with tasks: its number, and that of its first task here
        super().__init__(self._all())

    @property
    def start(self) -> tuple[int, int]:
        """The lap in which it begins, and the number of its first task in it."""
        return self._start.lap, self._start.task

    def place(self, number: int) -> tuple[int, int]:
        """The lap of a task of the stream, and the number of the task in it."""
        with self._lock:
            self._make(number)
            lap, first = next(each for each in reversed(self._laps) if each[1] <= number)
            return lap, number - first

    def _all(self) -> Iterator[Task]:
        lap, skipped, made = self._start.lap, self._start.task, 0
        while True:
            tasks = self._of_lap(lap)
            if len(tasks) > skipped:
                self._laps.append((lap, made - skipped))
                made += len(tasks) - skipped
                yield from tasks[skipped:]
            lap, skipped = lap + 1, 0
