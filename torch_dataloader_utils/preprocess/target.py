"""`TargetEncode`: a category becomes the smoothed mean of a target, for training without the rows of its own fold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import U64, name_hash
from torch_dataloader_utils.options.transform import RowsRead
from torch_dataloader_utils.preprocess.hashed import buckets
from torch_dataloader_utils.preprocess.steps import F64
from torch_dataloader_utils.preprocess.transforms import I64, ColumnTransform
from torch_dataloader_utils.values import Check, flag, maybe, names, setting, values, whole, word

Whole: TypeAlias = npt.NDArray[np.object_]  # Python's ints, which are exact

_smooth = values(
    '"auto", or a finite number of at least 0',
    lambda value: (
        value == "auto" or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf)
    ),
)
_given = values("a value", lambda value: value is not None)
_classes = values("a list of classes", lambda value: isinstance(value, list))


def _columns(name: str, given: Any) -> list[str]:
    return names(name, [given] if isinstance(given, str) else given)


def _encoding(name: str, given: Any) -> Any:
    return values(
        "finite numbers [values + 2, 1 + folds, outputs]",
        lambda held: isinstance(held, np.ndarray) and held.ndim == 3 and bool(np.isfinite(held).all()),
    )(name, given)


class TargetEncode(ColumnTransform):
    """The mean of a target over the rows of a category, drawn to that of all rows where they are few.

    A target of numbers or bools is averaged; of text or bytes, or with `classes`, the share of a class: of two
    classes that of the last one, else of each one, in an output `<output>_<class>`. Null is a category; an unseen value
    gets the mean of all rows. Rows without a finite target are not counted.

    `Preprocess.for_training()` leaves the rows of a row's own fold out of its means, so that no row sees its target.

    Args:
        target: the column of the target.
        smooth: with m, the mean of n rows is (sum + m * mean of all) / (n + m). "auto": the empirical Bayes estimate,
            as in scikit-learn.
        folds: how many parts rows are split into.
        by: the columns whose values decide a row's fold; None: its place (file, row number), which only rows that a
            loader reads have.
        seed: another seed makes other folds.
        classes: whether numbers are classes.
    """

    target: str = setting(check=word, doc="the column of the target", kw_only=False)
    smooth: Literal["auto"] | float = setting(default="auto", check=_smooth, doc='"auto", or the weight of the mean')
    folds: int = setting(default=5, check=whole(2, 1000), doc="how many parts rows are split into")
    by: str | Sequence[str] | None = setting(
        default=None, check=maybe(_columns), doc="the columns whose values decide a row's fold; None: its place"
    )
    seed: int = setting(default=0, check=whole(0), doc="another seed makes other folds")
    classes: bool = setting(default=False, check=flag, doc="whether numbers are classes")

    learns = frozenset({"targets"})
    ends = True
    numeric = False

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"vocabulary": _given, "classes": _classes, "encoding": _encoding}

    def folds_of(self, hashes: U64) -> I64:
        """The fold of each row, from 0, by the hash of its place or key."""
        return buckets(hashes, self.folds + 1, self.seed, "folds") - 1


def class_names(output: str, classes: Sequence[Any]) -> list[str]:
    """The outputs of a target encoding; of numbers, there are no classes."""
    if len(classes) <= 2:
        return [output]
    texts = (each.decode("utf-8", "backslashreplace") if isinstance(each, bytes) else each for each in classes)
    return [f"{output}_{text}" for text in texts]


_MOST_SEEN = 1_000


@dataclass(frozen=True)
class SeenRows:
    """By which rows that a target encoding was fitted on are known again, of all that were chosen in one way.

    Attributes:
        files: the least hashes of their files, and those of their names: of many files that are read again, some are
            among them.
        chosen: the hash of how rows of these files were chosen; 0 for all rows.
    """

    files: Mapping[int, int]
    chosen: int

    @classmethod
    def of(cls, several: Sequence[RowsRead]) -> tuple[SeenRows, ...]:
        """Those of a fit on these."""
        files: dict[int, dict[int, int]] = {}
        for rows in several:
            files.setdefault(_hash_of(rows.chosen), {}).update(rows.files)
        return tuple(cls(dict(sorted(own.items())[:_MOST_SEEN]), chosen) for chosen, own in files.items())

    def among(self, rows: RowsRead) -> bool:
        """Whether some of them are known to be among these."""
        return not rows.files.keys().isdisjoint(self.files) and self.chosen in (0, _hash_of(rows.chosen))

    def moved(self, rows: RowsRead) -> bool:
        """Whether some of these files have another name than they had, so that their rows have other places."""
        return any(name != rows.files.get(file, name) for file, name in self.files.items())

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"least": {f"{file:x}": f"{name:x}" for file, name in self.files.items()}, "chosen": f"{self.chosen:x}"}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> SeenRows:
        """What `to_json` returned.

        Raises:
            ValueError: it is nothing that it returns.
        """
        files = {int(file, 16): int(name, 16) for file, name in saved["least"].items()}
        return cls(files, int(saved["chosen"], 16))


def _hash_of(chosen: str) -> int:
    return name_hash(chosen) if chosen else 0


@dataclass(frozen=True)
class TargetTotals:
    """The exact sums of a target by category and fold.

    Attributes:
        counts: the rows, ints [categories, folds].
        sums: of the target, in units of a power of two: ints [categories, folds, outputs].
        squares: of its squares, in units of the square of that power.
        power: of two, the unit.
    """

    counts: Whole
    sums: Whole
    squares: Whole
    power: int

    @property
    def overall(self) -> Whole:
        """The rows, the sum and the sum of squares of all categories: ints [1 + folds, outputs, 3].

        The first are of all rows; then those without the rows of a fold. Those of several parts of them add up.
        """
        places = range(1 + self.counts.shape[1])
        made = [[[of.sum() for of in self._without(place, output)] for output in self._outputs] for place in places]
        return np.array(made, object)

    def encoded(self, smooth: Literal["auto"] | float, overall: Whole) -> F64:
        """What categories become, and last an unseen one: [categories + 1, 1 + folds, outputs].

        The first of each row is of all rows; then those without the rows of a fold.

        Args:
            smooth: as of `TargetEncode`.
            overall: of all categories, of which these may be some.
        """
        made = np.empty((len(self.counts) + 1, *overall.shape[:2]))
        for place in range(len(overall)):
            for output in self._outputs:
                of_all = overall[place, output].tolist()
                made[:, place, output] = _smoothed(self._without(place, output), of_all, self.power, smooth)
        return made

    @property
    def _outputs(self) -> range:
        return range(self.sums.shape[2])

    def _without(self, place: int, output: int) -> tuple[Whole, ...]:
        """Counts, sums and squares of categories: of all rows, or without those of fold `place - 1`."""
        left = slice(place - 1, place) if place else slice(0, 0)
        folds = (self.counts, self.sums[..., output], self.squares[..., output])
        return tuple(of.sum(axis=1) - of[:, left].sum(axis=1) for of in folds)


def _smoothed(
    categories: Sequence[Whole], overall: Sequence[int], power: int, smooth: Literal["auto"] | float
) -> list[float]:
    """The encodings of categories, and of an unseen one; each weight and mean is exact, and rounded once."""
    counts, sums, squares = categories
    rows, total, square = overall
    mean = _mean(total, rows, power)
    spread = rows * square - total**2  # of all rows, times rows**2
    made = []
    for n, own, q in zip(counts.tolist(), sums.tolist(), squares.tolist(), strict=True):
        if smooth == "auto":
            # The variance of all rows times n, against that of the category; both times rows**2 * n**2.
            over, under = spread * n**3, (n * q - own**2) * rows**2
            weight = over / (over + under) if over + under else 0.0
        else:
            weight = n / (n + smooth) if n else 0.0
        made.append(weight * _mean(own, n, power) + (1 - weight) * mean if weight else mean)
    return [*made, mean]


def _mean(total: int, rows: int, power: int) -> float:
    """The mean, correctly rounded; 0 of no rows."""
    if not rows:
        return 0.0
    return (total << power) / rows + 0.0 if power >= 0 else total / (rows << -power) + 0.0
