"""The plan: for any epoch and rank, which rows each worker delivers, in which order, and in how many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, OptionError, ShardingError
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, Split
from torch_dataloader_utils.planning.amplification import read_amplification, segment_map
from torch_dataloader_utils.planning.mixing import Lane, Part, lanes_of
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import SplitTable
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.sharding import Policy, Share, find_policy, resolve_auto
from torch_dataloader_utils.planning.shares import Shares, deal, dropped_tails, rank_pieces
from torch_dataloader_utils.planning.workers import worker_shards
from torch_dataloader_utils.seeding import derive_key, permutation

__all__ = ["Plan", "PlanOptions", "RankPlan"]


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
    _epochs: dict[int, Shares] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.options.check_ranks(self.num_ranks)
        object.__setattr__(self, "exact", self.exact and self._table.uncounted is None)
        if self.files and all(file.info.record_count == 0 for file in self.files):
            raise EmptyDatasetError(f"None of the {len(self.files)} files holds a row: check the path.")
        for lane in self._lanes:
            if self._table.uncounted is not None:
                # Asked now, so that a policy that cuts rows of unknown number says so at once.
                lane.share(lane.order(0), 0, self.num_ranks, 0)
        if not self.exact:
            self._check_inexact()
        elif self.options.even in ("drop", "pad"):
            self._check_even()

    def rank(self, epoch: int, rank: int, lap: int = 0) -> RankPlan:
        """What `rank` delivers in `epoch`; with a lap, the same rows once more, in an order of the lap's own."""
        if not 0 <= rank < self.num_ranks:
            raise OptionError(
                f"rank={rank} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )
        shares, size = self._shares(epoch), self.batch_rows
        if lap:
            pieces = self._again(shares, epoch, rank, lap)
        else:
            pieces = rank_pieces(shares, rank, self.options, size) if self.exact else list(shares.pieces(rank))
        shards = worker_shards(pieces, self.options, size, self.exact)
        steps, rows = self.steps(epoch), self.rows(epoch)
        plan = RankPlan(
            epoch,
            rank,
            shards,
            steps=None if steps is None else steps[rank],
            rows=None if rows is None else rows[rank],
            layouts=self.layouts,
        )
        return plan.as_repeats() if lap else plan

    def steps(self, epoch: int) -> list[int] | None:
        """Batches of each rank, or None where only reading tells."""
        if not self.exact:
            return None
        targets = self._shares(epoch).targets
        if self.options.even == "pad":
            return [-(-int(targets.sum()) // (self.num_ranks * self.batch_rows))] * self.num_ranks
        full = targets // self.batch_rows if self._drops_last else -(-targets // self.batch_rows)
        return [int(count) for count in full]

    def rows(self, epoch: int) -> list[int] | None:
        """Real rows of each rank (padding not among them), or None where only reading tells."""
        if not self.exact:
            return None
        targets = self._shares(epoch).targets
        if self._drops_last:
            targets = targets - targets % self.batch_rows
        return [int(count) for count in targets]

    def left_out(self, epoch: int) -> tuple[Piece, ...]:
        """The rows of `epoch` that no rank delivers because `even` or `last_batch` is `"drop"`."""
        shares = self._shares(epoch)
        pieces = [piece for run in shares.left_out for piece in run.runs().pieces()]
        if self.exact and self._drops_last:
            pieces += dropped_tails(shares, self.batch_rows)
        return tuple(pieces)

    def read_amplification(self, epoch: int) -> float:
        """Rows of segments that all ranks read in `epoch`, per row of a segment that any of them reads.

        1.0 means that no segment is read by two ranks. Padding and workers of one rank are not looked at.
        """
        if self._table.uncounted is not None or not len(self._table.splits):
            return 1.0
        shares = self._shares(epoch)
        ranks = (list(shares.parts(rank)) for rank in range(self.num_ranks))
        return read_amplification(segment_map(self.files, self._table), ranks)

    @property
    def has_repeats(self) -> bool:
        """Whether batches can hold padding, so that they carry a `valid` mask."""
        return self.options.repeats

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
        return SplitTable(self.splits)

    @cached_property
    def _chosen(self) -> str | Policy | Share:
        return resolve_auto(self.options, self.num_ranks, len(self.splits), self._table.uncounted is None)

    @cached_property
    def _lanes(self) -> tuple[Lane, ...]:
        policy = find_policy(self._chosen, self.options)
        return lanes_of(self._table, self.files, self.parts, policy, self.options)

    @property
    def _drops_last(self) -> bool:
        return self.options.even == "none" and self.options.last_batch == "drop"

    def _again(self, shares: Shares, epoch: int, rank: int, lap: int) -> list[Piece]:
        """The rank's rows for a lap after the first (those of the ranks after it if it has none)."""
        pieces = list(shares.pieces(rank)) or list(shares.following(rank))
        if not self.options.shuffle:
            return pieces
        places = permutation(len(pieces), derive_key("lap", self.options.seed, epoch, rank, lap))
        return [replace(pieces[place], order=order) for order, place in enumerate(places)]

    def _shares(self, epoch: int) -> Shares:
        """The shares of all ranks; those of the last epoch asked for are kept."""
        if epoch not in self._epochs:
            shares = deal(self._lanes, self.options, self.num_ranks, epoch)
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
