"""Structured data at rest to PyTorch batches, every row accounted for.

Importing the package imports neither torch nor pyarrow: names are loaded at first use, so that worker processes, which
need no torch, start quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.errors import (
    BatchTimeoutError,
    CatalogError,
    CheckpointMismatchError,
    ColumnNotFoundError,
    CountsRequiredError,
    DamagedFileError,
    DataLoaderUtilsError,
    DataNotFoundError,
    EmptyDatasetError,
    FileChangedError,
    FileReadError,
    MissingExtraError,
    NullValueError,
    OptionError,
    PlanMismatchError,
    RowErrors,
    SavedPreprocessError,
    SchemaMismatchError,
    ShardingError,
    SnapshotError,
    StaleIteratorError,
    TooManyErrors,
    UnknownOptionError,
    UnknownValueError,
    UnsupportedTypeError,
    UnsupportedTypeWarning,
    WorkerError,
)

if TYPE_CHECKING:  # the same names as in _HOMES, which a test holds together
    from torch_dataloader_utils.api.combined import CombinedDataset, combine
    from torch_dataloader_utils.api.files import StructuredDataset
    from torch_dataloader_utils.api.stream import stream
    from torch_dataloader_utils.api.tables import DeltaDataset, IcebergDataset, TableDataset
    from torch_dataloader_utils.checkpoint.state_dict import merge_state_dicts
    from torch_dataloader_utils.distributed.ranks import World
    from torch_dataloader_utils.events import BlockEvent, PassEvent, RowFailedEvent
    from torch_dataloader_utils.formats.registry import register_format
    from torch_dataloader_utils.iceberg.snapshot_info import SnapshotInfo
    from torch_dataloader_utils.iterables import (
        distribute_shards,
        merge_gen_kwargs,
        number_of_shards,
        shuffle_gen_kwargs,
        split_gen_kwargs,
        streaming_shard,
    )
    from torch_dataloader_utils.loader.batch_types import Batch
    from torch_dataloader_utils.loader.description import Description
    from torch_dataloader_utils.loader.loader import StructuredLoader
    from torch_dataloader_utils.loader.named_rows import named_rows
    from torch_dataloader_utils.model import (
        DataFile,
        DataFileInfo,
        FileLayout,
        IcebergDataFileInfo,
        Segment,
        Shard,
        Split,
    )
    from torch_dataloader_utils.options.buckets import Buckets
    from torch_dataloader_utils.options.cache import Cache
    from torch_dataloader_utils.options.even import Sync
    from torch_dataloader_utils.options.lists import Padded
    from torch_dataloader_utils.options.mix import Weights
    from torch_dataloader_utils.options.nulls import Fill
    from torch_dataloader_utils.options.packing import Pack
    from torch_dataloader_utils.options.ranks import Mesh
    from torch_dataloader_utils.options.sequences import Windows
    from torch_dataloader_utils.options.sharding import Rotate, Strided
    from torch_dataloader_utils.options.shuffle import Shuffle
    from torch_dataloader_utils.options.sources import Appended, Delta, Files, Follow, Hive, Iceberg
    from torch_dataloader_utils.options.strings import Codes
    from torch_dataloader_utils.options.subset import Sample, Subsets
    from torch_dataloader_utils.options.transform import Transform
    from torch_dataloader_utils.options.workers import Processes
    from torch_dataloader_utils.planning.options import PlanShape
    from torch_dataloader_utils.planning.order import Order
    from torch_dataloader_utils.planning.rank_plan import RankPlan
    from torch_dataloader_utils.planning.row_ranges import RowRange
    from torch_dataloader_utils.planning.sharding import register_policy
    from torch_dataloader_utils.planning.strategies import (
        RoundRobinSplitStrategy,
        SizeBalancedSplitStrategy,
        TargetSizeSplitStrategy,
    )
    from torch_dataloader_utils.reading.row_generator import RowGenerator
    from torch_dataloader_utils.rows import Rows
    from torch_dataloader_utils.sources.deleted_rows import deletion_vector
    from torch_dataloader_utils.sources.table_files import FileSnapshot, TableFile
    from torch_dataloader_utils.sources.tables import SnapshotCursor, TableSnapshot, TableSource

# Where each name that is loaded at first use is defined.
_HOMES = {
    "Appended": "options.sources",
    "Batch": "loader.batch_types",
    "BlockEvent": "events",
    "Buckets": "options.buckets",
    "Cache": "options.cache",
    "Codes": "options.strings",
    "CombinedDataset": "api.combined",
    "DataFile": "model",
    "DataFileInfo": "model",
    "Delta": "options.sources",
    "DeltaDataset": "api.tables",
    "Description": "loader.description",
    "FileLayout": "model",
    "FileSnapshot": "sources.table_files",
    "Files": "options.sources",
    "Fill": "options.nulls",
    "Follow": "options.sources",
    "Hive": "options.sources",
    "Iceberg": "options.sources",
    "IcebergDataFileInfo": "model",
    "IcebergDataset": "api.tables",
    "Mesh": "options.ranks",
    "Order": "planning.order",
    "Pack": "options.packing",
    "Padded": "options.lists",
    "PassEvent": "events",
    "RowFailedEvent": "events",
    "RowGenerator": "reading.row_generator",
    "PlanShape": "planning.options",
    "Processes": "options.workers",
    "RankPlan": "planning.rank_plan",
    "Rotate": "options.sharding",
    "RoundRobinSplitStrategy": "planning.strategies",
    "RowRange": "planning.row_ranges",
    "Rows": "rows",
    "Sample": "options.subset",
    "Segment": "model",
    "Shard": "model",
    "Shuffle": "options.shuffle",
    "SizeBalancedSplitStrategy": "planning.strategies",
    "SnapshotCursor": "sources.tables",
    "SnapshotInfo": "iceberg.snapshot_info",
    "Split": "model",
    "Strided": "options.sharding",
    "StructuredDataset": "api.files",
    "StructuredLoader": "loader.loader",
    "Subsets": "options.subset",
    "Sync": "options.even",
    "TableDataset": "api.tables",
    "TableFile": "sources.table_files",
    "TableSnapshot": "sources.tables",
    "TableSource": "sources.tables",
    "TargetSizeSplitStrategy": "planning.strategies",
    "Transform": "options.transform",
    "Weights": "options.mix",
    "Windows": "options.sequences",
    "World": "distributed.ranks",
    "combine": "api.combined",
    "deletion_vector": "sources.deleted_rows",
    "distribute_shards": "iterables",
    "merge_gen_kwargs": "iterables",
    "merge_state_dicts": "checkpoint.state_dict",
    "named_rows": "loader.named_rows",
    "number_of_shards": "iterables",
    "register_format": "formats.registry",
    "register_policy": "planning.sharding",
    "shuffle_gen_kwargs": "iterables",
    "split_gen_kwargs": "iterables",
    "stream": "api.stream",
    "streaming_shard": "iterables",
}

__all__ = [
    "Appended",
    "Batch",
    "BatchTimeoutError",
    "BlockEvent",
    "Buckets",
    "Cache",
    "CatalogError",
    "CheckpointMismatchError",
    "Codes",
    "ColumnNotFoundError",
    "CombinedDataset",
    "CountsRequiredError",
    "DamagedFileError",
    "DataFile",
    "DataFileInfo",
    "DataLoaderUtilsError",
    "DataNotFoundError",
    "Delta",
    "DeltaDataset",
    "Description",
    "EmptyDatasetError",
    "FileChangedError",
    "FileLayout",
    "FileReadError",
    "FileSnapshot",
    "Files",
    "Fill",
    "Follow",
    "Hive",
    "Iceberg",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "Mesh",
    "MissingExtraError",
    "NullValueError",
    "OptionError",
    "Order",
    "Pack",
    "Padded",
    "PassEvent",
    "PlanMismatchError",
    "PlanShape",
    "Processes",
    "RankPlan",
    "Rotate",
    "RoundRobinSplitStrategy",
    "RowErrors",
    "RowFailedEvent",
    "RowGenerator",
    "RowRange",
    "Rows",
    "Sample",
    "SavedPreprocessError",
    "SchemaMismatchError",
    "Segment",
    "Shard",
    "ShardingError",
    "Shuffle",
    "SizeBalancedSplitStrategy",
    "SnapshotCursor",
    "SnapshotError",
    "SnapshotInfo",
    "Split",
    "StaleIteratorError",
    "Strided",
    "StructuredDataset",
    "StructuredLoader",
    "Subsets",
    "Sync",
    "TableDataset",
    "TableFile",
    "TableSnapshot",
    "TableSource",
    "TargetSizeSplitStrategy",
    "TooManyErrors",
    "Transform",
    "UnknownOptionError",
    "UnknownValueError",
    "UnsupportedTypeError",
    "UnsupportedTypeWarning",
    "Weights",
    "Windows",
    "WorkerError",
    "World",
    "combine",
    "deletion_vector",
    "distribute_shards",
    "merge_gen_kwargs",
    "merge_state_dicts",
    "named_rows",
    "number_of_shards",
    "register_format",
    "register_policy",
    "shuffle_gen_kwargs",
    "split_gen_kwargs",
    "stream",
    "streaming_shard",
]
__version__ = "0.3.0.dev0"


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
