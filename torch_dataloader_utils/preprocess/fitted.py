"""What was fitted: for each output its chain, the kinds of its columns and what each link learned. Needs no pyarrow."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import UnknownValueError
from torch_dataloader_utils.preprocess.hashed import nanoseconds
from torch_dataloader_utils.preprocess.kinds import ColumnKind, ColumnType
from torch_dataloader_utils.preprocess.own import OwnTransform
from torch_dataloader_utils.preprocess.spec import OutputSpec, names_of
from torch_dataloader_utils.preprocess.transforms import (
    PARTS,
    Bucketize,
    Categorize,
    ColumnTransform,
    Cross,
    DateParts,
    Fitted,
    Hash,
    Keep,
    Links,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.convert.ids import IdTable


_LOG = logging.getLogger("torch_dataloader_utils")
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Vocabulary:
    """The values of ids, in their order: a list for one row, an Arrow array for many, each made once if it is needed.

    Args:
        type: the name of the values' Arrow type.
        values: the values, distinct and without null.
        array: the same as an Arrow array.
    """

    def __init__(self, type: str, values: list[Any] | None = None, array: pa.Array | None = None) -> None:
        self.type = type
        self._values, self._array = values, array

    @classmethod
    def of(cls, array: pa.Array) -> Vocabulary:
        """Of values of any width and unit: one type stands for all of a kind.

        Raises:
            pyarrow.ArrowInvalid: a float is not whole.
        """
        from torch_dataloader_utils.preprocess.columns import widened

        values = widened(array)
        return cls(str(values.type), array=values)

    def __len__(self) -> int:
        return len(self._values if self._values is not None else self.array)

    @property
    def in_arrow(self) -> bool:
        """Whether there is an Arrow array already."""
        return self._array is not None

    @property
    def values(self) -> list[Any]:
        """The values as Python objects."""
        if self._values is None:
            self._values = self.array.to_pylist()
        return self._values

    @property
    def keys(self) -> list[Any]:
        """What one value is looked up by: itself, but nanoseconds since 1970 for timestamps.

        Of two datetimes an hour apart, before and after clocks are turned back, Python says that they are equal.
        """
        if not self.type.startswith("timestamp"):
            return self.values
        if self._array is None:
            return [nanoseconds(value) for value in self.values]
        unit = _NANOSECONDS[self.array.type.unit]
        return [number * unit for number in self.array.view("int64").to_pylist()]

    @property
    def array(self) -> pa.Array:
        """The values as an Arrow array."""
        if self._array is None:
            import pyarrow as pa

            from torch_dataloader_utils.preprocess.columns import type_named

            self._array = pa.array(self._values, type_named(self.type))
        return self._array

    @cached_property
    def table(self) -> IdTable:
        """The places of values."""
        from torch_dataloader_utils.convert.ids import IdTable

        return IdTable(self.array)

    def __reduce__(self) -> tuple[Any, ...]:
        held = (self.type, None if self._array is not None else self._values, self._array)
        # Other processes of this machine get a table that was built.
        return (Vocabulary, held, {"table": self.table}) if "table" in vars(self) else (Vocabulary, held)


@dataclass(frozen=True)
class FittedOutput:
    """An output with what its chain has learned; picklable.

    Attributes:
        output: its columns and chain.
        types: of its columns, as they were fitted.
        fitted: what each link has learned.
        dtype: of computed numbers, "float32" or "float64".
        fold_types: of the columns whose values decide a row's fold.
        training: whether targets are encoded without the rows of a row's own fold.
    """

    output: OutputSpec
    types: tuple[ColumnType, ...]
    fitted: tuple[Fitted, ...]
    dtype: str
    fold_types: tuple[ColumnType, ...] = ()
    training: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns that it becomes."""
        return names_of(self.output, self.fitted[-1].get("classes", ()))

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return self.output.columns + (self.output.fold_columns if self.training else ())

    @property
    def inputs(self) -> dict[str, ColumnType]:
        """The types of its columns, and of those that decide folds."""
        return dict(zip(self.output.columns + self.output.by, self.types + self.fold_types, strict=True))

    @property
    def last(self) -> ColumnTransform:
        """The link that ends the chain."""
        return self.output.chain[-1]

    @property
    def computed(self) -> bool:
        """Whether its values are computed: numbers, ids or parts, and none of the column itself."""
        return (self.output.numeric or self.last.ends) and not isinstance(self.last, (Keep, OwnTransform))

    @property
    def kinds(self) -> list[ColumnKind]:
        """The kinds of its columns."""
        return [type_.kind for type_ in self.types]

    @property
    def links(self) -> Links:
        """The links before ids are made, with what they learned."""
        pairs = list(zip(self.output.chain, self.fitted, strict=True))
        return pairs[:-1] if self.last.ends else pairs

    @property
    def categories(self) -> Categorize | None:
        """What makes ids by a vocabulary, if something does."""
        of = self.last.of if isinstance(self.last, Cross) else self.last
        return of if isinstance(of, Categorize) else None

    @cached_property
    def encoding(self) -> npt.NDArray[Any]:
        """What its target encoding makes of categories: [values + 2, 1 + folds, outputs], of the outputs' dtype."""
        with np.errstate(over="ignore"):
            made: npt.NDArray[Any] = self.fitted[-1]["encoding"].astype(self.dtype)
        if np.isinf(made).any():
            warn_of_infinities(self.output.where, self.dtype)
        return made

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of ids of each output that holds ids."""
        last, fitted, name = self.last, self.fitted[-1], self.output.name
        if isinstance(last, Bucketize):
            return {name: len(last.bounds_of(fitted)) + 2}
        if isinstance(last, DateParts):
            parts = [] if last.cyclic else [part for part in last.parts if part != "year"]
            return {f"{name}_{part}": PARTS[part][1] + 1 for part in parts}
        of = last.of if isinstance(last, Cross) else last
        if isinstance(of, Hash):
            return {name: of.n}
        if isinstance(of, Categorize):
            return {name: 1 + of.unknown_ids + len(fitted["vocabulary"]) + ("null" in fitted)}
        return {}


@lru_cache(maxsize=1024)  # once, not for every block
def warn_of_infinities(where: str, dtype: str) -> None:
    """Warn that numbers of an output do not fit its dtype."""
    _LOG.warning(
        "%s: numbers beyond the range of %s become infinite. Clip or Log1p makes them smaller, or use "
        'Preprocess(..., dtype="float64").',
        where,
        dtype,
    )


def id_of(part: str) -> int:
    """What is added to a part of a time to make an id of it: those that begin with 0 begin with 1."""
    return 1 if part != "year" and PARTS[part][0] == 0 else 0


def unknown_value(output: str, value: Any, known: int) -> UnknownValueError:
    """The error for a value that is not in the vocabulary."""
    return UnknownValueError(
        f"output {output!r}: the value {value!r} is not among the {known:,} that were fitted. "
        "Categorize(unknown='id') gives unknown values an id."
    )
