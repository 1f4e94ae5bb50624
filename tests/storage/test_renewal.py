"""Credentials that end: when others are asked for, by how many threads, and what happens where there are none."""

import itertools
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import BatchTimeoutError, CatalogError, DataLoaderUtilsError
from torch_dataloader_utils.storage import Renewal, Storage
from torch_dataloader_utils.storage import renewal as renewals
from torch_dataloader_utils.storage.renewal import Issued, RenewalLine
from torch_dataloader_utils.storage.renewal_desk import RenewalDesk
from torch_dataloader_utils.storage.retries import refused

Clock = Callable[[float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the seconds since 1970; 0 at first."""

    def at(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: seconds)

    at(0.0)
    return at


class Office:
    """Hands out "second", "third", ..., each for 100 seconds; or none."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.open, self.lasts = True, 100.0

    def __call__(self) -> tuple[str, float | None]:
        if not self.open:
            raise CatalogError("closed")
        self.given.append(["second", "third", "fourth"][len(self.given)])
        return self.given[-1], time.time() + self.lasts


def test_half_of_the_time_is_used(clock: Clock) -> None:
    office = Office()
    renewal = Renewal(office, 100.0)
    for seconds, wanted in ((0, "first"), (49, "first"), (51, "second"), (99, "second"), (102, "third")):
        clock(seconds)
        assert renewal.latest("first") == wanted
    assert office.given == ["second", "third"]


def test_many_threads_ask_once(clock: Clock) -> None:
    office = Office()
    renewal, storages = Renewal(office, 100.0), []
    clock(60)
    threads = [threading.Thread(target=lambda: storages.append(renewal.latest("first"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storages == ["second"] * 16
    assert office.given == ["second"]


def test_a_catalog_that_is_away_is_asked_later(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    office = Office()
    renewal = Renewal(office, 100.0)
    office.open = False
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        for seconds in (60, 70, 79):
            clock(seconds)
            assert renewal.latest("first") == "first"
    (message,) = [record.getMessage() for record in caplog.records]
    assert "until 1970-01-01T00:01:40Z" in message
    office.open = True
    clock(81)
    assert renewal.latest("first") == "second"
    office.open = False
    clock(200)
    with pytest.raises(CatalogError, match="closed"):
        renewal.latest("first")


def test_a_catalog_that_does_not_answer_is_asked_later(clock: Clock) -> None:
    def ask() -> tuple[str, float | None]:
        raise BatchTimeoutError("the catalog did not answer")

    renewal = Renewal(ask, 100.0)
    clock(60)
    assert renewal.latest("first") == "first"
    clock(200)
    with pytest.raises(BatchTimeoutError):
        renewal.latest("first")


def test_new_credentials_that_have_expired_already_are_used(clock: Clock) -> None:
    """A clock is wrong: this process does not ask again for each request, but if the store refuses them."""
    renewal = Renewal(office := Office(), 1.0)
    office.lasts = -5.0
    clock(1000)
    assert [renewal.latest("first") for _ in range(3)] == ["second"] * 3
    assert renewal.instead_of("second", "first") == "third"
    assert office.given == ["second", "third"]


def test_what_was_refused_is_replaced_once(clock: Clock) -> None:
    office = Office()
    renewal = Renewal(office, None)
    clock(1e9)
    assert renewal.latest("first") == "first"  # nobody said that it ends
    assert renewal.instead_of("first", "first") == "second"
    assert renewal.instead_of("first", "first") == "second"  # another thread was refused the old one, too
    assert office.given == ["second"]
    assert renewal.latest("first") == "second"
    assert Renewal(lambda: ("first", None), None).instead_of("first", "first") is None


def test_a_copy_cannot_ask(clock: Clock) -> None:
    office = Office()
    copy = pickle.loads(pickle.dumps(Renewal(office, 100.0)))
    clock(200)
    assert not copy.possible
    assert copy.latest("first") == "first"
    assert copy.instead_of("first", "first") is None
    assert copy.validity == "until 1970-01-01T00:01:40Z"
    assert office.given == []


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("InvalidToken", 400, True),
        ("ExpiredToken", 400, True),
        ("AccessDenied", 403, True),
        ("InvalidRange", 416, False),
    ],
)
def test_ended_credentials_are_refused_whatever_the_status(code: str, status: int, wanted: bool) -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = OSError(22, "as s3fs raises it")
    error.__cause__ = exceptions.ClientError(answer, "GetObject")
    assert refused(error) is wanted


# ---------------------------------------------------------------------------------------------------- worker processes


@pytest.fixture
def lines() -> Iterator[Callable[[], RenewalLine]]:
    """Makes the ends of pipes that worker processes would have; all are answered once `lines.open()` was called."""
    desk, made = RenewalDesk(), []

    class Lines:
        def __call__(self) -> RenewalLine:
            made.append(desk.line(multiprocessing.get_context()))
            return RenewalLine(made[-1])

        def open(self) -> None:
            desk.open()

    yield Lines()
    for end in made:
        end.close()


def endless(expires_at: float | None = None) -> Renewal[str]:
    """A renewal that issues "1", "2", ...; it tells nobody when these expire."""
    numbers = itertools.count(1)
    return Renewal(lambda: (str(next(numbers)), None), expires_at)


@given(st.lists(st.integers(0, 2), max_size=12))
def test_credentials_are_asked_for_once_however_many_processes_are_refused_them(turns: list[int]) -> None:
    """Whoever is refused gets newer ones; only whoever has the newest makes the catalog issue others."""
    renewal, desk = endless(), RenewalDesk()
    ends = [desk.line(multiprocessing.get_context()) for _ in range(3)]
    workers, has, newest = [RenewalLine(end) for end in ends], [0, 0, 0], 0
    desk.open()
    for worker in turns:
        newest += has[worker] == newest
        issued = workers[worker].ask(renewal.key, has[worker])
        assert (issued.number, issued.storage) == (newest, str(newest))
        has[worker] = newest
    assert renewal.issued.number == newest
    for end in ends:
        end.close()


def test_processes_that_are_refused_at_once_get_the_same(no_leaks: None, lines: Any) -> None:
    renewal, found = endless(), []
    workers = [lines() for _ in range(8)]
    lines.open()
    threads = [
        threading.Thread(target=lambda worker=worker: found.append(worker.ask(renewal.key, 0))) for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Issued(1, None, "1")] * 8
    assert "'1'" not in repr(found)


def test_what_one_process_asks_for_is_sent_to_all_that_use_it() -> None:
    """And to no other process."""
    renewal, other, desk = endless(), endless(), RenewalDesk()
    asking, holding, foreign = (desk.line(multiprocessing.get_context()) for _ in range(3))
    holding.send(("hold", renewal.key, 0))
    foreign.send(("hold", other.key, 0))
    desk.open()
    assert RenewalLine(asking).ask(renewal.key, 0).number == 1
    assert holding.recv() == (renewal.key, Issued(1, None, "1"))
    RenewalLine(asking).ask(other.key, 0)
    assert foreign.recv() == (other.key, Issued(1, None, "1"))
    for end in (asking, holding, foreign):
        assert not end.poll(0)
        end.close()


def test_new_credentials_are_sent_unasked_at_half_of_their_time(lines: Any) -> None:
    worker, renewal = lines(), endless(time.time() + 1)
    lines.open()
    while (sent := worker.sent(renewal.key, 0)) is None:
        time.sleep(0.02)
    assert sent == Issued(1, None, "1")


def test_a_process_that_takes_nothing_in_gets_one_message() -> None:
    """Its pipe would fill up, and nobody would be answered any more."""
    renewal, desk, context = endless(), RenewalDesk(), multiprocessing.get_context()
    silent, end = desk.line(context), desk.line(context)
    worker = RenewalLine(end)
    desk.open()
    silent.send(("hold", renewal.key, 0))
    for number in range(50):
        worker.ask(renewal.key, number)
    assert silent.recv()[0] == renewal.key
    assert worker.ask(renewal.key, 50).number == 51
    assert not silent.poll(0)
    silent.send(("hold", renewal.key, 51))
    silent.close()
    end.close()


@pytest.mark.parametrize("raised", [CatalogError("closed"), BatchTimeoutError("late"), RuntimeError("odd")], ids=repr)
def test_an_error_of_the_catalog_is_raised_where_it_was_asked_for(raised: Exception, lines: Any) -> None:
    failing = [raised]

    def ask() -> tuple[str, None]:
        if failing:
            raise failing.pop()
        return "1", None

    renewal, worker = Renewal(ask, None), lines()
    lines.open()
    kind = type(raised) if isinstance(raised, DataLoaderUtilsError) else CatalogError
    with pytest.raises(kind, match=str(raised)):
        worker.ask(renewal.key, 0)
    assert worker.ask(renewal.key, 0) == Issued(1, None, "1")


def test_what_cannot_be_sent_is_an_error_where_it_was_asked_for(lines: Any) -> None:
    renewal, worker = Renewal(lambda: (threading.Lock(), None), None), lines()
    lines.open()
    with pytest.raises(CatalogError, match="cannot pickle"):
        worker.ask(renewal.key, 0)


def test_a_loader_or_a_process_that_has_gone_is_an_error(lines: Any) -> None:
    renewal, worker = endless(), lines()
    key = renewal.key
    del renewal
    lines.open()
    with pytest.raises(CatalogError, match=r"the loader that asks .* has gone"):
        worker.ask(key, 0)
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    alone = RenewalLine(theirs)
    for ask in (lambda: alone.ask(key, 0), lambda: alone.sent(key, 0)):
        with pytest.raises(CatalogError, match="has ended"):
            ask()
    theirs.close()


def test_a_process_with_a_line_renews_as_the_first_does(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use `Renewal`: a copy that came to a process asks on its line."""
    renewal, line = endless(time.time() + 1000), lines()
    lines.open()
    copy = pickle.loads(pickle.dumps(renewal))
    monkeypatch.setitem(renewals._LINES, os.getpid(), line)
    assert copy.possible
    assert copy.latest("0") == "0"
    assert copy.instead_of("0", "0") == "1"
    assert copy.instead_of("0", "0") == "1"  # another thread was refused the old one, too
    assert (copy.issued, renewal.issued) == (Issued(1, None, "1"),) * 2
    assert renewal.instead_of("1", "0") == "2"
    assert copy.instead_of("1", "0") == "2"
    assert renewal.issued.number == 2


def test_a_pickled_storage_has_the_latest_credentials() -> None:
    first, second = (Storage("s3", (MemoryFileSystem, (), {"key": key})) for key in ("first", "second"))
    renewal = Renewal(lambda: (second, 7.0), None)
    storage = replace(first, renewal=renewal)
    assert pickle.loads(pickle.dumps(storage)) == first
    assert renewal.instead_of(first, first) == second
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == copy.latest == second
    assert copy.renewal.issued == Issued(1, 7.0)
    assert not copy.renewal.possible
    assert storage == first
