"""Options that exclude what is read: it shows where files are listed and plans are made."""

from __future__ import annotations

from torch_dataloader_utils.errors import CountsRequiredError, Example, leave_out, use
from torch_dataloader_utils.options.clash import Clash, Half
from torch_dataloader_utils.options.clashes import (
    CANONICAL,
    CUT_BY_ROWS,
    EVEN_COUNTED,
    IN_MEMORY,
    LAST_WRAP,
    LIMIT,
    MERGED_IN_ANY_ORDER,
    MIXED,
    NO_ROW_COUNTS,
    PARTITION,
    PROCESSES,
    UNEQUAL,
    UNKNOWN,
    UNPARTITIONED,
    WEIGHTED,
    WEIGHTS,
    by_splits,
    without_or_by_splits,
)

_COUNT = use("counts once", count_rows=True)
EVEN_UNKNOWN = Clash(
    halves=(EVEN_COUNTED,),
    beside=UNKNOWN,
    why="needs the number of rows that will be delivered, known only after reading",
    told="{half} {why}.",
    ways=[
        _COUNT,
        use("exactly n steps", without=["even"], steps_per_epoch=Example("n", 2)),
        use("all ranks stop with the first", even="sync"),
    ],
    error=CountsRequiredError,
)
WRAP_UNKNOWN = Clash(
    halves=(LAST_WRAP,),
    beside=UNKNOWN,
    why="takes rows of the next ranks, whose number is known only after reading",
    told="{half} {why}.",
    ways=[_COUNT, use(last_batch="pad")],
    error=CountsRequiredError,
)
CANONICAL_UNKNOWN = Clash(
    halves=(CANONICAL,),
    beside=UNKNOWN,
    why="needs the number of rows that will be delivered, which is known only after reading",
    told="{half} {why}.",
    ways=[_COUNT, leave_out("canonical_ranks")],
    error=CountsRequiredError,
)
LIMIT_UNKNOWN = Clash(
    halves=(LIMIT,),
    beside=UNKNOWN,
    why="how many rows each file delivers is known only after reading it, because of a filter, a key, or a format "
    "without row counts",
    told="{half}: {why}.",
    ways=[_COUNT],
)
ROWS_UNKNOWN = Clash(
    halves=(Half("split_rows", "`split_rows`"),),
    beside=NO_ROW_COUNTS,
    why="files are cut by their row counts",
    told="{half}: {why}, but that of {beside} is unknown.",
    ways=[_COUNT, use(split_bytes=Example("bytes", "1MiB"), without=["split_rows"])],
    error=CountsRequiredError,
)
PARTITIONS_UNKNOWN = Clash(
    halves=(PARTITION,),
    beside=UNKNOWN,
    why="needs row counts, so that all ranks and workers are in the same partition",
    told="shuffle='partition' {why}.",
    ways=[_COUNT, use("reads partitions in any order", shuffle=True)],
    error=CountsRequiredError,
)
NO_PARTITIONS = Clash(
    halves=(PARTITION,),
    beside=UNPARTITIONED,
    why="there are no partitions, one of which could be read after another",
    told="shuffle='partition' of {beside}: {why}.",
    ways=[use("shuffles all rows", shuffle=True)],
)
SHARDS_UNKNOWN = Clash(
    halves=(CUT_BY_ROWS,),
    beside=NO_ROW_COUNTS,
    why="this sharding cuts rows by number",
    told="The row count of {beside} is unknown, but {why}.",
    ways=[_COUNT, use("assigns whole splits", sharding="interleave")],
    error=CountsRequiredError,
)
FOREIGN_MEMORY = Clash(
    halves=(PROCESSES,),
    beside=IN_MEMORY,
    why="its files are in this process's memory, which other processes cannot read",
    ways=[use(worker_mode="threads")],
)
# Of combinations, whose datasets may have shards and weights of their own.
MIXED_SHARDS = Clash(
    halves=(UNEQUAL,),
    beside=MIXED,
    why="each dataset is cut into equal parts for the ranks",
    ways=without_or_by_splits("sharding"),
)
MERGED_BY_WEIGHT = Clash(
    halves=(WEIGHTS,),
    beside=MERGED_IN_ANY_ORDER,
    why="rows are drawn from all splits at once, whatever the order of these is, so weights have no effect",
    ways=[use(shuffle="splits"), use(batches="proportional")],
)
MIXED_COPIES = Clash(
    halves=(WEIGHTED,),
    beside=MIXED,
    why="draws the copies of rows in each epoch",
    told="{beside} needs the number of rows of each dataset, but {half} {why}. Make one dataset of each class, and "
    "pass repeat= to combine, or do not mix rows.",
    ways=lambda options: [by_splits(options)],
    error=CountsRequiredError,
)
LATER = (
    *(EVEN_UNKNOWN, WRAP_UNKNOWN, CANONICAL_UNKNOWN, LIMIT_UNKNOWN, ROWS_UNKNOWN, SHARDS_UNKNOWN),
    *(PARTITIONS_UNKNOWN, NO_PARTITIONS),
    *(FOREIGN_MEMORY, MIXED_SHARDS, MERGED_BY_WEIGHT, MIXED_COPIES),
)
