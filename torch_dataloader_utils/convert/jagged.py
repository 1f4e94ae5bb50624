"""Checks `jagged=`: columns of lists that a batch holds one after another, as TorchRec's KeyedJaggedTensor does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.convert.dtypes import with_cast
from torch_dataloader_utils.convert.leaves import ListLeaf
from torch_dataloader_utils.convert.meaning import unlike
from torch_dataloader_utils.convert.plan import ColumnPlan
from torch_dataloader_utils.errors import OptionError, use

Jagged = Mapping[str, tuple[str, ...]]  # target key -> source keys


def checked_jagged(jagged: Mapping[str, Sequence[str]], plans: Sequence[ColumnPlan], casts: Any = None) -> Jagged:
    """The targets with their sources.

    Args:
        jagged: as given.
        plans: of all columns.
        casts: `dtypes=`, as given.

    Raises:
        OptionError: a source is not a column of lists, has another dtype or meaning than the others, or another target
            as well.
    """
    lists = {plan.key: plan.leaf for plan in plans if isinstance(plan.leaf, ListLeaf) and plan.nulls != "mask"}
    taken: set[str] = set()
    for target, sources in jagged.items():
        if not sources:
            raise OptionError(f"jagged={{{target!r}: []}}: expected a list of at least one column.")
        for source in sources:
            if source not in lists:
                there = f"which are {list(lists)}" if lists else "but none is read (see columns=)"
                raise OptionError(
                    f"jagged={{{target!r}: ...}} names {source!r}: expected columns of lists of varying length, of "
                    f"numbers, without a mask, {there}."
                )
            if source in taken:
                raise OptionError(f"jagged={{{target!r}: ...}} names {source!r} a second time.")
            taken.add(source)
        dtypes = {source: str(lists[source].element.dtype) for source in sources}
        if len(set(dtypes.values())) != 1:
            raise OptionError(
                f"jagged={{{target!r}: ...}}: expected columns of one dtype, got {dtypes}: make them equal with "
                "dtypes=."
            )
        texts = unlike({plan.key: plan.meaning for plan in plans if plan.key in sources})
        if texts:
            raise OptionError(
                f"jagged={{{target!r}: ...}}: the numbers of its columns stand for different things: {texts}. Make "
                "them alike with schema= or in transform.",
                remedies=[use("takes them as plain numbers", dtypes=with_cast(casts, **dtypes))],
            )
    return {target: tuple(sources) for target, sources in jagged.items()}


def without_null_lists(plans: Sequence[ColumnPlan], jagged: Jagged) -> tuple[ColumnPlan, ...]:
    """The plans, in which a null list of a source is an empty one, unless its row is left out."""
    sources = {source for keys in jagged.values() for source in keys}
    return tuple(
        replace(plan, leaf=replace(plan.leaf, layout="ragged", null_is_empty=plan.nulls != "drop"))
        if plan.key in sources and isinstance(plan.leaf, ListLeaf)
        else plan
        for plan in plans
    )
