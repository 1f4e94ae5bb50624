"""The options that shape a plan, and a rank's place in it."""

from __future__ import annotations

from dataclasses import dataclass

from torch_dataloader_utils.errors import OptionError, ShardingError
from torch_dataloader_utils.options import EVEN, LAST_BATCH, ShardingOptions

_AT_LEAST_ONE = (
    "batch_size",
    "num_shards",
    "buffer_rows",
    "window_bytes",
    "open_splits",
    "canonical_ranks",
    "steps_per_epoch",
    "unit_rows",
)


@dataclass(frozen=True)
class ReadTogether:
    """The least of what is read together, if a worker has so much.

    Attributes:
        rows: rows.
        size_bytes: their decoded bytes.
        keyed: whether each window has the key of a permutation.
    """

    rows: int
    size_bytes: int
    keyed: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ShardingOptions):
    """The options that shape a plan.

    Attributes:
        batch_size: rows per batch (B).
        shuffle: whether splits are permuted in each epoch.
        by_partition: whether partitions are read one after another, and splits are permuted within each.
        seed: the seed of all orders.
        num_shards: the number of I/O workers of a rank (W), at least 1.
        assignment: how splits are assigned to workers: `"lpt"` (largest first, to the least loaded) or `"turn"`.
        sharding: a policy's name, a value, the policy itself, or a dict of its name or class with its own options.
        even: how ranks get equal steps; `"sync"` does not change the plan.
        last_batch: what happens to a rank's short last batch.
        buffer_rows: rows per row-shuffle window; if this and `window_bytes` are None, rows are not shuffled.
        window_bytes: decoded bytes of a rank's window, divided among its workers, if `buffer_rows` is None.
        open_splits: the number of splits that a window draws from, or `"all"`. None means 4, or with `window_bytes` as
            many whole splits as fit.
        canonical_ranks: the number of virtual ranks that the policy shards for instead of the real ones, so that
            global batches do not depend on the number of ranks.
        steps_per_epoch: batches per rank; a worker that runs out repeats its rows.
        read_together: which rows are read together although they are not shuffled; None: as it is fastest.
        levelled: whether ranks get equal numbers of full steps although `even` is `"none"`, and share the rest.
        unit_rows: rows that stay together in batches, such as the tokens of a sequence (L); else 1.
    """

    batch_size: int = 1024
    shuffle: bool = False
    by_partition: bool = False
    seed: int = 42
    num_shards: int = 1
    assignment: str = "lpt"
    even: str = "none"
    last_batch: str = "partial"
    buffer_rows: int | None = None
    window_bytes: int | None = None
    open_splits: int | str | None = None
    canonical_ranks: int | None = None
    steps_per_epoch: int | None = None
    read_together: ReadTogether | None = None
    levelled: bool = False
    unit_rows: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value not in (None, "all") and value < 1:
                raise OptionError(f"{name}={value!r}: expected a whole number of at least 1.")
        for name, allowed in (("even", EVEN), ("last_batch", LAST_BATCH), ("assignment", ("lpt", "turn"))):
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(repr, allowed))}.")

    @property
    def shuffles_rows(self) -> bool:
        """Whether rows are shuffled in windows."""
        return self.buffer_rows is not None or self.window_bytes is not None

    def batch_rows(self, num_ranks: int) -> int:
        """Rows per batch of one rank."""
        return self.batch_size // num_ranks if self.unit == "split_batch" else self.batch_size

    def check_ranks(self, num_ranks: int) -> None:
        """Check the options that must fit the number of ranks.

        Raises:
            OptionError: `num_ranks` is not a positive whole number.
            ShardingError: `total_shards` or `batch_size` is not divisible by `num_ranks`.
        """
        if num_ranks < 1:
            raise OptionError(f"num_ranks={num_ranks!r}: expected a whole number of at least 1.")
        if self.total_shards is not None and self.total_shards % num_ranks:
            raise ShardingError(
                f"total_shards={self.total_shards} with num_ranks={num_ranks}: total_shards must be a multiple of "
                "num_ranks, so that each rank gets one shard per epoch."
            )
        batch_size = self.batch_size // self.unit_rows
        if self.unit == "split_batch" and batch_size % num_ranks:
            raise ShardingError(
                f"sharding={self.sharding!r} with batch_size={batch_size} and num_ranks={num_ranks}: batch_size must "
                "be a multiple of num_ranks."
            )


@dataclass(frozen=True)
class PlanShape:
    """Which rank a policy assigns rows to, in which epoch.

    Attributes:
        rank: the global rank, in `[0, num_ranks)`.
        num_ranks: the number of ranks (R).
        epoch: the epoch.
        options: the plan's options.
    """

    rank: int
    num_ranks: int
    epoch: int
    options: PlanOptions
