"""Labels of rows: the plain values of a column of classes, and how many rows have each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.late_imports import pc

_MOST = 10_000


def plain_labels(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Labels without encoding; of floats, NaN is null and -0.0 is 0.0."""
    kind = labels.type
    plain = labels.cast(kind.value_type) if pa.types.is_dictionary(kind) else labels
    if not pa.types.is_floating(plain.type):
        return plain
    return pc.add(pc.if_else(pc.is_nan(plain), pa.scalar(None, plain.type), plain), pa.scalar(0.0, plain.type))


def counted_labels(column: str, labels: pa.ChunkedArray) -> dict[Any, int]:
    """How many rows have each label, null left out; whole floats are ints.

    Raises:
        OptionError: a float is not whole.
    """
    counts = plain_labels(labels).drop_null().value_counts()
    found = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
    check_labels(column, len(found))
    for label in found:
        if isinstance(label, float) and not label.is_integer():
            raise OptionError(
                f"class_weights: column {column!r} holds {label!r}: labels that are floats must be whole numbers."
            )
    return {int(label) if isinstance(label, float) else label: count for label, count in found.items()}


def check_labels(column: str, number: int) -> None:
    """Check that there are not too many labels to be classes.

    Raises:
        OptionError: there are.
    """
    if number > _MOST:
        raise OptionError(
            f"class_weights: column {column!r} has more than {_MOST:,} labels, too many to balance: give the weights "
            "of some, as {label: weight}."
        )
