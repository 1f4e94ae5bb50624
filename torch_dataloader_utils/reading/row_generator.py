"""Random numbers for rows: a function of the row and of the call, wherever, whenever and beside whatever it is read.

A draw is SplitMix64 of counters (see `seeding`): no generator is made for a row, and there is no state to keep. Results
are the same on all machines, because all of them follow from whole numbers, and from sums, products, quotients and
square roots of floats, which IEEE 754 rounds in one way. Logarithms are no such function, so `normal` has its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import GAMMA, MASK, U64, mixed, name_hash

F64: TypeAlias = npt.NDArray[np.float64]
I64: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = int | Sequence[int]

_CHUNK = 1 << 14  # words made at a time: they stay in the processor's cache
_GENERATOR, _PLACE = name_hash("row generator"), name_hash("place in the chain")
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class RowGenerator:
    """Random numbers for the rows of a block, as arrays with one entry for each row.

    The numbers of a row depend on the seed, the epoch, the row, and on how many calls were made before, and on nothing
    else: not on the other rows of the block, ranks, workers, or a resume. So make the same calls for each block, in the
    same order, not for some blocks only.

    Args:
        ids: a number for each row, uint64 [rows].
    """

    __slots__ = ("_calls", "_ids")

    def __init__(self, ids: U64) -> None:
        self._ids = ids
        self._calls = 0

    @classmethod
    def seeded(cls, seed: int, rows: int) -> RowGenerator:
        """A generator for so many rows, to try a function with."""
        return cls(np.arange(rows, dtype=np.uint64)).keyed(name_hash("seeded", seed))

    def __len__(self) -> int:
        return len(self._ids)

    def keyed(self, key: int) -> RowGenerator:
        """Another generator for the same rows."""
        return RowGenerator(mixed(self._ids + np.uint64(key & MASK)))

    def of_function(self, place: int) -> RowGenerator:
        """The generator for a function in a chain of them."""
        return self.keyed(_PLACE + place * GAMMA)

    def take(self, rows: slice | npt.NDArray[Any]) -> RowGenerator:
        """The generator for some of the rows, after as many calls."""
        taken = RowGenerator(self._ids[rows])
        taken._calls = self._calls
        return taken

    def random(self, *shape: int) -> F64:
        """Floats in [0, 1), of 53 bits, shape [rows, *shape]."""
        drawn: F64 = (self._words(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return drawn

    def integers(self, low: Any, high: Any = None, *, shape: Shape = ()) -> I64:
        """Whole numbers from `low` to below `high`, int64 [rows, *shape].

        Args:
            low: a whole number, or an array of them that broadcasts to the result; the upper bound, if `high` is None.
            high: the same.
            shape: of the numbers of a row.

        Raises:
            ValueError: there is no number between them.
        """
        low, high = (0, low) if high is None else (low, high)
        first, end = np.asarray(low, np.int64), np.asarray(high, np.int64)
        if np.any(first >= end):
            raise ValueError(f"integers({low!r}, {high!r}): expected low < high.")
        words = self._words(_sizes(shape))
        return first + _below(words, (end.view(np.uint64) - first.view(np.uint64))).view(np.int64)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, *, shape: Shape = ()) -> F64:
        """Floats of the normal distribution, float64 [rows, *shape].

        Args:
            loc: the mean, a number or an array that broadcasts to the result.
            scale: the standard deviation, likewise.
            shape: of the numbers of a row.
        """
        words = self._words(_sizes(shape))
        drawn = np.empty(words.shape)
        flat, out = words.reshape(-1), drawn.reshape(-1)
        for at in range(0, len(flat), _CHUNK):
            # Of 52 bits and a half, which is exact: neither 0 nor 1, and symmetric.
            part = (flat[at : at + _CHUNK] >> np.uint64(12)).astype(np.float64)
            out[at : at + _CHUNK] = normal_quantiles((part + 0.5) * 2.0**-52)
        moved: F64 = loc + drawn * scale
        return moved

    def choice(self, values: Any, *, shape: Shape = (), p: Sequence[float] | F64 | None = None) -> npt.NDArray[Any]:
        """Some of these values, with replacement: [rows, *shape].

        Args:
            values: of one dimension; a whole number n for 0 to n - 1.
            shape: of the values of a row.
            p: how probable each value is; None: all alike.

        Raises:
            ValueError: there are no values, or the probabilities do not fit them.
        """
        given = np.arange(values) if isinstance(values, int) else np.asarray(values)
        if given.ndim != 1 or not len(given):
            raise ValueError(f"choice: expected values of one dimension, at least one, got shape {given.shape}.")
        if p is None:
            return given[self.integers(len(given), shape=shape)]
        weights = np.asarray(p, np.float64)
        if weights.shape != given.shape or (weights < 0).any() or abs(weights.sum() - 1) > 1e-8:
            raise ValueError("choice: expected p as a probability for each value, with sum 1.")
        ends = np.cumsum(weights)
        places = np.searchsorted(ends, self.random(*_sizes(shape)) * ends[-1], side="right")
        # A product may be rounded up to the end of all.
        chosen: npt.NDArray[Any] = given[np.minimum(places, np.flatnonzero(weights)[-1])]
        return chosen

    def permutation(self, n: int) -> I64:
        """The numbers below `n` in random order, int64 [rows, n]."""
        return np.argsort(self._words((n,)), axis=1, kind="stable")

    def seeds(self) -> I64:
        """Seeds for another library's generators, from 0 to below 2**63, int64 [rows]."""
        return (self._words(()) >> np.uint64(1)).view(np.int64)

    def generator(self, row: int) -> np.random.Generator:
        """A generator of NumPy for a row of the block: the same one whenever it is asked for.

        It takes some 20 microseconds to make, and NumPy may change its numbers from version to version.
        """
        (seed,) = mixed(self._ids[row : row + 1] ^ np.uint64(_GENERATOR)).tolist()
        return np.random.Generator(np.random.Philox(key=seed))

    def _words(self, shape: tuple[int, ...]) -> U64:
        """The random words of a call, uint64 [rows, *shape]."""
        self._calls += 1
        call, count = np.uint64(self._calls * GAMMA & MASK), math.prod(shape)
        words = np.empty((len(self._ids), count), np.uint64)
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
        each = max(1, _CHUNK // max(count, 1))
        for at in range(0, len(words), each):
            part = words[at : at + each]
            np.add(mixed(self._ids[at : at + each] + call)[:, None], steps, out=part)
            mixed(part)
        return words.reshape(len(self._ids), *shape)


def _sizes(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _below(words: U64, ends: U64) -> U64:
    """The whole part of word * end / 2**64, of arrays that broadcast: below `end`, and as likely as 64 bits can be."""
    high, low, end_high, end_low = words >> _HALF, words & _LOW, ends >> _HALF, ends & _LOW
    first, second = high * end_low, low * end_high
    carried = ((first & _LOW) + (second & _LOW) + (low * end_low >> _HALF)) >> _HALF
    below: U64 = high * end_high + (first >> _HALF) + (second >> _HALF) + carried
    return below


# The quantiles of the normal distribution: Wichura, "Algorithm AS 241: The Percentage Points of the Normal
# Distribution", Applied Statistics 37 (1988), whose rational functions are within 1e-16 of them, relatively.

_NEAR = (
    (
        *(2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4),
        *(1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    ),
    (
        *(5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4),
        *(5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
    ),
)
_FAR = (
    (
        *(7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0),
        *(3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    ),
    (
        *(1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1),
        *(6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
    ),
)
_FARTHEST = (
    (
        *(2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2),
        *(2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    ),
    (
        *(2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4),
        *(1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
    ),
)


def normal_quantiles(shares: F64) -> F64:
    """The number below which this share of the normal distribution lies; shares are above 0 and below 1, float64 [n].

    Of sums, products, quotients and square roots alone: the same bits on every machine.
    """
    offsets = shares - 0.5
    found = offsets * _ratio(_NEAR, 0.180625 - offsets * offsets)
    tails = np.flatnonzero(np.abs(offsets) > 0.425)
    if len(tails):
        left = np.minimum(shares[tails], 1 - shares[tails])
        roots = np.sqrt(-_logarithms(left))
        far = np.where(roots <= 5, _ratio(_FAR, roots - 1.6), _ratio(_FARTHEST, roots - 5))
        found[tails] = np.copysign(far, offsets[tails])
    return found


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: F64) -> F64:
    above, below = (_polynomial(each, x) for each in polynomials)
    ratio: F64 = above / below
    return ratio


def _polynomial(factors: Sequence[float], x: F64) -> F64:
    """Step by step, each rounded: no step may become a fused one on some machine."""
    value = np.full_like(x, factors[0])
    for factor in factors[1:]:
        np.multiply(value, x, out=value)
        np.add(value, factor, out=value)
    return value


_LN_2 = 0.6931471805599453
_ATANH = tuple(1 / n for n in range(25, 0, -2))  # of its series in even powers


def _logarithms(x: F64) -> F64:
    """The natural logarithm of positive numbers, within some units of the last place: 2 artanh((m - 1) / (m + 1))."""
    fractions, exponents = np.frexp(x)
    small = fractions < 0.7071067811865476
    fractions = np.where(small, fractions * 2, fractions)
    ratios = (fractions - 1) / (fractions + 1)
    series = _polynomial(_ATANH, ratios * ratios)
    found: F64 = 2 * ratios * series + (exponents - small) * _LN_2
    return found
