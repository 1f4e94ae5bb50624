"""Waits for rows that are appended to a table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, sleep

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.errors import CatalogError, ShardingError, StaleIteratorError
from torch_dataloader_utils.options import Follow
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage.retries import permanent

_LOG = logging.getLogger("torch_dataloader_utils")
_LOOK = 0.1  # seconds between checks whether the wait is to be ended


@dataclass
class Patience:
    """How long a failing catalog is asked again.

    Attributes:
        seconds: for which the catalog may fail, without an answer in between; 0 for no limit.
    """

    seconds: float
    _since: float | None = None

    def is_over(self, error: Exception, now: float, left: float) -> bool:
        """Whether an error ends the wait.

        Args:
            error: of a question to the catalog.
            now: seconds on any clock.
            left: seconds of the wait that are left.
        """
        self._since = now if self._since is None else self._since
        lasting = bool(self.seconds) and now - self._since >= self.seconds
        return lasting or left <= 0 or not may_pass(error)

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
    newest: Callable[[], SnapshotCursor],
    source_at: Callable[[SnapshotCursor], Source],
    follow: Follow,
    sharers: Sharers,
    timeout: float,
    ending: Callable[[], bool],
) -> Source:
    """The rows appended after a position in a table's history, as soon as there are any; none if time is over.

    A collective: all ranks use what rank 0 finds, at the same time.

    Args:
        here: the position up to which rows were read.
        newest: looks up the table's newest position; called on rank 0 only.
        source_at: opens the rows at a position.
        follow: how often to look, and for how long.
        sharers: the ranks that share the answer.
        timeout: seconds for which `newest` may fail; 0 for no limit.
        ending: whether the wait is to be ended.

    Raises:
        StaleIteratorError: it was ended.
    """
    patience = Patience(timeout)
    end = monotonic() + (inf if follow.wait is None else follow.wait)
    waiting = False

    def look() -> tuple[SnapshotCursor | None, float]:
        _check(ending)
        return _looked(newest, end, patience, follow), end - monotonic()

    while True:
        found, left = from_first_rank(look, sharers, "look for appended rows")
        if found is not None and (found.end != here.end or left <= 0):
            here = replace(found, start=here.end)
            source = source_at(here)
            if source.files or left <= 0:  # a compaction appends no files
                return source
        if not waiting:
            _LOG.info("waiting for rows appended after snapshot %s; looks every %g s", here.end, follow.poll)
        waiting = True
        _wait(min(follow.poll, left), ending)
        if sharers.index:  # the first rank tells the others
            _check(ending)


def _looked(
    newest: Callable[[], SnapshotCursor], end: float, patience: Patience, follow: Follow
) -> SnapshotCursor | None:
    """The table's newest position; None while its catalog fails, and is to be asked again."""
    try:
        found = newest()
    except CatalogError as error:
        now, first = monotonic(), not patience.tried
        if patience.is_over(error, now, end - now):
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
