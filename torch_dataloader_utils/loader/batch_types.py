"""The types of batches, for type checkers: inferred from `output_format` and `collate_fn`."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from typing_extensions import TypeVar

Batch: TypeAlias = dict[str, torch.Tensor | Any]
"""A batch of `output_format="torch"`: a dict by column or key.

The values are tensors or, depending on the column's type and the options, lists or dicts of tensors. The union of
`Tensor` and `Any` lets editors complete a tensor's methods.
"""

NumpyBatch: TypeAlias = dict[str, np.ndarray[Any, Any] | Any]
"""A batch of `output_format="numpy"`: the same with arrays."""

Format: TypeAlias = Literal["torch", "numpy", "arrow", "dict"]
# Type parameters of a loader that select the type of its batches. Overloads of the functions that make loaders would
# do the same, but type checkers then no longer report which keyword is wrong.
OutputFormat = TypeVar("OutputFormat", bound=Format, default=Literal["torch"])
OutputFormat_co = TypeVar("OutputFormat_co", bound=Format, default=Literal["torch"], covariant=True)
Collated = TypeVar("Collated", default=None)  # the return type of collate_fn; None without one
Collated_co = TypeVar("Collated_co", default=None, covariant=True)
