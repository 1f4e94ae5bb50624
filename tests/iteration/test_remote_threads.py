"""How many threads read from a remote store."""

import pytest

from torch_dataloader_utils.executors.workers import remote_threads
from torch_dataloader_utils.model import Task


@pytest.mark.parametrize(("size", "threads"), [(50 << 10, 32), (4 << 20, 16), (15 << 20, 8), (128 << 20, 8)])
def test_more_threads_read_small_tasks(size: int, threads: int) -> None:
    assert remote_threads([[Task((), None, size)] * 300]) == threads


def test_tasks_of_no_size_and_no_tasks_need_no_special_case() -> None:
    assert remote_threads([[Task((), None, 0)]]) == 32
    assert remote_threads([]) == 8
