"""How a pass begins: at a position in an epoch, once all ranks are about to do the same."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from torch_dataloader_utils.batching.batches import BatchMaker, BatchSize, exactly, in_step
from torch_dataloader_utils.batching.devices import Target, make_target
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.checkpoint.checkpoint import StateCodec
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.agreement import check_reports
from torch_dataloader_utils.distributed.collectives import smallest
from torch_dataloader_utils.errors import Example, OptionError, ShardingError, StaleIteratorError, leave_out, use
from torch_dataloader_utils.events import Hooks
from torch_dataloader_utils.iteration.execution import Execution, reading_of
from torch_dataloader_utils.iteration.pass_progress import PassProgress, ShownPass
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.iteration.rank_run import RankRun, Recipe
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.metrics.verdict import VerdictLog
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.planner import Planner, digest, plan_options
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.progress import Progress
from torch_dataloader_utils.reading.blocks import Scan
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.agreement import joint_step
from torch_dataloader_utils.sources.skipped import skipped_counts
from torch_dataloader_utils.sources.source import Source

# Checks of options that depend on who iterates.


def check_foreign(options: Options, worker: tuple[int, int] | None) -> None:
    """Check that the options work in a worker of a foreign loader.

    Args:
        options: of the loader.
        worker: (index, count); None outside of such a worker.

    Raises:
        OptionError: they do not.
    """
    check_device(options.worker.device, worker)
    if options.features.mixes_rows and worker is not None and worker[1] > 1:
        raise OptionError(
            f"a mix within {worker[1]} workers of a foreign loader: its batches combine rows of all datasets. Use one "
            "worker, or none, or do not mix rows.",
            remedies=[use(batches="splits")],
        )
    if options.shard.canonical_ranks and worker is not None and worker[1] > 1:
        raise OptionError(
            f"canonical_ranks within {worker[1]} workers of a foreign loader: its batches combine rows of all shards. "
            "Use one worker, or none, or no virtual ranks.",
            remedies=[leave_out("canonical_ranks")],
        )


def check_device(device: str | None, worker: tuple[int, int] | None) -> None:
    """Check that whoever iterates can hand over batches on the device; `worker` as for `check_foreign`.

    Raises:
        OptionError: a worker of a foreign loader cannot send them to the process that trains.
    """
    if worker is not None and device not in (None, "cpu"):
        raise OptionError(
            f"device={device!r} within {worker[1]} worker(s) of a foreign loader: tensors on a GPU cannot be sent from "
            "one process to another. Iterate the loader that create_dataloader returns, or read on the CPU.",
            remedies=[leave_out("device")],
        )


_LOG = logging.getLogger("torch_dataloader_utils")


class Epochs:
    """The passes over one source by one rank, or by one worker of a foreign loader.

    Args:
        source: what is read.
        options: of the loader.
        before_reading: called before each pass, after the ranks have agreed.
        before_epoch: called before a pass that begins an epoch is planned; returns another source to read, or None.
        worker: (index, count) in a worker of a foreign loader: it reads the shard with this index, in-line.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        before_reading: Callable[[], None],
        before_epoch: Callable[[], Source | None] = lambda: None,
        worker: tuple[int, int] | None = None,
    ) -> None:
        check_foreign(options, worker)
        self.worker = worker
        self._pid = os.getpid()
        self._options = options
        self._before_reading = before_reading
        self._before_epoch = before_epoch
        self.planner = Planner(source, options)
        self.codec = StateCodec(source, options, self.planner, worker)
        self.hooks = Hooks()
        self.passes = Passes(self._start, self.hooks, _why_empty(source, options))
        self.meter = self.passes.meter
        self.meter.listed = source.listed
        self.meter.skipped = skipped_counts(source.skipped)
        self.verdicts = VerdictLog(self.meter, reading_of(source, options, worker))
        self.hooks.add(self.verdicts.log)
        self._next: Source | None = None  # what is read from the next epoch on
        self._read(source)

    def steps(self) -> int | None:
        """The number of batches in this rank's live or next pass, including those of earlier phases of its epoch."""
        self.settle()
        if self._options.shard.even == "sync":
            return None
        place = self.passes.place
        steps = self._steps_at(place, lambda: self._plan_at(place))
        return None if steps is None else place.kept(place.before + steps)

    def left(self, place: EpochPosition) -> int | None:
        """The number of batches from a position to the end of its epoch; None if known only after reading."""
        if self._options.shard.even == "sync":
            return None
        steps = self._steps_at(place, lambda: self._plan_at(place))
        return None if steps is None else max(0, steps - place.taken)

    def read_by(self, scan: Scan) -> None:
        """Let the next pass read the same rows by another scan; worker processes, which have the old one, end."""
        self._execution.close()
        self._read(replace(self.source, scan=scan))

    def _read(self, source: Source) -> None:
        """Read this source, which the planner knows."""
        worker = self._options.worker
        self.source = source
        # A worker of a foreign loader is a thread or process already: it reads in-line.
        self._execution = Execution(
            source.scan, source.by_key, worker if self.worker is None else replace(worker, num_workers=0)
        )

    def move_to(self, source: Source) -> None:
        """Read another source, starting with the next pass that begins an epoch."""
        self._next = source
        self.settle()

    def stay(self) -> None:
        """Forget the source given to `move_to` if no pass has read it yet."""
        self._next = None

    @property
    def next_source(self) -> Source:
        """The source that the next epoch reads."""
        return self._next or self.source

    def settle(self) -> None:
        """Switch to the source given to `move_to`, unless a pass is live or an epoch has begun."""
        if self._next is None:
            return
        with self.passes.turn:
            if self.passes.live is None and _fresh(self.passes.place):
                self._take_next()

    def _take_next(self) -> None:
        if self._next is None:
            return
        source, self._next = self._next, None
        self.planner = Planner(source, self._options)  # raises if the options do not work with it
        self.codec = StateCodec(source, self._options, self.planner, self.worker)
        self._execution.close()
        self._read(source)
        self.meter.listed += source.listed
        self.meter.skipped = skipped_counts(source.skipped)
        self.__dict__.pop("_form", None)  # its keys may differ

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        with self.passes.ended():
            self._execution.close()

    def _start(self, place: EpochPosition) -> RankRun:
        """Begin to read this rank's share from a position on; with peers, only once all ranks have the same plan."""
        if os.getpid() != self._pid and self.worker is None and self.planner.is_elsewhere:
            raise StaleIteratorError(
                "this iterator was made before its process was forked, and this is another rank now: call iter(loader) "
                "here."
            )
        if _fresh(place):
            self._next = self._next or self._before_epoch()
            self._take_next()  # the pass before has been closed
        plan = self._agreed_plan(place)
        steps = self._steps_at(place, lambda: plan)
        if self.worker is None:
            self.verdicts.world = self.planner.world
            _announce(plan, place, self.planner, self._options, has_splits=bool(self.source.splits))
        if plan.rows is None and place.taken and place.cursor is None:
            _LOG.warning(
                "the state does not hold the position of rank %d in epoch %d: %d batches are read again, then dropped",
                plan.rank, place.epoch, place.taken,
            )  # fmt: skip
        self._before_reading()
        return RankRun(self._recipe(place, plan, steps), place)

    def _show(self, begun: ShownPass) -> PassProgress:
        """Begin to show a pass; workers of a foreign loader show nothing."""
        shape, world, units = plan_options(self._options), self.planner.world, self.source.unit.plural
        progress = Progress(interval=inf) if self.worker is not None else progress_of(self._options, world)
        return PassProgress(begun, progress, shape, world.num_ranks, self.meter, units)

    def _recipe(self, place: EpochPosition, plan: RankPlan, steps: int | None) -> Recipe:
        return Recipe(
            plan_of=lambda lap: plan if lap == 0 else self._plan_at(place, lap),
            execution=self._execution,
            row_bytes=self.source.scan.made_bytes if isinstance(self.source.scan, ScanSpec) else 0,
            cut=self._cut(plan),
            form=self._form,
            sent=self.target is not None,
            steps=None if self._options.shard.even == "sync" else steps,
            laps=self._options.shard.steps_per_epoch is not None,
            ended=partial(
                _ended,
                steps=steps,
                planner=self.planner,
                options=self._options,
                unit=self.source.unit,
                foreign=self.worker is not None,
            ),
            collate=self._options.batch.collate_fn,
            hooks=self.hooks,
            show=self._show,
        )

    def _plan_at(self, place: EpochPosition, lap: int = 0) -> RankPlan:
        """This rank's plan of the phase of a position."""
        planner, shards = self.planner, None if self.worker is None else self.worker[1]
        plan = planner.rank_plan(place.epoch, planner.world.rank, lap, shards, place.past)
        return plan if self.worker is None else _of_worker(plan, *self.worker)

    def _steps_at(self, place: EpochPosition, plan: Callable[[], RankPlan]) -> int | None:
        """The batches of a phase, or None if known only after reading; makes the plan only if counts do not suffice."""
        worker, per_epoch = self.worker, self._options.shard.steps_per_epoch
        if per_epoch is not None:
            steps = max(0, per_epoch - place.before)
            return steps if worker is None else max(0, -(-(steps - worker[0]) // worker[1]))
        shards = None if worker is None else worker[1]
        known = self.planner.steps(place.epoch, self.planner.world.rank, shards, place.past)
        if known is None or worker is None or worker[1] == 1:
            return known
        worker_plan = plan()
        return -(-total_rows(worker_plan.shards[0]) // worker_plan.batch_rows)

    def _agreed_plan(self, place: EpochPosition) -> RankPlan:
        planner = self.planner
        if not planner.has_peers:
            return self._plan_at(place)
        report = planner.report(place.epoch, place=place_digest(place))
        peers, step = joint_step(self._options, "begin this pass")
        try:
            plan = self._plan_at(place)
        except Exception:
            # The others wait for this rank: they must learn of the error before it is raised.
            check_reports(replace(report, failed=True), peers, step)
            raise
        check_reports(report, peers, step)
        if not place.past:
            planner.warn_of_uneven_steps(place.epoch)
        return plan

    def _cut(self, plan: RankPlan) -> BatchSize:
        """How shards are cut into batches: a plan that knows its steps has decided about the last one."""
        batch = self._options.batch
        last = batch.last_batch if plan.steps is None else "partial"
        return BatchSize(self.planner.batch_rows, last, batch.valid_key)

    @cached_property
    def _form(self) -> BatchMaker:
        """Kept across passes, with the memory it recycles."""
        options, source, pin = self._options, self.source, self._options.worker.pin_memory
        form = make_form(options.batch.output_format, source.keys, pin, source.scan.jagged, self.target)
        return options.features.batches(form)

    @cached_property
    def target(self) -> Target | None:
        """Where batches are sent; kept across sources, too, because memory that is recycled belongs to its stream."""
        worker = self._options.worker
        return None if worker.device is None else make_target(worker.device, worker.pin_memory)


def _ended(
    batches: Iterator[Any],
    taken: int,
    steps: int | None,
    planner: Planner,
    options: Options,
    *,
    unit: Unit,
    foreign: bool,
) -> Iterator[Any]:
    """The batches after the first `taken`, cut where the options make all ranks end; those of a foreign loader not."""
    shard = options.shard
    if shard.steps_per_epoch is not None:
        return exactly(batches, (steps or 0) - taken, unit.plural)
    if shard.even != "sync" or planner.world.num_ranks == 1 or foreign:
        return batches
    if not planner.has_peers:
        raise ShardingError(
            f"even='sync' with num_ranks={planner.world.num_ranks} needs a process group, but "
            "torch.distributed is not initialised: call init_process_group first, or let steps be known before.",
            remedies=[
                use(without=["even"], steps_per_epoch=Example("n", 2)),
                *([] if options.uncounted else [use(count_rows=True, even="drop")]),
            ],
        )
    return in_step(batches, shard.sync_every, smallest(*joint_step(options, "compare their batches")))


def _why_empty(source: Source, options: Options) -> str:
    """What it means that a pass has no batch, if their number was unknown."""
    packs = source.unit in (Unit.TOKEN, Unit.SEQUENCE)
    whole = isinstance(source.scan, ScanSpec) and not source.scan.selects_rows and not source.subset
    if packs and whole and options.read.transform is None:
        return "no document of its share holds a token"
    return (
        f"no {'token of a document' if packs else 'row'} of its share was left after what leaves out rows, such as "
        "filters, a subset or Transform(rows='any')"
    )


def _announce(plan: RankPlan, place: EpochPosition, planner: Planner, options: Options, *, has_splits: bool) -> None:
    """Log what a pass reads, and warn of an empty rank or small windows."""
    world, worker = planner.world, options.worker
    rows = "an unknown number of" if plan.rows is None else f"{plan.rows:,}"
    steps = "" if plan.steps is None else f" in {plan.steps:,} steps"
    mode = "in-line" if worker.num_workers == 0 else f"{worker.num_shards} shard(s), {worker.worker_mode} mode"
    begun = place.before + place.taken
    _LOG.info(
        "epoch %d, rank %d of %d (from %s): %d splits, %s rows%s, %s%s",
        plan.epoch, world.rank, world.num_ranks, world.source, plan.num_splits, rows, steps, mode,
        f"; {begun:,} steps were taken before" if begun else "",
    )  # fmt: skip
    if plan.steps == 0 and not begun and has_splits:
        planner.warn.of_empty_rank(plan, planner.given_rows(plan))
    if not begun:  # otherwise the windows are mostly those that the pass began with, perhaps on other ranks
        planner.warn.of_small_windows(plan)


def _of_worker(plan: RankPlan, number: int, count: int) -> RankPlan:
    """The plan of one worker among `count` of a foreign loader: its shard."""
    if count == 1:
        return plan
    return replace(plan, shards=(plan.shards[number],))


def _fresh(place: EpochPosition) -> bool:
    """Whether it is the beginning of an epoch."""
    return place == EpochPosition(place.epoch)


def place_digest(place: EpochPosition) -> int:
    """A number of what all ranks' positions must have in common."""
    past = [(phase.options, phase.batches) for phase in place.past]
    taken = place.ranks or place.taken
    return digest([str((past, taken, place.skip))])
