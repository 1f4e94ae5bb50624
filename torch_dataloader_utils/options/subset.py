"""The options that choose some of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any, TypeAlias

import numpy as np

from torch_dataloader_utils.errors import Example, OptionError, leave_out, use
from torch_dataloader_utils.values import Checked, maybe, names, one_of, option, values, whole, word

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
_MOST_COPIES = 1_000  # of a row; more would fill memory


def _is_class_weights(value: Any) -> bool:
    """Whether it is a dict of one column -> a dict of label -> weight."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    ((column, weights),) = value.items()
    if not isinstance(column, str) or not column or not isinstance(weights, Mapping) or not weights:
        return False
    return all(isinstance(label, (str, int, np.integer, np.bool_, type(None))) for label in weights) and all(
        isinstance(weight, _NUMBERS) and not isinstance(weight, bool) and bool(0 <= weight <= _MOST_COPIES)
        for weight in weights.values()
    )


_class_weights = values(
    f'a dict of one column -> a dict of label -> weight from 0 to {_MOST_COPIES:,}, such as {{"label": {{1: 5.0}}}}, '
    "with strings, whole numbers, bools or None as labels",
    _is_class_weights,
)


def _class_weights_of(name: str, value: Any) -> dict[str, dict[_Label, int | float]]:
    ((column, weights),) = _class_weights(name, value).items()
    plain = [(_plain_label(label), _plain(weight)) for label, weight in weights.items()]
    # In one order, because a state holds them as text.
    return {column: dict(sorted(plain, key=lambda pair: (type(pair[0]).__name__, pair[0] or 0)))}


def _plain_label(label: Any) -> _Label:
    plain: _Label = label.item() if isinstance(label, (np.integer, np.bool_)) else label
    return plain


def _columns(name: str, value: Any) -> list[str]:
    return names(name, [value] if isinstance(value, str) else value)


@dataclass(frozen=True, kw_only=True)
class SubsetOptions(Checked):
    """Which of the rows: a subset by hash, a sample, or the first ones."""

    subsets: Mapping[str, float] | None = option(
        None, maybe(_subsets_of), doc='the subsets that rows are split into by hash: {"train": 0.8, "val": 0.2}'
    )
    subset: str | None = option(None, maybe(word), doc="the one of subsets to read")
    subset_by: str | Sequence[str] | None = option(
        None, maybe(_columns), doc="the columns whose values are hashed; None: the row's place (file, row number)"
    )
    subset_unit: str = option(
        "row", one_of("row", "segment", "file"), doc="what stays together in a subset; only the last two save reading"
    )
    subset_seed: int = option(0, whole(), doc="another seed makes other subsets and samples")
    fraction: float | None = option(
        None, maybe(_fraction), doc="a sample of this share by hash; a smaller one is contained in a larger one"
    )
    limit: int | None = option(None, maybe(_limit), doc="only the first rows in file order, after filters")

    class_weights: Mapping[str, Mapping[str | int | bool | None, float]] | None = option(
        None,
        maybe(_class_weights_of),
        doc='copies of rows by label, drawn in each epoch: {"label": {1: 2.5, 0: 0.3}}',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None and self.limit is not None:
            raise OptionError(
                f"limit={self.limit} with class_weights: how many copies rows have is known only after reading.",
                remedies=[
                    leave_out("limit"),
                    leave_out("class_weights"),
                    *([] if self.fraction is not None else [use(fraction=Example("f", 0.5), without=["limit"])]),
                ],
            )
        subsets = self.subsets
        if (subsets is None) != (self.subset is None):
            given, other = ("subset", "subsets") if subsets is None else ("subsets", "subset")
            shares = {self.subset: 0.8, "val" if self.subset != "val" else "train": 0.2}
            both = use(subsets=shares) if subsets is None else use(subset=next(iter(subsets)))
            raise OptionError(f"{given} was given without {other}.", remedies=[both, leave_out(given)])
        if subsets is not None and self.subset not in subsets:
            raise OptionError(f"subset={self.subset!r}: expected one of {', '.join(map(repr, subsets))}.")
        if self.subset_by is not None and self.subset_unit != "row":
            raise OptionError(
                f"subset_by={self.subset_by!r} with subset_unit={self.subset_unit!r}: a key's values choose rows.",
                remedies=[leave_out("subset_unit"), leave_out("subset_by")],
            )
        if not self.by_hash and (self.subset_by is not None or self.subset_unit != "row"):
            name = "subset_unit" if self.subset_by is None else "subset_by"
            raise OptionError(
                f"{name} was given without subsets or fraction.",
                remedies=[use(fraction=Example("f", 0.5)), leave_out(name)],
            )

    @property
    def by_hash(self) -> bool:
        """Whether rows, segments or files are chosen by hash."""
        return self.subsets is not None or self.fraction is not None

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
        return f"copies by {column!r} with weights {dict(weights)}, seed {self.subset_seed}"

    @property
    def _by_hash_in_words(self) -> str:
        if not self.by_hash:
            return ""
        parts = [] if self.subsets is None else [f"{self.subset!r} of {self.subsets}"]
        parts += [] if self.fraction is None else [f"fraction {self.fraction}"]
        by = "place" if self.subset_by is None else ", ".join(map(repr, self.subset_by))
        seed = f", seed {self.subset_seed}" if self.subset_seed else ""
        return f"{' and '.join(parts)}, {self.subset_unit}s by {by}{seed}"
