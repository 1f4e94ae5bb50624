"""Work that ranks share: each does a part and all get everything, or the first does it and all get the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch_dataloader_utils import errors
from torch_dataloader_utils.distributed.meeting import expect_failure, meet
from torch_dataloader_utils.distributed.peers import Peers, job_peers
from torch_dataloader_utils.distributed.ranks import initialized_distributed
from torch_dataloader_utils.distributed.records import Step
from torch_dataloader_utils.errors import PlanMismatchError, WorkerError

T = TypeVar("T")


@dataclass
class Sharers:
    """The processes that share work.

    Attributes:
        peers: None if there is nobody to share with.
        limit: seconds to wait for the others; 0 for no limit.
        options: those that must be the same on all of them, as text by name.
        apart: whether a step failed on this process: the others would not take a further one with it.
    """

    peers: Peers | None = None
    limit: float = 0
    options: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False

    @property
    def index(self) -> int:
        """This process's place among them."""
        return 0 if self.peers is None else self.peers.members.index(initialized_distributed().get_rank())

    def meet(self, does: str) -> None:
        """Wait until all are about to take the same step.

        Raises:
            PlanMismatchError: on every rank, if one is about to do something else or does not arrive in time.
        """
        if self.peers is not None:
            with self._together():
                meet(self.peers, self._step(does))

    def exchange(self, does: str) -> Callable[[object], list[Any]] | None:
        """A collective that maps this process's object to those of all; None if there is nobody to share with.

        A string is what went wrong on its process: all of them raise an error then.
        """
        peers = self.peers
        if peers is None:
            return None
        from torch_dataloader_utils.distributed.collectives import gathered_objects  # where torch runs already

        def exchanged(part: object) -> list[Any]:
            if self.apart:
                return []
            with self._together():
                parts = gathered_objects(part, peers, self._step(does))
            if any(isinstance(each, str) for each in parts):
                expect_failure(peers.members)
            return parts

        return exchanged

    def swap(self, parts: Sequence[object], does: str) -> list[Any]:
        """What each process has for this one, by process. A collective.

        Args:
            parts: what this process has for each of them. A string is what went wrong here: give it to all.
            does: what all are about to do, in words.
        """
        if self.peers is None:
            return list(parts)
        from torch_dataloader_utils.distributed.collectives import swapped_objects  # where torch runs already

        with self._together():
            got = swapped_objects(parts, self.peers, self._step(does))
        if any(isinstance(each, str) for each in got):
            expect_failure(self.peers.members)
        return got

    def sent(self, value: object, peers: Peers, does: str) -> Any:
        """The object of the first process, on all."""
        from torch_dataloader_utils.distributed.collectives import sent_by_first  # where torch runs already

        with self._together():
            return sent_by_first(value, peers, self._step(does))

    def _step(self, does: str) -> Step:
        return Step(does, self.limit, self.options)

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.apart = True
            raise


def sharers_among(
    num_ranks: int | None, peers: Peers | None = None, limit: float = 0, options: Mapping[str, str] | None = None
) -> Sharers:
    """The processes to share work with.

    None if torch.distributed is not initialised, or the loader has other ranks than the peers, such as one made with
    explicit (1, 0).

    Args:
        num_ranks: the loader's number of ranks; None to detect it.
        peers: the processes that run the loader; None for all.
        limit: as for `Sharers`.
        options: as for `Sharers`.
    """
    known = peers or job_peers()
    if known is None or initialized_distributed() is None or len(known.members) < 2:
        return Sharers()
    same = num_ranks in (None, known.world.num_ranks)
    return Sharers(known, limit, options or {}) if same else Sharers()


def from_first_rank(make: Callable[[], T], sharers: Sharers, does: str) -> T:
    """The result of `make` on the first rank, on all of them; without peers, its result here.

    A collective: `make` must include everything that can fail, so that no rank waits for one that has failed.

    Args:
        make: does the work.
        sharers: the ranks.
        does: what all do when it is done, in words.

    Raises:
        PlanMismatchError: the first rank has no result in time, or another rank does something else.
        Exception: `make` failed: its own error on the first rank; on the others one of the same class if that belongs
            to this package, else a WorkerError.
    """
    peers = sharers.peers
    if peers is None:
        return make()
    if sharers.index:
        value, failure = sharers.sent(None, peers, does)
        if failure is not None:
            expect_failure(peers.members)
            raise _error_of_first(*failure)
        return value  # type: ignore[no-any-return]  # what the first rank's `make` returned
    try:
        made = make()
    except Exception as error:
        with suppress(PlanMismatchError):  # this error matters more
            sharers.sent((None, (type(error).__name__, str(error))), peers, does)
            expect_failure(peers.members)
        raise
    sharers.sent((made, None), peers, does)
    return made


def _error_of_first(name: str, message: str) -> Exception:
    """An error of the first rank, as the others raise it."""
    kind = getattr(errors, name, None)
    return WorkerError(f"on rank 0: {name}: {message}") if kind is None else kind(f"on rank 0: {message}")
