"""`subset=`, `fraction=`, `limit=` and `class_weights=`: which of the rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any, Literal, TypeAlias

import numpy as np

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.values import Checked, Value, a, maybe, names, one_of, option, setting, values, whole, word

_LEAST = 2.0**-60  # of a subset, so that its interval of 64-bit numbers is never empty
_NUMBERS = (int, float, np.integer, np.floating)


def _is_weight(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and bool(0 < value < inf)


def _is_subsets(value: Any) -> bool:
    """Whether it is a dict of name -> positive weight, none of them too small for 64 bits."""
    if not isinstance(value, Mapping) or not value:
        return False
    if not all(isinstance(name, str) and name for name in value) or not all(map(_is_weight, value.values())):
        return False
    weights = [Fraction(_plain(weight)) for weight in value.values()]
    return bool(min(weights) >= sum(weights) * Fraction(_LEAST))


def _plain(weight: Any) -> int | float:
    """The number as Python's own, whole ones as int: numpy's, and 1 and 1.0, have different texts, but are equal."""
    return int(weight) if isinstance(weight, (int, np.integer)) or weight == int(weight) else float(weight)


_subsets = values('a dict of name -> weight above 0, such as {"train": 0.8, "val": 0.1, "test": 0.1}', _is_subsets)
_share = values(
    "a number above 0 and at most 1; for a number of rows, use limit=",
    lambda value: _is_weight(value) and _LEAST <= value <= 1,
)


def _subsets_of(name: str, value: Any) -> dict[str, int | float]:
    # By name, because equal dicts must be equal subsets, and YAML's writers sort keys.
    return {subset: _plain(weight) for subset, weight in sorted(_subsets(name, value).items())}


def _limit(name: str, value: Any) -> Any:
    if isinstance(value, float):
        share = [use(fraction=value, without=[name])] if 0 < value < 1 else []
        raise OptionError(f"{name}={value}: expected a whole number of rows.", remedies=share)
    return whole(1)(name, value)


def _fraction(name: str, value: Any) -> int | float:
    return _plain(_share(name, value))


_Label: TypeAlias = str | int | bool | None
MOST_COPIES = 1_000  # of a row; more would fill memory


def _is_class_weights(value: Any) -> bool:
    """Whether it is a dict of one column -> a dict of label -> weight."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    ((column, weights),) = value.items()
    if isinstance(column, str) and column and isinstance(weights, str):
        return weights == "balanced"
    if not isinstance(column, str) or not column or not isinstance(weights, Mapping) or not weights:
        return False
    return all(map(_is_label, weights)) and all(
        isinstance(weight, _NUMBERS) and not isinstance(weight, bool) and bool(0 <= weight <= MOST_COPIES)
        for weight in weights.values()
    )


def _is_label(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return bool(isfinite(value)) and value == int(value)
    return isinstance(value, (str, int, np.integer, np.bool_, type(None)))


_class_weights = values(
    f'a dict of one column -> a dict of label -> weight from 0 to {MOST_COPIES:,}, such as {{"label": {{1: 5.0}}}}, '
    'with strings, whole numbers, bools or None as labels; or {"label": "balanced"}',
    _is_class_weights,
)


def _class_weights_of(name: str, value: Any) -> dict[str, dict[_Label, int | float] | str]:
    ((column, weights),) = _class_weights(name, value).items()
    if isinstance(weights, str):
        return {column: weights}
    plain = [(_plain_label(label), _plain(weight)) for label, weight in weights.items()]
    # In one order, because a state holds them as text.
    return {column: dict(sorted(plain, key=lambda pair: (type(pair[0]).__name__, pair[0] or 0)))}


def _plain_label(label: Any) -> _Label:
    plain = label.item() if isinstance(label, np.generic) else label
    return int(plain) if isinstance(plain, float) else plain


def _columns(name: str, value: Any) -> list[str]:
    return names(name, [value] if isinstance(value, str) else value)


Unit: TypeAlias = Literal["row", "segment", "file"]
_unit = one_of("row", "segment", "file")


def _check_key(value: Subsets | Subset | Sample) -> None:
    if value.by is not None and value.unit not in (None, "row"):
        raise OptionError(
            f"{type(value).__name__}: by={list(value.by)} with unit={value.unit!r}: expected one of the two, because "
            "the values of columns choose rows."
        )


class Subsets(Value):
    """Splits rows into subsets by hash, each row into exactly one: `Subsets({"train": 0.8, "val": 0.2})["train"]`.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    shares: Mapping[str, float] = setting(
        check=_subsets_of, doc="the weight of each subset, by name, in the order of the names", kw_only=False
    )
    by: str | Sequence[str] | None = setting(
        default=None,
        check=maybe(_columns),
        doc="the columns whose values are hashed; None: the row's place (file, row number)",
    )
    unit: Unit = setting(
        default="row",
        check=_unit,
        doc="what stays together in a subset; 'segment' and 'file' skip the rows of other subsets",
    )
    seed: int = setting(default=0, check=whole(), doc="a different seed gives different subsets")

    def check(self) -> None:
        """Check fields that depend on each other."""
        _check_key(self)

    def __getitem__(self, name: str) -> Subset:
        """One of them, for `subset=`.

        Raises:
            OptionError: there is none of this name.
        """
        return Subset(name, of=self.shares, by=self.by, unit=self.unit, seed=self.seed)

    def __iter__(self) -> Iterator[str]:
        """Their names, in order."""
        return iter(self.shares)


class Subset(Value):
    """One of the subsets that rows are split into, as `Subsets(...)[name]` returns it.

    Raises:
        OptionError: a field cannot have this value, or there is no subset of this name.
    """

    name: str = setting(check=word, doc="the subset to read", kw_only=False)
    of: Mapping[str, float] = setting(  # type: ignore[assignment]  # on an instance, a field hides the method
        check=_subsets_of, doc="the weight of each subset, by name"
    )
    by: str | Sequence[str] | None = setting(default=None, check=maybe(_columns), doc="as of Subsets")
    unit: Unit = setting(default="row", check=_unit, doc="as of Subsets")
    seed: int = setting(default=0, check=whole(), doc="as of Subsets")

    def check(self) -> None:
        """Check fields that depend on each other."""
        _check_key(self)
        if self.name not in self.of:
            raise OptionError(f"subset={self.name!r}: expected one of {listed(self.of, show=repr)}.")

    def text(self, show: Callable[[str, Any], str]) -> str:
        """How it is made, as Python: one of `Subsets`."""
        sides = Subsets(self.of, by=self.by, unit=self.unit, seed=self.seed)
        return f"{sides.text(show)}[{show('name', self.name)}]"

    @property
    def made_by(self) -> str:
        """The name of the class whose call makes it."""
        return Subsets.__name__


class Sample(Value):
    """A sample of the rows by hash; a smaller one is contained in a larger one.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    share: float = setting(check=_fraction, doc="the share of rows, above 0 and at most 1", kw_only=False)
    by: str | Sequence[str] | None = setting(
        default=None,
        check=maybe(_columns),
        doc="the columns whose values are hashed; None: as the subset, else places",
    )
    unit: Unit | None = setting(
        default=None, check=maybe(_unit), doc='what stays together; None: as the subset, else "row"'
    )
    seed: int | None = setting(
        default=None,
        check=maybe(whole()),
        doc="a different seed gives a different sample; None: the seed of the subset, else 0",
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        _check_key(self)


SubsetLike: TypeAlias = Subset | Mapping[str, Any]
SampleLike: TypeAlias = float | Sample | Mapping[str, Any]


def _subset(name: str, value: Any) -> Subset:
    if isinstance(value, (Subset, Mapping)):
        return value if isinstance(value, Subset) else Subset.from_dict(value)
    if isinstance(value, Subsets):
        ways = [use(subset=value[side]) for side in value]
        raise OptionError(f"{name}={shown(value)}: expected one of its subsets.", remedies=ways)
    raise OptionError(
        f"{name}={shown(value)}: expected one of Subsets(...).",
        remedies=[use(subset=Subsets({"train": 0.8, "val": 0.2})["train"])],
    )


@dataclass(frozen=True, kw_only=True)
class SubsetOptions(Checked):
    """Which of the rows: a subset by hash, a sample, or the first ones."""

    subset: Subset | None = option(
        None,
        maybe(_subset),
        given="SubsetLike | None",
        doc='one of the subsets that rows are split into by hash: Subsets({"train": 0.8, "val": 0.2})["train"]',
    )
    fraction: Sample | None = option(
        None,
        maybe(a(Sample)),
        given="SampleLike | None",
        doc="a sample of this share of the rows, by hash, or Sample(...); larger samples hold smaller ones",
    )
    limit: int | None = option(None, maybe(_limit), doc="only the first rows in file order, after filters")

    class_weights: Mapping[str, Mapping[str | int | bool | None, float] | Literal["balanced"]] | None = option(
        None,
        maybe(_class_weights_of),
        doc='copies of rows by label, drawn in each epoch: {"label": {1: 2.5}} or {"label": "balanced"}',
    )

    @property
    def counts_labels(self) -> bool:
        """Whether the rows of each label are counted before any plan."""
        return self.class_weights is not None and "balanced" in self.class_weights.values()

    @property
    def differ(self) -> bool:
        """Whether the subset and the sample are to be chosen by different keys or units."""
        subset, sample = self.subset, self.fraction
        if subset is None or sample is None:
            return False
        return sample.by not in (None, subset.by) or sample.unit not in (None, subset.unit)

    @property
    def by_hash(self) -> bool:
        """Whether rows, segments or files are chosen by hash."""
        return self.subset is not None or self.fraction is not None

    @property
    def by(self) -> Sequence[str] | None:
        """The columns whose values are hashed; None for the rows' places, or if nothing is."""
        return next((tuple(each.by) for each in (self.subset, self.fraction) if each and each.by), None)

    @property
    def unit(self) -> Unit:
        """What stays together."""
        return next((each.unit for each in (self.subset, self.fraction) if each and each.unit), "row")

    @property
    def seed(self) -> int:
        """The seed of the subset; without one, that of the sample; of copies, too."""
        return next((each.seed for each in (self.subset, self.fraction) if each and each.seed is not None), 0)

    @property
    def sample_seed(self) -> int:
        """The seed of the sample."""
        return self.seed if self.fraction is None or self.fraction.seed is None else self.fraction.seed

    def hashed(self, *, by: Sequence[str] | None = None, unit: Unit = "row") -> dict[str, Any]:
        """The keywords that choose the same shares by other columns, or of other units."""
        changed: dict[str, Any] = {}
        if self.subset is not None:
            changed["subset"] = self.subset.replace(by=by, unit=unit)
        if self.fraction is not None:
            alone = self.subset is None
            own = {"by": by, "unit": unit if unit != "row" else None} if alone else {"by": None, "unit": None}
            changed["fraction"] = self.fraction.replace(**own)
        return changed

    @property
    def text(self) -> str:
        """Which rows are chosen, as a short text that distinguishes them; "" for all."""
        first = "" if self.limit is None else f"the first {self.limit:,} rows"
        rows = f"{first} of {self._by_hash_in_words}" if first and self.by_hash else first or self._by_hash_in_words
        return ", ".join(filter(None, [rows, self._copies_in_words]))

    @property
    def _copies_in_words(self) -> str:
        if self.class_weights is None:
            return ""
        ((column, weights),) = self.class_weights.items()
        given = weights if isinstance(weights, str) else dict(weights)
        return f"copies by {column!r} with weights {given}, seed {self.seed}"

    @property
    def _by_hash_in_words(self) -> str:
        if not self.by_hash:
            return ""
        parts = [] if self.subset is None else [f"{self.subset.name!r} of {self.subset.of}"]
        if self.fraction is not None:
            other = f" with seed {self.sample_seed}" if self.sample_seed != self.seed else ""
            parts.append(f"fraction {self.fraction.share}{other}")
        by = "place" if self.by is None else ", ".join(map(repr, self.by))
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{' and '.join(parts)}, {self.unit}s by {by}{seed}"
