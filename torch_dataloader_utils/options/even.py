"""`even=`: how all ranks get equal steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.values import Value, maybe, one_of, setting, whole

EVEN = ("none", "drop", "pad", "sync")


class Sync(Value):
    """All ranks stop with the first one whose rows end: they ask each other now and then, and drop the surplus.

    Raises:
        OptionError: `every` is no whole number of at least 1.
    """

    every: int = setting(default=16, check=whole(1), doc="the steps between two synchronisations", kw_only=False)


EvenLike: TypeAlias = Literal["none", "drop", "pad", "sync"] | Sync | Mapping[str, Any]
_even = maybe(one_of(*EVEN))


def of_even(name: str, given: Any) -> dict[str, Any]:
    """What the options of ranks hold for an `even`.

    Raises:
        OptionError: it is none.
    """
    if isinstance(given, (Sync, Mapping)):
        return {"even": "sync", "sync_every": Sync.of(given).every}
    return {"even": _even(name, given)}


def even_of(held: Any) -> str | Sync | None:
    """The `even` of which the options of ranks hold what `of_even` returned."""
    given: str | None = held.even
    made = Sync(held.sync_every) if given == "sync" else None
    return made if made is not None and made.given() else given
