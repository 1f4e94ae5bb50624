"""The vocabulary that values and their counts make: in the order of ids, of which an update moves none."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from torch_dataloader_utils.preprocess.counts import ValueCounts
from torch_dataloader_utils.preprocess.fitted import Vocabulary
from torch_dataloader_utils.preprocess.transforms import Categorize, Fitted


def learned_vocabulary(link: Categorize, counts: ValueCounts, fill: Any, before: Fitted | None) -> Fitted:
    """The vocabulary of ids, and the counts of its values.

    Args:
        link: of ids.
        counts: of all values.
        fill: what is counted in place of missing values; None for nothing.
        before: what the link learned of fewer rows: no id moves.
    """
    known = None if before is None else before["vocabulary"].array
    kept = partial(counts.kept, link.min_count, order=link.order, known=known, fill=fill)
    missing, null = 0 if fill is not None else counts.missing, None if before is None else before.get("null")
    if null is not None:
        values, numbers = kept(None if link.max_size is None else link.max_size - 1)
        return {"vocabulary": Vocabulary.of(values), "counts": numbers, "null": null}
    values, numbers = kept(link.max_size)
    first = 0 if known is None else len(known)
    joins = link.nulls == "category" and missing >= max(link.min_count, 1)
    if joins and link.max_size is not None and len(values) >= link.max_size:
        # Null comes before new values that occur as often as it, and takes the place of the last one, or has none.
        joins = len(values) > first and missing >= int(numbers[first:].min())
        if joins:
            values, numbers = kept(link.max_size - 1)
    fitted = {"vocabulary": Vocabulary.of(values), "counts": numbers}
    if not joins:
        return fitted
    # In the order of values, it comes before all new ones.
    before_it = np.count_nonzero(numbers[first:] > missing) if link.order == "count" else 0
    return {**fitted, "null": first + int(before_it)}
