"""Other settings of a loader that deliver the same rows, tried one group after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils.cli.benchmark.passes import MeasuredPasses
from torch_dataloader_utils.cli.data import DATASETS, Data
from torch_dataloader_utils.cli.declared import declared
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.redaction import printable, redacted
from torch_dataloader_utils.storage import usable_cores

GAIN = 1.1  # a setting is advised if it is faster by this factor: measurements differ by some per cent

Keywords = Mapping[str, Any]
Measure = Callable[[Data], MeasuredPasses]


@dataclass(frozen=True)
class Trial:
    """A setting that was tried.

    Attributes:
        keywords: what differs from the call given.
        rate: rows, or of another unit, per second; None if the loader refuses the setting.
        gain: how many times as fast it is as the call given.
        problem: why it was refused; "" if it was not.
    """

    keywords: Keywords
    rate: float | None
    gain: float
    problem: str = ""

    @property
    def base(self) -> float | None:
        """The speed of the call given when the setting was tried: what `gain` is relative to."""
        return self.rate / self.gain if self.rate and self.gain else None


def groups(keywords: Keywords) -> list[list[Keywords]]:
    """The settings to try, in groups: the best of a group is kept for those that follow."""
    cores = usable_cores()
    workers: list[Keywords] = [
        {"num_workers": None, "worker_mode": "threads"},
        {"num_workers": cores, "worker_mode": "threads"},
        {"num_workers": cores, "worker_mode": "processes"},
    ]
    # In file order, splits change who reads what, not how fast.
    splits: list[Keywords] = [{"split_bytes": size} for size in ("2MiB", "32MiB") if keywords.get("shuffle")]
    return [workers, splits]


def trials(data: Data, chosen: Sequence[Sequence[Keywords]], measure: Measure) -> Iterator[Trial]:
    """Each setting, measured in turn with the best one so far, so that a machine that slows down slows both."""
    kept = Trial({}, None, 1.0)
    for group in chosen:
        found = []
        for keywords in group:
            given = data.but(**kept.keywords)
            if not all(_is_given(given, name, value) for name, value in keywords.items()):
                found.append(_tried(data, kept, keywords, measure))
                yield found[-1]
        best = max(found, key=lambda trial: trial.gain, default=kept)
        kept = best if best.gain >= kept.gain * GAIN else kept


def confirmed(data: Data, found: Sequence[Trial], measure: Measure) -> list[Trial]:
    """The trials; the best was measured again, as was each that then was no longer the best.

    Of many, one is fastest by chance.
    """
    trials, again = list(found), set[int]()
    while (best := best_of(trials)) is not None and (place := trials.index(best)) not in again:
        repeated = _tried(data, Trial({}, None, 1.0), best.keywords, measure)
        trials[place] = replace(best, gain=min(best.gain, repeated.gain))
        again.add(place)
    return trials


def _is_given(data: Data, name: str, value: Any) -> bool:
    return bool(data.keywords.get(name, declared()[name].default) == value)


def _tried(data: Data, kept: Trial, keywords: Keywords, measure: Measure) -> Trial:
    changed = {**kept.keywords, **keywords}
    try:
        found = measure(data.but(**changed))
    except DataLoaderUtilsError as error:
        return Trial(changed, None, 0.0, printable(str(error)))
    before = measure(data.but(**kept.keywords)).rate
    return Trial(changed, found.rate, kept.gain * found.rate / before if before else 0.0)


def best_of(found: Sequence[Trial]) -> Trial | None:
    """The fastest setting, if it is worth a change."""
    fast = [trial for trial in found if trial.rate is not None and trial.gain >= GAIN]
    return max(fast, key=lambda trial: trial.gain, default=None)


def call_of(data: Data) -> str:
    """The call that makes the loader, as Python. Credentials, and values that are no plain ones, are left out."""
    where = [redacted(each) for each in data.where] if isinstance(data.where, list) else redacted(data.where)
    known = declared()
    given = [
        f"{key}={'...' if key in known and not known[key].repr else _shown(value)}"
        for key, value in data.keywords.items()
        if key not in known or not known[key].repr or value != known[key].default
    ]
    return f"{DATASETS[data.call]}.create_dataloader({', '.join([repr(where), *given])})"


def _shown(value: Any) -> str:
    return getattr(value, "__name__", "...") if callable(value) else repr(value)
