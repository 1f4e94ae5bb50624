"""Rounds in which a signal hits a worker process at a random moment of a pass."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from tests.faults import rows
from tests.faults.residue import held, left_over, of_session, processes
from tests.faults.rounds import SLACK, Outcome, batches_of, fail_unless
from torch_dataloader_utils.errors import BatchTimeoutError, WorkerError

# Seconds, the loader's own: a stopped worker costs as long, and a spawned one imports its modules within it.
TIMEOUTS = {"fork": 3.0, "forkserver": 3.0, "spawn": 20.0}
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
METHODS = ("fork", "forkserver", "spawn")
MOMENTS = ("start", "first batch", "middle", "end", "between epochs", "any time")


def worker_rounds(folder: Path, temporary: Path, rounds: int, seed: int, kind: str) -> Iterator[Outcome]:
    """Rounds of one signal. What start methods leave running by design (the fork server) is started before."""
    expected = {count: rows.ids_of(rows.create(folder, num_workers=count)[0]) for count in (1, 2, 3)}
    for method in METHODS:
        loader, dataset = rows.create(folder, f"processes by {method}")
        fail_unless(rows.ids_of(loader) == expected[2], "threads and processes differ")
        dataset.close()
    del loader, dataset
    before = held(temporary)
    for number in range(rounds):
        chance = random.Random(f"{seed} {kind} {number}")
        yield worker_round(folder, chance, getattr(signal, kind), expected)
        more = left_over(before, temporary)
        fail_unless(not more, f"left behind: {more}")


def worker_round(
    folder: Path, chance: random.Random, number: signal.Signals, expected: dict[int, list[int]]
) -> Outcome:
    """One round: a pass that is hit, then passes until one is complete: the second, or the third at the latest."""
    method, moment, count = chance.choice(METHODS), chance.choice(MOMENTS), chance.randint(1, 3)
    if method == "spawn" and chance.random() < 0.5:  # its processes take long to start
        method = "forkserver"
    timeout = TIMEOUTS[method]
    loader, dataset = rows.create(folder, f"processes by {method}", num_workers=count, timeout=timeout)
    what = f"{number.name}, {moment}, {method}, {count} workers"
    try:
        dataset.set_epoch(0)
        with hit(chance, number, moment, loader) as after_batch:
            first = batches_of(loader, after_batch)
        first.check(what, expected[count], (WorkerError, BatchTimeoutError), timeout)
        attempts = [first]
        while attempts[-1].error is not None or len(attempts) == 1:
            dataset.set_epoch(0)
            attempts.append(batches_of(loader))
            # A worker that is hit after it has sent its last block fails the next pass, and no other.
            allowed = (WorkerError, BatchTimeoutError) if first.error is None and len(attempts) == 2 else ()
            attempts[-1].check(f"{what}, pass {len(attempts)}", expected[count], allowed, timeout)
    finally:
        began = time.monotonic()
        dataset.close()
        closing = time.monotonic() - began
    fail_unless(closing < timeout + SLACK, f"{what}: close() took {closing:.1f} s")
    failed = next((attempt for attempt in attempts if attempt.error is not None), first)
    return Outcome(what, failed.name, failed.waited, closing)


@contextmanager
def hit(chance: random.Random, number: signal.Signals, moment: str, loader: Any) -> Iterator[Callable[[int], None]]:
    """Send the signal once at the moment; the value is to be called after each batch, with their number so far."""
    total = len(loader)
    if moment in ("start", "any time"):
        # Before any worker runs, or at any time of a pass, whatever the consumer is doing.
        delay = chance.uniform(0, 0.05 if moment == "start" else 0.4)
        ended = threading.Event()
        thread = threading.Thread(target=_strike, args=(chance, number, delay, ended), name="striker")
        thread.start()
        try:
            yield lambda taken: time.sleep(0.002 if moment == "any time" else 0)
        finally:
            ended.set()
            thread.join()
        return
    if moment == "between epochs":
        rows.ids_of(loader)
        loader.dataset.set_epoch(0)
        _strike(chance, number, 0, threading.Event())
    at = {"first batch": 1, "middle": chance.randint(2, total - 2), "end": total - 1}.get(moment)

    def after_batch(taken: int) -> None:
        if taken == at:
            _strike(chance, number, 0, threading.Event())

    yield after_batch


def _strike(chance: random.Random, number: signal.Signals, delay: float, ended: threading.Event) -> None:
    """Wait until there is a worker, and so many seconds; then send one of the workers the signal."""
    while not (running := workers()) and not ended.wait(0.001):
        pass
    time.sleep(delay)
    running = workers() or running
    if running:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(sorted(running)), number)


def workers() -> set[int]:
    """The worker processes of this process's loaders."""
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    parents = {os.getpid(), server}
    ours = {process.pid for process in processes() if process.parent in parents and process.state != "Z"}
    return (ours & of_session(os.getsid(0))) - {server, tracker}
