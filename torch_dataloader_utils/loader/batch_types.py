"""What a loader yields, for type checkers: a batch's type follows from `output_format` and `collate_fn`."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from typing_extensions import TypeVar

Batch: TypeAlias = dict[str, torch.Tensor | Any]
"""A batch of `output_format="torch"`, by column or key.

The values are tensors, or where the column's type or an option says so lists or dicts of tensors. With `Any` beside
`Tensor` editors complete a tensor's methods.
"""

NumpyBatch: TypeAlias = dict[str, np.ndarray[Any, Any] | Any]
"""A batch of `output_format="numpy"`, likewise."""

Format: TypeAlias = Literal["torch", "numpy", "arrow", "dict"]
# As parameters of a loader's type they select the type of its batches, which costs no overloads of the functions that
# make loaders: with those, type checkers no longer say which keyword is wrong.
OutputFormat = TypeVar("OutputFormat", bound=Format, default=Literal["torch"])
OutputFormat_co = TypeVar("OutputFormat_co", bound=Format, default=Literal["torch"], covariant=True)
Collated = TypeVar("Collated", default=None)  # what collate_fn returns; None without one
Collated_co = TypeVar("Collated_co", default=None, covariant=True)
