"""Strings, bytes or ints to codes: the index of each value in the column's vocabulary, without an object per row.

A column's vocabulary is given, or learned by the row count scan before the first block is read. For blocks that are
read as dictionaries, only the dictionary is looked up; it differs from row group to row group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.buffers import Origin, is_binary, plain, plain_chunks, valid_rows
from torch_dataloader_utils.convert.columns import Array, Dense
from torch_dataloader_utils.convert.ids import MISSING, UNKNOWN, IdTable
from torch_dataloader_utils.errors import OptionError, Remedy, UnknownValueError
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.rows import I64


@dataclass(frozen=True, slots=True)
class CodesLeaf:
    """One code per row: `Dense` int64 [n].

    Attributes:
        key: the column's output key, for errors.
        type: Arrow type of the values without encodings.
        steps: convert the column's own type to `type`.
        vocabulary: values of `type`, each once, without null; None until it is learned.
        fill: the value of the vocabulary that replaces nulls; None: `blank` does.
        blank: the code of nulls.
        unknown: the code of values outside of the vocabulary; None: they are errors.
        collected: whether a scan found the vocabulary.
        extends: whether others may be put behind its values: then codes that there are keep their meaning.
        ways: the remedies of that error.
        ids: the places of values in the vocabulary.
    """

    key: str
    type: pa.DataType
    steps: tuple[str, ...]
    vocabulary: pa.Array | None = None
    fill: Any = None
    blank: int = 0
    unknown: int | None = None
    collected: bool = False
    extends: bool = False
    ways: tuple[Remedy, ...] = field(default=(), compare=False, repr=False)
    ids: IdTable | None = field(default=None, compare=False, repr=False)

    holds_null = False  # every code stands for a value

    def __post_init__(self) -> None:
        # `replace` takes the table along, which large vocabularies take seconds to build.
        if self.vocabulary is not None and (self.ids is None or self.ids.values is not self.vocabulary):
            object.__setattr__(self, "ids", IdTable(self.vocabulary))

    @property
    def kind(self) -> type:
        """The type of its values in Python."""
        return int if pa.types.is_integer(self.type) else bytes if is_binary(self.type) else str

    @property
    def by_dictionary(self) -> bool:
        """Whether the column is read as dictionary and indices."""
        return self.steps[:1] == ("dictionary",)

    def prepare(self) -> None:
        """Build the table of the vocabulary."""
        if self.ids is not None:
            self.ids.build()

    def convert(self, chunks: Sequence[pa.Array], origin: Origin) -> tuple[Dense, Array | None]:
        """Codes [n], and which rows are not null.

        Raises:
            UnknownValueError: a value is not in the vocabulary.
        """
        codes = self._places(chunks)
        if not len(codes) or codes.min() >= 0:
            return Dense(codes), None
        missing, unknown = codes == MISSING, codes == UNKNOWN
        if unknown.any():
            if self.unknown is None:
                raise self._unknown(chunks, int(np.argmax(unknown)), origin.where)
            codes[unknown] = self.unknown
        if not missing.any():
            return Dense(codes), None
        codes[missing] = self._blank()
        return Dense(codes), ~missing

    def valid(self, chunks: Sequence[pa.Array]) -> Array | None:
        """Which values are not null."""
        return valid_rows([self._with_nulls(chunk) for chunk in chunks])

    def distinct(self, chunks: Sequence[pa.Array]) -> pa.Array:
        """The values of `chunks` without null, each at most once per chunk."""
        if self.by_dictionary:
            # Words of large text are small ones.
            values = [plain(chunk.unique(), self.steps).cast(self.type) for chunk in chunks]
        else:
            values = [chunk.unique() for chunk in plain_chunks(chunks, self.steps)]
        return pa.concat_arrays([pa.array([], self.type), *(part.drop_null() for part in values)])

    def learned(self, values: pa.Array) -> CodesLeaf:
        """The leaf whose vocabulary is `values` and the fill value, sorted (by code point, or by byte)."""
        if self.fill is not None:
            values = pa.concat_arrays([values, pa.array([self.fill], self.type)])
        values = values.unique()
        return replace(self, vocabulary=values.take(pc.sort_indices(values)), collected=True)

    def extended(self, values: pa.Array) -> CodesLeaf:
        """The leaf whose vocabulary is `values`, and behind them those of its own that are not among them."""
        return replace(self, vocabulary=pa.concat_arrays([values, self.vocabulary]).unique())

    def report(self) -> dict[str, Any]:
        """As `Leaf`; `codes` is the number of codes."""
        size = None if self.vocabulary is None else len(self.vocabulary)
        return {"kind": "dense", "dtype": "int64", "shape": "[B]", "codes": size}

    def _places(self, chunks: Sequence[pa.Array]) -> I64:
        """Each value's index in the vocabulary, int64 [n] in memory of our own, or `MISSING` or `UNKNOWN`."""
        assert self.ids is not None
        parts = [np.empty(0, np.int64), *map(self.ids.lookup, chunks)]
        return parts[-1] if len(parts) == 2 else np.concatenate(parts)

    def _with_nulls(self, chunk: pa.Array) -> pa.Array:
        """An array that is null where the chunk is."""
        if self.by_dictionary and not chunk.dictionary.null_count:
            return chunk.indices
        return plain(chunk, self.steps)

    def _blank(self) -> int:
        """The code of a null."""
        if self.fill is not None:
            assert self.ids is not None
            return int(self.ids.lookup(pa.array([self.fill], self.type))[0])
        return self.blank

    def _unknown(self, chunks: Sequence[pa.Array], row: int, where: str) -> UnknownValueError:
        value = pa.chunked_array(plain_chunks(chunks, self.steps), type=self.type)[row].as_py()
        size = 0 if self.vocabulary is None else len(self.vocabulary)
        return UnknownValueError(
            f"column {self.key!r} has the value {value!r} in {where}, at row {row} of those read, which is not among "
            f"the {size} values of its vocabulary. Add it to the values of Codes(...).",
            remedies=self.ways,
        )


def given_vocabulary(key: str, type_: pa.DataType, given: Iterable[Any]) -> pa.Array:
    """The vocabulary that `Codes` gives for a column, in the order given.

    Raises:
        OptionError: a value is of another type, is null or is given twice.
    """
    values = list(given)
    try:
        vocabulary = pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise OptionError(f"Codes([...]) for column {key!r}: expected values of type {type_}: {error}") from error
    if vocabulary.null_count:
        raise OptionError(
            f"Codes([...]) for column {key!r} holds a null: leave it out; nulls={{{key!r}: ...}} handles nulls."
        )
    if len(vocabulary.unique()) != len(vocabulary):
        counts = vocabulary.value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
        raise OptionError(f"Codes([...]) for column {key!r} holds {twice!r} more than once: list each value once.")
    return vocabulary


def with_fill(leaf: CodesLeaf, value: Any) -> CodesLeaf:
    """The leaf that gives nulls the code `value`, or the code of the value `value`.

    Raises:
        OptionError: it is neither a code nor a value of the column's type, or is not in the given vocabulary.
    """
    code = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if code and leaf.kind is not int and -(2**63) <= value < 2**63:
        return replace(leaf, blank=int(value))
    if not isinstance(value, leaf.kind) or isinstance(value, bool):
        codes = "" if leaf.kind is int else ", or a code (int64)"
        raise OptionError(
            f"Fill({shown(value)}) for column {leaf.key!r}: expected a value ({leaf.kind.__name__}){codes}."
        )
    if leaf.vocabulary is not None and value not in leaf.vocabulary.to_pylist():
        raise OptionError(f"Fill({shown(value)}) for column {leaf.key!r}: Codes([...]) has no such value.")
    return replace(leaf, fill=value)
