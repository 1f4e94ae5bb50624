"""The options of a loader."""

from torch_dataloader_utils.options.groups import (
    EVEN,
    LAST_BATCH,
    BatchOptions,
    ConvertOptions,
    NullPolicy,
    ReadOptions,
    ShardOptions,
    ShuffleOptions,
    SplitOptions,
    TableOptions,
    WorkerOptions,
)
from torch_dataloader_utils.options.keywords import (
    LoaderOptions,
    Options,
    TableLoaderOptions,
    check_together,
    option_defaults,
    parse_options,
    parse_table_options,
    plain_value,
    repeats_rows,
)

__all__ = [
    "EVEN",
    "LAST_BATCH",
    "BatchOptions",
    "ConvertOptions",
    "LoaderOptions",
    "NullPolicy",
    "Options",
    "ReadOptions",
    "ShardOptions",
    "ShuffleOptions",
    "SplitOptions",
    "TableLoaderOptions",
    "TableOptions",
    "WorkerOptions",
    "check_together",
    "option_defaults",
    "parse_options",
    "parse_table_options",
    "plain_value",
    "repeats_rows",
]
