"""The options that decide how a combination mixes its datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options.checks import Checked, maybe, one_of, option, values, whole, word

_MOST = 100_000  # datasets; an iterator may not end
_MOST_ROWS = 2**60  # of a run


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf


def _numbers(name: str, value: Any) -> Any:
    """A positive number for each dataset: a dict by name, or a list in their order."""
    try:
        given = dict(value) if isinstance(value, Mapping) else list(islice(value, _MOST))
        good = all(map(_is_number, given.values() if isinstance(given, dict) else given))
    except Exception:  # noqa: BLE001 (no list, or one that cannot be iterated)
        good = False
    if not good or isinstance(value, (str, bytes, set, frozenset)):
        raise OptionError(f"{name}={_shown(value)}: expected a positive number for each dataset.")
    return given


def _is_phase(item: Any) -> bool:
    """Whether it is a pair of a first row and weights, as weights that change have them."""
    return isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[1], (Mapping, list, tuple))


def _weights(name: str, value: Any) -> Any:
    """A positive number for each dataset, or pairs of a first row and such numbers, of which some may be 0."""
    if not (isinstance(value, (list, tuple)) and value and any(map(_is_phase, value))):
        return _numbers(name, value)
    if not all(map(_is_phase, value)):
        raise OptionError(f"{name}={_shown(value)}: expected either a number for each dataset, or only pairs of both.")
    firsts = [first for first, _ in value]
    if not all(isinstance(first, int) and not isinstance(first, bool) for first in firsts) or firsts[0] != 0:
        raise OptionError(f"{name}={_shown(value)}: expected (first row, weights), the first of them from row 0 on.")
    if any(first >= then for first, then in pairwise(firsts)) or firsts[-1] > _MOST_ROWS:
        raise OptionError(f"{name}={_shown(value)}: expected first rows that grow, up to {_MOST_ROWS:,}.")
    return tuple((first, _phase_weights(name, value, weights)) for first, weights in value)


def _phase_weights(name: str, value: Any, weights: Any) -> Any:
    given = dict(weights) if isinstance(weights, Mapping) else list(weights)
    numbers = list(given.values() if isinstance(given, dict) else given)
    if not all(_is_number(number) or (number == 0 and not isinstance(number, bool)) for number in numbers):
        raise OptionError(f"{name}={_shown(value)}: expected numbers of at least 0, got {_shown(weights)}.")
    if not any(numbers):
        raise OptionError(f"{name}={_shown(value)}: expected a number above 0 for some dataset, got {_shown(weights)}.")
    return given


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


_temperature = values("a number of at least 0.1", lambda value: _is_number(value) and value >= 0.1)
_multiple = values("a number of at least 1", lambda value: _is_number(value) and value >= 1)


@dataclass(frozen=True, kw_only=True)
class MixOptions(Checked):
    """How much of each dataset an epoch takes, and how their rows are mixed."""

    weights: Mapping[str, float] | Sequence[float] | Sequence[tuple[int, Any]] | None = option(
        None,
        maybe(_weights),
        doc="rows of each dataset relative to the others; None: its row count; [(row, weights), ...]: from a row on",
    )
    temperature: float = option(
        1.0, _temperature, doc="without weights, each weighs its row count to the power of 1 / temperature"
    )
    stop: str = option(
        "once",
        one_of("once", "first", "all"),
        doc='when an epoch ends: "once" takes every row, the others rows by weight until the first or all have ended',
    )
    repeat: Mapping[str, float] | Sequence[float] | None = option(
        None, maybe(_numbers), doc="how often an epoch takes each dataset, instead of stop: {'code': 2.5}; others once"
    )
    rows_per_epoch: int | None = option(
        None, maybe(whole(1)), doc="the rows of an epoch, over all ranks, shared by weight, instead of stop"
    )
    max_repeats: float | None = option(
        None, maybe(_multiple), doc="the most that an epoch takes of a dataset, in multiples of its rows"
    )
    batches: str = option(
        "proportional",
        one_of("proportional", "single", "splits"),
        doc="each batch has rows of all datasets by weight, or rows of a single one; or splits are merged, not rows",
    )
    source_key: str | None = option(
        None, maybe(word), doc="a batch entry with the number of each row's dataset (in Arrow and lists its name)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {"stop": self.stop != "once", "repeat": self.repeat, "rows_per_epoch": self.rows_per_epoch}
        given = [name for name, value in lengths.items() if value]
        if len(given) > 1:
            raise OptionError(
                f"{' and '.join(given)} were both given, but each decides how long an epoch is: pass one."
            )
        if self.weights is not None and self.temperature != 1:
            raise OptionError(
                f"temperature={self.temperature} with weights: it makes weights from row counts; pass one of them."
            )
        if self.batches == "splits":
            self._check_splits(given)
        if self.phases is not None:
            self._check_phases()

    @property
    def phases(self) -> tuple[tuple[int, Any], ...] | None:
        """The weights from each row of the run on, if they change."""
        return self.weights if isinstance(self.weights, tuple) and any(map(_is_phase, self.weights)) else None

    def _check_phases(self) -> None:
        if self.batches != "proportional":
            raise OptionError(f"batches={self.batches!r} with weights that change: use batches='proportional'.")
        if self.stop != "once":
            raise OptionError(
                f"stop={self.stop!r} with weights that change: the rows of an epoch would follow from all of them. Use "
                "rows_per_epoch=, or stop='once', where weights only order the rows."
            )
        if self.max_repeats is not None:
            raise OptionError(f"max_repeats={self.max_repeats} with weights that change: leave it out.")

    def _check_splits(self, given: Sequence[str]) -> None:
        others = {"temperature": self.temperature != 1, "max_repeats": self.max_repeats, "source_key": self.source_key}
        for name in [*given, *(name for name, value in others.items() if value)]:
            raise OptionError(
                f"{name}={getattr(self, name)!r} with batches='splits', which delivers every row once, split by split: "
                "use batches='proportional' or 'single'."
            )
