"""What one scan of the rows counts, and what the transforms learn of it; mergeable in any order, and picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.preprocess.chains import (
    computed,
    crossed_hashes,
    filled,
    imputed_number,
    plain_values,
)
from torch_dataloader_utils.preprocess.columns import column_type, elements, numbers_of, value_type
from torch_dataloader_utils.preprocess.counts import ValueCounts
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.seen import NumberStatistics, Uncounted
from torch_dataloader_utils.preprocess.spec import OutputSpec
from torch_dataloader_utils.preprocess.transforms import (
    F64,
    Bucketize,
    Categorize,
    ColumnTransform,
    Cross,
    Fitted,
    Impute,
    Links,
    NumberTransform,
)
from torch_dataloader_utils.printing import listed


class Learning:
    """How far the links of one output have learned, and what the present scan counts for the next of them."""

    def __init__(self, output: OutputSpec, types: Sequence[pa.DataType], memory: int) -> None:
        self.output, self.types, self._memory = output, tuple(types), memory
        self.learned: list[Fitted] = []
        self.numbers: NumberStatistics | None = None
        self.counts: ValueCounts | None = None
        self._by_bits = False  # whether numbers are counted by their bits, because they need not be whole
        self._learn()

    @property
    def done(self) -> bool:
        """Whether all links have learned."""
        return len(self.learned) == len(self.output.chain)

    @property
    def links(self) -> Links:
        """The links that have learned, and what."""
        return list(zip(self.output.chain, self.learned, strict=False))

    @property
    def _pending(self) -> Sequence[ColumnTransform]:
        return self.output.chain[len(self.learned) :]

    def begin(self) -> None:
        """Count nothing yet, for a new scan."""
        needs = wanted(self.output.chain, len(self.learned))
        if self.output.numeric:
            self.numbers = NumberStatistics.none(needs)
        if "counts" in needs:
            first = next(link for link in self._pending if "counts" in link.needs)
            self._by_bits = self.output.numeric and isinstance(first, Impute)
            of = pa.int64() if self._by_bits or isinstance(self.output.chain[-1], Cross) else self._value_type
            self.counts = ValueCounts(of, memory=self._memory)

    @property
    def _value_type(self) -> pa.DataType:
        return pa.float64() if self.output.numeric else value_type(self.types[0])

    def add(self, arrays: Sequence[pa.Array]) -> None:
        """Count rows, given by the arrays of the output's columns.

        Raises:
            UnsupportedTypeError: a value has no id.
        """
        if isinstance(self.output.chain[-1], Cross):
            assert self.counts is not None
            self.counts.add(_crossed(arrays))
            return
        values, _ = elements(arrays[0])
        if not self.output.numeric:
            assert self.counts is not None
            self._count(filled(self.links, values)[0])
            return
        view = numbers_of(values)
        x = np.empty(len(view))
        computed(self.links, view, x)
        assert self.numbers is not None
        self.numbers.add(x)
        if self.counts is not None:
            self._count(as_arrow(_ordered_bits(x[~np.isnan(x)])) if self._by_bits else plain_values(as_arrow(x)))

    def _count(self, values: pa.Array) -> None:
        assert self.counts is not None
        try:
            self.counts.add(values)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(
                f"output {self.output.name!r}, column {self.output.columns[0]!r}: {error}"
            ) from error

    def merge(self, other: Learning) -> None:
        """Count what the other has counted, too."""
        if self.numbers is not None and other.numbers is not None:
            self.numbers.merge(other.numbers)
        if self.counts is not None and other.counts is not None:
            self.counts.merge(other.counts)

    def decisive(self, counts: ValueCounts) -> list[pa.Table]:
        """Of the counts of some values: those that decide what is learned once all values are counted."""
        last = self.output.chain[-1]
        of = last.of if isinstance(last, Cross) else last
        values, numbers = counts.kept(max_size=1)  # the one that Impute("most_frequent") looks for
        if isinstance(of, Categorize) and of.values is None and not self._by_bits:
            # The mean or median takes the place of the missing ones: any value may become frequent.
            any_value = any(isinstance(link, Impute) and link.strategy in ("mean", "median") for link in self._pending)
            kept = counts.kept() if any_value else counts.kept(of.min_count, of.max_size)
            values, numbers = kept if len(kept[1]) else (values, numbers)
        return [pa.table([values, as_arrow(numbers)], ["value", "count"])]

    def without_values(self) -> Learning:
        """The same without the values counted."""
        made = copy(self)
        made.counts, made.learned = None, [*self.learned]
        return made

    def finish(self) -> None:
        """Let as many links learn as what was counted allows."""
        self._learn()
        self.close()
        self.numbers = self.counts = None

    def close(self) -> None:
        """Remove the temporary files, if there are some."""
        if self.counts is not None:
            self.counts.close()

    def _learn(self) -> None:
        numbers = self.numbers
        for link in self.output.chain[len(self.learned) :]:
            try:
                fitted = self._of_link(link, numbers)
            except Uncounted:
                return
            self.learned.append(fitted)
            if numbers is not None:
                numbers = after(numbers, link, fitted)

    def _of_link(self, link: ColumnTransform, numbers: NumberStatistics | None) -> Fitted:
        if isinstance(link, Categorize) and link.values is not None:
            return self._given(link)
        if not link.needs:
            return {}
        if isinstance(link, Impute):
            return {"value": self._imputed(link, numbers)}
        if isinstance(link, (Categorize, Cross)):
            if self.counts is None or self._by_bits:
                raise Uncounted
            return _categories(link.of if isinstance(link, Cross) else link, self.counts)
        if numbers is None:
            raise Uncounted
        assert isinstance(link, (NumberTransform, Bucketize))
        return link.learn(numbers)

    def _given(self, link: Categorize) -> Fitted:
        """The vocabulary that is given."""
        assert link.values is not None
        type_ = pa.int64() if self.output.numeric else self._value_type
        try:
            values = plain_values(pa.array(list(link.values), type_))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
            raise OptionError(
                f"output {self.output.name!r}: {link!r}: expected values of type {type_}, as column "
                f"{self.output.columns[0]!r} has: {error}"
            ) from error
        fitted: Fitted = {"vocabulary": Vocabulary(str(values.type), array=values)}
        return fitted if link.nulls == "missing" else {**fitted, "null": 0}

    def _imputed(self, link: Impute, numbers: NumberStatistics | None) -> Any:
        if link.strategy == "most_frequent":
            if self.counts is None:
                raise Uncounted
            found = self.counts.most_frequent()
            if self.output.numeric:
                found = 0.0 if found is None else float(_of_bits(found))
            elif found is None:
                found = _zero(self._value_type)
            else:
                self.counts.fill(found)
            return found
        if numbers is None:
            raise Uncounted
        return numbers.moments().mean if link.strategy == "mean" else numbers.quantiles([0.5])[0]

    def made(self, dtype: str) -> FittedOutput:
        """The output, fitted."""
        return FittedOutput(self.output, tuple(map(column_type, self.types)), tuple(self.learned), dtype)


def after(numbers: NumberStatistics, link: ColumnTransform, fitted: Fitted) -> NumberStatistics:
    """What is known of the numbers that a link makes."""
    if isinstance(link, Impute):
        try:
            return numbers.imputed(imputed_number(link, fitted))
        except Uncounted:
            return NumberStatistics(None, None)
    if isinstance(link, NumberTransform):
        return numbers.mapped(_Applied(link, fitted), link.monotone)
    return numbers


class _Applied:
    """A link with what it learned, as a function that overwrites numbers."""

    def __init__(self, link: NumberTransform, fitted: Fitted) -> None:
        self._link, self._fitted = link, fitted

    def __call__(self, x: F64) -> None:
        with np.errstate(all="ignore"):
            self._link.apply(x, self._fitted)


def wanted(chain: Sequence[ColumnTransform], first: int) -> frozenset[str]:
    """What a scan counts before link `first`, so that it and those behind it learn as much as they can."""
    found: set[str] = set()
    moved = False
    for link in chain[first:]:
        needs = link.needs
        # Behind another transform, sums follow only of a grid of known values.
        found |= {"grid"} if moved and needs & {"moments", "grid"} else set() if moved else needs
        moved = moved or isinstance(link, NumberTransform)
    return frozenset(found)


def most_scans(chain: Sequence[ColumnTransform]) -> tuple[int, list[str]]:
    """The most scans that a chain may need, and for each but the first, why."""
    scans, why = 0, []
    place = next((i for i, link in enumerate(chain) if link.needs), len(chain))
    while place < len(chain):
        scans += 1
        if scans > 1:
            why.append(f"{chain[place]!r} is fitted on what {chain[place - 1]!r} makes")
        known, moved = set(wanted(chain, place)), False
        while place < len(chain) and chain[place].needs <= known:
            link = chain[place]
            if isinstance(link, NumberTransform):
                known &= {"grid"} if link.monotone else set()
                moved = True
            elif isinstance(link, Impute) and moved:
                known = set()  # where the fill lies among the values counted before is not known
            elif isinstance(link, Impute) and any(each.numeric for each in chain):
                known -= link.needs & {"counts"}  # of numbers that need not be whole: no categories
            place += 1
    return scans, why


def _categories(link: Any, counts: ValueCounts) -> Fitted:
    """The vocabulary of ids, and the counts of its values."""
    values, numbers = counts.kept(link.min_count, link.max_size, link.order)
    place = None
    if link.nulls == "category" and counts.missing >= link.min_count:
        # Null comes before values that occur as often as it; in the order of values, before all.
        place = int(np.count_nonzero(numbers > counts.missing)) if link.order == "count" else 0
        if link.max_size is not None and len(values) == link.max_size:
            if place == len(values):
                place = None
            else:
                values, numbers = values[:-1], numbers[:-1]
    fitted = {"vocabulary": Vocabulary(str(values.type), array=values), "counts": numbers}
    return fitted if place is None else {**fitted, "null": place}


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
    bits = x.view(np.int64)
    return np.where(bits < 0, bits ^ _SIGN, bits)


def _of_bits(number: int) -> float:
    bits = np.array([number], np.int64)
    return float(np.where(bits < 0, bits ^ _SIGN, bits).view(np.float64)[0])


def _zero(type_: pa.DataType) -> Any:
    """What stands for missing values of a column that has none."""
    return pa.array([None], pa.null()).cast(type_).fill_null(_ZEROS.get(str(type_), 0))[0].as_py()


_ZEROS: Mapping[str, Any] = {"string": "", "large_string": "", "binary": b"", "large_binary": b"", "bool": False}


class FitScan:
    """One scan of the rows: counts what transforms learn from. Several, of parts of the rows, merge in any order.

    It pickles, with all values that it has counted: those in temporary files are read for that.

    Attributes:
        outputs: what each output has learned, and what is counted for it.
        rows: how many it has counted.
        is_part: whether it knows nothing of outputs that need no more scans, so that all is learned elsewhere.
    """

    def __init__(self, outputs: Sequence[Learning]) -> None:
        self.outputs, self.is_part = tuple(outputs), False
        self.rows = 0
        for output in self.counting.values():
            output.begin()

    @property
    def counting(self) -> dict[int, Learning]:
        """The outputs for which it counts, by their places."""
        return {place: output for place, output in enumerate(self.outputs) if not output.done}

    @property
    def columns(self) -> list[str]:
        """The columns that it reads."""
        return list(dict.fromkeys(name for output in self.counting.values() for name in output.output.columns))

    @property
    def mark(self) -> str:
        """A digest of what it counts: only scans of one mark merge."""
        state = blake2b(digest_size=8)
        for output in self.counting.values():
            known = (output.output, [column_type(type_).text for type_ in output.types], output.learned)
            state.update(repr(known).encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def part(self) -> FitScan:
        """A scan that has counted nothing, for a part of the rows, and knows only what it needs: small to send."""
        made = copy(self)
        made.rows, made.is_part = 0, True
        made.outputs = tuple(output.without_values() for output in self.counting.values())
        for output in made.outputs:
            output.begin()
        return made

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows, which have at least `columns`.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: a column has values of another kind than the schema said, or some that have no id.
        """
        wanted = self.columns
        missing = [name for name in wanted if name not in rows.schema.names]
        if missing:
            raise ColumnNotFoundError(
                f"these rows have no column {listed(map(repr, missing))}: expected those of `columns`, {wanted}; the "
                f"rows have {rows.schema.names}."
            )
        self.rows += rows.num_rows
        if not rows.num_rows:
            return
        columns = {name: whole(rows.column(name)) for name in wanted}
        for output in self.counting.values():
            output.add([columns[name] for name in output.output.columns])

    def merge(self, other: FitScan) -> None:
        """Count what a scan of other rows has counted, too; that one stays as it is.

        Raises:
            OptionError: it counts something else: the spec, the schema or the number of the scan is another one.
        """
        if self.mark != other.mark:
            raise OptionError(
                "scans that count different things cannot be merged: make each by part() of one scan, or by scan() of "
                "one spec and schema; and finish() only the one in which all are merged."
            )
        self.rows += other.rows
        for own, others in zip(self.counting.values(), other.counting.values(), strict=True):
            own.merge(others)

    def finish(self) -> FitScan | None:
        """Let transforms learn; returns the scan that is needed next, or None.

        Raises:
            EmptyDatasetError: there are no rows.
        """
        if self.counting and not self.rows:
            raise EmptyDatasetError("fit: there are no rows to learn from.")
        for output in self.counting.values():
            output.finish()
        return FitScan(self.outputs) if self.counting else None

    def close(self) -> None:
        """Remove the temporary files, if there are some: nothing more can be learned then."""
        for output in self.outputs:
            output.close()


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column
