"""`transform=`: a function of the rows that are read, which runs where they are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Value, one_of, setting

# A column that no file can name, and that a transform may read: the hash of each row's place, uint64.
PLACE = "\0place"


@dataclass(frozen=True)
class RowsRead:
    """Which rows are read.

    Attributes:
        files: a hash of each file's path and size -> the hash of its name, by which its rows have their places; 0 if
            they have none.
        chosen: the filter and the subset, as text; "" for all rows.
    """

    files: Mapping[int, int]
    chosen: str


class DeclaredTransform:
    """A transform that says which columns it reads, and by what states and ranks tell it from another.

    Called, it makes a record batch of one. It may be the first of several.
    """

    @property
    def reads(self) -> Sequence[str]:
        """The columns that it reads, `PLACE` among them; others are not decoded."""
        raise NotImplementedError

    @property
    def encoded(self) -> Sequence[str]:
        """Those that it takes as dictionaries, too, as Parquet stores them."""
        return ()

    @property
    def made(self) -> Sequence[str]:
        """Columns that it has made of new memory, which nothing else refers to: batches may be views of it."""
        return ()

    @property
    def mark(self) -> str:
        """A text that another one has if it makes the same of rows."""
        raise NotImplementedError

    def meet(self, rows: Callable[[], RowsRead], name: str) -> None:
        """Log what is odd about transforming rows, once for a loader.

        Args:
            rows: tells which they are, from the names of all files.
            name: of the data.
        """

    def prepare(self) -> None:
        """Make what worker processes share, so that each of them gets it made."""

    def frozen(self) -> DeclaredTransform:
        """What a loader keeps of it: what it does does not change any more."""
        return self

    def __call__(self, rows: Any) -> Any:
        """What becomes of rows."""
        raise NotImplementedError


def _frozen(function: Any) -> Any:
    return function.frozen() if isinstance(function, DeclaredTransform) else function


def _functions(name: str, value: Any) -> Any:
    """A function, or several that are called one after another."""
    several = value if type(value) is tuple else (value,)
    if not several or not all(map(callable, several)):
        raise OptionError(f"{name}={shown(value)}: expected a function of rows, or a list of such functions.")
    return several if len(several) > 1 else several[0]


class Transform(Value):
    """A function of the rows of each block as they are read, and what is known of what it returns.

    Raises:
        OptionError: a field cannot have this value.
    """

    function: Callable[..., Any] | Sequence[Callable[..., Any]] = setting(
        check=_functions, doc="the function, or a list of functions called one after another", kw_only=False
    )
    rows: Literal["same", "any"] = setting(
        default="same", check=one_of("same", "any"), doc='"any" if it may change the number of rows'
    )
    schema: Any = setting(
        default=None, doc="the pyarrow.Schema of what it returns; None calls it once on an empty batch"
    )
    format: Literal["arrow", "numpy", "torch", "pandas", "polars"] = setting(
        default="arrow",
        check=one_of("arrow", "numpy", "torch", "pandas", "polars"),
        doc="the form of rows in it: record batches, dicts of arrays or tensors, DataFrames",
    )


TransformLike: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]] | Transform | Mapping[str, Any]


def of_transform(name: str, given: Any) -> dict[str, Any]:
    """What the options of reading hold for a `transform`.

    Raises:
        OptionError: it is none.
    """
    if given is None:
        return {"transform": None}
    made = given if isinstance(given, Transform) else Transform.of(given) if isinstance(given, Mapping) else None
    if made is None:
        if not callable(given) and not isinstance(given, (list, tuple)):
            raise OptionError(f"{name}={shown(given)}: expected a function, a list of functions or Transform(...).")
        made = Transform(given)
    several = made.function if isinstance(made.function, tuple) else (made.function,)
    functions = tuple(map(_frozen, several))
    return {
        "transform": functions if len(functions) > 1 else functions[0],
        "transform_rows": made.rows,
        "transform_schema": made.schema,
        "transform_format": made.format,
    }


def transform_of(held: Any) -> Any:
    """The `transform` of which the options of reading hold what `of_transform` returned."""
    if held.transform is None:
        return None
    made = Transform(
        held.transform, rows=held.transform_rows, schema=held.transform_schema, format=held.transform_format
    )
    return made if set(made.given()) != {"function"} else made.function
