"""Several transforms as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

import pyarrow as pa

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.printing import shown

Transform: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class Chain:
    """Calls transforms of record batches one after another; picklable if they are.

    Args:
        transforms: each gets what the one before it returned.
    """

    def __init__(self, *transforms: Transform) -> None:
        for transform in transforms:
            if not callable(transform):
                raise UnsupportedTypeError(
                    f"Chain got {shown(transform)}: expected functions of a pyarrow.RecordBatch, as separate arguments."
                )
        self.transforms = transforms

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The result of the last transform."""
        return reduce(lambda rows, transform: transform(rows), self.transforms, batch)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.transforms))})"
