"""Accelerate: a model's outputs for a batch, gathered from all processes without the repeats of `even="pad"`.

Accelerate's own `gather_for_metrics` cuts off the last rows of the last batch. Repeats are elsewhere: each process has
its own, after its real rows.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_dataloader_utils.errors import MissingExtraError, OptionError

try:
    from accelerate.utils import gather_object
except ModuleNotFoundError as error:
    raise MissingExtraError("gather_for_metrics needs Accelerate: pip install accelerate") from error


def gather_for_metrics(accelerator: Any, data: Any, valid: torch.Tensor | None) -> Any:
    """All processes' data for the real rows of a batch: each row once, as a single process would have it.

    Call it on every process for every batch, with the same number of rows on each.

    Example:
        ```python
        for batch in loader:
            logits = model(batch["x"])
            logits, labels = gather_for_metrics(accelerator, (logits, batch["label"]), batch["valid"])
            metric.update(logits, labels)
        ```

    Args:
        accelerator: the `accelerate.Accelerator`.
        data: a tensor or a list of Python objects, with one item per row of the batch; or tuples, lists or dicts of
            these.
        valid: the mask of the batch, `batch["valid"]`; None if batches have none, and nothing is left out.

    Raises:
        OptionError: a part of the data does not have one item per row.
    """
    if valid is None:
        return accelerator.gather_for_metrics(data)
    return _gathered(accelerator, data, valid, accelerator.gather(valid.to(accelerator.device)))


def _gathered(accelerator: Any, data: Any, valid: torch.Tensor, of_all: torch.Tensor) -> Any:
    if isinstance(data, dict):
        return {key: _gathered(accelerator, item, valid, of_all) for key, item in data.items()}
    if isinstance(data, tuple) or (isinstance(data, list) and data and isinstance(data[0], torch.Tensor)):
        items = [_gathered(accelerator, item, valid, of_all) for item in data]
        return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
    if not isinstance(data, (torch.Tensor, list)) or getattr(data, "ndim", 1) == 0 or len(data) != len(valid):
        given = f"of the shape {tuple(data.shape)}" if isinstance(data, torch.Tensor) else f"{data!r:.80}"
        raise OptionError(
            f"gather_for_metrics got a {type(data).__name__} {given}: expected a tensor or a list with one item for "
            f"each of the batch's {len(valid)} rows."
        )
    if isinstance(data, torch.Tensor):
        return accelerator.gather(data)[of_all.to(data.device)]
    return gather_object([item for item, real in zip(data, valid.tolist(), strict=True) if real])
