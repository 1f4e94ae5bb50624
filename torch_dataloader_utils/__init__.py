"""Structured data at rest to PyTorch batches, every row accounted for.

Importing the package imports neither torch nor pyarrow: names are loaded at first use, so that worker processes, which
need no torch, start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.errors import BatchTimeoutError as BatchTimeoutError
from torch_dataloader_utils.errors import CatalogError as CatalogError
from torch_dataloader_utils.errors import CheckpointMismatchError as CheckpointMismatchError
from torch_dataloader_utils.errors import ColumnNotFoundError as ColumnNotFoundError
from torch_dataloader_utils.errors import CountsRequiredError as CountsRequiredError
from torch_dataloader_utils.errors import DataLoaderUtilsError as DataLoaderUtilsError
from torch_dataloader_utils.errors import DataNotFoundError as DataNotFoundError
from torch_dataloader_utils.errors import EmptyDatasetError as EmptyDatasetError
from torch_dataloader_utils.errors import FileChangedError as FileChangedError
from torch_dataloader_utils.errors import FileReadError as FileReadError
from torch_dataloader_utils.errors import MissingExtraError as MissingExtraError
from torch_dataloader_utils.errors import NullValueError as NullValueError
from torch_dataloader_utils.errors import OptionError as OptionError
from torch_dataloader_utils.errors import PlanMismatchError as PlanMismatchError
from torch_dataloader_utils.errors import SchemaMismatchError as SchemaMismatchError
from torch_dataloader_utils.errors import ShardingError as ShardingError
from torch_dataloader_utils.errors import SnapshotError as SnapshotError
from torch_dataloader_utils.errors import StaleIteratorError as StaleIteratorError
from torch_dataloader_utils.errors import UnknownOptionError as UnknownOptionError
from torch_dataloader_utils.errors import UnknownValueError as UnknownValueError
from torch_dataloader_utils.errors import UnsupportedTypeError as UnsupportedTypeError
from torch_dataloader_utils.errors import WorkerError as WorkerError

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers
    from torch_dataloader_utils.api import IcebergDataset as IcebergDataset
    from torch_dataloader_utils.api import StructuredDataset as StructuredDataset
    from torch_dataloader_utils.api import TableDataset as TableDataset
    from torch_dataloader_utils.api import combine as combine
    from torch_dataloader_utils.checkpoint.state_dict import merge_state_dicts as merge_state_dicts
    from torch_dataloader_utils.events import BlockEvent as BlockEvent
    from torch_dataloader_utils.events import PassEvent as PassEvent
    from torch_dataloader_utils.formats.registry import register_format as register_format
    from torch_dataloader_utils.iterables import distribute_shards as distribute_shards
    from torch_dataloader_utils.iterables import merge_gen_kwargs as merge_gen_kwargs
    from torch_dataloader_utils.iterables import number_of_shards as number_of_shards
    from torch_dataloader_utils.iterables import shuffle_gen_kwargs as shuffle_gen_kwargs
    from torch_dataloader_utils.iterables import split_gen_kwargs as split_gen_kwargs
    from torch_dataloader_utils.iterables import streaming_shard as streaming_shard
    from torch_dataloader_utils.loader.description import Description as Description
    from torch_dataloader_utils.model import DataFileInfo as DataFileInfo
    from torch_dataloader_utils.model import IcebergDataFileInfo as IcebergDataFileInfo
    from torch_dataloader_utils.model import Shard as Shard
    from torch_dataloader_utils.model import Split as Split
    from torch_dataloader_utils.planning.sharding import register_policy as register_policy
    from torch_dataloader_utils.planning.strategies import RoundRobinSplitStrategy as RoundRobinSplitStrategy
    from torch_dataloader_utils.planning.strategies import SizeBalancedSplitStrategy as SizeBalancedSplitStrategy
    from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy as TargetSizeSplitStrategy
    from torch_dataloader_utils.sources.deleted_rows import deletion_vector as deletion_vector
    from torch_dataloader_utils.sources.table_files import FileSnapshot as FileSnapshot
    from torch_dataloader_utils.sources.table_files import TableFile as TableFile
    from torch_dataloader_utils.sources.tables import SnapshotCursor as SnapshotCursor
    from torch_dataloader_utils.sources.tables import TableSnapshot as TableSnapshot
    from torch_dataloader_utils.sources.tables import TableSource as TableSource

_HOMES = {
    "BlockEvent": "events",
    "DataFileInfo": "model",
    "Description": "loader.description",
    "FileSnapshot": "sources.table_files",
    "IcebergDataFileInfo": "model",
    "IcebergDataset": "api",
    "PassEvent": "events",
    "RoundRobinSplitStrategy": "planning.strategies",
    "Shard": "model",
    "SizeBalancedSplitStrategy": "planning.strategies",
    "SnapshotCursor": "sources.tables",
    "Split": "model",
    "StructuredDataset": "api",
    "TableDataset": "api",
    "TableFile": "sources.table_files",
    "TableSnapshot": "sources.tables",
    "TableSource": "sources.tables",
    "TargetSizeSplitStrategy": "planning.strategies",
    "combine": "api",
    "deletion_vector": "sources.deleted_rows",
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

__all__ = sorted([*_HOMES, *(name for name in globals() if name.endswith("Error"))])
__version__ = "0.3.0.dev0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
