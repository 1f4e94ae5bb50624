"""Transforms of your own, at the end of a chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.errors import OptionError, SchemaMismatchError
from torch_dataloader_utils.preprocess.transforms import ColumnTransform
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Check, values

if TYPE_CHECKING:
    import pyarrow as pa

_any = values("anything", lambda value: True)


class OwnTransform(ColumnTransform):
    """A transform of your own: subclass it, and override `apply` and `output`; to learn, also the other three.

    It ends a chain. Its fields, if it has any, are declared by `setting`. `testing.check_transform` checks that what it
    learns does not depend on how rows are cut and ordered.

    Example:
        ```python
        class Shifted(OwnTransform):
            def partial(self, values):
                return pc.max(values).as_py() or 0.0

            def merge(self, one, other):
                return max(one, other)

            def finish(self, state):
                return {"most": state}

            def apply(self, values, learned):
                return pc.subtract(values, learned["most"])

            def output(self, type):
                return type
        ```
    """

    ends = True
    numeric = False

    @property
    def needs(self) -> frozenset[str]:
        """Partials, if it makes some."""
        return frozenset() if type(self).partial is OwnTransform.partial else frozenset({"own"})

    @property
    def learned(self) -> Mapping[str, Check]:
        """See `ColumnTransform`."""
        return {"own": _any} if self.needs else {}

    def partial(self, values: pa.Array) -> Any:
        """What is counted of some values: anything that pickles. Plain values, which JSON holds, are saved for updates.

        Args:
            values: of the column, without encodings, with null for NaN; in lists, their elements. Behind transforms of
                numbers, float64. There may be none.
        """
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """What is counted of the values of both, in any order; neither is used again."""
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        """What is learned of all values: plain values that JSON holds."""
        raise NotImplementedError

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        """What becomes of values, as many, each on its own.

        Args:
            values: as of `partial`.
            learned: what `finish` returned; None if it learns nothing.
        """
        raise NotImplementedError

    def output(self, type: pa.DataType) -> pa.DataType:
        """The type of what `apply` returns for values of a type."""
        raise NotImplementedError


def is_plain(value: Any) -> bool:
    """Whether JSON holds a value as it is."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def finished(where: str, link: OwnTransform, state: Any) -> Any:
    """What a transform learned, checked; `where` names its output.

    Raises:
        OptionError: it is not plain.
    """
    found = link.finish(state)
    if is_plain(found):
        return found
    raise OptionError(
        f"{where}: {link!r}: finish() returned {shown(found)}: expected dicts with names, lists, texts, whole and "
        "finite numbers, bools and None."
    )


def applied(link: OwnTransform, learned: Any, given: pa.Array) -> pa.Array:
    """What a transform makes of values, checked.

    Raises:
        SchemaMismatchError: it has another type or number of values than it should.
    """
    made = link.apply(given, learned)
    expected = link.output(given.type)
    if getattr(made, "type", None) != expected or len(made) != len(given):
        kind = getattr(made, "type", type(made).__name__)
        size = f" of {len(made)} values" if hasattr(made, "__len__") else ""
        raise SchemaMismatchError(
            f"{link!r}: apply() returned {kind}{size}: expected an Arrow array of type {expected}, as output() says, "
            f"of {len(given)} values."
        )
    return made


def of_one(link: OwnTransform, learned: Any, type_: str) -> Callable[[Any], Any]:
    """The function of one value of the type with this name."""
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.columns import type_named

    kind = type_named(type_)
    return lambda value: applied(link, learned, pa.array([value], kind, from_pandas=True))[0].as_py()
