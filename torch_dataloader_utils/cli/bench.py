"""`tdu bench`: how fast this data is read, what limits it, and what would be faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

from rich.text import Text

from torch_dataloader_utils.cli.benchmark import layouts, settings
from torch_dataloader_utils.cli.benchmark.decoding import Decoded, decoded
from torch_dataloader_utils.cli.benchmark.layouts import Layout
from torch_dataloader_utils.cli.benchmark.passes import MeasuredPasses, first_pass, joined, measured
from torch_dataloader_utils.cli.benchmark.settings import Trial
from torch_dataloader_utils.cli.benchmark.units import CountUnit, unit_of
from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import FAINT, GOOD, WARNING, Output, Result, Screen
from torch_dataloader_utils.errors import EmptyDatasetError
from torch_dataloader_utils.iteration.passes import reading_of
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.metrics.verdict import Reading, Verdict
from torch_dataloader_utils.printing import in_bytes
from torch_dataloader_utils.storage import usable_cores

_ROUNDS = 2  # of raw decoding and the loader in turn
Measure: TypeAlias = Callable[[Data, str, float], MeasuredPasses]  # (what is read, its name, seconds)

_FIRST, _BASE, _TRIALS, _LAYOUTS = 0.1, 0.25, 0.4, 0.25  # shares of the time


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        data: what was read.
        reading: how it was read, as far as advice depends on it.
        loader: passes of the loader as given.
        first: the seconds to its first batch.
        raw: the same columns decoded on all cores and dropped.
        trials: other settings.
        layouts: other ways to write the files; empty unless they are Parquet.
    """

    data: Data
    reading: Reading
    loader: MeasuredPasses
    first: float
    raw: Decoded
    trials: list[Trial]
    layouts: list[Layout]

    @property
    def unit(self) -> CountUnit:
        """What speeds are counted in, that of raw decoding only if it can be."""
        return self.loader.unit

    @property
    def share(self) -> float | None:
        """The loader's speed relative to raw decoding; None if they cannot be compared."""
        if not self.unit.known:
            return None
        return self.loader.rate / self.raw.rate if self.raw.rate else 0.0

    @property
    def verdict(self) -> Verdict | None:
        """What limits the speed of the loader as given; None if passes are too short to judge."""
        return None if self.loader.short else self.loader.verdict(self.reading)

    @property
    def best(self) -> Trial | None:
        """The settings to use instead; None for those given."""
        return None if self.loader.short else settings.best_of(self.trials)

    @property
    def best_call(self) -> str:
        """The call to use."""
        return settings.call_of(self.data if self.best is None else self.data.but(**self.best.keywords))

    @property
    def best_layout(self) -> Layout | None:
        """The way to write the files instead; None for the current one, or if passes are too short to gain by it."""
        judged = self.layouts and not self.loader.short
        return layouts.best_of(self.layouts, self.reading.local) if judged else None

    @property
    def layout_gain(self) -> float:
        """How many times as fast reading would be with the best layout, as far as its time is spent decoding."""
        best, stages = self.best_layout, self.loader.stages
        share = stages["decode"] / (sum(stages.values()) or 1.0)
        now = next((each for each in self.layouts if each.as_now), None)
        return 1.0 if best is None or now is None else 1 / (1 - share + share * now.rate / best.rate)


def run(data: Data, output: Output, *, seconds: float, step_seconds: float) -> Result:
    """The measurements, in about so many seconds."""
    with output.warnings_of_package():
        _, dataset = data.open()
        passes = passes_of(dataset)
        source = passes.source
    with output.no_warnings(), output.progress(seconds) as begin:
        begin("the loader", seconds * _FIRST)
        unit = unit_of(data, seconds * _FIRST / 2)
        steps, first = first_pass(data, seconds * _FIRST, step_seconds)
        if not steps:
            raise EmptyDatasetError("bench: the loader delivers no row; check PATH and --filters.")

        def measure(given: Data, what: str, share: float) -> MeasuredPasses:
            begin(what, share)
            return measured(given, share, steps, step_seconds, unit)

        loader, raw = _in_turn(data, partial(decoded, source, unit=unit), seconds * _BASE, measure, begin)
        parquet = layouts.is_parquet(source)
        report = Report(
            data,
            reading_of(source, passes.options),
            loader,
            first,
            raw,
            _trials(data, seconds * _TRIALS, measure),
            layouts.layouts(source, seconds * _LAYOUTS, begin) if parquet else [],
        )
    return Result(_values(report), partial(show, report))


def _in_turn(
    data: Data,
    decode: Callable[[float], Decoded],
    seconds: float,
    measure: Measure,
    begin: Callable[[str, float], None],
) -> tuple[MeasuredPasses, Decoded]:
    """The loader and raw decoding, measured in turn, so that a machine that slows down slows both."""
    each = seconds / (2 * _ROUNDS)
    loader, raw = [], Decoded()
    for _ in range(_ROUNDS):
        begin("raw decoding", each)
        raw += decode(each)
        loader.append(measure(data, "the loader", each))
    return joined(loader), raw


def _trials(data: Data, seconds: float, measure: Measure) -> list[Trial]:
    groups = settings.groups(data.keywords)
    each = seconds / (2 * sum(map(len, groups)) + 2)

    def again(given: Data) -> MeasuredPasses:
        return measure(given, "other settings", each)

    return settings.confirmed(data, list(settings.trials(data, groups, again)), again)


def _values(report: Report) -> dict[str, Any]:
    return {
        "loader": {**report.loader.values(), "first_batch": report.first},
        "limit": None if report.verdict is None else report.verdict.limit,
        "verdict": None if report.verdict is None else report.verdict.advice,
        "unit": report.unit.name,
        f"raw_{report.unit.name if report.unit.known else 'rows'}_per_s": report.raw.rate,
        "ratio_to_raw": report.share,
        "cores": usable_cores(),
        "trials": [{**asdict(trial), "base": trial.base} for trial in report.trials],
        "best_call": report.best_call,
        "layouts": [asdict(layout) for layout in report.layouts],
        "best_layout": None if report.best_layout is None else asdict(report.best_layout),
        "best_layout_gain": report.layout_gain,
    }


def show(report: Report, screen: Screen) -> None:
    """Print the report."""
    found = report.loader
    screen.line(f"{settings.call_of(report.data)}", "bold")
    screen.facts(
        [
            (
                "loader",
                f"{found.rate:,.0f} {found.unit.name}/s, "
                f"{in_bytes(int(found.nbytes / found.totals.seconds))}/s decoded",
            ),
            ("raw decode", _raw_in_words(report)),
            ("first batch", f"{report.first:.3f} s"),
            ("waiting", f"{found.waiting:.0%} of the time, the loop waited for a batch"),
            *([] if report.verdict is None else [("verdict", report.verdict.advice)]),
        ]
    )
    _show_stages(found, screen)
    _show_trials(report, screen)
    if report.layouts:
        _show_layouts(report, screen)


def _raw_in_words(report: Report) -> str:
    share, cores = report.share, f"on {usable_cores()} cores"
    if share is None:
        return f"{report.raw.rate:,.0f} rows/s {cores}, not comparable: the transform makes the tokens"
    return f"{report.raw.rate:,.0f} {report.unit.name}/s {cores}: the loader reaches {share:.0%}"


def _show_stages(found: MeasuredPasses, screen: Screen) -> None:
    total = sum(found.stages.values())
    rows = [(name, f"{spent:.2f}", f"{spent / total:.0%}") for name, spent in found.stages.items() if total and spent]
    screen.heading("Where the time of reading goes")
    screen.table(("stage", "worker seconds", "share"), rows, ("worker seconds", "share"))


def _show_trials(report: Report, screen: Screen) -> None:
    best = report.best
    rows = [
        (
            ", ".join(f"{name}={value!r}" for name, value in trial.keywords.items()),
            Text("refused", FAINT) if trial.rate is None else f"{trial.rate:,.0f}",
            "" if trial.base is None else f"{trial.base:,.0f}",
            "" if trial.rate is None else Text(f"{trial.gain:.2f}", GOOD if trial is best else ""),
        )
        for trial in report.trials
    ]
    screen.heading("Other settings")
    numbers = (f"{report.unit.name}/s", "as given", "times as fast")
    screen.table(("settings", *numbers), rows, numbers)
    screen.line("As given: the speed of the call above, measured in turn with the settings.", FAINT)
    if report.loader.short:
        screen.line(
            "A pass over this data is too short for a verdict, and to compare settings: bench more of it.", WARNING
        )
    elif best is None:
        screen.line(f"None is faster by {settings.GAIN - 1:.0%} or more: keep the settings given.")
    else:
        screen.line(Text.assemble("Use ", (report.best_call, GOOD)))


def _show_layouts(report: Report, screen: Screen) -> None:
    now, best = next(each for each in report.layouts if each.as_now), report.best_layout
    rows = [
        (
            f"{each.row_group_rows:,}",
            each.codec + (" (now)" if each.as_now else ""),
            in_bytes(each.bytes),
            f"{each.rate:,.0f}",
            Text(f"{each.rate / now.rate:.2f}", GOOD if each is best else ""),
        )
        for each in report.layouts
    ]
    screen.heading("Row groups and codecs: a sample of the rows, written again, decoded on one core")
    numbers = ("size", "rows/s", "times as fast as now")
    screen.table(("row group rows", "codec", *numbers), rows, ("row group rows", *numbers))
    if report.loader.short:
        return
    if best is None:
        screen.line(f"None is faster by {layouts.GAIN - 1:.0%} or more: leave the files as they are.")
        return
    screen.line(
        Text(
            f"Writing the files with row_group_size={best.row_group_rows} and compression={best.codec!r} would make "
            f"decoding {best.rate / now.rate:.2f} times and reading about {report.layout_gain:.2f} times as fast, with "
            f"{best.bytes / now.bytes:.2f} times the bytes.",
            GOOD,
        )
    )
