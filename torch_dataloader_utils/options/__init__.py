"""The options of a loader."""

from torch_dataloader_utils.options.even import EVEN
from torch_dataloader_utils.options.groups import (
    LAST_BATCH,
    ConvertOptions,
    ReadOptions,
    SplitOptions,
    WorkerOptions,
)
from torch_dataloader_utils.options.keywords import (
    SELECTS,
    Call,
    Options,
    mask_in_batches,
    mask_key,
    masks_rows,
    option_defaults,
    options_of,
    parse_call,
    parse_options,
    parse_replaced,
    parse_rows,
    parse_stream,
    repeats_rows,
)
from torch_dataloader_utils.options.mix import MixOptions
from torch_dataloader_utils.options.packing import PackOptions
from torch_dataloader_utils.options.parts import parse_combination, parse_part, unused_in_combination
from torch_dataloader_utils.options.sharding import (
    Rotate,
    ShardingOptions,
    Strided,
    check_names,
    name_of,
    split_sharding,
)
from torch_dataloader_utils.options.showing import progress_of
from torch_dataloader_utils.options.shuffle import ShuffleOptions
from torch_dataloader_utils.options.sources import (
    Appended,
    Delta,
    Files,
    Follow,
    FollowOptions,
    Hive,
    Iceberg,
    SourceValue,
)
from torch_dataloader_utils.options.subset import SubsetOptions
from torch_dataloader_utils.values import plain_value

__all__ = [
    "EVEN",
    "LAST_BATCH",
    "SELECTS",
    "Appended",
    "Call",
    "ConvertOptions",
    "Delta",
    "Files",
    "Follow",
    "FollowOptions",
    "Hive",
    "Iceberg",
    "MixOptions",
    "Options",
    "PackOptions",
    "ReadOptions",
    "Rotate",
    "ShardingOptions",
    "ShuffleOptions",
    "SourceValue",
    "SplitOptions",
    "Strided",
    "SubsetOptions",
    "WorkerOptions",
    "check_names",
    "mask_in_batches",
    "mask_key",
    "masks_rows",
    "name_of",
    "option_defaults",
    "options_of",
    "parse_call",
    "parse_combination",
    "parse_options",
    "parse_part",
    "parse_replaced",
    "parse_rows",
    "parse_stream",
    "plain_value",
    "progress_of",
    "repeats_rows",
    "split_sharding",
    "unused_in_combination",
]
