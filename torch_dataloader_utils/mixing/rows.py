"""The rows that an epoch takes of each source of a mix, from the sources' row counts and the options.

Weights are read as the decimal numbers that users wrote, and all results are exact: every rank gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch_dataloader_utils.errors import EmptyDatasetError, OptionError
from torch_dataloader_utils.mixing.tree import tree_of, whole_weights
from torch_dataloader_utils.options.weights import default_weights, exact_weight
from torch_dataloader_utils.printing import shown

MOST_LAPS = 10_000  # of one source in one epoch: each lap has an order of its own


@dataclass(frozen=True)
class MixRule:
    """What decides how many rows an epoch takes of each source.

    Attributes:
        weights: of each source; None: its number of rows to the power of `1 / temperature`.
        temperature: above 1, small sources get more than their share.
        stop: "once" takes every row of each source; "first" and "all" take rows in proportion to the weights, until the
            first source ends, or all have ended.
        repeat: how often an epoch takes each source, instead of `stop`.
        rows_per_epoch: the rows of an epoch, shared by weight, instead of `stop`.
        max_repeats: the most that an epoch takes of a source, in multiples of its rows.
        unit: the rows of sources that are taken together, such as the tokens of a sequence: results count these.
    """

    weights: tuple[float | Fraction, ...] | None = None
    temperature: float = 1.0
    stop: str = "once"
    repeat: tuple[float, ...] | None = None
    rows_per_epoch: int | None = None
    max_repeats: float | None = None
    unit: int = 1

    @property
    def chosen(self) -> bool:
        """Whether it has weights other than the numbers of rows."""
        return self.weights is not None or self.temperature != 1

    @property
    def only_orders(self) -> bool:
        """Whether weights that were given decide the order alone, not how many rows are taken."""
        return self.chosen and self.rows_per_epoch is None and (self.repeat is not None or self.stop == "once")

    def exact_weights(self, sizes: Sequence[int]) -> list[Fraction]:
        """The weight of each source, of which these are the numbers of rows."""
        weights: Sequence[float | Fraction]
        weights = default_weights(sizes, self.temperature) if self.weights is None else self.weights
        return [exact_weight(weight) for weight in weights]


@dataclass(frozen=True)
class EpochRows:
    """What an epoch takes of each source.

    Attributes:
        rows: the number of rows of each source; None: the next `rows_per_epoch` rows of the run.
        weights: of each source: rows are delivered by these, as long as it has any.
    """

    rows: tuple[int, ...] | None
    weights: tuple[Fraction, ...]


def epoch_rows(sizes: Sequence[int], names: Sequence[str], rule: MixRule) -> EpochRows:
    """The rows that an epoch takes of each source, and the weights by which they are delivered.

    Args:
        sizes: the number of rows of each source.
        names: of the sources, for messages.
        rule: what decides.

    Raises:
        OptionError: the sources do not hold enough rows for `rows_per_epoch`, one would repeat too often, or an epoch
            would have no row.
        EmptyDatasetError: a source that must be repeated has no rows.
    """
    weights = rule.exact_weights(sizes)
    once = rule.repeat is None and rule.rows_per_epoch is None and rule.stop == "once"
    for size, name in zip(sizes, names, strict=True):
        if not size and not once:
            raise EmptyDatasetError(f"{name} has no rows: leave it out of the mix.")
    if rule.rows_per_epoch is not None and rule.max_repeats is None:
        check_laps(sizes, apportioned(rule.rows_per_epoch, weights), names, "Weights(max_repeats=)", rule.unit)
        return EpochRows(None, tuple(weights))
    rows = _rows(sizes, weights, rule)
    if any(sizes) and not any(rows):
        raise OptionError(
            f"an epoch would have no row of the {sum(sizes):,} rows: set a larger repeat=, or other weights."
            if rule.unit == 1
            else f"an epoch would have no sequence of {rule.unit:,} of the {sum(sizes):,} tokens: pack shorter ones."
        )
    check_laps(sizes, rows, names, "Weights(max_repeats=)", rule.unit)
    if not (rule.only_orders or (rule.chosen and rule.max_repeats is None)) or rule.rows_per_epoch is not None:
        weights = list(map(Fraction, rows))
    return EpochRows(tuple(rows), tuple(weights) if any(weights) else (Fraction(1),) * len(weights))


def check_laps(sizes: Sequence[int], rows: Sequence[int], names: Sequence[str], remedy: str, unit: int = 1) -> None:
    """Check that an epoch repeats no source too often; the remedy is what to set, and `rows` count so many of `sizes`.

    Raises:
        OptionError: it does.
        EmptyDatasetError: a source that must be repeated has no rows.
    """
    for size, count, name in zip(sizes, rows, names, strict=True):
        if count and not size:
            raise EmptyDatasetError(f"{name} has no rows: leave it out of the mix.")
        if count * unit > size * MOST_LAPS:
            what = "rows" if unit == 1 else "tokens"
            raise OptionError(
                f"an epoch would take {count * unit:,} {what} of {name}, which has {size:,}: expected at most "
                f"{MOST_LAPS:,} repeats. Set {remedy}, or other weights."
            )


def _rows(sizes: Sequence[int], weights: Sequence[Fraction], rule: MixRule) -> list[int]:
    def times(number: float, size: int) -> int:
        return int(exact_weight(number) * size) // rule.unit

    most = None if rule.max_repeats is None else [times(rule.max_repeats, size) for size in sizes]
    if rule.rows_per_epoch is not None:
        return _apportioned(rule.rows_per_epoch, weights, most or sizes, rule)
    if rule.repeat is not None:
        rows = [times(number, size) for number, size in zip(rule.repeat, sizes, strict=True)]
    elif rule.stop == "once":
        rows = [times(1, size) for size in sizes]
    else:
        tree = tree_of(whole_weights(weights))
        own = [max(times(1, size), 1) for size in sizes]  # the beginning of a sequence may be of another lap
        rows = tree.of_first(tree.most(0, own) if rule.stop == "first" else tree.least(own))
    return rows if most is None else [min(pair) for pair in zip(rows, most, strict=True)]


def _apportioned(total: int, weights: Sequence[Fraction], limits: Sequence[int], rule: MixRule) -> list[int]:
    """`total` rows shared by weight; what a source may not take goes to the others."""
    if sum(limits) < total:
        raise OptionError(
            f"rows_per_epoch={total} with Weights(max_repeats={shown(rule.max_repeats)}): the datasets give at most "
            f"{sum(limits):,} rows. Use fewer rows, or a larger max_repeats."
        )
    rows = [0] * len(weights)
    free = list(range(len(weights)))
    left = total
    while full := [i for i in free if left * weights[i] >= limits[i] * sum(weights[j] for j in free)]:
        for i in full:
            rows[i] = limits[i]
        free = [i for i in free if i not in full]
        left = total - sum(rows)
    for i, count in zip(free, apportioned(left, [weights[i] for i in free]), strict=True):
        rows[i] = count
    return rows


def apportioned(total: int, weights: Sequence[Fraction]) -> list[int]:
    """`total` rows shared by weight: the exact shares rounded down, and one more for those that lost the most."""
    whole = sum(weights)
    shares = [total * weight / whole for weight in weights]
    rows = [int(share) for share in shares]
    for i in sorted(range(len(rows)), key=lambda i: (rows[i] - shares[i], i))[: total - sum(rows)]:
        rows[i] += 1
    return rows
