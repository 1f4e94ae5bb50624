"""Structured data at rest to PyTorch batches, every row accounted for.

Importing the package imports neither torch nor pyarrow: names are loaded at first use, so that worker processes, which
need no torch, start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_dataloader_utils.api import IcebergDataset as IcebergDataset
    from torch_dataloader_utils.api import StructuredDataset as StructuredDataset
    from torch_dataloader_utils.api import combine as combine
    from torch_dataloader_utils.formats.registry import register_format as register_format

_HOMES = {
    "BatchTimeoutError": "errors",
    "CatalogError": "errors",
    "CheckpointMismatchError": "errors",
    "ColumnNotFoundError": "errors",
    "CountsRequiredError": "errors",
    "DataFileInfo": "model",
    "DataLoaderUtilsError": "errors",
    "DataNotFoundError": "errors",
    "EmptyDatasetError": "errors",
    "FileChangedError": "errors",
    "FileReadError": "errors",
    "IcebergDataFileInfo": "model",
    "IcebergDataset": "api",
    "MissingExtraError": "errors",
    "NullValueError": "errors",
    "OptionError": "errors",
    "PlanMismatchError": "errors",
    "RoundRobinSplitStrategy": "planning.strategies",
    "SchemaMismatchError": "errors",
    "Shard": "model",
    "ShardingError": "errors",
    "SizeBalancedSplitStrategy": "planning.strategies",
    "SnapshotError": "errors",
    "Split": "model",
    "StaleIteratorError": "errors",
    "StructuredDataset": "api",
    "TargetSizeSplitStrategy": "planning.strategies",
    "UnknownOptionError": "errors",
    "UnknownValueError": "errors",
    "UnsupportedTypeError": "errors",
    "WorkerError": "errors",
    "combine": "api",
    "distribute_shards": "iterables",
    "merge_gen_kwargs": "iterables",
    "merge_state_dicts": "checkpoint.state_dict",
    "number_of_shards": "iterables",
    "register_format": "formats.registry",
    "register_policy": "planning.sharding",
    "shuffle_gen_kwargs": "iterables",
    "split_gen_kwargs": "iterables",
    "streaming_shard": "iterables",
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
