"""The transforms of columns: what each is given, learns and computes, on arrays and on one value with the same bits.

Numbers are float64, in which NaN is missing; a formula is written once for arrays, in place, and once for one Python
float, which is an IEEE double, too. Each is fitted on what the transforms before it return.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess.log1p import one_log1p
from torch_dataloader_utils.preprocess.steps import F64, NumberStep
from torch_dataloader_utils.preprocess.zones import zone_named
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Check, Value, flag, maybe, one_of, setting, values, whole

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.seen import NumberStatistics

I64: TypeAlias = npt.NDArray[np.int64]
Fitted: TypeAlias = Mapping[str, Any]  # what a transform learned: plain values, and a `Vocabulary`

HELD = ("vocabulary", "counts", "encoding")  # of these, what is learned by value; all else is plain
ERROR = "quantile_error"  # says how far ranks of learned quantiles may be off, and decides nothing
_LARGE = 2.0**900  # far from where a float64 added to another one is infinite
STRATEGIES = ("mean", "median", "most_frequent")
PARTS: dict[str, tuple[int, int]] = {  # the least value of each, and how many there are
    "hour": (0, 24),
    "minute": (0, 60),
    "second": (0, 60),
    "weekday": (1, 7),
    "month": (1, 12),
    "day": (1, 31),
    "dayofyear": (1, 366),
    "year": (0, 0),
}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


_bound = maybe(values("a number", lambda value: _number(value) and not math.isnan(value)))
_a_name = values("a name", _is_name)
_finite_number = values("a finite number", _finite)
_positive = values("a number above 0", lambda value: _finite(value) and value > 0)
_given = values("a value", lambda value: value is not None)
_any = values("anything", lambda value: True)
_share = values("a share from 0 to 1", lambda value: _finite(value) and 0 <= value <= 1)
_of_quantiles: dict[str, Check] = {ERROR: maybe(_share)}  # unknown of those saved before it was kept


def _shares(name: str, given: Any) -> Any:
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or not all(_finite(item) and 0 <= item <= 1 for item in pair) or pair[0] >= pair[1]:
        raise OptionError(f"{name}={shown(given)}: expected two shares, such as (0.01, 0.99).")
    return pair


def _ascending(name: str, given: Any) -> Any:
    bounds = tuple(given.tolist() if isinstance(given, np.ndarray) else given)
    if not bounds or not all(map(_finite, bounds)) or any(a >= b for a, b in pairwise(bounds)):
        raise OptionError(f"{name}={shown(given)}: expected finite numbers, each greater than the one before it.")
    return bounds


def _ascending_or_none(name: str, given: Any) -> Any:
    return _ascending(name, given) if given != [] else given


class ColumnTransform(Value):
    """What a column's values become: one link of a chain."""

    learns: ClassVar[frozenset[str]] = frozenset()  # the statistics that it learns from: "moments", "grid", "counts"
    ends: ClassVar[bool] = False  # whether nothing may follow it in a chain
    numeric: ClassVar[bool] = True  # whether it computes with numbers

    @property
    def needs(self) -> frozenset[str]:
        """The statistics that it learns from."""
        return self.learns

    @property
    def learned(self) -> Mapping[str, Check]:
        """What it keeps of a fit, by name, with the check of what is read from a file."""
        return {}

    def check_fitted(self, fitted: Fitted) -> None:
        """Check what was read as learned.

        Raises:
            OptionError: it is not what is learned.
        """
        learned = self.learned
        for name, check in learned.items():
            check(name, fitted.get(name))
        for name in fitted:
            if name not in learned:
                raise OptionError(f"{self!r} learns no {shown(name)}.")


Links: TypeAlias = Sequence[tuple[ColumnTransform, Fitted]]


class QuantileTransform(ColumnTransform):
    """A transform that may learn quantiles of numbers."""

    @property
    def shares(self) -> Sequence[float]:
        """Those whose quantiles it learns."""
        raise NotImplementedError

    def learn(self, seen: NumberStatistics) -> dict[str, Any]:
        """What it has to know of the numbers that it is fitted on."""
        raise NotImplementedError

    def in_doubt(self, seen: NumberStatistics) -> npt.NDArray[np.intp]:
        """The cells of numbers whose values it would have to know for exact quantiles: see `NumberStatistics`."""
        return seen.in_doubt(self.shares)


class NumberTransform(ColumnTransform):
    """A transform of numbers to numbers."""

    monotone: ClassVar[bool] = True  # whether a greater number never becomes a lesser one, nor missing

    def learn(self, seen: NumberStatistics) -> dict[str, Any]:
        """What it has to know of the numbers that it is fitted on."""
        return {}

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """What it does to numbers, shape [n]."""
        raise NotImplementedError

    def apply(self, x: F64, fitted: Fitted) -> None:
        """Overwrite numbers, shape [n], with what they become."""
        for step in self.steps(fitted):
            step.apply(x)

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """The same for one number."""
        raise NotImplementedError


class Standardize(NumberTransform):
    """(x - mean) / standard deviation; a constant column becomes 0.

    Mean and variance are the exact ones, rounded once.
    """

    center: bool = setting(default=True, check=flag, doc="whether the mean is subtracted")
    scale: bool = setting(default=True, check=flag, doc="whether numbers are divided by the standard deviation")
    ddof: int = setting(default=0, check=one_of(0, 1), doc="what is subtracted from the count for the variance: 0 or 1")

    learns = frozenset({"moments"})

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"mean": _finite_number, "std": _positive}

    def learn(self, seen: NumberStatistics) -> dict[str, float]:
        """Mean and standard deviation."""
        moments = seen.moments()
        return {
            "mean": moments.mean if self.center else 0.0,
            "std": _width(moments.std(self.ddof)) if self.scale else 1.0,
        }

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """See `NumberTransform`."""
        return [_part_of(fitted["mean"], fitted["std"])]

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """See `NumberTransform`."""
        return _shifted_and_divided(fitted["mean"], fitted["std"])


class MinMax(NumberTransform):
    """Linear, so that the least number becomes `low` and the greatest `high`; a constant column becomes `low`.

    Numbers beyond those of the fit are extrapolated, unless `clip`. The ends are exact.
    """

    low: float = setting(default=0.0, check=_finite_number, doc="what the least number becomes", kw_only=False)
    high: float = setting(default=1.0, check=_finite_number, doc="what the greatest number becomes", kw_only=False)
    clip: bool = setting(default=False, check=flag, doc="whether numbers beyond those of the fit stay within")

    learns = frozenset({"moments"})

    def check(self) -> None:
        """Check that there is a range."""
        if self.low >= self.high or not math.isfinite(self.high - self.low):
            raise OptionError(f"MinMax({self.low}, {self.high}): expected low < high, with a finite distance.")

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"least": _finite_number, "greatest": _finite_number}

    def learn(self, seen: NumberStatistics) -> dict[str, float]:
        """The least and the greatest number."""
        moments = seen.moments()
        return {"least": moments.least or 0.0, "greatest": moments.greatest or 0.0}

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """See `NumberTransform`."""
        low, high, spread, from_high = self.onto()
        made = [
            NumberStep("part", range_of(fitted["least"], fitted["greatest"])),
            NumberStep("onto", (spread, low, high, from_high)),
        ]
        return [*made, NumberStep("clip", (low, high))] if self.clip else made

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """See `NumberTransform`."""
        least, width, unit = range_of(fitted["least"], fitted["greatest"])
        low, high, spread, from_high = self.onto()

        def scaled(x: float) -> float:
            part = (x * unit - least) / width
            return high - spread * (1.0 - part) if part >= from_high else part * spread + low

        return (lambda x: _clipped(scaled(x), low, high)) if self.clip else scaled

    def onto(self) -> tuple[float, float, float, float]:
        """The ends, their distance, and the share from which one counts back from `high`, so that 1 becomes it."""
        low, high = self.low + 0.0, self.high + 0.0  # no -0.0
        spread = high - low
        return low, high, spread, 0.5 if spread + low != high else math.inf


class Robust(NumberTransform, QuantileTransform):
    """(x - median) / (the distance between two quantiles); where these are equal, x - median."""

    low: float = setting(default=0.25, check=_share, doc="the share below the lower quantile", kw_only=False)
    high: float = setting(default=0.75, check=_share, doc="the share below the upper quantile", kw_only=False)

    learns = frozenset({"grid"})

    def check(self) -> None:
        """Check that there is a range."""
        if self.low >= self.high:
            raise OptionError(f"Robust({self.low}, {self.high}): expected low < high.")

    @property
    def shares(self) -> Sequence[float]:
        """See `QuantileTransform`."""
        return self.low, 0.5, self.high

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"median": _finite_number, "range": _positive, **_of_quantiles}

    def learn(self, seen: NumberStatistics) -> dict[str, float]:
        """The median, and the distance."""
        low, median, high = seen.quantiles(self.shares)
        return {"median": median, "range": _width(high - low)}

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """See `NumberTransform`."""
        return [_part_of(fitted["median"], fitted["range"])]

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """See `NumberTransform`."""
        return _shifted_and_divided(fitted["median"], fitted["range"])


class Log1p(NumberTransform):
    """log(1 + x); of numbers below -1, NaN. With `signed`, sign(x) log(1 + abs(x))."""

    signed: bool = setting(default=False, check=flag, doc="whether negative numbers become -log(1 - x)")

    monotone = False  # numbers below -1 become NaN

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """See `NumberTransform`."""
        return [NumberStep("signed_log1p" if self.signed else "log1p")]

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """See `NumberTransform`."""
        return (lambda x: -one_log1p(-x) if x < 0 else one_log1p(x)) if self.signed else one_log1p


class Clip(NumberTransform, QuantileTransform):
    """min(max(x, low), high), with given bounds or learned quantiles: `Clip(0.01, 0.99)` are values."""

    low: float | None = setting(default=None, check=_bound, doc="the least value; None: no bound", kw_only=False)
    high: float | None = setting(default=None, check=_bound, doc="the greatest value; None: no bound", kw_only=False)
    quantiles: tuple[float, float] | None = setting(
        default=None, check=maybe(_shares), doc="two shares, such as (0.01, 0.99): the bounds are these quantiles"
    )

    def check(self) -> None:
        """Check that there is one pair of bounds."""
        given = self.low is not None or self.high is not None
        if given == (self.quantiles is not None):
            raise OptionError(f"{self!r}: expected bounds, as in Clip(0, 10), or Clip(quantiles=(0.01, 0.99)).")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise OptionError(f"Clip({self.low}, {self.high}): expected low <= high.")

    @property
    def needs(self) -> frozenset[str]:
        """The quantiles, if it is to learn its bounds."""
        return frozenset() if self.quantiles is None else frozenset({"grid"})

    @property
    def shares(self) -> Sequence[float]:
        """See `QuantileTransform`."""
        return self.quantiles or ()

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        if self.quantiles is None:
            return {}
        return {"low": maybe(_finite_number), "high": maybe(_finite_number), **_of_quantiles}

    def learn(self, seen: NumberStatistics) -> dict[str, float]:
        """The bounds, unless they are given; none of a column without a number."""
        if self.quantiles is None or not seen.count:
            return {}
        low, high = seen.quantiles(self.quantiles)
        return {"low": low, "high": high}

    def bounds_of(self, fitted: Fitted) -> tuple[float, float]:
        """The bounds, given or learned; infinite for none."""
        low, high = fitted.get("low", self.low), fitted.get("high", self.high)
        return -math.inf if low is None else low + 0.0, math.inf if high is None else high + 0.0

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """See `NumberTransform`."""
        return [NumberStep("clip", self.bounds_of(fitted))]

    def one(self, fitted: Fitted) -> Callable[[float], float]:
        """See `NumberTransform`."""
        low, high = self.bounds_of(fitted)
        return lambda x: _clipped(x, low, high) + 0.0


class Impute(QuantileTransform):
    """A value in place of missing ones: "mean", "median", "most_frequent" (ties: the least), or one that is given.

    A given value and "most_frequent" work on any type, and keep it.
    """

    strategy: Literal["mean", "median", "most_frequent"] | Any = setting(
        default=None, doc='"mean", "median" or "most_frequent", or the value itself', kw_only=False
    )
    value: Any = setting(default=None, doc="the value itself, also if it is one of these words")
    indicator: bool = setting(
        default=False, check=flag, doc="whether there is a second output `<output>_missing`: 1 where it was missing"
    )

    def check(self) -> None:
        """Check that there is one way, and tell a word from a value."""
        if (self.strategy is None) == (self.value is None):
            raise OptionError(f"{self!r}: expected one of 'mean', 'median', 'most_frequent', or a value.")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            vars(self).update(strategy=None, value=self.strategy)
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise OptionError(f"{self!r}: expected a finite number.")

    @property
    def numeric(self) -> bool:  # type: ignore[override]
        """Whether the column must hold numbers."""
        return self.strategy in ("mean", "median")

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        if self.strategy is None:
            return {}
        checks = {"value": _finite_number if self.numeric else _given}
        return {**checks, **_of_quantiles} if self.shares else checks

    @property
    def needs(self) -> frozenset[str]:
        """The statistics that it learns from."""
        found = {"mean": "moments", "median": "grid", "most_frequent": "counts"}
        return frozenset() if self.strategy is None else frozenset({found[self.strategy]})

    @property
    def shares(self) -> Sequence[float]:
        """See `QuantileTransform`."""
        return (0.5,) if self.strategy == "median" else ()

    def learn(self, seen: NumberStatistics) -> dict[str, Any]:
        """The mean or median."""
        return {"value": seen.quantiles(self.shares)[0] if self.shares else seen.moments().mean}

    def fill_of(self, fitted: Fitted) -> Any:
        """The value in place of missing ones, given or learned."""
        return fitted["value"] if self.strategy is not None else self.value

    def number_of(self, fitted: Fitted) -> float:
        """The same as a number."""
        return float(self.fill_of(fitted)) + 0.0

    def steps(self, fitted: Fitted) -> list[NumberStep]:
        """What it does to numbers, shape [n]."""
        return [NumberStep("fill", (self.number_of(fitted), float(self.indicator)))]


def steps_of(links: Links) -> list[NumberStep]:
    """What the links of a chain, which all compute with numbers, do to them."""
    return [
        step for link, fitted in links if isinstance(link, (NumberTransform, Impute)) for step in link.steps(fitted)
    ]


class IdTransform(ColumnTransform):
    """A transform of values to int64 ids, 0 for missing."""

    ends = True


class Bucketize(IdTransform, QuantileTransform):
    """The bucket of a number: 1 + the number of bounds that are not greater; 0 for missing.

    Learned bounds are quantiles, so that buckets hold about as many rows each, and none is empty: of bounds that would
    make one, the lesser goes.
    """

    bounds: Sequence[float] | None = setting(
        default=None, check=maybe(_ascending), doc="the bounds, ascending", kw_only=False
    )
    quantiles: int | None = setting(default=None, check=maybe(whole(2, 65_536)), doc="how many buckets to make")

    def check(self) -> None:
        """Check that bounds are given or learned."""
        if (self.bounds is None) == (self.quantiles is None):
            raise OptionError(f"{self!r}: expected bounds, as in Bucketize([6, 12, 18]), or Bucketize(quantiles=10).")

    @property
    def needs(self) -> frozenset[str]:
        """The quantiles, if it is to learn its bounds."""
        return frozenset() if self.bounds is not None else frozenset({"grid"})

    @property
    def shares(self) -> Sequence[float]:
        """See `QuantileTransform`."""
        return [i / self.quantiles for i in range(1, self.quantiles)] if self.quantiles else ()

    def in_doubt(self, seen: NumberStatistics) -> npt.NDArray[np.intp]:
        """See `QuantileTransform`."""
        return seen.in_doubt(self.shares, buckets=True)

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {} if self.quantiles is None else {"bounds": _ascending_or_none, **_of_quantiles}

    def learn(self, seen: NumberStatistics) -> dict[str, Any]:
        """The bounds."""
        if self.quantiles is None:
            return {}
        return {"bounds": seen.bounds(self.shares) if seen.count else []}

    def bounds_of(self, fitted: Fitted) -> list[float]:
        """The bounds, given or learned."""
        return [float(bound) + 0.0 for bound in (self.bounds if self.bounds is not None else fitted["bounds"])]

    def one(self, fitted: Fitted) -> Callable[[float], int]:
        """The same for one number."""
        bounds = self.bounds_of(fitted)
        return lambda x: 0 if x != x else bisect_right(bounds, x) + 1


class Categorize(IdTransform):
    """The id of a value: 0 missing, 1 (to `unknown_ids`) unknown or rare, the next ones in the order of their counts.

    Args:
        values: the values, in the order of ids; None: those that are found.
        min_count: how often a value must occur.
        max_size: how many values are kept.
        unknown_ids: how many ids unknown values share, by their hash.
        unknown: "id", or "error" for an UnknownValueError.
        order: "count" (ties: the lesser value first), or "value".
        nulls: "missing": id 0; "category": null is a value.
    """

    values: Sequence[Any] | None = setting(default=None, doc="the values, in the order of ids", kw_only=False)
    min_count: int = setting(default=1, check=whole(1), doc="how often a value must occur")
    max_size: int | None = setting(default=None, check=maybe(whole(1)), doc="how many values are kept")
    unknown_ids: int = setting(default=1, check=whole(1, 2**31), doc="how many ids unknown values share")
    unknown: Literal["id", "error"] = setting(
        default="id", check=one_of("id", "error"), doc="what unknown values become"
    )
    order: Literal["count", "value"] = setting(default="count", check=one_of("count", "value"), doc="the order of ids")
    nulls: Literal["missing", "category"] = setting(
        default="missing", check=one_of("missing", "category"), doc="whether null is a value"
    )

    numeric = False

    def check(self) -> None:
        """Check the values."""
        if self.values is None:
            return
        if isinstance(self.values, (str, bytes)) or not isinstance(self.values, Sequence) or not self.values:
            raise OptionError(f"Categorize({shown(self.values)}): expected a list of values.")
        if any(value is None for value in self.values) or len(set(self.values)) < len(self.values):
            raise OptionError("Categorize: expected each value once, and no null; nulls= says what that becomes.")

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"vocabulary": _given, "counts": _any, "null": maybe(whole(0))}

    @property
    def needs(self) -> frozenset[str]:
        """The counts of values, unless these are given."""
        return frozenset() if self.values is not None else frozenset({"counts"})


class Hash(IdTransform):
    """1 + the value's hash modulo n - 1: an id below n without a vocabulary; 0 for missing."""

    n: int = setting(check=whole(2, 2**31), doc="the number of ids, with 0", kw_only=False)
    seed: int = setting(default=0, check=whole(0), doc="other seeds give other ids")

    numeric = False


class Cross(IdTransform):
    """The id of several columns' values together, by Hash(n) or Categorize()."""

    of: Hash | Categorize = setting(  # type: ignore[assignment]  # hides the class method, which no one needs on a value
        doc="Hash(n) or Categorize()", kw_only=False
    )
    columns: Sequence[str] | None = setting(default=None, doc="the columns, in a config; else the key names them")

    numeric = False

    def check(self) -> None:
        """Check what makes the ids."""
        if isinstance(self.of, Mapping):
            vars(self)["of"] = IdTransform.from_dict(self.of)
        if type(self.of) not in (Hash, Categorize) or getattr(self.of, "values", None) is not None:
            raise OptionError(f"Cross({shown(self.of)}): expected Hash(n), or Categorize() without values.")
        if isinstance(self.of, Categorize) and self.of.nulls == "category":
            raise OptionError(
                "Cross(Categorize(nulls='category')): a row with a null in some of the columns has an id of its own "
                "already, and one with nulls in all of them is 0."
            )
        columns = self.columns
        if columns is not None and (
            isinstance(columns, str) or len(set(columns)) < max(2, len(columns)) or not all(map(_is_name, columns))
        ):
            raise OptionError(f"Cross(columns={shown(columns)}): expected a list of at least two different names.")

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return self.of.learned

    @property
    def needs(self) -> frozenset[str]:
        """What the ids are learned from."""
        return self.of.needs


class DateParts(ColumnTransform):
    """Parts of dates and times, each an output `<output>_<part>` of ids from 1 on, 0 for missing.

    Args:
        parts: of "hour", "minute", "second", "weekday" (Monday is 1), "month", "day", "dayofyear", "year".
        cyclic: outputs `<output>_<part>_sin` and `_cos` instead, of the part as an angle; NaN for missing.
        zone: the zone to which instants are converted; None: their own. Times without a zone are wall clock.
    """

    parts: Sequence[str] = setting(doc="the parts", kw_only=False)
    cyclic: bool = setting(default=False, check=flag, doc="sine and cosine of each part")
    zone: str | None = setting(default=None, check=maybe(_a_name), doc="the zone to which instants are converted")

    ends = True
    numeric = False

    def __init__(self, *parts: Any, **given: Any) -> None:
        if len(parts) == 1 and not isinstance(parts[0], str):
            parts = tuple(parts[0])
        super().__init__(**({"parts": parts} if parts else {}), **given)

    def check(self) -> None:
        """Check the parts."""
        known = [part for part in PARTS if not (self.cyclic and part == "year")]
        parts = (self.parts,) if isinstance(self.parts, str) else self.parts
        if not parts or any(part not in known for part in parts) or len(set(parts)) < len(parts):
            raise OptionError(f"DateParts({shown(list(parts))}): expected different ones of {known}.")
        vars(self)["parts"] = parts
        if self.zone is not None:
            zone_named(self.zone)


class Keep(ColumnTransform):
    """The column as it is."""

    classes: bool = setting(
        default=False, check=flag, doc="whether its values are classes, whose rows a fit counts for `class_counts`"
    )

    ends = True
    numeric = False

    @property
    def needs(self) -> frozenset[str]:
        """The counts of values, if they are classes."""
        return frozenset({"counts"}) if self.classes else frozenset()

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"vocabulary": _given, "counts": _given} if self.classes else {}


class Drop(ColumnTransform):
    """No output, and the column is not read."""

    ends = True
    numeric = False


def _width(found: float) -> float:
    """What to divide by: 1 for 0, and no more than float64 holds."""
    return min(found, sys.float_info.max) or 1.0


def unit_of(center: float, width: float) -> float:
    """What numbers are multiplied by, so that none of their distances to a center is infinite: nearly always 1."""
    return 1.0 if max(abs(center), width) < _LARGE else 0.25


def _part_of(center: float, width: float) -> NumberStep:
    """(x - center) / width."""
    unit = unit_of(center, width)
    return NumberStep("part", (center * unit, width * unit, unit))


def _shifted_and_divided(center: float, width: float) -> Callable[[float], float]:
    unit = unit_of(center, width)
    if unit == 1.0:
        return lambda x: (x - center) / width
    center, width = center * unit, width * unit
    return lambda x: (x * unit - center) / width


def range_of(least: float, greatest: float) -> tuple[float, float, float]:
    """The least number and the distance to the greatest, after multiplying by a unit: 1, or 1/2 if it is infinite."""
    unit = 1.0 if math.isfinite(greatest - least) else 0.5
    return least * unit, (greatest * unit - least * unit) or 1.0, unit


def _clipped(x: float, low: float, high: float) -> float:
    """As numpy does: NaN stays."""
    return low if x < low else high if x > high else x


__all__ = [
    "Bucketize",
    "Categorize",
    "Clip",
    "Cross",
    "DateParts",
    "Drop",
    "Hash",
    "Impute",
    "Keep",
    "Log1p",
    "MinMax",
    "Robust",
    "Standardize",
]
