"""The options that decide how a combination mixes its datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.values import Check, Checked, Value, maybe, one_of, option, setting, whole, word

_MOST = 100_000  # datasets; an iterator may not end
_MOST_ROWS = 2**60  # of a run, and steps
MOST_PHASES = 2**16  # of a run: a state holds them all


def _number(value: Any) -> float | None:
    """A finite number of Python, NumPy or `fractions` as one of Python; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not isfinite(number):
        return None
    return int(value) if isinstance(value, Integral) else number


def _each(value: Any) -> Any:
    """The numbers in a dict by name, or in a list; None if they are not numbers of at least 0."""
    if isinstance(value, (str, bytes, set, frozenset)):
        return None
    try:
        items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(islice(value, _MOST)))
    except Exception:  # noqa: BLE001 (no list, or one that cannot be iterated)
        return None
    found: dict[Any, float] = {}
    for name, item in items:
        number = _number(item)
        if number is None or number < 0:
            return None
        found[name] = number
    return found if isinstance(value, Mapping) else list(found.values())


def _numbers(name: str, value: Any) -> Any:
    """A positive number for each dataset: a dict by name, or a list in their order."""
    given = _each(value)
    numbers = [] if given is None else list(given.values() if isinstance(given, dict) else given)
    if given is None or not all(numbers):
        zero = " Leave out a dataset of which no row is wanted." if numbers else ""
        steps = isinstance(value, Mapping) and any(not isinstance(item, (Real, str)) for item in value.values())
        change = f" Weights that change are a list of pairs: {name}=[(0, ...), (500, ...)]." if steps else ""
        raise OptionError(f"{name}={_shown(value)}: expected a positive number for each dataset.{zero}{change}")
    return given


def _is_phase(item: Any) -> bool:
    """Whether it looks like a pair of a start and weights, as weights that change have them."""
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes))


def _weights(name: str, value: Any) -> Any:
    """A positive number for each dataset, or pairs of a start and such numbers, of which some may be 0."""
    if not (isinstance(value, Sequence) and any(map(_is_phase, value))):
        return _numbers(name, value)
    if not all(_is_phase(item) and len(item) == 2 for item in value):
        raise OptionError(
            f"{name}={_shown(value)}: expected either a number for each dataset, or only pairs: (start, weights)."
        )
    firsts = [int(first) if isinstance(first, Integral) and not isinstance(first, bool) else None for first, _ in value]
    if None in firsts or firsts[0] != 0:
        raise OptionError(f"{name}={_shown(value)}: expected (start, weights), the first of them from 0 on.")
    starts = [first for first in firsts if first is not None]
    if any(first >= then for first, then in pairwise(starts)) or starts[-1] > _MOST_ROWS:
        raise OptionError(f"{name}={_shown(value)}: expected starts that grow, up to {_MOST_ROWS:,}.")
    given = [_phase_weights(name, value, weights) for _, weights in value]
    return tuple(zip(starts, given, strict=True))


def _phase_weights(name: str, value: Any, weights: Any) -> Any:
    given = _each(weights)
    if given is None:
        raise OptionError(f"{name}={_shown(value)}: expected numbers of at least 0, got {_shown(weights)}.")
    if not any(given.values() if isinstance(given, dict) else given):
        raise OptionError(f"{name}={_shown(value)}: expected a number above 0 for some dataset, got {_shown(weights)}.")
    return given


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def _at_least(least: float) -> Check:
    """A check for numbers of at least this."""

    def check(name: str, value: Any) -> float:
        number = _number(value)
        if number is None or number < least:
            raise OptionError(f"{name}={_shown(value)}: expected a number of at least {least}.")
        return number

    return check


class Weights(Value):
    """How much a mix has of each dataset.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    values: Any = setting(
        default=None,
        check=maybe(_weights),
        doc="a number for each dataset, or pairs of a start and such numbers; None: its row count",
        kw_only=False,
    )
    temperature: float = setting(
        default=1.0,
        check=_at_least(0.1),
        doc="without values, each weighs its row count to the power of 1 / temperature",
    )
    at: Literal["step", "row", "token"] = setting(
        default="step",
        check=one_of("step", "row", "token"),
        doc="the unit of the starts: steps of the run, or rows (with pack: tokens) of all ranks since its first epoch",
    )
    unit: Literal["row", "token"] | None = setting(
        default=None,
        check=maybe(one_of("row", "token")),
        doc="the unit of the shares; None: rows, or tokens with pack",
    )
    max_repeats: float | None = setting(
        default=None,
        check=maybe(_at_least(1)),
        doc="how often an epoch may repeat a dataset at most: 2.5 is two and a half times its rows",
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        if self.values is not None and self.temperature != 1:
            raise OptionError(
                f"Weights: temperature={self.temperature} with values: it makes weights from row counts.",
                remedies=[
                    use(weights=self.replace(temperature=1.0)),
                    use(weights=self.replace(values=None)),
                ],
            )
        if not changes(self.values) and self.at != "step":
            raise OptionError(f"Weights: at={self.at!r} belongs to weights that change: [(0, ...), (n, ...)].")
        if changes(self.values) and self.max_repeats is not None:
            raise OptionError(
                f"Weights: max_repeats={self.max_repeats} with weights that change.",
                remedies=[use(weights=self.replace(max_repeats=None))],
            )


WeightsLike: TypeAlias = Mapping[Any, Any] | Sequence[float] | Sequence[tuple[int, Any]] | Weights


def changes(values: Any) -> bool:
    """Whether weights are pairs of a start and weights."""
    return isinstance(values, tuple) and any(map(_is_phase, values))


def of_weights(name: str, given: Any) -> dict[str, Any]:
    """What the options of a mix hold for its `weights`.

    Raises:
        OptionError: they are none.
    """
    named = isinstance(given, Mapping) and str(given.get("kind", "")).lower() == "weights"
    made = given if isinstance(given, Weights) else Weights.from_dict(given) if named else None
    if made is None:
        return {"weights": given}
    return {
        "weights": made.values,
        "temperature": made.temperature,
        "weights_unit": made.at,
        "weighs": made.unit,
        "max_repeats": made.max_repeats,
    }


def weights_of(held: MixOptions) -> Any:
    """The `weights` of which the options of a mix hold what `of_weights` returned."""
    at: Any = held.weights_unit
    unit: Any = held.weighs
    made = Weights(held.weights, temperature=held.temperature, at=at, unit=unit, max_repeats=held.max_repeats)
    return made if set(made.given()) - {"values"} else made.values


@dataclass(frozen=True, kw_only=True)
class MixOptions(Checked):
    """How much of each dataset an epoch takes, and how their rows are mixed."""

    weights: Mapping[str, float] | Sequence[float] | Sequence[tuple[int, Any]] | None = option(
        None,
        maybe(_weights),
        given="WeightsLike | None",
        doc="the relative share of each dataset; None: its row count; [(step, weights), ...]; Weights(...)",
    )
    weights_unit: str = option("step", keyword=False)
    weighs: str | None = option(None, keyword=False)
    temperature: float = option(1.0, keyword=False)
    max_repeats: float | None = option(None, keyword=False)
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
    tokens_per_epoch: int | None = option(
        None,
        maybe(whole(1)),
        doc="with pack or batch_tokens: the tokens of an epoch, in whole steps, instead of stop",
    )
    batches: str = option(
        "proportional",
        one_of("proportional", "single", "splits"),
        doc="each batch has rows of all datasets by weight, or rows of a single one; or splits are merged, not rows",
    )
    source_key: str | None = option(
        None, maybe(word), doc="a batch entry with the number of each row's dataset (in Arrow and lists its name)"
    )

    @property
    def phases(self) -> tuple[tuple[int, Any], ...] | None:
        """The weights from each step or row of the run on, if they change."""
        return self.weights if isinstance(self.weights, tuple) and changes(self.weights) else None


def rows_of_epoch(mixing: Mapping[str, Any]) -> int:
    """The rows of every epoch of a plan's option `mixing`."""
    total: int = mixing["total"] if "total" in mixing else sum(mixing["rows"])
    return total
