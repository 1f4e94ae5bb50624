"""Structured data at rest to PyTorch batches, every row accounted for.

Importing the package imports neither torch nor pyarrow: names are loaded at first use, so that worker processes, which
need no torch, start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_dataloader_utils.api import StructuredDataset as StructuredDataset

_HOMES = {
    "CheckpointMismatchError": "errors",
    "CountsRequiredError": "errors",
    "DataFileInfo": "model",
    "DataLoaderUtilsError": "errors",
    "EmptyDatasetError": "errors",
    "IcebergDataFileInfo": "model",
    "PlanMismatchError": "errors",
    "RoundRobinSplitStrategy": "planning.strategies",
    "Shard": "model",
    "ShardingError": "errors",
    "SizeBalancedSplitStrategy": "planning.strategies",
    "Split": "model",
    "StaleIteratorError": "errors",
    "StructuredDataset": "api",
    "TargetSizeSplitStrategy": "planning.strategies",
}

__all__ = sorted(_HOMES)
__version__ = "0.3.0.dev0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
