"""Waits for rows that are appended to a table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import TypeVar

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.errors import CatalogError, ShardingError, StaleIteratorError
from torch_dataloader_utils.options import Follow
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage.retries import permanent

_LOG = logging.getLogger("torch_dataloader_utils")
T = TypeVar("T")

_LOOK = 0.1  # seconds between checks whether the wait is to be ended


@dataclass
class Patience:
    """How long a failing catalog is asked again.

    Attributes:
        seconds: for which the catalog may fail, without an answer in between; 0 for no limit.
    """

    seconds: float
    _since: float | None = None

    def is_over(self, error: Exception, now: float, *, last: bool) -> bool:
        """Whether an error ends the wait.

        Args:
            error: of a question to the catalog.
            now: seconds on any clock.
            last: whether it was the last question.
        """
        self._since = now if self._since is None else self._since
        lasting = bool(self.seconds) and now - self._since >= self.seconds
        return lasting or last or not may_pass(error)

    @property
    def tried(self) -> bool:
        """Whether the last question failed."""
        return self._since is not None

    def restored(self) -> None:
        """Note an answer."""
        self._since = None


def may_pass(error: Exception) -> bool:
    """Whether it is a catalog's error that another try can overcome, judged as errors of stores are."""
    cause = error.__cause__
    return isinstance(error, CatalogError) and cause is not None and not permanent(cause)


def check_group(num_ranks: int, sharers: Sharers) -> None:
    """Check that the ranks can agree on what was appended.

    Raises:
        ShardingError: there are several, without a process group.
    """
    if num_ranks > 1 and sharers.peers is None:
        raise ShardingError(
            f"follow=True with num_ranks={num_ranks} needs a process group, because all ranks must read the same "
            "appends, but torch.distributed is not initialised: initialise it first."
        )


def appended_since(
    here: SnapshotCursor,
    added: Callable[[SnapshotCursor, bool], SnapshotCursor],
    source_at: Callable[[SnapshotCursor], Source],
    follow: Follow,
    sharers: Sharers,
    timeout: float,
    ending: Callable[[], bool],
) -> Source:
    """The rows appended after a position in a history, as soon as there are any; none if time is over.

    A collective: all ranks use what rank 0 finds, at the same time.

    Args:
        here: the position up to which rows were read.
        added: looks up what was appended since a position, also told whether time is over; called on rank 0 only.
        source_at: opens the rows at a position.
        follow: how often to look, and for how long.
        sharers: the ranks that share the answer.
        timeout: seconds for which `added` may fail; 0 for no limit.
        ending: whether the wait is to be ended.

    Raises:
        StaleIteratorError: it was ended.
    """
    patience, read = Patience(timeout), here

    def look(last: bool) -> SnapshotCursor | None:
        return _looked(lambda: added(read, last), patience, follow, last=last)

    for found, last in looks(look, follow, sharers, ending, f"rows appended after {here.place}"):
        if found is not None and (found.end != read.end or last):
            read = found
            source = source_at(read)
            if source.files or last:  # a compaction appends no files
                return source
    raise AssertionError("the last look finds a position, or raises an error")


def looks(
    look: Callable[[bool], T],
    follow: Follow,
    sharers: Sharers,
    ending: Callable[[], bool],
    awaited: str,
) -> Iterator[tuple[T, bool]]:
    """What rank 0 finds, on all ranks, again and again, and whether it is the last look because time is over.

    Args:
        look: looks; told whether it is the last time.
        follow: how often, and for how long.
        sharers: the ranks that share the answer.
        ending: whether the wait is to be ended.
        awaited: what is waited for, for the log.

    Raises:
        StaleIteratorError: it was ended.
    """
    end = monotonic() + (inf if follow.wait is None else follow.wait)
    waiting = False

    def shared() -> tuple[T, bool, float]:
        _check(ending)
        last = monotonic() >= end
        return look(last), last, end - monotonic()

    while True:
        found, last, left = from_first_rank(shared, sharers, "look for appended rows")
        yield found, last
        if last:
            return
        if not waiting:
            _LOG.info("waiting for %s; looks every %g s", awaited, follow.poll)
        waiting = True
        _wait(min(follow.poll, max(left, 0)), ending)
        if sharers.index:  # the first rank tells the others
            _check(ending)


def _looked(
    ask: Callable[[], SnapshotCursor], patience: Patience, follow: Follow, *, last: bool
) -> SnapshotCursor | None:
    """What was appended; None while the table's catalog fails, and is to be asked again."""
    try:
        found = ask()
    except CatalogError as error:
        first = not patience.tried
        if patience.is_over(error, monotonic(), last=last):
            raise
        if first:
            _LOG.warning("%s It is asked again every %g s.", error, follow.poll)
        return None
    if patience.tried:
        _LOG.info("the catalog answers again")
    patience.restored()
    return found


def _wait(seconds: float, ending: Callable[[], bool]) -> None:
    """Wait for so long, or until `ending`."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0 and not ending():
        sleep(min(left, _LOOK))


def _check(ending: Callable[[], bool]) -> None:
    if ending():
        raise StaleIteratorError(
            "the loader was closed, or a state was loaded, while its pass waited for appended rows: iterate over it "
            "again to wait again."
        )
