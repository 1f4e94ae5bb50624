"""The plan: for any epoch and rank, which rows each worker delivers, in which order, and in how many steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral

from torch_dataloader_utils.errors import EmptyDatasetError, OptionError, Remedy, ShardingError, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, Unit, split_of, split_pieces
from torch_dataloader_utils.options import Rotate, name_of
from torch_dataloader_utils.options.late_clashes import EVEN_UNKNOWN, WRAP_UNKNOWN
from torch_dataloader_utils.planning.canonical import VirtualShares, virtual_options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces, SplitTable, splits_read
from torch_dataloader_utils.planning.partitions import BY_PARTITION, check_counts
from torch_dataloader_utils.planning.parts import DatasetShare, Part, dataset_shares, share_of_rest
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.read_together import in_windows
from torch_dataloader_utils.planning.rest import RemainingRows, Undelivered, rest_of
from torch_dataloader_utils.planning.sharding import Policy, Sharding, find_policy, resolve_auto
from torch_dataloader_utils.planning.shares import KeptShares, ScheduledShares, Shares, assign
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.tasks import Layouts, SegmentTable
from torch_dataloader_utils.planning.windows import windowed
from torch_dataloader_utils.planning.workers import Shards, worker_shards
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.seeding import derive_key

# The row counts a plan needs, checked before any epoch is planned.


def check_unknown_counts(options: PlanOptions) -> None:
    """Check that the options work without knowing how many rows will be delivered.

    Raises:
        CountsRequiredError: an option needs row counts.
    """
    if options.even in ("drop", "pad"):
        raise EVEN_UNKNOWN.between(f"even={options.even!r}")
    if options.last_batch == "wrap":
        raise WRAP_UNKNOWN.between("last_batch='wrap'")


def check_even_rows(
    options: PlanOptions, datasets: Sequence[DatasetShare], num_ranks: int, unit: Unit, *, may_be_empty: bool = False
) -> None:
    """Check that each epoch has rows for `even`, and enough for a step.

    Args:
        options: of the plan.
        datasets: the rows of each dataset.
        num_ranks: the number of ranks (R).
        unit: what a row is.
        may_be_empty: whether an epoch may have no rows at all: then no rank has a step.

    Raises:
        EmptyDatasetError: an epoch has no rows.
        ShardingError: `even="drop"` would leave out all rows.
    """
    laps = options.total_shards // num_ranks if options.total_shards else 1
    rows = min(sum(dataset.lap_rows(lap, laps) for dataset in datasets) for lap in range(laps))
    even, step = options.even, num_ranks * options.batch_rows(num_ranks)
    units = f"{unit.planned}s"
    if not rows and may_be_empty:
        return
    if not rows:
        total = int(datasets[0].table.lengths.sum())
        raise EmptyDatasetError(
            f"even={even!r}: an epoch has no {units[:-1]} to deliver (N={total} {units}, R={num_ranks} ranks); check "
            "path and filters."
        )
    if even == "drop" and rows < step:
        raise ShardingError(
            f"even='drop' with N={rows} {units} in an epoch, R={num_ranks} ranks and batches of B={step // num_ranks}: "
            f"one step of all ranks needs R*B={step} {units}.",
            remedies=[use("repeats rows", even="pad"), *_smaller(options, rows, num_ranks)],
        )


def _smaller(options: PlanOptions, rows: int, num_ranks: int) -> list[Remedy]:
    """The largest batches of which these rows fill one step, if each rank then has a row."""
    size = rows // num_ranks
    if not size or options.unit_rows > 1:
        return []
    return [use(batch_size=size * num_ranks if options.unit == "split_batch" else size)]


# Read amplification: how much is decoded more than once because several ranks share a segment.


def read_amplification(ranks: Iterable[Iterable[Piece]], layouts: Mapping[FileKey, FileLayout]) -> float:
    """Rows of the segments that each rank reads, summed over ranks, per row of the segments that any rank reads.

    Args:
        ranks: the pieces of each rank.
        layouts: the layout of each file, by its key.
    """
    segments, total = SegmentTable(layouts), 0
    by_any: set[tuple[FileKey, int]] = set()

    def rows(read: set[tuple[FileKey, int]]) -> int:
        found = (layouts[key].segments[number] for key, number in read)
        # Text has no other count than that of a scan.
        return sum((segment.live_rows if segment.rows is None else segment.rows) or 0 for segment in found)

    for pieces in ranks:
        by_rank = set()
        for piece in split_pieces(pieces):
            key = split_of(piece).file.key
            by_rank |= {(key, number) for number in segments[key].touched(piece)}
        total += rows(by_rank)
        by_any |= by_rank
    return total / rows(by_any) if by_any else 1.0


__all__ = ["Plan", "PlanOptions", "RankPlan"]

# The version of the rules that make plans: another version may assign the rows of the same data differently. Golden
# tests freeze the orders of this one.
PLAN_VERSION = 4
# The version of the rules for what earlier phases left of an epoch: only states of a resumed epoch depend on it.
REST_VERSION = 5
# The version of the rules for mixes of rows, also for what earlier phases left of them.
MIX_VERSION = 6


@dataclass(frozen=True, eq=False)
class Plan:
    """What each rank delivers in each epoch, computed from counts and options.

    Attributes:
        files: all files of the source.
        splits: all splits, in file order.
        options: the options that shape the plan.
        num_ranks: the number of ranks (R).
        exact: whether every planned row will be delivered. If not (with an uncounted filter, for example), steps are
            not known in advance, and the reader applies `last_batch`, per worker.
        parts: the datasets of a combination; files and splits are in their order.
        rest: what earlier phases left of one epoch, if the plan covers only that; None: all rows of any epoch.
        grows: whether the table may still be empty (follow=True).
        unit: what a row is.
        features: what changes the plan.

    Raises:
        OptionError: options exclude each other, or the policy is unknown.
        ShardingError: numbers do not fit together, such as fewer rows than `even="drop"` needs for one step.
        CountsRequiredError: the policy or `even` needs row counts that are not known.
        EmptyDatasetError: the files hold no rows, or `even` has no rows to share.
    """

    files: Sequence[DataFile]
    splits: Splits
    options: PlanOptions
    num_ranks: int = 1
    exact: bool = True
    parts: Sequence[Part] = (Part(),)
    rest: RemainingRows | None = None
    grows: bool = False
    unit: Unit = Unit.ROW
    features: Feature = field(default_factory=Feature)
    _epochs: dict[int, Shares] = field(default_factory=dict, init=False, repr=False)
    _mixes: dict[int, ScheduledShares] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.options.check_ranks(self.num_ranks)
        object.__setattr__(self, "splits", Splits.of(self.splits, self.files))
        object.__setattr__(self, "exact", self.exact and self.splits.uncounted is None)
        if self.files and not self.grows and all(file.info.record_count == 0 for file in self.files):
            raise EmptyDatasetError(f"None of the {len(self.files)} files holds a row: check the path.")
        self._check()

    def _check(self) -> None:
        """Check the numbers for all epochs; raises as `Plan` does."""
        for dataset in self._datasets:
            if self.uncounted and not self.features.streams:
                # Called now, so that a policy that needs unknown row counts fails at once.
                dataset.share(dataset.order(0), 0, self.num_ranks, 0)
        if self.options.canonical_ranks is not None:
            virtual_options(self.options, self.num_ranks, exact=self.exact)
        if not self.exact:
            check_unknown_counts(self.options)
            check_counts(self.options, self.num_ranks)
            if self.features.streams and self.rest is None and (mix := self._mix(0)) is not None:
                mix.check([part.name for part in self.parts])
        elif self.rest is None and (mix := self._mix(0)) is not None:
            mix.check([part.name for part in self.parts])
        elif self.options.even in ("drop", "pad") and self.rest is None:
            check_even_rows(self.options, self._datasets, self.num_ranks, self.unit, may_be_empty=self.grows)

    def rank(self, epoch: int, rank: int, lap: int = 0) -> RankPlan:
        """What `rank` delivers in `epoch`; for a later lap, the same rows again, in another order."""
        if not (isinstance(rank, Integral) and 0 <= rank < self.num_ranks):
            raise OptionError(
                f"rank={shown(rank)} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )
        virtual, steps, rows = self._virtual, self.steps(epoch), self.rows(epoch)
        mix = self._mix(epoch)
        if virtual is None:
            shards = self._shards(epoch, rank, lap)
        else:
            owned = range(rank, virtual.num_ranks, self.num_ranks)
            shards = tuple(virtual._shards(epoch, number, lap)[0] for number in owned)
        plan = RankPlan(
            epoch,
            rank,
            shards,
            steps=None if steps is None else steps[rank],
            rows=None if rows is None else rows[rank],
            layouts=self.layouts if self.features.streams else self._layouts(shards),
            batch_rows=self.batch_rows,
            joint=virtual is not None or mix is not None,
            num_ranks=self.num_ranks,
            schedule=None if mix is None else mix.schedule(rank),
            num_all_splits=max(len(self.splits), 1),
            unit=self.unit,
            unit_rows=self.options.unit_rows,
            amplification=partial(self.read_amplification, epoch),
        )
        return plan.as_repeats() if lap and not self.features.streams else plan

    def steps(self, epoch: int) -> list[int] | None:
        """The number of batches of each rank, or None if known only after reading."""
        return self._shares(epoch).steps() if self.exact or self.features.streams else None

    def rows(self, epoch: int) -> list[int] | None:
        """The number of real rows of each rank (without padding), or None if known only after reading."""
        return self._shares(epoch).rows() if self.exact else None

    def idle_ranks(self, epoch: int) -> list[int]:
        """The ranks that have nothing to read in `epoch`; filters may leave more ranks without rows."""
        shares = self._shares(epoch)
        if not self.uncounted or self.features.streams:
            return [rank for rank, rows in enumerate(shares.rows()) if not rows]
        return [rank for rank in range(self.num_ranks) if next(shares.pieces(rank), None) is None]

    def share_of(self, epoch: int, rank: int) -> Iterator[Piece]:
        """The rows that `rank` is given in `epoch`, with those beyond its whole batches."""
        return self._shares(epoch).pieces(rank)

    def left_out(self, epoch: int) -> tuple[Piece, ...]:
        """The rows of `epoch` that no rank delivers because `even` or `last_batch` is `"drop"`."""
        return tuple(self._shares(epoch).not_delivered())

    def remaining(self, epoch: int, phase: int, left: Undelivered) -> RemainingRows:
        """What is left of `epoch` after so many phases, of which this is the last."""
        mix = self._mix(epoch)
        if mix is None:
            return RemainingRows(epoch, phase, rest_of(self.splits, left.pieces))
        return mix.rest(self.splits, left, phase)

    def read_amplification(self, epoch: int) -> float:
        """Rows of the segments that each rank reads in `epoch`, summed over ranks, per row that any of them reads.

        1.0 means that no segment is read by two ranks. Padding is not counted, nor are repeats among a rank's workers.
        """
        if self.uncounted:
            return 1.0
        return read_amplification(map(self._shares(epoch).pieces, range(self.num_ranks)), self.layouts)

    def never_read(self) -> str:
        """A text about a dataset of a mix of which no epoch has a row; "" if there is none."""
        mix = self._mix(0) if self.exact and self.rest is None else None
        return "" if mix is None else mix.never_read([part.name for part in self.parts])

    @property
    def batch_rows(self) -> int:
        """Rows per batch of one rank."""
        return self.options.batch_rows(self.num_ranks)

    @property
    def uncounted(self) -> bool:
        """Whether any split has an unknown row count, even before filters."""
        return self._table.uncounted is not None

    @cached_property
    def sharding(self) -> str:
        """The name of the policy in use: what `"auto"` chose, or a function's own name."""
        return name_of(self._chosen)

    @cached_property
    def layouts(self) -> Mapping[FileKey, FileLayout]:
        """The layout of each file, by its key."""
        return {file.info.key: file.layout for file in self.files}

    def _layouts(self, shards: Shards) -> Mapping[FileKey, FileLayout]:
        """The layouts of the files of these pieces: a rank reads few of many files."""
        return Layouts(tuple(self.splits.files_of(splits_read(shards))))

    @cached_property
    def _table(self) -> SplitTable:
        return SplitTable(self.splits) if self.rest is None else self.rest.order.table

    @cached_property
    def _chosen(self) -> Sharding:
        units = len(self.splits) if self.rest is None else self.rest.order.num_units
        return resolve_auto(self.options, self.num_ranks, units, self._table.uncounted is None)

    @cached_property
    def _datasets(self) -> tuple[DatasetShare, ...]:
        rest = None if self.features.streams else self.rest
        return _datasets(self._table, self.parts, self._chosen, self.options, rest)

    @cached_property
    def _virtual(self) -> Plan | None:
        """The plan of the virtual ranks; None without `canonical_ranks`."""
        virtual_ranks = self.options.canonical_ranks
        if virtual_ranks is None:
            return None
        options = virtual_options(self.options, self.num_ranks, exact=self.exact)
        return replace(self, options=options, num_ranks=virtual_ranks)

    def _shares(self, epoch: int) -> Shares | KeptShares | VirtualShares | ScheduledShares:
        """The shares of all ranks."""
        if (mix := self._mix(epoch)) is not None:
            return mix
        if self._virtual is None:
            return self._own_shares(epoch)
        return VirtualShares(self._virtual._assigned(epoch), self.num_ranks)

    def _mix(self, epoch: int) -> ScheduledShares | None:
        """The shares of all ranks if batches have rows of several shards; those of the last epoch are cached."""
        if not self.features.mixes_rows:
            return None
        if epoch not in self._mixes:
            self._mixes.clear()
            self._mixes[epoch] = self.features.shares(self._datasets, self.options, self.num_ranks, epoch, self.rest)
        return self._mixes[epoch]

    def _shards(self, epoch: int, rank: int, lap: int) -> Shards:
        """What each worker of a rank delivers, in a plan without virtual ranks."""
        if (mix := self._mix(epoch)) is not None:
            phase = self.rest.phase if self.rest else 0
            windows = ("window", self.options.seed, epoch, rank, phase)
            return mix.shards(rank, lambda shards: SegmentTable(self._layouts(shards)), windows, lap)
        shards = worker_shards(self._pieces(epoch, rank, lap), self.options, self.batch_rows, self.exact)
        key = ("window", self.options.seed, epoch, lap, rank, self.rest.phase if self.rest else 0)
        if self.options.shuffles_rows:
            return windowed(shards, SegmentTable(self._layouts(shards)), self.options, key, exact=self.exact)
        if (together := self.options.read_together) is not None:
            return in_windows(shards, SegmentTable(self._layouts(shards)), together, self.options.seed, key)
        return shards

    def _pieces(self, epoch: int, rank: int, lap: int) -> Pieces:
        """The rank's pieces, in order: real ones, then padding; in a later lap, its rows of the whole epoch."""
        if not lap:
            return self._own_shares(epoch).delivered(rank)
        whole = self if self.rest is None else replace(self, rest=None)
        key = derive_key("lap", self.options.seed, epoch, rank, lap) if self.options.shuffle else None
        pieces = whole._assigned(epoch).again(rank, key)
        # As in a mix, orders tell laps apart: draws of rows depend on them.
        splits = max(len(self.splits), 1)
        return Pieces(replace(pieces.runs, place=lap * splits + pieces.runs.place % splits))

    def _own_shares(self, epoch: int) -> Shares | KeptShares:
        if self.rest is None or self.rest.ranks is None:
            return self._assigned(epoch)
        return KeptShares(self.rest.ranks, self.rest.order, self.batch_rows)

    def _assigned(self, epoch: int) -> Shares:
        """The shares that the policy and `even` assign; those of the last requested epoch are cached."""
        if epoch not in self._epochs:
            if self.rest is not None and epoch != self.rest.epoch:
                raise ValueError(f"a plan of what is left of epoch {self.rest.epoch} was asked for epoch {epoch}")
            first, phase = self._datasets[0].options, self.rest.phase if self.rest else 0
            options = first if self.exact else replace(first, last_batch="partial")  # the reader applies last_batch
            self._epochs.clear()
            self._epochs[epoch] = assign(self._datasets, options, self.num_ranks, epoch, phase)
        return self._epochs[epoch]


def _datasets(
    table: SplitTable, parts: Sequence[Part], sharding: Sharding, options: PlanOptions, rest: RemainingRows | None
) -> tuple[DatasetShare, ...]:
    """Each dataset with what shares it among ranks."""
    if rest is None:
        return dataset_shares(table, parts, _policy_of(sharding, options), options)
    # The rest is sharded without rotation, and not shuffled again.
    chosen = "contiguous" if isinstance(sharding, Rotate) else sharding
    options = replace(options, sharding=chosen)
    return (share_of_rest(rest.order, _policy_of(chosen, options), options),)


def _policy_of(sharding: Sharding, options: PlanOptions) -> Policy:
    return BY_PARTITION if options.by_partition and sharding == "contiguous" else find_policy(sharding)
