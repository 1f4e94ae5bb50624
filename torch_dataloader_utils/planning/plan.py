"""The plan: for any epoch and rank, which rows each worker delivers, in which order, and in how many steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, OptionError, ShardingError
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, Split
from torch_dataloader_utils.planning.amplification import read_amplification, segment_map
from torch_dataloader_utils.planning.canonical import virtual_options
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.mixing import DatasetShare, Part, lane_of_rest, lanes_of
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import SplitTable
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.rest import Phase, Rest, left_by_rank, merged, rest_of
from torch_dataloader_utils.planning.sharding import Policy, Share, find_policy, resolve_auto
from torch_dataloader_utils.planning.shares import Shares, deal, dropped_tails, rank_pieces
from torch_dataloader_utils.planning.tasks import FileSegments
from torch_dataloader_utils.planning.windows import make_windows
from torch_dataloader_utils.planning.workers import Shards, worker_shards
from torch_dataloader_utils.seeding import derive_key, permutation

__all__ = ["Plan", "PlanOptions", "RankPlan"]

# Of the rules that make plans: another version may deal the rows of the same data in another way. Golden tests freeze
# the orders of this one.
PLAN_VERSION = 1
# The same for what earlier phases left of an epoch: only states of a resumed epoch depend on it.
REST_VERSION = 2


@dataclass(frozen=True, eq=False)
class Plan:
    """All epochs of all ranks, as a function of counts and options.

    Attributes:
        files: all files of the source.
        splits: all splits, in file order.
        options: what shapes the plan.
        num_ranks: all ranks (R).
        exact: whether plan rows are the rows that will be delivered. If not (an uncounted filter, say), steps are not
            known in advance, and `last_batch` is left to the reader, who applies it per worker.
        parts: the datasets of a combination; files and splits come in their order.
        rest: what earlier phases left of the one epoch that this is the plan of; None: a plan of all rows of any.

    Raises:
        OptionError: options that exclude each other, or an unknown policy.
        ShardingError: numbers that do not fit together, such as fewer rows than `even="drop"` needs for one step.
        CountsRequiredError: the policy or `even` needs row counts that are not known.
        EmptyDatasetError: files without any row, or `even` without a row.
    """

    files: Sequence[DataFile]
    splits: Sequence[Split]
    options: PlanOptions
    num_ranks: int = 1
    exact: bool = True
    parts: Sequence[Part] = (Part(),)
    rest: Rest | None = None
    _epochs: dict[int, Shares] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.options.check_ranks(self.num_ranks)
        object.__setattr__(self, "exact", self.exact and SplitTable(self.splits).uncounted is None)
        if self.files and all(file.info.record_count == 0 for file in self.files):
            raise EmptyDatasetError(f"None of the {len(self.files)} files holds a row: check the path.")
        for lane in self._lanes:
            if self._table.uncounted is not None:
                # Asked now, so that a policy that cuts rows of unknown number says so at once.
                lane.share(lane.order(0), 0, self.num_ranks, 0)
        if self.options.canonical_ranks is not None:
            self._check_canonical()
        if not self.exact:
            self._check_inexact()
        elif self.options.even in ("drop", "pad") and self.rest is None:
            self._check_even()

    def rank(self, epoch: int, rank: int, lap: int = 0) -> RankPlan:
        """What `rank` delivers in `epoch`; with a lap, the same rows once more, in an order of the lap's own."""
        if not 0 <= rank < self.num_ranks:
            raise OptionError(
                f"rank={rank} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )
        if self._virtual is not None:
            return self._of_virtual(self._virtual, epoch, rank, lap)
        pieces = self._again(epoch, rank, lap) if lap else self._pieces(epoch, rank)
        shards = worker_shards(pieces, self.options, self.batch_rows, self.exact)
        if self.options.buffer_rows is not None:
            shards = self._windowed(shards, self.options.buffer_rows, ("window", self.options.seed, epoch, lap, rank))
        steps, rows = self.steps(epoch), self.rows(epoch)
        plan = RankPlan(
            epoch,
            rank,
            shards,
            steps=None if steps is None else steps[rank],
            rows=None if rows is None else rows[rank],
            layouts=self.layouts,
            batch_rows=self.batch_rows,
        )
        return plan.as_repeats() if lap else plan

    def steps(self, epoch: int) -> list[int] | None:
        """Batches of each rank, or None where only reading tells."""
        if not self.exact:
            return None
        if self._virtual is not None:
            steps = self._virtual.steps(epoch) or []
            return [max(steps[rank :: self.num_ranks]) for rank in range(self.num_ranks)]
        if self._kept is not None:
            return [-(-total_rows(pieces) // self.batch_rows) for pieces in self._kept]
        targets = self._shares(epoch).targets
        if self.options.even == "pad":
            return [-(-int(targets.sum()) // (self.num_ranks * self.batch_rows))] * self.num_ranks
        full = targets // self.batch_rows if self._drops_last else -(-targets // self.batch_rows)
        return [int(count) for count in full]

    def rows(self, epoch: int) -> list[int] | None:
        """Real rows of each rank (padding not among them), or None where only reading tells."""
        if not self.exact:
            return None
        if self._virtual is not None:
            rows = self._virtual.rows(epoch) or []
            return [sum(rows[rank :: self.num_ranks]) for rank in range(self.num_ranks)]
        if self._kept is not None:
            return [total_rows(piece for piece in pieces if not piece.pad) for pieces in self._kept]
        targets = self._shares(epoch).targets
        if self._drops_last:
            targets = targets - targets % self.batch_rows
        return [int(count) for count in targets]

    def left_out(self, epoch: int) -> tuple[Piece, ...]:
        """The rows of `epoch` that no rank delivers because `even` or `last_batch` is `"drop"`."""
        if self._virtual is not None:
            return self._virtual.left_out(epoch)
        if self.rest is not None and self._kept is not None:
            return tuple(self.rest.order.runs().pieces())
        shares = self._shares(epoch)
        pieces = [piece for run in shares.left_out for piece in run.runs().pieces()]
        if self.exact and self._drops_last:
            pieces += dropped_tails(shares, self.batch_rows)
        return tuple(pieces)

    def left(self, epoch: int, phase: Phase, *, by_rank: bool) -> Rest:
        """What is left of `epoch` when this plan was followed as far as `phase` says.

        Args:
            epoch: the epoch.
            phase: how far each rank came.
            by_rank: whether each rank goes on with its own rows.
        """
        number = 1 if self.rest is None else self.rest.phase + 1
        steps = self.steps(epoch)
        done = [phase.of_rank(rank) for rank in range(self.num_ranks)]
        most = self.options.steps_per_epoch
        if steps and most is not None:  # these end the epoch, whatever they leave out or repeat
            steps = [most] * self.num_ranks
        if steps and all(isinstance(n, int) and n >= step for n, step in zip(done, steps, strict=True)):
            return Rest(epoch, number, rest_of(self.splits, ()))
        laps = most is not None
        done = [min(n, most) if most is not None and isinstance(n, int) else n for n in done]
        left = [left_by_rank(partial(self.rank, epoch, rank), n, laps=laps) for rank, n in enumerate(done)]
        if by_rank:
            own = [
                (*merged(piece for piece in pieces if not piece.pad), *(piece for piece in pieces if piece.pad))
                for pieces in left
            ]
            return Rest(epoch, number, rest_of(self.splits, self.left_out(epoch)), tuple(own))
        real = [piece for pieces in left for piece in pieces if not piece.pad]
        return Rest(epoch, number, rest_of(self.splits, [*real, *self.left_out(epoch)]))

    def read_amplification(self, epoch: int) -> float:
        """Rows of segments that all ranks read in `epoch`, per row of a segment that any of them reads.

        1.0 means that no segment is read by two ranks. Padding and workers of one rank are not looked at.
        """
        if self._table.uncounted is not None or not len(self._table.splits) or self.rest is not None:
            return 1.0
        virtual = self._virtual or self
        shares, ranks_of = virtual._shares(epoch), range(virtual.num_ranks)
        ranks = (
            [part for lane in ranks_of[rank :: self.num_ranks] for part in shares.parts(lane)]
            for rank in range(self.num_ranks)
        )
        return read_amplification(segment_map(self.files, self._table), ranks)

    @property
    def batch_rows(self) -> int:
        """Rows of one batch of one rank."""
        return self.options.batch_rows(self.num_ranks)

    @cached_property
    def sharding(self) -> str:
        """The name of the policy in use: what `"auto"` chose, or a function's own name."""
        chosen = self._chosen
        return chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)

    @cached_property
    def layouts(self) -> Mapping[FileKey, FileLayout]:
        """The layout of each file, by its key."""
        return {file.info.key: file.layout for file in self.files}

    @cached_property
    def _table(self) -> SplitTable:
        return SplitTable(self.splits) if self.rest is None else self.rest.order.table

    @cached_property
    def _chosen(self) -> str | Policy | Share:
        units = len(self.splits) if self.rest is None else self.rest.order.num_units
        return resolve_auto(self.options, self.num_ranks, units, self._table.uncounted is None)

    @cached_property
    def _lanes(self) -> tuple[DatasetShare, ...]:
        if self.rest is None:
            policy = find_policy(self._chosen, self.options)
            return lanes_of(self._table, self.files, self.parts, policy, self.options)
        # What is left is cut without rotation, and not shuffled again.
        options = replace(self.options, stick_to_shard=False, full_rotation=False, total_shards=None)
        chosen = "contiguous" if self._chosen == "rotate" else self._chosen
        options = replace(options, sharding=chosen)
        return (lane_of_rest(self.rest.order, find_policy(chosen, options), options),)

    @cached_property
    def _virtual(self) -> Plan | None:
        """The plan of the virtual ranks, where there are such."""
        lanes = self.options.canonical_ranks
        if lanes is None:
            return None
        return replace(self, options=virtual_options(self.options, self.num_ranks), num_ranks=lanes)

    def _of_virtual(self, virtual: Plan, epoch: int, rank: int, lap: int) -> RankPlan:
        """The virtual ranks that a rank owns, as the shards of which its batches are made."""
        lanes = [virtual.rank(epoch, lane, lap) for lane in range(rank, virtual.num_ranks, self.num_ranks)]
        steps, rows = self.steps(epoch), self.rows(epoch)
        return replace(
            lanes[0],
            rank=rank,
            shards=tuple(lane.shards[0] for lane in lanes),
            steps=None if steps is None else steps[rank],
            rows=None if rows is None else rows[rank],
            batch_rows=self.batch_rows,
            joint=True,
        )

    def _check_canonical(self) -> None:
        virtual_options(self.options, self.num_ranks)
        if not self.exact:
            raise CountsRequiredError(
                "canonical_ranks needs the number of rows that will be delivered, and only reading tells: give "
                "count_rows=True."
            )

    @property
    def _drops_last(self) -> bool:
        return self.options.even == "none" and self.options.last_batch == "drop"

    @property
    def _kept(self) -> tuple[tuple[Piece, ...], ...] | None:
        """The pieces of each rank, where each goes on with its own after a change of workers."""
        return None if self.rest is None else self.rest.ranks

    def _pieces(self, epoch: int, rank: int) -> list[Piece]:
        """The rank's pieces, in order: real ones, then padding."""
        if self._kept is not None:
            return list(self._kept[rank])
        shares = self._shares(epoch)
        return rank_pieces(shares, rank, self.options, self.batch_rows) if self.exact else list(shares.pieces(rank))

    def _windowed(self, shards: Shards, buffer_rows: int, key: tuple[int | str, ...]) -> Shards:
        """The shards with their rows in shuffle windows."""
        phase = self.rest.phase if self.rest else 0

        def key_of(worker: int) -> Callable[[int], int]:
            return lambda number: derive_key(*key, phase, worker, number)

        open_splits = self.options.open_splits
        found: dict[FileKey, FileSegments] = {}
        return tuple(
            tuple(
                make_windows(
                    shard, self.layouts, found,
                    buffer_rows=buffer_rows, open_splits=open_splits, exact=self.exact, key_of=key_of(worker),
                )
            )
            for worker, shard in enumerate(shards)
        )  # fmt: skip

    def _again(self, epoch: int, rank: int, lap: int) -> list[Piece]:
        """The rank's rows of the whole epoch for a lap after the first (those of the ranks after it if it has none)."""
        if self.rest is not None:
            return replace(self, rest=None)._again(epoch, rank, lap)
        shares = self._shares(epoch)
        pieces = list(shares.pieces(rank)) or list(shares.following(rank))
        if not self.options.shuffle:
            return pieces
        places = permutation(len(pieces), derive_key("lap", self.options.seed, epoch, rank, lap))
        return [replace(pieces[place], order=order) for order, place in enumerate(places)]

    def _shares(self, epoch: int) -> Shares:
        """The shares of all ranks; those of the last epoch asked for are kept."""
        if epoch not in self._epochs:
            if self.rest is not None and epoch != self.rest.epoch:
                raise ValueError(f"a plan of what is left of epoch {self.rest.epoch} was asked for epoch {epoch}")
            options, phase = self._lanes[0].options, self.rest.phase if self.rest else 0
            shares = deal(self._lanes, options, self.num_ranks, epoch, phase)
            self._epochs.clear()
            self._epochs[epoch] = shares
        return self._epochs[epoch]

    def _check_inexact(self) -> None:
        if self.options.even in ("drop", "pad"):
            raise CountsRequiredError(
                f"even={self.options.even!r} needs the number of rows that will be delivered, and only reading tells: "
                "give count_rows=True (counts once), steps_per_epoch=n (exactly n steps), or even='sync' "
                "(all ranks stop with the first)."
            )
        if self.options.last_batch == "wrap":
            raise CountsRequiredError(
                "last_batch='wrap' takes rows of the next ranks, and how many is not known before reading: "
                "give count_rows=True, or last_batch='pad'."
            )

    def _check_even(self) -> None:
        """Check that each epoch has rows, and enough of them for a step."""
        even, ranks, total = self.options.even, self.num_ranks, int(self._table.lengths.sum())
        laps = self.options.total_shards // ranks if self.options.total_shards else 1
        rows = min(sum(lane.lap_rows(lap, laps) for lane in self._lanes) for lap in range(laps))
        if not rows:
            raise EmptyDatasetError(f"even={even!r}: an epoch has no row to deliver (N={total} rows, R={ranks} ranks).")
        if even == "drop" and rows < ranks * self.batch_rows:
            raise ShardingError(
                f"even='drop' with N={rows} rows in an epoch, R={ranks} ranks and batches of B={self.batch_rows}: "
                f"one step needs R*B={ranks * self.batch_rows}. Use fewer ranks, a smaller batch_size, or even='pad'."
            )


def plan_of_rest(first: Plan, epoch: int, past: Sequence[Phase]) -> Plan:
    """The plan of what earlier phases left of an epoch, for the options and ranks of `first`.

    Args:
        first: the plan of the whole epoch; without phases it is what comes back.
        epoch: the epoch.
        past: the phases, from the epoch's beginning.
    """
    rest = None
    following = [*((phase.options, phase.num_ranks) for phase in past[1:]), (first.options, first.num_ranks)]
    for phase, then in zip(past, following, strict=False):
        plan = replace(first, options=phase.options, num_ranks=phase.num_ranks, rest=rest)
        rest = plan.left(epoch, phase, by_rank=phase.keeps_ranks(*then))
    return first if rest is None else replace(first, rest=rest)
