"""Runs mutations in processes that may die of them, and counts what came of them."""

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.families import EQUAL, REFUSED

_ROOT = Path(__file__).parents[2]
_START = 120.0  # seconds in which a process must import what it needs and make its first seeds
MOST_MEMORY = 1024  # MB of a process that reads them


@dataclass(frozen=True)
class Result:
    """What came of one mutation.

    Attributes:
        family: the family.
        number: which mutation of the family.
        seed: the name of the seed that was mutated; "" if the process died.
        outcome: "equal", "refused", or what is wrong.
    """

    family: str
    number: int
    seed: str
    outcome: str

    @property
    def good(self) -> bool:
        """Whether the rows were right, or the input was refused by a clear error."""
        return self.outcome in (EQUAL, REFUSED)


def results(
    work: Mapping[str, int],
    seed: int,
    folder: Path,
    limit: float = 20.0,
    first: int = 0,
    total: float = float("inf"),
) -> Iterator[Result]:
    """The results of mutations of some families, in order; ends with a hang when `total` is over.

    Args:
        work: the number of mutations of each family.
        seed: what all of them depend on.
        folder: an empty folder.
        limit: the seconds that one may take.
        first: the number of the first mutation of each family.
        total: the seconds that all of them may take.
    """
    end = time.monotonic() + total
    waiting = [(family, number) for family, count in work.items() for number in range(first, first + count)]
    while waiting:
        for result in _of_one_process(waiting, seed, folder, limit, end):
            waiting.pop(0)
            yield result
        if waiting and time.monotonic() > end:
            yield Result(*waiting[0], "", f"hang: {len(waiting)} mutations are left after {total:g} seconds")
            return


def _of_one_process(
    waiting: list[tuple[str, int]], seed: int, folder: Path, limit: float, end: float
) -> Iterator[Result]:
    """The results of a process, up to the one that it dies of."""
    stops = {family: number + 1 for family, number in waiting}
    firsts = dict(reversed(waiting))
    work = [str(part) for family, stop in stops.items() for part in (family, firsts[family], stop)]
    command = [sys.executable, "-m", "tests.fuzz.worker", str(folder), str(seed), *work]
    with (folder / "stderr").open("wb") as errors:
        # Unbuffered: `select` does not see lines that a buffer holds.
        worker = subprocess.Popen(command, bufsize=0, cwd=_ROOT, stdout=subprocess.PIPE, stderr=errors)
    try:
        for place, (family, number) in enumerate(list(waiting)):
            most = max(min(limit if place else _START, end - time.monotonic()), 0)
            line = _line(worker, most)
            if line is None:
                yield Result(family, number, "", f"hang: no answer for {most:g} seconds")
                return
            if not line.endswith(b"\n"):
                yield Result(family, number, "", _death(worker, folder))
                return
            _, _, name, outcome, _, peak = json.loads(line)
            if peak > MOST_MEMORY:
                yield Result(family, number, name, f"memory: {peak:.0f} MB ({outcome})")
                return
            yield Result(family, number, name, outcome)
    finally:
        worker.kill()
        worker.communicate()


def _line(worker: subprocess.Popen[bytes], limit: float) -> bytes | None:
    """The process's next line, b"" if it has died, None if it says nothing."""
    assert worker.stdout is not None
    waiting = select.poll()  # select.select() knows only the first 1,024 descriptors
    waiting.register(worker.stdout, select.POLLIN)
    return worker.stdout.readline() if waiting.poll(limit * 1000) else None


def _death(worker: subprocess.Popen[bytes], folder: Path) -> str:
    code = worker.wait()
    if code > 0:  # no damage to what it reads: a test's own mistake
        raise RuntimeError((folder / "stderr").read_text())
    how = signal.Signals(-code).name
    return f"crash: {how}: {(folder / 'stderr').read_text(errors='replace')[-300:]}"
