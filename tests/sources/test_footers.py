"""Local footers are read in the calling thread while they are quick, others concurrently; always in order."""

import threading
import time

import pytest

from tests.terminal import stderr_terminal
from torch_dataloader_utils import progress
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.storage import Storage

FILES = list(range(100))


def test_quick_local_footers_are_read_in_the_calling_thread() -> None:
    assert read_footers(Storage(), lambda file: (file, threading.get_ident()), FILES) == [
        (file, threading.get_ident()) for file in FILES
    ]


def test_slow_local_footers_are_read_by_threads_in_order() -> None:
    def read(file: int) -> tuple[int, int]:
        time.sleep(0.002)
        return file, threading.get_ident()

    read_by = read_footers(Storage(), read, FILES)
    assert [file for file, _ in read_by] == FILES
    assert {thread for _, thread in read_by[32:]}.isdisjoint({threading.get_ident()})


def test_footers_that_become_quick_again_are_read_in_the_calling_thread() -> None:
    def read(file: int) -> int:
        if file < 32:
            time.sleep(0.002)
        return threading.get_ident()

    read_by = read_footers(Storage(), read, range(32 + 1024 + 1))
    assert read_by[-1] == threading.get_ident() not in read_by[32:-1]


def test_remote_footers_are_read_at_the_same_time() -> None:
    together = threading.Barrier(10, timeout=20)
    assert sorted(read_footers(Storage("memory", filesystem=object()), lambda _: together.wait(), range(10))) == list(
        range(10)
    )


@pytest.mark.parametrize("wait", [0, 0.002])
def test_an_error_of_one_file_is_raised(wait: float) -> None:
    def read(file: int) -> None:
        time.sleep(wait)
        if file == 77:
            raise ValueError("file 77")

    with pytest.raises(ValueError, match="file 77"):
        read_footers(Storage(), read, FILES)


def test_no_files() -> None:
    assert read_footers(Storage(), str, []) == []


def test_footers_are_counted_on_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHORT", 0)  # quick work shows none
    for protocol in ("file", "memory"):
        with stderr_terminal() as terminal:
            assert read_footers(Storage(protocol), lambda file: file, FILES, progress.Progress(show=True)) == FILES
        assert terminal.screen[0].startswith("reading footers: 100%|")
        assert "100/100 [" in terminal.screen[0]
