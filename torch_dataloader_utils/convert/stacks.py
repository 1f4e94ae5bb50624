"""Stacks (`stack=`): columns of one number per row, all of one dtype, side by side in one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_dataloader_utils.convert.codes import CodesLeaf
from torch_dataloader_utils.convert.columns import Column, Dense, Memory, array_in
from torch_dataloader_utils.convert.dtypes import with_cast
from torch_dataloader_utils.convert.leaves import ScalarLeaf
from torch_dataloader_utils.convert.meaning import unlike
from torch_dataloader_utils.convert.plan import ColumnPlan
from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.kernels import stack


def stacked(columns: Sequence[Column], memory: Memory | None = None) -> Dense:
    """The columns, each [n] of the same dtype, side by side: [n, k], in `memory`, by default fresh."""
    arrays = [np.ascontiguousarray(column.array) for column in columns if isinstance(column, Dense)]
    out = array_in(memory, len(arrays[0]), np.empty((0, len(arrays)), arrays[0].dtype))
    stack(arrays, out)
    return Dense(out)


def check_stack(target: str, sources: Sequence[str], plans: Sequence[ColumnPlan], casts: Any = None) -> tuple[str, ...]:
    """The sources, checked to be columns of one number per row, all of the same dtype and meaning.

    Args:
        target: the key of the stack.
        sources: the keys of its columns.
        plans: of all columns.
        casts: `dtypes=`, as given.

    Raises:
        OptionError: they are not.
    """
    leaves = {plan.key: plan.leaf for plan in plans}
    if not sources or isinstance(sources, str):
        raise OptionError(f"stack={{{target!r}: {sources!r}}}: expected a list of at least one column.")
    for source in sources:
        if source not in leaves:
            raise OptionError(
                f"stack={{{target!r}: ...}} names {source!r}: expected one of the columns {list(leaves)}."
            )
        if not isinstance(leaves[source], (ScalarLeaf, CodesLeaf)):
            raise OptionError(f"stack={{{target!r}: ...}} names {source!r}: expected columns of one number per row.")
    dtypes = {source: leaves[source].report()["dtype"] for source in sources}
    if len(set(dtypes.values())) > 1:
        raise OptionError(
            f"stack={{{target!r}: ...}} has columns of unequal dtypes {dtypes}: make them equal, such as by "
            f"dtypes={{{target!r}: 'float32'}}."
        )
    meanings = {plan.key: plan.meaning for plan in plans}
    texts = unlike({source: meanings[source] for source in sources})
    if texts:
        raise OptionError(
            f"stack={{{target!r}: ...}} has columns whose numbers stand for different things: {texts}. Make them alike "
            "with schema= or in transform.",
            remedies=[use("takes them as plain numbers", dtypes=with_cast(casts, **{target: dtypes[sources[0]]}))],
        )
    return tuple(sources)


def stacked_keys(keys: Sequence[str], stacks: Mapping[str, Sequence[str]]) -> list[str]:
    """The keys without the sources, each target in the position of its first source."""
    places = {key: place for place, key in enumerate(keys)}
    first: dict[str, list[str]] = {}
    for target, sources in stacks.items():
        first.setdefault(min(sources, key=places.__getitem__), []).append(target)
    stacked = {source for sources in stacks.values() for source in sources}
    return [name for key in keys for name in (*first.get(key, []), *([] if key in stacked else [key]))]
