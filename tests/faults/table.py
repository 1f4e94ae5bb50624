"""The faults of docs/faults.md: each is injected for real, in a process of its own, and timed.

@fault("Files", "a file is cut", FileReadError, "tests/formats/test_parquet.py::test_x")
def cut(folder: Path) -> Callable[[], object]:
    ...make a table, create a loader, inject the fault...
    return lambda: list(loader)  # what fails: the time of this call is that to the error
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.forking import program
from tests.faults.residue import of_session

ROOT = Path(__file__).parents[2]
LIMIT = 40.0  # seconds for a fault; it counts as hanging then

Inject = Callable[[Path], Callable[[], object]]


@dataclass(frozen=True)
class Measured:
    """What other processes measured: the error's class and the seconds until it was raised."""

    error: str
    seconds: float


@dataclass(frozen=True)
class Fault:
    """A fault and its row.

    Attributes:
        section: the part of the table.
        name: the fault, in words.
        gives: the class of the error (the page names the subclass that was raised); or words, if the call must succeed.
        test: the test that holds it, as pytest takes it.
        inject: makes the fault; the value is the call that then fails, or returns True.
        loses: what is lost.
    """

    section: str
    name: str
    gives: type[BaseException] | str
    test: str
    inject: Inject
    loses: str = "nothing"

    @property
    def tested(self) -> bool:
        """Whether the test exists."""
        path, _, name = self.test.partition("::")
        return (ROOT / path).exists() and f"def {name}(" in (ROOT / path).read_text()


@dataclass(frozen=True)
class Result:
    """What a fault led to: whether that was expected, the error's class ("" without one), seconds, the message."""

    good: bool
    error: str
    seconds: float
    message: str


FAULTS: list[Fault] = []


def fault(
    section: str, name: str, gives: type[BaseException] | str, test: str, loses: str = "nothing"
) -> Callable[[Inject], Inject]:
    """Register the fault that the function injects."""

    def register(inject: Inject) -> Inject:
        FAULTS.append(Fault(section, name, gives, test, inject, loses))
        return inject

    return register


def outcome(given: Fault, folder: Path) -> Result:
    """Inject the fault in this process."""
    call = given.inject(folder)
    began = time.monotonic()
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - the result
        seconds = time.monotonic() - began
        good = isinstance(given.gives, type) and isinstance(error, given.gives)
        return Result(good, type(error).__name__, seconds, str(error))
    if isinstance(value, Measured):
        return Result(True, value.error, value.seconds, "")
    good = isinstance(given.gives, str) and value is True
    return Result(good, "", time.monotonic() - began, "" if good else f"no error; returned {value!r:.200}")


def injected(given: Fault, folder: Path) -> Result:
    """Inject the fault in a fork of this process, whose other processes are ended afterwards."""
    answer = folder / "result.json"
    work = folder / "work"
    work.mkdir(parents=True)
    pid = program(lambda: answer.write_text(json.dumps(asdict(outcome(given, work)))), folder, folder / "log")
    deadline = time.monotonic() + LIMIT
    status = 0
    while time.monotonic() < deadline and not answer.exists():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    time.sleep(0.1)  # the answer may be half written
    for member in of_session(pid):
        os.kill(member, 9)
    if answer.exists() and (text := answer.read_text()):
        return Result(**json.loads(text))
    words = (folder / "log").read_text()[-600:]
    return Result(False, "", LIMIT, f"no answer (wait status {status}): {words}")


def faults(names: Sequence[str] = ()) -> list[Fault]:
    """All faults, or those whose names contain one of the words."""
    from tests.faults import on_delta, on_files, on_iceberg, on_passes, on_ranks, on_states, on_stores, on_text  # noqa: F401

    return [given for given in FAULTS if not names or any(word in given.name for word in names)]
