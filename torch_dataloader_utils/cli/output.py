"""Where results go: tables for people or JSON for programs on stdout; warnings, progress and errors on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.redaction import printable

Cell: TypeAlias = "str | int | float | Text | None"

_SIGPIPE = 128 + 13
_PIPE_WIDTH = 1_000_000  # columns: nothing is wrapped or cropped where no terminal is
_LOG = logging.getLogger("torch_dataloader_utils")
WARNING, BAD, GOOD, FAINT = "yellow", "bold red", "green", "dim"
NULLS_HINT = "On the command line: --nulls mask or --nulls drop, or --columns without that column."


class Screen:
    """Prints text and tables for people."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str | Text = "", style: str = "") -> None:
        """A line, or a paragraph that is wrapped where it is longer than the terminal is wide."""
        self.console.print(_safe(text), style=style or None, soft_wrap=not self.console.is_terminal)

    def heading(self, text: str) -> None:
        """The title of a section."""
        self.line()
        self.line(text, "bold")

    def facts(self, items: Sequence[tuple[str, str]]) -> None:
        """Names, each with a text."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, text in items:
            table.add_row(_safe(f"  {name}", FAINT), Text(printable(text), overflow="fold"))
        self._put(table)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: Collection[str] = ()) -> None:
        """A table; the columns in `numbers` are aligned to the right. None is a number that is not known."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="")
        for name in header:
            table.add_column(_safe(name, FAINT), justify="right" if name in numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(_cell, row))
        self._put(table)

    def warnings(self, sentences: Sequence[str]) -> None:
        """Problems and their remedies."""
        for sentence in sentences:
            self.line(Text(f"! {sentence[:1].upper()}{sentence[1:]}", WARNING))

    def _put(self, table: Table) -> None:
        if self.console.is_terminal:
            self.console.print(table)
            return
        with self.console.capture() as captured:
            self.console.print(table)
        for text in captured.get().splitlines():
            self.console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Result:
    """What a command found.

    Attributes:
        values: all of it, as plain values that JSON can hold.
        show: prints what people need of it.
        failed: whether the data or the plan fails a check.
    """

    values: Any
    show: Callable[[Screen], None]
    failed: bool = False


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, result: Result) -> None:
        """Print a result."""
        try:
            if self.as_json:
                sys.stdout.write(json.dumps(_finite(result.values), indent=2, default=str) + "\n")
            else:
                result.show(self.results)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_closed_pipe()

    @cached_property
    def results(self) -> Screen:
        """Standard output, for people."""
        return Screen(console(sys.stdout))

    @cached_property
    def notes(self) -> Screen:
        """Standard error: warnings, progress and errors."""
        return Screen(console(sys.stderr))

    @contextmanager
    def progress(self, total: float) -> Iterator[Callable[[str, float], None]]:
        """A bar on stderr, if that is a terminal, and the function that moves it: `(what begins now, its share)`."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=self.notes.console,
            transient=True,
            disable=not self.notes.console.is_terminal,
        )
        with bar:
            task, done = bar.add_task("", total=total), [0.0]

            def begin(what: str, share: float) -> None:
                bar.update(task, description=what, completed=done[0])
                done[0] += share

            yield begin

    @contextmanager
    def warnings_of_package(self, shown: Callable[[], Collection[str]] = tuple) -> Iterator[None]:
        """Print the package's warnings at the end of the block, without those that the command shows itself."""
        handler = _KeptWarnings()
        _LOG.addHandler(handler)
        before, _LOG.propagate = _LOG.propagate, False
        try:
            yield
        finally:
            _LOG.removeHandler(handler)
            _LOG.propagate = before
            self.notes.warnings([text for text in handler.texts if text not in map(printable, shown())])

    @contextmanager
    def no_warnings(self) -> Iterator[None]:
        """Leave the package's warnings of the block out."""
        before, _LOG.disabled = _LOG.disabled, True
        try:
            yield
        finally:
            _LOG.disabled = before


class _KeptWarnings(logging.Handler):
    """Keeps warnings as text, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        text = printable(record.getMessage())
        if text not in self.texts:
            self.texts.append(text)


def _finite(value: Any) -> Any:
    """The value, with "nan" and "inf" as texts: JSON has no such numbers."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def console(file: Any) -> Console:
    """A console that neither colours, wraps nor crops where no person reads it in a terminal."""
    if hasattr(file, "reconfigure"):
        file.reconfigure(errors="replace")  # where the terminal's encoding lacks a character
    made = _Console(file=file, highlight=False, soft_wrap=False)
    return made if made.is_terminal else _Console(file=file, highlight=False, width=_PIPE_WIDTH, no_color=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called when nobody reads any more."""
        leave_closed_pipe()


def leave_closed_pipe() -> NoReturn:
    """End quietly, with the exit code of a process that the signal SIGPIPE ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
    raise SystemExit(_SIGPIPE)


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return _safe(value)
    if value is None:
        return Text("unknown", FAINT)
    return _safe(value if isinstance(value, str) else f"{value:,}")


def _safe(text: str | Text, style: str = "") -> Text:
    """The text as a terminal may get it: what it would obey is escaped. All that people are shown passes here."""
    if isinstance(text, str):
        return Text(printable(text), style)
    return text if printable(text.plain) == text.plain else Text(printable(text.plain), text.style)
