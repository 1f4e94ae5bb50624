"""Plans of a source for any epoch and rank, and the report a rank sends to its peers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import chain
from typing import Any

from torch_dataloader_utils.distributed.agreement import RankReport, has_peers
from torch_dataloader_utils.distributed.ranks import World, joining, resolve_world
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.advice import (
    idle_ranks_advice,
    small_windows_advice,
    uneven_steps_advice,
    why_idle,
)
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.generate import call_generate, generated_plan
from torch_dataloader_utils.planning.phases import Phase, plan_of_rest
from torch_dataloader_utils.planning.plan import Plan, PlanOptions, RankPlan
from torch_dataloader_utils.planning.rank_plan import rows_of_step
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.planning.sharding import policy_name, with_options
from torch_dataloader_utils.planning.strategies import assignment_of
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.schemas.merge import kept_schema
from torch_dataloader_utils.sources.source import Source

_LOG = logging.getLogger("torch_dataloader_utils")


class Planner:
    """The plans of one source.

    If the options do not set the number of ranks, it is detected at first use; everything else is checked at
    construction.

    Raises:
        OptionError: options that do not fit together.
        ShardingError: numbers that do not fit together.
        CountsRequiredError: the options need row counts that are not known.
        EmptyDatasetError: `even` without a row.
    """

    def __init__(self, source: Source, options: Options, said: PlanWarnings | None = None) -> None:
        self._source = source
        self._options = options
        self.warn = said or PlanWarnings(options, self._own_rank)
        self._last_source: tuple[int, Source] | None = None
        self._last_plan: tuple[int, Plan] | None = None
        self._last_rest: tuple[tuple[PlanOptions, int, tuple[Phase, ...]], Plan] | None = None
        shard = options.shard
        strategy = options.split.split_strategy
        self._generate = strategy if hasattr(strategy, "generate") else None
        if self._generate is None:
            first = self._plan(0, shard.num_ranks or 1, None)
            if shard.num_ranks is not None:
                self.warn.of_shares(first, 0, "construction")

    @cached_property
    def world(self) -> World:
        """The number of ranks and this process's rank."""
        world = self._found_world()
        for part in self._source.parts:
            part.check_ranks(world.num_ranks)
        return world

    @property
    def known_world(self) -> World:
        """The same, without fixing the number of ranks."""
        return self.world if self.is_settled else self._found_world()

    @property
    def is_settled(self) -> bool:
        """Whether the number of ranks cannot change any more."""
        return "world" in self.__dict__ or self._options.shard.num_ranks is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether one process was settled, but this is one of several, such as a fork that became a rank of a job."""
        given = self._options.shard.num_ranks is not None
        return not given and self.is_settled and self.world.num_ranks == 1 and self._found_world().num_ranks > 1

    def _own_rank(self) -> int:
        return self.world.rank

    def _found_world(self) -> World:
        shard, peers = self._options.shard, self._options.shard.peers
        return resolve_world(shard.num_ranks, shard.rank, None if peers is None else peers.world)

    @property
    def has_peers(self) -> bool:
        """Whether there are ranks to compare plans with before a pass."""
        return has_peers(self.world, self._options.shard.num_ranks is not None)

    def rank_plan(
        self, epoch: int, rank: int, lap: int = 0, num_shards: int | None = None, past: tuple[Phase, ...] = ()
    ) -> RankPlan:
        """A rank's plan of an epoch (or of a later lap of it).

        Args:
            epoch: the epoch.
            rank: the global rank.
            lap: how often the rank's rows have started again.
            num_shards: the number of workers; None for that of the options.
            past: earlier phases of the epoch: the plan covers what they left.
        """
        if self._generate is not None:
            plan = self._generated(epoch, rank, lap, num_shards)
        else:
            plan = self._plan_of_rest(epoch, num_shards, past).rank(epoch, rank, lap)
        steps = self._options.shard.steps_per_epoch
        return plan if steps is None else plan.ending_after(steps)

    def plan_of_all_ranks(self, epoch: int) -> Plan | None:
        """The plan of an epoch of the ranks that show by now; None where a strategy generates the shards of one."""
        return None if self._generate is not None else self._plan(epoch, self.known_world.num_ranks, None)

    def source(self, epoch: int) -> Source:
        """What an epoch reads."""
        if self._source.weights is None:
            return self._source
        if self._last_source is None or self._last_source[0] != epoch:
            self._last_source = epoch, self._source.in_epoch(epoch)
        return self._last_source[1]

    def steps(self, epoch: int, rank: int, num_shards: int | None = None, past: tuple[Phase, ...] = ()) -> int | None:
        """The steps of `rank_plan`, from counts alone: no pieces are created."""
        if self._options.shard.steps_per_epoch is not None:
            return self._options.shard.steps_per_epoch
        if self._generate is not None:
            return self._generated(epoch, rank, 0, num_shards).steps
        steps = self._plan_of_rest(epoch, num_shards, past).steps(epoch)
        return None if steps is None else steps[rank]

    def rows_of(self, epoch: int, step: int, rank: int, past: tuple[Phase, ...] = ()) -> tuple[RowRange, ...]:
        """The rows of one batch of a rank, in file order; steps count from the beginning of the last phase.

        Raises:
            CountsRequiredError: row counts are not known before reading.
            IndexError: there is no such step.
        """
        laps, tokens = self._options.shard.steps_per_epoch is not None, self._source.unit is Unit.TOKEN
        return rows_of_step(lambda lap: self.rank_plan(epoch, rank, lap, past=past), step, laps=laps, tokens=tokens)

    @property
    def batch_rows(self) -> int:
        """Rows of one batch of one rank."""
        return plan_options(self._options).batch_rows(self.world.num_ranks)

    def warn_of_empty_rank(self, plan: RankPlan) -> None:
        """Warn that a pass of a rank has no batch although there are rows."""
        self.warn.of_empty_rank(plan, None if self._generate else self._plan(plan.epoch, self.world.num_ranks, None))

    def warn_of_uneven_steps(self, epoch: int) -> None:
        """Warn if ranks of a running job have no rows, or different numbers of steps."""
        if self._generate is None and self.has_peers:
            self.warn.of_shares(self._plan(epoch, self.world.num_ranks, None), epoch, "iteration")

    def report(self, epoch: int, position: int) -> RankReport:
        """What this rank is about to do, for comparison; `position` is a digest of its position in the epoch."""
        world = self.world
        return RankReport(world.rank, world.num_ranks, epoch, self.data_digest, self._options_digest, position=position)

    @cached_property
    def data_digest(self) -> int:
        """Digest of the splits: files by size and rows (paths may differ between hosts), row ranges, and the filter."""
        lines = (
            f"{split.file.file_size} {split.file.record_count} {split.row_range} {split.segments}"
            for split in self._source.splits
        )
        source = self._source
        texts = (
            source.scan.predicate,
            kept_schema(source.scan.output_schema),
            source.parts,
            source.origin,
            source.subset,
            source.scan.mark,
            *([] if source.weights is None else [source.weights.text]),
        )
        return digest(chain(lines, map(str, texts)))

    @cached_property
    def _options_digest(self) -> int:
        options = plan_options(self._options)
        # A function by its name: the repr of an object may hold its address, which differs between ranks.
        parts = astuple(replace(options, sharding=policy_name(options.sharding)))
        cut = (self._options.pack.text, self._options.sequence.text, self._source.buckets)
        others = (self._options.shard.sync_every, self._source.exact, *cut)
        return digest(map(str, (*parts, *others, self._options.features.saved())))

    def _plan(self, epoch: int, num_ranks: int, num_shards: int | None) -> Plan:
        """The plan of an epoch; of all epochs, unless rows are drawn."""
        options = plan_options(self._options, num_shards)
        epoch = 0 if self._source.weights is None else epoch
        of, kept = self._last_plan or (epoch, None)
        if kept is None or of != epoch or kept.options != options or kept.num_ranks != num_ranks:
            kept = self._new_plan(self.source(epoch), options, num_ranks)
            self._last_plan = epoch, kept
        return kept

    def _new_plan(self, of: Source, options: PlanOptions, num_ranks: int) -> Plan:
        return Plan(
            of.files,
            of.splits,
            options,
            num_ranks,
            of.exact,
            of.parts,
            grows=self._options.follow.follows,
            unit=of.unit,
            features=self._options.features,
        )

    def _plan_of_rest(self, epoch: int, num_shards: int | None, past: tuple[Phase, ...]) -> Plan:
        whole = self._plan(epoch, self.world.num_ranks, num_shards)
        if not past:
            return whole
        key = (whole.options, epoch, past)
        if self._last_rest is None or self._last_rest[0] != key:
            self._last_rest = key, plan_of_rest(whole, epoch, past)
        return self._last_rest[1]

    def _generated(self, epoch: int, rank: int, lap: int, num_shards: int | None) -> RankPlan:
        source, options, num_ranks = self.source(epoch), plan_options(self._options, num_shards), self.world.num_ranks
        shards, all_on_each = call_generate(self._generate, source.files, options.num_shards, epoch, num_ranks, rank)
        if all_on_each:
            self.warn.of_strategy(type(self._generate).__name__, num_ranks)
        order = lap * max(len(source.splits), 1)
        plan = generated_plan(shards, source.files, options, epoch, rank, source.exact, order)
        plan = replace(plan, num_ranks=num_ranks)
        return plan if lap == 0 else plan.as_repeats()


class PlanWarnings:
    """What is logged of plans, each warning once.

    Args:
        options: of the loader.
        rank: returns this process's rank.
    """

    def __init__(self, options: Options, rank: Callable[[], int]) -> None:
        self._options = options
        self._rank = rank
        self._said: set[str] = set()

    @property
    def _speaks_for_all(self) -> bool:
        """Whether this rank logs what concerns all ranks: the first does. What concerns one rank, that rank logs."""
        rank = self._options.shard.rank
        return (self._rank() if rank is None else rank) == 0

    def of_shares(self, plan: Plan, epoch: int, when: str) -> None:
        """Warn, on rank 0, if ranks have no rows, or different numbers of steps, or a dataset is never read."""
        if self._speaks_for_all and (unread := plan.never_read()):
            self._once("unread", unread)
        idle = None if plan.num_ranks == 1 else idle_ranks_advice(plan, epoch)
        countable, wanted = not self._options.uncounted, self._options.shard.even == "none"
        advice = idle or uneven_steps_advice(plan, epoch, countable, wanted=wanted)
        if advice is None or not self._speaks_for_all:
            return
        if when == "iteration" and when not in self._said and joining():
            self._said.add(when)
            return
        self._once(when, str(advice))
        if idle is not None:
            self._said.add("empty")  # said already

    def of_strategy(self, name: str, num_ranks: int) -> None:
        """Warn, on rank 0, that a strategy gives all rows to each rank."""
        if self._speaks_for_all:
            self._once(
                "generate",
                f"{name}.generate takes no num_ranks and rank: each of the {num_ranks} ranks reads all rows",
            )

    def of_empty_rank(self, plan: RankPlan, whole: Plan | None) -> None:
        """Warn that a pass has no batch although there are rows.

        Args:
            plan: of the rank.
            whole: of all ranks; None if a strategy generates their shards.
        """
        batch = self._options.batch
        given = 0 if whole is None else total_rows(whole.share_of(plan.epoch, plan.rank))
        if given and plan.unit is Unit.TOKEN:
            why = (
                f"its {plural(given, 'token')} fill no sequence of {plan.unit_rows}; use a smaller "
                "Pack(length), or even='pad', which delivers them with a mask."
            )
        elif batch.last_batch == "drop":
            why = f"last_batch='drop' leaves out its rows, which are fewer than batch_size={batch.batch_size}."
        elif whole is None:
            why = "generate() gave it no rows."
        else:
            cause, remedy = why_idle(whole)
            why = f"it got no split, because {cause}. {remedy}"
        self._once("empty", f"epoch {plan.epoch}: rank {plan.rank} has no batch: {why}")

    def of_small_windows(self, plan: RankPlan) -> None:
        """Warn, on rank 0, if shuffle windows hold so few of many splits that sorted data stay nearly sorted.

        Only the first pass is checked: it takes a look at every piece. Windows of other epochs and ranks are alike.
        """
        if "window" in self._said or not self._speaks_for_all:
            return
        advice = small_windows_advice(plan, self._options.shuffle)
        if advice is not None:
            _LOG.warning("%s", advice)
        self._said.add("window")

    def _once(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            _LOG.warning("%s", message)


def plan_options(options: Options, num_shards: int | None = None) -> PlanOptions:
    """The options a plan depends on, with another number of shards if given."""
    shard = options.shard
    shape = PlanOptions(
        batch_size=options.batch.batch_size,
        shuffle=bool(options.shuffle.permutes),
        by_partition=options.shuffle.by_partition,
        seed=options.shuffle.shuffle_seed,
        num_shards=options.worker.num_shards if num_shards is None else num_shards,
        assignment=assignment_of(options.split.split_strategy),
        sharding=with_options(shard.sharding),
        even=(shard.even if shard.steps_per_epoch is None else None) or "none",
        last_batch=options.batch.last_batch,
        buffer_rows=options.shuffle.window_rows,
        window_bytes=options.shuffle.window_bytes,
        open_splits=options.shuffle.open_splits,
        steps_per_epoch=shard.steps_per_epoch,
        canonical_ranks=shard.canonical_ranks,
    )
    return options.features.plan(shape)


def digest(parts: Any) -> int:
    """A 63-bit digest of these texts."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part.encode("utf-8", "surrogatepass"))  # a path need not be valid UTF-8
        state.update(b"\0")
    return int.from_bytes(state.digest(), "little") >> 1
