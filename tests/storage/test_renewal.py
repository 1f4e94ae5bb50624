"""Credentials that end: when others are asked for, by how many threads, and what happens where there are none."""

import logging
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from torch_dataloader_utils.errors import BatchTimeoutError, CatalogError
from torch_dataloader_utils.storage import Renewal
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
        self.open = True

    def __call__(self) -> tuple[str, float | None]:
        if not self.open:
            raise CatalogError("closed")
        self.given.append(["second", "third", "fourth"][len(self.given)])
        return self.given[-1], time.time() + 100


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


def test_each_later_pass_of_other_processes_has_new_credentials_if_nobody_knows_when_they_end(clock: Clock) -> None:
    given = iter(["second", "third"])
    renewal = Renewal(lambda: (next(given), None), None)
    assert [renewal.for_pass("first") for _ in range(3)] == ["first", "second", "third"]
    assert Renewal(Office(), 100.0).for_pass("first") == "first"


def test_a_pass_begins_with_the_old_credentials_if_the_catalog_is_closed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    office.open = False
    renewal = Renewal(office, None)
    with caplog.at_level(logging.WARNING):
        assert [renewal.for_pass("first") for _ in range(2)] == ["first", "first"]
    assert "could not be renewed" in caplog.text
