"""Where ranks meet before a collective, so that none enters one that the others do not, and missing ones are named.

They meet in the job's store, not in a collective: those of different kinds or sizes would end the process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, TypeVar

from torch_dataloader_utils.distributed.peers import Peers
from torch_dataloader_utils.distributed.ranks import initialized_distributed
from torch_dataloader_utils.distributed.records import (
    ENTERED,
    LATE,
    Record,
    Step,
    absent,
    difference,
    lateness,
    not_here,
)
from torch_dataloader_utils.errors import OptionError, PlanMismatchError
from torch_dataloader_utils.printing import listed

T = TypeVar("T")

_LOG = logging.getLogger("torch_dataloader_utils")
_AGREED = "agreed"
_LEAST, _MOST = 0.0005, 0.02  # seconds between two looks into the store
_LOOK = 5e-5  # the same per member: thousands that wait must not keep the store busy
_SIGN = 2.0  # seconds in which a rank that runs gives a sign of life
_ANSWER = 5.0  # seconds in which a store answers
_SLOW = 30.0  # seconds until the first rank to arrive logs for whom it waits
_STEPS: Counter[tuple[int, ...]] = Counter()  # steps so far, by members: all take the same ones in the same order
_MET: dict[tuple[int, ...], int] = {}  # the last step at which all met, by members
_FAILURES: Counter[None] = Counter()  # errors of this process, each of which may have kept it from steps of the others
_KNOWN: Counter[tuple[int, ...]] = Counter()  # of these, how many there were when it took its last step, by members
_STUCK: list[threading.Thread] = []  # what still waits for a store that did not answer


def note_failure() -> None:
    """Note that an error ended something that this process did, perhaps before it met the others.

    The others wait for it, and give the step up in the end. When this process next takes a step, it leaves out those
    that were given up without it, so that it meets the others where they are. A process without an error of its own
    that comes too late fails as they did: it is about to do what they gave up.
    """
    _FAILURES[None] += 1


def expect_failure(members: tuple[int, ...]) -> None:
    """Note that the error which this process is about to raise is raised on all members, at the same step of theirs.

    It keeps no member from later steps, so none is left out after it.
    """
    _KNOWN[members] = _FAILURES[None] + 1


def meet(peers: Peers, step: Step) -> Board:
    """The records of the peers, once all are about to take the same step.

    Raises:
        PlanMismatchError: on every rank, if one is about to do something else or does not arrive in time.
    """
    board = Board(peers.members, step)
    verdict = board.asked(board.agree, step.limit and step.limit + _ANSWER)
    if verdict != _AGREED:
        expect_failure(peers.members)
        raise PlanMismatchError(verdict)
    return board


class Board:
    """The records of some processes in the job's store, as this one begins a step.

    Args:
        members: the processes' global ranks.
        step: what this one does.
    """

    def __init__(self, members: tuple[int, ...], step: Step) -> None:
        dist = initialized_distributed()
        self._store = _store_of(dist)
        self._rank = dist.get_rank()
        self._members = members
        self.step = step
        self._take_number()
        # Members are in the name: other loaders of this process may have other peers.
        self._prefix = f"tdu-{hashlib.blake2b(repr(members).encode(), digest_size=8).hexdigest()}-"
        self.record(ENTERED)

    def _take_number(self) -> None:
        _STEPS[self._members] += 1
        self.number = _STEPS[self._members]

    def record(self, state: str) -> None:
        """Record where this process is, over its last record."""
        if any(thread.is_alive() for thread in _STUCK):
            raise PlanMismatchError(self._silent())
        record = Record(self.number, state, self.step.does, {**self.step.options, **self.step.named})
        self._store.set(self._of(self._rank), json.dumps(astuple(record)))

    def records(self) -> dict[int, Record]:
        """The latest records, by global rank."""
        keys = {rank: self._of(rank) for rank in self._members}
        return {
            rank: Record(*json.loads(self._store.get(key))) for rank, key in keys.items() if self._store.check([key])
        }

    def agree(self) -> str:
        """_AGREED once all have arrived at this step; else what is wrong."""
        self._catch_up()
        same = json.dumps([self.step.does, dict(self.step.options)])
        first, arrived = self._store.compare_set(self._key("first"), "", same).decode(), 0
        if first != same:
            arrived_records = self._arrived()
            text = difference(arrived_records) or "the ranks are at different steps"
            self._settle(text, not_here(arrived_records, self._members, self.number))
        else:
            arrived = self._store.add(self._key("count"), 1)
        if arrived == len(self._members):
            self._settle(_AGREED)
            self._forget(_MET.get(self._members))
        _MET[self._members] = self.number
        return self._verdict(first=arrived == 1)

    def _catch_up(self) -> None:
        """Leave out the steps that the others gave up while this process was kept from them by an error of its own.

        Not those at which it has arrived: what it is about to do there is what the others were about to do.
        """
        failures, begun = _FAILURES[None], self.number
        while failures > _KNOWN[self._members] and self._is_missed():
            self._take_number()
        _KNOWN[self._members] = failures
        if self.number > begun:
            self.record(ENTERED)

    def _is_missed(self) -> bool:
        """Whether the others gave this step up before this process arrived at it."""
        return bool(self._store.check([self._key("verdict")])) and self._rank in self._settled()[1]

    def _settled(self) -> tuple[str, list[int]]:
        """The verdict of this step, and the members that had not arrived by then."""
        text, missing = json.loads(self._store.get(self._key("verdict")))
        return text, missing

    def asked(self, ask: Callable[[], T], limit: float) -> T:
        """What `ask` learns from the store.

        It runs in a thread, so that a store that does not answer, because its process is stopped, stops nobody.

        Args:
            ask: asks the store.
            limit: seconds to wait; 0 for no limit.

        Raises:
            PlanMismatchError: the store does not answer.
        """
        answers: list[Any] = []

        def run() -> None:
            try:
                answers.append((ask(), None))
            except Exception as error:  # noqa: BLE001 - raised by the thread that waits
                answers.append((None, error))

        thread = threading.Thread(target=run, daemon=True, name="tdu-meeting")
        thread.start()
        deadline = time.monotonic() + limit
        while thread.is_alive() and not (limit and time.monotonic() > deadline):
            thread.join(0.2)  # not longer, so that Ctrl+C ends it
        if not answers:
            _STUCK.append(thread)
            raise PlanMismatchError(self._silent())
        answer, error = answers[0]
        if error is not None:
            error.add_note(f"raised by the job's store, as this process was about to {self.step.does}: {_of_store()}.")
            raise error
        return answer  # type: ignore[no-any-return]  # what `ask` returned

    def silence(self) -> str:
        """What to say of ranks that do not finish a collective; called by those that have waited too long."""
        self.record(LATE)
        return self.asked(self._silence, _SIGN + _ANSWER)

    def absent(self) -> list[int]:
        """The members that have not arrived at this step, and do not in the next seconds."""
        return self.asked(lambda: not_here(self._arrived(), self._members, self.number), _SIGN + _ANSWER)

    def _silence(self) -> str:
        deadline = time.monotonic() + _SIGN
        while absent(self.records(), self._members, self.number) and time.monotonic() < deadline:
            time.sleep(0.1)
        records = self.records()
        missing = absent(records, self._members, self.number)
        here = {rank: record for rank, record in records.items() if record.number == self.number}
        text = difference(here) or lateness(records, missing, self.step)
        self._settle(text, not_here(records, self._members, self.number))  # for those that come later
        return text

    def _arrived(self) -> dict[int, Record]:
        """The records of those that have arrived at this step; others may arrive within a moment."""
        deadline = time.monotonic() + _SIGN
        while not_here(self.records(), self._members, self.number) and time.monotonic() < deadline:
            time.sleep(0.1)
        return {rank: record for rank, record in self.records().items() if record.number >= self.number}

    def _verdict(self, first: bool) -> str:
        """What the first to know it has settled; `first` logs for whom it waits."""
        begin, pause = time.monotonic(), _LEAST
        while not self._store.check([self._key("verdict")]):
            waited = time.monotonic() - begin
            if self.step.limit and waited > self.step.limit:
                records = self.records()
                missing = not_here(records, self._members, self.number)
                self._settle(lateness(records, missing, self.step), missing)
            elif first and waited > _SLOW:
                first, missing = False, not_here(self.records(), self._members, self.number)
                _LOG.warning("waiting for process(es) %s to %s", listed(missing), self.step.does)
            time.sleep(pause)
            pause = max(min(2 * pause, _MOST), _LOOK * len(self._members))
        return self._settled()[0]

    def _forget(self, number: int | None) -> None:
        """Delete the keys of an earlier step, which all have left; not every step has some."""
        for name in ("first", "count", "verdict") if number is not None else ():
            self._store.delete_key(self._key(name, number))

    def _settle(self, verdict: str, missing: Sequence[int] = ()) -> None:
        self._store.compare_set(self._key("verdict"), "", json.dumps([verdict, list(missing)]))

    def _key(self, name: str, number: int | None = None) -> str:
        return f"{self._prefix}{self.number if number is None else number}-{name}"

    def _of(self, rank: int) -> str:
        return f"{self._prefix}rank-{rank}"

    def _silent(self) -> str:
        return (
            f"process {self._rank} was about to {self.step.does}, but the job's store does not answer: {_of_store()}, "
            "and that process is stopped, has ended, or cannot be reached."
        )


def _store_of(dist: Any) -> Any:
    """The store of the job.

    Raises:
        OptionError: it has none: the backend "mpi" gets a placeholder.
    """
    store = inner = dist.distributed_c10d._get_default_store()  # has no public name
    while isinstance(inner, dist.PrefixStore):
        inner = inner.underlying_store
    if type(inner) is dist.Store:
        raise OptionError(
            f"torch.distributed was initialised with the backend {dist.get_backend()!r}, without a store in which "
            "ranks could meet: use 'gloo' or 'nccl', which also work under mpirun, with MASTER_ADDR and MASTER_PORT."
        )
    return store


def _of_store() -> str:
    """Whose process runs the store."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "it is in the process of the launcher (torchrun)"
    return "it is in process 0, unless init_process_group was given another one"
