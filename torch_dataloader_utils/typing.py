"""Types for annotations: what may be given to an option, and the base of values."""

from torch_dataloader_utils.options.buckets import BucketsLike
from torch_dataloader_utils.options.cache import CacheLike
from torch_dataloader_utils.options.even import EvenLike
from torch_dataloader_utils.options.lists import ListsLike
from torch_dataloader_utils.options.mix import WeightsLike
from torch_dataloader_utils.options.nulls import NullsLike
from torch_dataloader_utils.options.packing import PackLike
from torch_dataloader_utils.options.ranks import RanksLike
from torch_dataloader_utils.options.sequences import WindowsLike
from torch_dataloader_utils.options.sharding import ShardingLike
from torch_dataloader_utils.options.shuffle import ShuffleLike
from torch_dataloader_utils.options.sources import AppendedLike, CatalogLike, FollowLike, PartitioningLike, SourceLike
from torch_dataloader_utils.options.strings import StringsLike
from torch_dataloader_utils.options.subset import SampleLike, SubsetLike
from torch_dataloader_utils.options.transform import TransformLike
from torch_dataloader_utils.options.workers import WorkerModeLike
from torch_dataloader_utils.values import Value

__all__ = [
    "AppendedLike",
    "BucketsLike",
    "CacheLike",
    "CatalogLike",
    "EvenLike",
    "FollowLike",
    "ListsLike",
    "NullsLike",
    "PackLike",
    "PartitioningLike",
    "RanksLike",
    "SampleLike",
    "ShardingLike",
    "ShuffleLike",
    "SourceLike",
    "StringsLike",
    "SubsetLike",
    "TransformLike",
    "Value",
    "WeightsLike",
    "WindowsLike",
    "WorkerModeLike",
]
