"""Runs a loader in a fresh process, and measures what it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import Peer
from processes import Peak, cpu_seconds, memory, tree

HERE = Path(__file__).parent
SLACK = 120.0  # seconds that a start may take beyond the seconds of a run


@dataclass(frozen=True)
class Case:
    """What every loader is asked to do."""

    table: str
    rows: int
    workers: int
    shuffle: bool


class Failed(Exception):
    """A loader cannot do this; the message is the last line of its error."""


def run(
    peer: Peer, python: str, folder: Path, case: Case, seconds: float, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a fresh process of the loader measured, with its CPU time and peak memory above those of imports.

    Args:
        peer: the loader.
        python: of its environment.
        folder: the table that it reads.
        case: what it is asked to do.
        seconds: the longest that a run goes on.
        env: further environment variables.

    Raises:
        Failed: it cannot do this.
    """
    numbers = map(str, (case.rows, case.workers, int(case.shuffle), seconds))
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [python, str(HERE / "measure.py"), peer.name, str(folder), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            # Bytecode is kept, as that of installed packages is: late imports are not compiled in each run.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
        )
        assert child.stdout is not None
        alarm = _Alarm(child.pid, seconds + SLACK)
        try:
            ready = child.stdout.readline()
            before, at_rest = cpu_seconds(child.pid), memory(child.pid)
            peak = Peak(child.pid)
            line = child.stdout.readline()
            used, most = cpu_seconds(child.pid) - before, max(peak.stop() - at_rest, 0)
        finally:
            alarm.stop()
            _kill(child)
        if not ready or not line:
            errors.seek(0)
            raise Failed("it took too long" if alarm.rang else reason(errors.read()))
    result: dict[str, Any] = json.loads(line)
    if not result["rows"]:
        raise Failed("it delivered no rows")
    return {
        **result,
        "cpu": used / result["rows"] * 1e6,
        "peak": most / 2**20,
    }


class _Alarm:
    """Kills a process and what it started unless stopped in time."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.rang = False
        self._pid = pid
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        self.rang = True
        for pid in tree(self._pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill(child: subprocess.Popen[str]) -> None:
    pids = tree(child.pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no words")[:200]


def warm(folder: Path) -> None:
    """Let the files be in the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as source:
                while source.read(1 << 24):
                    pass
