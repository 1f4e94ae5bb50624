"""What was counted of the rows of a fit: from that an update goes on, without these rows. Needs no pyarrow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.own import OwnTransform
from torch_dataloader_utils.preprocess.spec import OutputSpec
from torch_dataloader_utils.preprocess.transforms import I64, Categorize, ColumnTransform, Cross, Impute, Keep

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.counts import ValueCounts
    from torch_dataloader_utils.preprocess.seen import NumberStatistics


@dataclass(frozen=True)
class CountedValues:
    """How often values occur, besides those of which the vocabulary has the counts.

    Attributes:
        type: in which they were counted.
        by_bits: whether numbers were counted by their bits.
        rare: the values without an id, and the missing ones; None if another rank has them.
    """

    type: pa.DataType
    by_bits: bool
    rare: ValueCounts | None


@dataclass(frozen=True)
class Counted:
    """What the last scan counted for an output; never changed.

    Attributes:
        first: how many links had learned before it.
        numbers: statistics of numbers, if it counted them.
        values: of values, if it counted them.
        own: what an `OwnTransform` has counted: one state, or none of no rows; None if it did not count, or what it
            counted could not be saved.
    """

    first: int
    numbers: NumberStatistics | None = None
    values: CountedValues | None = None
    own: tuple[Any, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in this process."""
        return self.values is None or self.values.rare is not None


@dataclass(frozen=True)
class Known:
    """An output as it was fitted, from which an update goes on.

    Attributes:
        fitted: the output.
        counted: what was counted for it; None: it stays as it is.
        numbers_stay: whether only its vocabulary grows.
    """

    fitted: FittedOutput
    counted: Counted | None
    numbers_stay: bool

    @property
    def first(self) -> int:
        """How many links stay as they are, because what follows them was counted behind them."""
        return len(self.fitted.fitted) if self.counted is None else self.counted.first


def is_learned_vocabulary(link: ColumnTransform) -> bool:
    """Whether a link learns values, which an update appends to."""
    return isinstance(link, (Categorize, Cross, Keep)) and bool(link.needs)


def ids_of(link: ColumnTransform) -> Categorize:
    """What decides which values such a link learns, and in which order."""
    of = link.of if isinstance(link, Cross) else Categorize(order="value") if isinstance(link, Keep) else link
    assert isinstance(of, Categorize)
    return of


def unfilled(fitted: FittedOutput, counted: Counted) -> I64:
    """How often each value of a vocabulary was counted, int64 [n], without the missing ones that it stands for.

    Raises:
        ValueError: fewer than these were counted.
    """
    last, chain = fitted.fitted[-1], fitted.output.chain
    counts: I64 = np.array(last["counts"], np.int64)
    assert counted.values is not None
    assert counted.values.rare is not None
    missing = counted.values.rare.missing
    # Fills that were known before were counted as values.
    learned = zip(chain[counted.first :], fitted.fitted[counted.first :], strict=True)
    fills = [each["value"] for link, each in learned if isinstance(link, Impute) and link.needs]
    if fills and missing:
        place = last["vocabulary"].array.index(fills[0]).as_py()
        if place >= 0:
            counts[place] -= missing
            if counts[place] < 0:
                raise ValueError("a value stands for more missing ones than were counted")
    return counts


def as_given(each: FittedOutput) -> OutputSpec:
    """An output with the values that were given to its `Categorize`, which a saved one has in its vocabulary alone."""
    last, fitted = each.last, each.fitted[-1]
    if not isinstance(last, Categorize) or last.values is not None or "counts" in fitted:
        return each.output
    return replace(each.output, chain=(*each.output.chain[:-1], last.replace(values=fitted["vocabulary"].values)))


def known_of(each: FittedOutput, output: OutputSpec, counted: Counted | None, *, numbers_stay: bool) -> Known:
    """An output from which an update goes on.

    Args:
        each: as it was fitted.
        output: the same with what was given to it.
        counted: what was counted for it.
        numbers_stay: whether only its vocabulary grows.

    Raises:
        OptionError: what was counted is not enough.
    """
    chain = output.chain
    free = next((place for place, link in enumerate(chain) if link.needs), len(chain))
    if numbers_stay or free == len(chain):
        return Known(each, counted, numbers_stay)
    if counted is None or counted.first > free:
        raise not_updated(output, max(place for place, link in enumerate(chain) if link.needs))
    if counted.own is None and isinstance(chain[-1], OwnTransform):
        raise OptionError(
            f"fit(update=True): {output.where}: what {chain[-1]!r} has counted was not saved, because its partial() "
            "returns what JSON does not hold. Let it return dicts with names, lists, texts, whole and finite numbers, "
            "bools and None, and fit all rows anew; or keep what it has learned, with update='ids'."
        )
    return Known(each, counted, numbers_stay=False)


def not_updated(output: OutputSpec, place: int) -> OptionError:
    """The error for an output of which the link at a place would have to see the rows before the update again."""
    link = output.chain[place]
    if output.target is not None:
        why = f"{link!r} is not updated: its means and folds are those of the rows that it was fitted on"
    else:
        before = next((each for each in reversed(output.chain[:place]) if each.needs), output.chain[max(place - 1, 0)])
        why = f"{link!r} is fitted on what {before!r} makes, which changes: it would have to see the rows before again"
    return OptionError(
        f"fit(update=True): {output.where}: {why}. Fit all rows anew, or keep the learned numbers, with update='ids'."
    )


def inexact_update(output: OutputSpec, error: float) -> OptionError:
    """The error for an output with quantiles that only another scan of all rows could tell."""
    off = f"may be off by more than {error:g} of the rows" if error else "may be off"
    return OptionError(
        f"fit(update=True): {output.where}: with the further rows, ranks of quantiles {off}, and another scan "
        "would have to see the rows before again. Fit all rows anew, or take quantiles as they are, with quantiles=1."
    )


def counted_elsewhere(output: OutputSpec) -> OptionError:
    """The error for an output whose rare values another rank has counted."""
    return OptionError(
        f"fit(update=...): {output.where}: ranks shared its fit, and the first of them holds the counts of rare "
        "values. Update it on all of these ranks together, or load what the first rank has saved."
    )
