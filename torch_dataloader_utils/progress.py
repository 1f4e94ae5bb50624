"""Shows the progress of work that takes long: a bar, or lines of text where a bar cannot be redrawn.

Everything that shows progress goes through `Progress`: reading footers, counting rows, an epoch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf
from time import perf_counter
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from torch_dataloader_utils.errors import MissingExtraError

T = TypeVar("T")

_LOG = logging.getLogger("torch_dataloader_utils")
_REDRAW = 0.1  # seconds between two updates of a bar
_SHORT = 0.5  # seconds: quicker work at construction shows no bar


@dataclass(frozen=True)
class Progress:
    """How progress is shown in this process.

    Attributes:
        show: whether to show it on stderr; otherwise it is logged, and only while work lasts.
        interval: seconds between two lines of text.
        label: names this process if several show progress.
        line: the line of the terminal for this process's bar; None for the next free one.
        lines: the number of lines that such processes share.
    """

    show: bool = False
    interval: float = 120
    label: str = ""
    line: int | None = None
    lines: int = 1

    def begin(self, work: str, unit: str, total: int | None = None, before: int = 0, delay: float = 0) -> Shown:
        """Begin to show some work.

        Args:
            work: what it is, such as "counting rows".
            unit: what is counted, in the plural.
            total: how many there are, if known.
            before: how many were done earlier: they do not count for the speed.
            delay: seconds without a bar: shorter work shows none.
        """
        named = _Work(f"{work}, {self.label}" if self.label else work, unit, before, delay)
        view: _View
        show = self.show and sys.stderr is not None  # None: a program without a console
        if show and _redraws():
            line = None if self.line is None else self.line + self.lines * len(_OPEN)
            view, every = _Bar(named, total, line), _REDRAW
        else:
            view, every = _Lines(named, _print if show else _log, last=show), self.interval
        return Shown(view, every, before, total)

    @contextmanager
    def over(self, total: int | None, work: str, unit: str, delay: float | None = None) -> Iterator[Shown]:
        """A context that shows some work at construction; arguments as for `begin`."""
        shown = self.begin(work, unit, total, delay=_SHORT if delay is None else delay)
        try:
            yield shown
        finally:
            shown.close()

    def each(self, items: Iterable[T], total: int, work: str, unit: str) -> Iterator[T]:
        """The items, of which there are `total`, counted as they are taken; arguments as for `begin`."""
        if not total:
            return
        with self.over(total, work, unit) as shown:
            for item in items:
                yield item
                shown.advance()


LOGGED = Progress()  # shown in the log only


@dataclass(frozen=True)
class _Work:
    """What is shown; attributes as for `Progress.begin`."""

    name: str
    unit: str
    before: int
    delay: float


class Shown:
    """Work in progress that is shown; for one thread at a time.

    Attributes:
        due: the time (of `perf_counter`) from which it is worth calling `at`.
    """

    def __init__(self, view: _View, every: float, done: int, total: int | None) -> None:
        self._view, self._every = view, every
        self._now: tuple[int, int | None, str] = done, total, ""
        self.due = perf_counter() + every

    def advance(self, count: int = 1) -> None:
        """Count this many more as done."""
        done, total, note = self._now
        self._now = done + count, total, note
        if perf_counter() >= self.due:
            self.at(*self._now)

    def at(self, done: int, total: int | None, note: str = "") -> None:
        """Show how much is done.

        Args:
            done: units done, including those done before this began.
            total: units in all, if known.
            note: text to add.
        """
        self._now = done, total, note
        self._view.draw(done, total, note)
        self.due = perf_counter() + self._every

    def end(self, done: int, total: int | None, note: str = "") -> None:
        """Show the end, and leave it there; arguments as for `at`. Idempotent."""
        if self.due < inf:
            self.due = inf
            self._view.end(done, total, note)

    def close(self) -> None:
        """End where it came to; idempotent."""
        self.end(*self._now)


class _View(Protocol):
    """A way to show work in progress; arguments as for `Shown.at`."""

    def draw(self, done: int, total: int | None, note: str) -> None: ...

    def end(self, done: int, total: int | None, note: str) -> None: ...


class _Lines:
    """Lines of text, without the first; the last one only if no log line of its own follows."""

    def __init__(self, work: _Work, write: Callable[[str], None], *, last: bool) -> None:
        self._work, self._write, self._last = work, write, last
        self._began = perf_counter()

    def draw(self, done: int, total: int | None, note: str) -> None:
        if total is None or done < total:
            self._line(done, total, note)

    def end(self, done: int, total: int | None, note: str) -> None:
        if self._last and perf_counter() - self._began >= self._work.delay:
            self._line(done, total, note)

    def _line(self, done: int, total: int | None, note: str) -> None:
        work, seconds = self._work, perf_counter() - self._began
        self._write(f"{work.name}: {progress_text(done, total, work.unit, (done - work.before) / seconds, note)}")


class _Bar:
    """A bar of tqdm's, which is redrawn in its place."""

    def __init__(self, work: _Work, total: int | None, line: int | None) -> None:
        self._line = line
        self._bar = _bar_class()(
            desc=work.name, unit=f" {work.unit}", total=total, initial=work.before, delay=work.delay, position=line,
            mininterval=0, miniters=0, unit_scale=total is None or total >= _MANY, dynamic_ncols=True,
        )  # fmt: skip
        _OPEN.add(self)

    def draw(self, done: int, total: int | None, note: str) -> None:
        bar = self._bar
        bar.total = total
        bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)

    def end(self, done: int, total: int | None, note: str) -> None:
        self.draw(done, total, note)
        if self._line:
            self._bar.clear()  # what stays is written to the first line
        self._bar.close()
        _OPEN.discard(self)


_MANY = 10_000  # from here on, a bar shows thousands and millions instead of all digits
_OPEN: WeakSet[_Bar] = WeakSet()


def progress_text(done: int, total: int | None, unit: str, rate: float, note: str = "") -> str:
    """A line of text that says how much is done, how fast, and how long the rest will take.

    Args:
        done: units done.
        total: units in all, if known.
        unit: what is counted, in the plural.
        rate: units per second.
        note: text to add.
    """
    of = "" if total is None else f" of {total:,}"
    left = f", {_clock((total - done) / rate)} left" if total is not None and rate and done < total else ""
    share = "" if not total else f" ({done / total:.0%})"
    return f"{done:,}{of} {unit}{share}, {rate:,.0f} {unit}/s{left}{f', {note}' if note else ''}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _log(line: str) -> None:
    _LOG.info("%s", line)


def _print(line: str) -> None:
    # As tqdm: work must not fail because nobody sees its progress. A program's own stream may have no `flush`.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _redraws() -> bool:
    """Whether stderr is a terminal, or the output of a notebook's cell."""
    stream = sys.stderr
    if type(stream).__module__.startswith("ipykernel"):
        return True
    # A program's own stream may have no method but `write`.
    return hasattr(stream, "isatty") and not getattr(stream, "closed", False) and stream.isatty()


def check_bars() -> None:
    """Check that bars can be shown.

    Raises:
        MissingExtraError: tqdm is not installed.
    """
    try:
        import_module("tqdm.auto")
    except ImportError as error:
        raise MissingExtraError(
            "show_progress needs tqdm for its bars: pip install 'torch-dataloader-utils[progress]'."
        ) from error


@cache
def _bar_class() -> Any:
    """Tqdm's class for this terminal or notebook, without its thread: that redraws bars whose updates are rare."""
    return type("ProgressBar", (import_module("tqdm.auto").tqdm,), {"monitor_interval": 0})
