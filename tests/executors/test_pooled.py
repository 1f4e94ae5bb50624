"""Few workers that read many shards: in which order, and how many blocks wait."""

from collections.abc import Sequence

from torch_dataloader_utils.executors.drivers import PooledDriver
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block


class Numbered:
    """Delivers an empty block of as many rows as the task has, for the tasks of each worker in turn."""

    def __init__(self, tasks: Sequence[Sequence[Task]]) -> None:
        self.tasks = [iter(worker) for worker in tasks]

    def next_block(self, worker: int) -> Block | None:
        task = next(self.tasks[worker], None)
        return None if task is None else Block(task.rows or 0, {}, None, 0)

    def stop(self) -> None: ...

    def close(self) -> None: ...


def test_blocks_of_a_small_shard_do_not_wait_for_those_of_a_large_one() -> None:
    """Ten rows of the first shard are needed for each of the second; one worker reads both."""
    shards = [[Task((), 100, 0)] * 10, [Task((), 10, 0)] * 10]
    needed = [[(0, task) for task in range(10)]] * 2
    driver = PooledDriver(Numbered, shards, 1, needed)
    for _ in range(10):
        assert driver.next_block(0) == Block(100, {}, None, 0)
        assert driver.next_block(1) == Block(10, {}, None, 0)
        assert max(map(len, driver._early)) <= 1
    assert driver.next_block(0) is driver.next_block(1) is None


def test_blocks_are_read_when_they_are_needed() -> None:
    """The second shard is needed only after the first, as in a mix whose weights change; by default, side by side."""
    shards = [[Task((), 10, 0)] * 4, [Task((), 10, 0)] * 4]
    for needed, most in (([[(0, row) for row in range(4)], [(1, row) for row in range(4)]], 0), ((), 3)):
        driver = PooledDriver(Numbered, shards, 1, needed)
        waiting = []
        for shard in (0, 0, 0, 0, 1, 1, 1, 1):
            driver.next_block(shard)
            waiting.append(len(driver._early[1]))
        assert max(waiting[:4]) == most
