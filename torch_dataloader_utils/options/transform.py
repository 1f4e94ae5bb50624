"""`transform=`: a function of the rows that are read, which runs where they are decoded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.options.nulls import Fill
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Value, flag, one_of, plain, setting

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

    @property
    def grew_from(self) -> Sequence[str]:
        """The marks of those that it has grown from."""
        return ()

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


def _on_error(name: str, given: Any) -> Any:
    """A word, or what fills the places of rows that fail."""
    if isinstance(given, Fill):
        return given
    if isinstance(content := plain(given), Mapping) and "kind" in content:
        return Fill.from_dict(content)
    if given not in ("raise", "skip"):
        raise OptionError(f"{name}={shown(given)}: expected 'raise', 'skip' or Fill(...).")
    return given


def _most(name: str, given: Any) -> Any:
    """A share of rows, or a number of them."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    if not (whole and given >= 0) and not (isinstance(given, float) and 0 <= given <= 1):
        raise OptionError(
            f"{name}={shown(given)}: expected a share of rows from 0.0 to 1.0, or a number of rows as an int."
        )
    return given


def takes_rng(function: Any) -> bool:
    """Whether a function is called with a generator, too: its second argument is called `rng`, or has no default."""
    second = _second_argument(function)
    return second is not None and (second.name == "rng" or second.default is inspect.Parameter.empty)


def _second_argument(function: Any) -> inspect.Parameter | None:
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return None
    by_place = [one for one in given if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return by_place[1] if len(by_place) > 1 else None


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
    format: Literal["arrow", "numpy", "torch", "pandas", "polars", "rows"] = setting(
        default="arrow",
        check=one_of("arrow", "numpy", "torch", "pandas", "polars", "rows"),
        doc="the form of rows in it: record batches, dicts of arrays or tensors, DataFrames, or a dict for each row",
    )
    random: bool = setting(
        default=False,
        check=flag,
        doc="whether it uses random numbers: it is then called as f(rows, rng), with a `RowGenerator`",
    )
    on_error: Literal["raise", "skip"] | Fill | Mapping[str, Any] = setting(
        default="raise",
        check=_on_error,
        doc='a row for which it fails: an error, or "skip" or Fill(...) goes on without it, marked under `valid_key`',
    )
    max_errors: float = setting(
        default=0.01,
        check=_most,
        doc="how many rows may fail at most: a share of the rows read (at least 10), or a number",
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        if self.on_error == "raise" and "max_errors" in self.given():
            raise OptionError(
                f"Transform: max_errors={self.max_errors!r} with on_error='raise', which raises for the first row.",
                remedies=[
                    use(transform=self.replace(on_error="skip")),
                    use(transform=Transform(**{**vars(self), "max_errors": 0.01})),
                ],
            )
        taking = [function for function in self.functions if takes_rng(function)]
        if self.random:
            self._check_random(taking)
            return
        for function in taking:
            second = _second_argument(function)
            if second is not None and second.name == "rng" and second.default is inspect.Parameter.empty:
                raise OptionError(
                    f"Transform: {shown(function)} draws, as f(rows, rng).",
                    remedies=[use(transform=Transform(**{**vars(self), "random": True}))],
                )

    def _check_random(self, taking: Sequence[Any]) -> None:
        """Check that it can draw."""
        if self.rows == "any":
            raise OptionError(
                "Transform: random=True with rows='any': draws belong to rows of files, and what rows it is given "
                "depends on a function before it. Draw in a transform that keeps the number of rows.",
                remedies=[use(transform=Transform(**{**vars(self), "rows": "same"}))],
            )
        if not taking:
            raise OptionError(
                f"Transform: random=True, but {shown(self.function)} takes rows alone: expected f(rows, rng).",
                remedies=[use(transform=Transform(**{**vars(self), "random": False}))],
            )

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Those that are called one after another."""
        return self.function if isinstance(self.function, tuple) else (self.function,)


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
    functions = tuple(map(_frozen, made.functions))
    return {
        "transform": functions if len(functions) > 1 else functions[0],
        "transform_rows": made.rows,
        "transform_schema": made.schema,
        "transform_format": made.format,
        "transform_random": made.random,
        "transform_on_error": made.on_error,
        "transform_max_errors": made.max_errors,
    }


def transform_of(held: Any) -> Any:
    """The `transform` of which the options of reading hold what `of_transform` returned."""
    if held.transform is None:
        return None
    made = Transform(
        held.transform, **{name: getattr(held, f"transform_{name}") for name in list(Transform.fields)[1:]}
    )
    return made if set(made.given()) != {"function"} else made.function
