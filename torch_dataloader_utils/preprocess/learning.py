"""What a scan counts for one output, and what its transforms learn of that; mergeable in any order, and picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.preprocess.chains import crossed_hashes, filled, fold_hashes
from torch_dataloader_utils.preprocess.columns import (
    categories_of,
    category_type,
    column_type,
    elements,
    known_type,
    naming,
    plain_values,
    scalar_of,
    value_type,
    whole,
    zero_of,
)
from torch_dataloader_utils.preprocess.counted import (
    Counted,
    CountedValues,
    Known,
    counted_elsewhere,
    ids_of,
    inexact_update,
    is_learned_vocabulary,
    unfilled,
)
from torch_dataloader_utils.preprocess.counts import ValueCounts, common_type, counted_type
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.numbers import NumberView, numbers_of
from torch_dataloader_utils.preprocess.own import OwnTransform, finished
from torch_dataloader_utils.preprocess.partitions import PARTITIONS
from torch_dataloader_utils.preprocess.refinement import CLOSE, Accuracy, Refinement, joined
from torch_dataloader_utils.preprocess.remarks import LARGE, Remark
from torch_dataloader_utils.preprocess.scans import wanted
from torch_dataloader_utils.preprocess.seen import NumberStatistics, Uncounted, after
from torch_dataloader_utils.preprocess.spec import OutputSpec
from torch_dataloader_utils.preprocess.steps import F64
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.target_sums import TargetSums
from torch_dataloader_utils.preprocess.transforms import (
    ERROR,
    Bucketize,
    Categorize,
    Clip,
    ColumnTransform,
    Cross,
    DateParts,
    Fitted,
    Impute,
    Keep,
    Links,
    Log1p,
    NumberTransform,
    QuantileTransform,
    steps_of,
)
from torch_dataloader_utils.preprocess.vocabularies import learned_vocabulary

HELD = 32 << 20  # bytes of values that are kept in memory after a fit, of each output


class Learning:
    """How far the links of one output have learned, and what the present scan counts for the next of them.

    Args:
        output: the output.
        types: of the columns that it is fitted on.
        memory: bytes of values that are counted in memory.
        accuracy: which quantiles take another scan.
        known: the output as it was fitted before, of which this is an update.
    """

    def __init__(
        self,
        output: OutputSpec,
        types: Sequence[pa.DataType],
        memory: int,
        accuracy: Accuracy = CLOSE,
        known: Known | None = None,
    ) -> None:
        self.output, self._memory, self.accuracy, self.known = output, memory, accuracy, known
        self.types = tuple(types)
        self.learned: list[Fitted] = []
        self.numbers: NumberStatistics | None = None
        self.refinement: Refinement | None = None  # of `numbers`, which stay, for exacter quantiles
        self._refined: tuple[Refinement, ...] = ()  # those of scans before
        self.counts: ValueCounts | None = None
        self.targets: TargetSums | None = None
        self.own: list[Any] | None = None  # what an `OwnTransform` has counted: nothing yet, or one value
        self.counted: Counted | None = None  # what the last scan counted, from which an update goes on
        self.is_whole = True  # whether this process knows all values that were counted
        self.remarks: set[Remark] = set()
        self._first = 0  # the link for which the present scan counts
        self._by_bits = False  # whether numbers are counted by their bits, because they need not be whole
        self._filled: Any = None  # what is counted in place of missing values
        if known is None:
            self._check_imputed()
            self._learn()
        else:
            self.learned += known.fitted.fitted[: known.first]
        before = None if known is None else known.counted
        # How values were counted, and whether an `OwnTransform` has counted: parts know no more of what was before.
        self._values_before = None if before is None or before.values is None else replace(before.values, rare=None)
        self._counts_own = before is None or before.own is not None

    def _check_imputed(self) -> None:
        """Check that the column can hold what is given for missing values."""
        for link in self.output.chain:
            if isinstance(link, Impute) and link.value is not None and not self.output.numeric:
                try:
                    scalar_of(link.value, value_type(self.types[0]))
                except OptionError as error:
                    raise OptionError(f"{self.output.where}: {link!r}: {error}") from error

    @property
    def done(self) -> bool:
        """Whether all links have learned."""
        return len(self.learned) == len(self.output.chain)

    @property
    def links(self) -> Links:
        """The links that have learned, and what."""
        return list(zip(self.output.chain, self.learned, strict=False))

    @property
    def only_counts(self) -> bool:
        """Whether the present scan counts the values of a column just as they are, and does nothing else with them."""
        others = self.output.numeric or self.targets is not None or self.own is not None
        return not others and not self.learned and not isinstance(self.output.chain[-1], Cross)

    @property
    def _pending(self) -> Sequence[ColumnTransform]:
        return self.output.chain[len(self.learned) :]

    def begin(self) -> None:
        """Count nothing yet, for a new scan."""
        self._first = len(self.learned)
        needs = wanted(self.output.chain, self._first)
        if self.refinement is not None:
            self.refinement = Refinement(self.refinement.ranges)
        elif self.output.numeric:
            self.numbers = NumberStatistics.none(needs)
        if "counts" in needs:
            self.counts = ValueCounts(self._counted_type(), self._memory)
        self.own = [] if "own" in needs and self._counts_own else None
        if "targets" in needs:
            assert self.output.target is not None
            target = self.types[len(self.output.columns)]
            with naming(self.output.where):
                kind = category_type(self._value_type)
                self.targets = TargetSums(self.output.target, kind, target, self._memory)

    def _counted_type(self) -> pa.DataType:
        """The type of what is counted, once it is known whether these are bits."""
        before = self._values_before
        if before is None:
            first = next(link for link in self._pending if "counts" in link.needs)
            # Of values that get ids, floats must be whole, unless they become others before.
            ids = is_learned_vocabulary(self.output.chain[-1])
            floats = self.output.numeric or (pt.is_floating(self._value_type) and not ids)
            self._by_bits = floats and isinstance(first, Impute)
        else:
            self._by_bits = before.by_bits
        if self._by_bits or isinstance(self.output.chain[-1], Cross):
            return pa.int64()
        found = self._category_type()
        with naming(self.output.where):
            return found if before is None else common_type(before.type, found)

    @property
    def _value_type(self) -> pa.DataType:
        return pa.float64() if self.output.numeric else value_type(self.types[0])

    def _category_type(self) -> pa.DataType:
        """The type of the values that are counted."""
        with naming(self.output.where):
            return counted_type(category_type(self._value_type))

    def add(self, arrays: Sequence[pa.Array]) -> None:
        """Count rows, given by the arrays of the output's columns.

        Raises:
            UnsupportedTypeError: a value has no id, or is of another type than those of the column.
        """
        with naming(self.output.where):
            self._add([_as_known(array, type_) for array, type_ in zip(arrays, self.types, strict=True)])

    def _add(self, arrays: Sequence[pa.Array]) -> None:
        if isinstance(self.output.chain[-1], Cross):
            assert self.counts is not None
            self.counts.add(_crossed(arrays))
            return
        values, _ = elements(arrays[0])
        if not self.output.numeric:
            self._count(filled(self.links, values)[0], arrays[1:])
            return
        view = numbers_of(values)
        self._look_below(view)
        x = np.empty(len(view))
        view.through(steps_of(self.links), x)
        counting = self.refinement or self.numbers
        assert counting is not None
        counting.add(x)
        self._count(as_arrow(x), arrays[1:])

    def _count(self, values: pa.Array, more: Sequence[pa.Array]) -> None:
        """Count values, or sum their target, with which `more` begins; what decides folds follows."""
        if self.targets is not None:
            hashes = fold_hashes(self.targets.link, more[1:])
            self.targets.add(categories_of(values), more[0], hashes)
        if self.own is not None:
            self._merge_own(self._own.partial(plain_values(values)))
        if self.counts is None:
            return
        if self._by_bits:
            x = numbers_of(values).all()
            values = as_arrow(_ordered_bits(x[np.isfinite(x)]))
        self.counts.add(categories_of(values))

    def _merge_own(self, other: Any) -> None:
        """Merge what an `OwnTransform` has counted of other rows."""
        assert self.own is not None
        self.own = [self._own.merge(self.own[0], other) if self.own else other]

    @property
    def _own(self) -> OwnTransform:
        link = self.output.chain[-1]
        assert isinstance(link, OwnTransform)
        return link

    def _look_below(self, view: NumberView) -> None:
        """Remark numbers that `Log1p` makes NaN of."""
        for place, (link, _) in enumerate(self.links):
            if isinstance(link, Log1p) and not link.signed and "undefined" not in self.remarks:
                x = np.empty(len(view))
                view.through(steps_of(self.links[:place]), x)
                if (x < -1).any():
                    self.remarks.add("undefined")

    def merge(self, other: Learning) -> None:
        """Count what the other has counted, too."""
        self.remarks |= other.remarks
        if self.refinement is not None and other.refinement is not None:
            self.refinement.merge(other.refinement)
        elif self.numbers is not None and other.numbers is not None:
            self.numbers.merge(other.numbers)
        if self.counts is not None and other.counts is not None:
            self.counts.merge(other.counts)
        if self.targets is not None and other.targets is not None:
            self.targets.merge(other.targets)
        if other.own:
            [counted] = other.own
            self._merge_own(counted)

    def recall(self) -> None:
        """Count the rows before the update, too.

        Raises:
            OptionError: another rank knows what was counted of them.
        """
        assert self.known is not None
        before = self.known.counted
        assert before is not None
        if self.numbers is not None and before.numbers is not None:
            self.numbers.merge(before.numbers)
        for counted in before.own or ():
            self._merge_own(deepcopy(counted))  # merging may change it
        if self.counts is not None and before.values is not None:
            with naming(self.output.where):
                self._recall_values(self.counts, before)

    def _recall_values(self, counts: ValueCounts, before: Counted) -> None:
        assert self.known is not None
        assert before.values is not None
        rare = before.values.rare
        if rare is None:
            raise counted_elsewhere(self.output)
        if rare.type == counts.type:
            counts.merge(rare)
        else:
            for number in range(PARTITIONS):
                table = rare.partition(number)
                counts.add_counted(whole(table.column("value")), table.column("count").to_numpy())
            counts.add_counted(pa.nulls(0, counts.type), np.zeros(0, np.int64), rare.missing)
        if is_learned_vocabulary(self.output.chain[-1]):
            numbers = unfilled(self.known.fitted, before)
            values = self.known.fitted.fitted[-1]["vocabulary"].array
            counts.add_counted(values.filter(as_arrow(numbers > 0)), numbers[numbers > 0])

    def decisive(self, counts: ValueCounts) -> list[pa.Table]:
        """Of the counts of some values: those that decide what is learned once all values are counted."""
        values, numbers = counts.kept(max_size=1)  # the one that Impute("most_frequent") looks for
        last = self.output.chain[-1]
        if is_learned_vocabulary(last) and not self._by_bits:
            of = ids_of(last)
            fills = [link for link in self._pending if isinstance(link, Impute) and link.needs]
            # What takes the place of the missing ones may be any value, unless it is the most frequent one.
            if any(self.known is not None or link.strategy != "most_frequent" for link in fills):
                kept, there = counts.kept()
            else:
                kept, there = counts.kept(of.min_count, of.max_size, known=self._known_values())
            if there.any():
                values, numbers = kept.filter(as_arrow(there > 0)), there[there > 0]
        return [pa.table([values, as_arrow(numbers)], ["value", "count"])]

    def _known_values(self) -> pa.Array | None:
        """The values that have ids already."""
        if self.known is None or isinstance(self.output.chain[-1], Keep):
            return None
        return self.known.fitted.fitted[-1]["vocabulary"].array

    def without_values(self) -> Learning:
        """The same without the values counted, and without what it knew before."""
        made = copy(self)
        made.counts, made.learned, made.remarks = None, [*self.learned], {*self.remarks}
        made.known = made.counted = None
        return made

    def part(self) -> Learning:
        """The same, of no rows yet, without what was counted before."""
        made = self.without_values()
        made.numbers, made._refined = None, ()
        made.begin()
        return made

    def finish(self) -> None:
        """Let as many links learn as what was counted allows, or find out what to count again for their quantiles."""
        first = len(self.learned)
        if self.refinement is not None:
            self._refined, self.refinement = (*self._refined, self.refinement), None
        ranges = self._in_doubt()
        if len(ranges):
            if self.known is not None:
                raise inexact_update(self.output, self.accuracy.error)
            self.refinement = Refinement(ranges)
        else:
            self._learn()
            if self.done:
                self.counted = self._counted(first)
            self.numbers, self._refined = None, ()
        self._close_counts()
        self.counts = self.targets = self.own = None

    def _known_numbers(self) -> NumberStatistics | None:
        """What was counted of the numbers, by all scans since a link has learned; None if learned ones stay."""
        numbers = None if self.known is not None and self.known.numbers_stay else self.numbers
        for each in self._refined:
            assert numbers is not None
            try:
                numbers = numbers.refined(each.ranges, each.grid)
            except ValueError as error:
                raise OptionError(
                    f"{self.output.where}: a scan has counted other rows than the one before: give each scan all rows, "
                    "each once."
                ) from error
        return numbers

    def _in_doubt(self) -> U64:
        """The ranges of numbers that another scan is to count, so that quantiles are known: none, if they are."""
        numbers, found, worst = self._known_numbers(), [], 0.0
        if numbers is None or len(self._refined) == self.accuracy.scans:
            return joined([])
        for place, link in enumerate(self._pending, self._first):
            if isinstance(link, QuantileTransform):
                cells = link.in_doubt(numbers)
                found.append(numbers.ranges(cells))
                worst = max(worst, numbers.error(cells))
            try:
                numbers = after(numbers, link, self._estimated(place, numbers))
            except Uncounted:
                break
        return joined(found if worst > self.accuracy.error else [])

    def _estimated(self, place: int, numbers: NumberStatistics) -> Fitted:
        """About what a link will learn of numbers: where values lie among cells, it is the same."""
        link = self.output.chain[place]
        if not link.needs:
            return {}
        if isinstance(link, Impute) and link.strategy == "most_frequent":
            return {"value": self._most_frequent(place)}
        if isinstance(link, (NumberTransform, QuantileTransform)):
            return link.learn(numbers)
        raise Uncounted

    def _counted(self, first: int) -> Counted | None:
        """What an update goes on from; None if nothing can be learned of it without another scan of these rows."""
        once = not any(link.needs for link in self.output.chain[:first])  # one scan was enough
        vocabulary = is_learned_vocabulary(self.output.chain[-1])
        if self.targets is not None or not (once or vocabulary):
            return None
        values, self.counts = self.counts, None  # its files stay
        if values is not None and self.is_whole:
            if vocabulary:
                of = ids_of(self.output.chain[-1])
                every = of.min_count == 1 and of.max_size is None
                values.drop(None if every else self.learned[-1]["vocabulary"].array)
            values.limit(HELD)
        if self.numbers is not None and isinstance(self.numbers.grid, Grid):
            self.numbers.grid.compact()
        return Counted(
            first,
            self.numbers if once else None,
            None if values is None else CountedValues(values.type, self._by_bits, values if self.is_whole else None),
            None if self.own is None else tuple(self.own),
        )

    def close(self) -> None:
        """Remove the temporary files, if there are some."""
        self._close_counts()
        if self.counted is not None and self.counted.values is not None and self.counted.values.rare is not None:
            self.counted.values.rare.close()

    def _close_counts(self) -> None:
        if self.counts is not None:
            self.counts.close()
        if self.targets is not None:
            self.targets.close()

    @property
    def lacking(self) -> int | None:
        """The place of the first link, but for one that learns values, that another scan would have to count for."""
        chain, made = self.output.chain, copy(self)
        made.learned, made.remarks = [*self.learned], set()
        end = len(chain) - is_learned_vocabulary(chain[-1])
        made._learn(end)
        return None if len(made.learned) == end else len(made.learned)

    def _learn(self, until: int | None = None) -> None:
        numbers = self._known_numbers()
        for link in self.output.chain[len(self.learned) : until]:
            try:
                fitted = self._of_link(link, numbers)
            except Uncounted:
                return
            self.learned.append(fitted)
            if numbers is not None:
                made = after(numbers, link, fitted)
                if isinstance(link, Log1p) and made.missing > numbers.missing:
                    self.remarks.add("undefined")
                numbers = made

    def _of_link(self, link: ColumnTransform, numbers: NumberStatistics | None) -> Fitted:
        if self._stays(link):
            return self._as_before(link)
        if isinstance(link, Categorize) and link.values is not None:
            return self._given(link)
        if not link.needs:
            return {}
        if isinstance(link, OwnTransform):
            if self.own is None:
                raise Uncounted
            state = self.own[0] if self.own else link.partial(pa.nulls(0, self._value_type))
            return {"own": finished(self.output.where, link, deepcopy(state))}
        if isinstance(link, TargetEncode):
            if self.targets is None:
                raise Uncounted
            if not self.targets.rows:
                self.remarks.add("no target")
            return self.targets.learned(self.output.name)
        if isinstance(link, Impute):
            return self._imputed(link, numbers)
        if isinstance(link, Keep):
            if self.counts is None:
                raise Uncounted
            return learned_vocabulary(ids_of(link), self.counts, None, None)
        if isinstance(link, (Categorize, Cross)):
            return self._vocabulary(ids_of(link))
        if numbers is None:
            raise Uncounted
        self._remark(numbers, placed=isinstance(link, (Clip, Bucketize)))
        return self._of_numbers(link, numbers)

    def _of_numbers(self, link: ColumnTransform, numbers: NumberStatistics) -> Fitted:
        """What a link learns of numbers, with how far its quantiles may be off."""
        assert isinstance(link, (NumberTransform, QuantileTransform))
        fitted = link.learn(numbers)
        if not isinstance(link, QuantileTransform) or not link.shares:
            return fitted
        error = numbers.error(link.in_doubt(numbers))
        if error > self.accuracy.error:
            self.remarks.add("rough")
        return {**fitted, ERROR: error}

    def _remark(self, numbers: NumberStatistics, placed: bool = False) -> None:
        """Remark what was learned from; `placed`: infinite numbers become others."""
        if not numbers.count:
            self.remarks.add("empty")
        if numbers.infinite and not placed:
            self.remarks.add("infinite")

    def _stays(self, link: ColumnTransform) -> bool:
        """Whether a link keeps what it learned before."""
        if self.known is None:
            return False
        given = isinstance(link, Categorize) and not link.needs
        return given or (self.known.numbers_stay and not is_learned_vocabulary(link))

    def _as_before(self, link: ColumnTransform) -> Fitted:
        assert self.known is not None
        fitted = self.known.fitted.fitted[len(self.learned)]
        if isinstance(link, Impute) and link.needs and self.counts is not None and not self._by_bits:
            self._fill(self.counts, fitted["value"])
        return fitted

    def _vocabulary(self, link: Categorize) -> Fitted:
        if self.counts is None or self._by_bits:
            raise Uncounted
        before = None if self.known is None else self.known.fitted.fitted[-1]
        fitted = learned_vocabulary(link, self.counts, self._filled, before)
        if len(fitted["vocabulary"]) > LARGE:
            self.remarks.add("large")
        if self._filled is None and self.counts.rows == self.counts.missing:
            self.remarks.add("empty")
        return fitted

    def _given(self, link: Categorize) -> Fitted:
        """The vocabulary that is given."""
        assert link.values is not None
        # Unsigned numbers may be beyond int64, in which values are counted.
        type_ = self._value_type if pt.is_uint64(self._value_type) else self._category_type()
        try:
            values = pa.array(list(link.values), type_)
            same = values.to_pylist() == list(link.values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            same = False
        if not same:
            raise OptionError(f"{self.output.where}: {link!r}: expected values of type {type_}, as the column has.")
        fitted: Fitted = {"vocabulary": Vocabulary.of(values)}
        return fitted if link.nulls == "missing" else {**fitted, "null": 0}

    def _imputed(self, link: Impute, numbers: NumberStatistics | None) -> Fitted:
        if link.strategy == "most_frequent":
            fitted: Fitted = {"value": self._most_frequent(len(self.learned))}
        elif numbers is None:
            raise Uncounted
        else:
            fitted = self._of_numbers(link, numbers)
        if numbers is not None:
            self._remark(numbers)
        if self.counts is not None and not self._by_bits:
            self._fill(self.counts, fitted["value"])
        return fitted

    def _most_frequent(self, place: int) -> Any:
        """The most frequent value before a link; zero if there is none."""
        moved = any(isinstance(link, NumberTransform) for link in self.output.chain[self._first : place])
        if self.counts is None or moved:  # values were counted before they became others
            raise Uncounted
        found = self.counts.most_frequent()
        if found is None:
            self.remarks.add("empty")
            return zero_of(self._value_type)
        found = _of_bits(found) if self._by_bits else found
        return float(found) if pt.is_floating(self._value_type) else found

    def _fill(self, counts: ValueCounts, value: Any) -> None:
        """Count the value in place of missing ones, for the vocabulary of what follows."""
        if isinstance(value, float) and not value.is_integer() and counts.missing:
            raise UnsupportedTypeError(
                f"{self.output.where}: the value for missing ones, {value}, cannot be a category, because it is not "
                "whole. Use Bucketize, or Impute a whole number."
            )
        if self._filled is None:
            self._filled = value

    def made(self, dtype: str) -> FittedOutput:
        """The output, fitted."""
        if self.known is not None:
            return replace(self.known.fitted, fitted=tuple(self.learned))
        types, by = self.types[: len(self.output.columns)], self.types[len(self.types) - len(self.output.by) :]
        return FittedOutput(
            self.output, tuple(map(column_type, types)), tuple(self.learned), dtype, tuple(map(column_type, by))
        )


def known_types(output: OutputSpec, types: Mapping[str, pa.DataType]) -> list[pa.DataType]:
    """The types of the columns that an output is fitted on; of those in which all is null, one that it can take."""
    last = output.chain[-1]
    if isinstance(last, Keep):
        return [types[name] for name in output.columns]
    other = pa.float64() if output.numeric else pa.timestamp("us") if isinstance(last, DateParts) else pa.string()
    found = [known_type(types[name], other) for name in output.columns]
    if output.target is None:
        return found
    target = known_type(types[output.target.target], pa.string() if output.target.classes else pa.float64())
    by = [pa.uint64() if name == PLACE else known_type(types[name], pa.string()) for name in output.fold_columns]
    return [*found, target, *by]


def _crossed(arrays: Sequence[pa.Array]) -> pa.Array:
    """The hashes of rows, of which not all columns are missing, as int64."""
    hashes = crossed_hashes(arrays).view(np.int64)
    there = np.zeros(len(hashes), np.bool_)
    for array in arrays:
        there |= np.asarray(plain_values(array).is_valid())
    return as_arrow(hashes[there])


_SIGN = np.int64(2**63 - 1)


def _ordered_bits(x: F64) -> npt.NDArray[np.int64]:
    """Whole numbers in the order of these numbers."""
    bits = (x + 0.0).view(np.int64)  # -0.0 is 0.0
    return np.where(bits < 0, bits ^ _SIGN, bits)


def _of_bits(number: int) -> float:
    bits = np.array([number], np.int64)
    return float(np.where(bits < 0, bits ^ _SIGN, bits).view(np.float64)[0])


def _as_known(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """A column in which all is null, as one of the fitted type."""
    return array.cast(type_) if pt.is_null(value_type(array.type)) and array.type != type_ else array
