"""The passes over a source: where the next one begins, how it is planned, and that at most one is live."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from torch_dataloader_utils.batching.batches import BatchMaker, BatchSize, exactly, in_step
from torch_dataloader_utils.batching.cutter import Cutter
from torch_dataloader_utils.batching.devices import Target, make_target
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.checkpoint.checkpoint import StateCodec
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.agreement import check_reports
from torch_dataloader_utils.distributed.collectives import smallest
from torch_dataloader_utils.errors import Example, ShardingError, StaleIteratorError, use
from torch_dataloader_utils.events import Hooks, PassEvent
from torch_dataloader_utils.executors.workers import Workers
from torch_dataloader_utils.iteration.cached_passes import CachedPasses
from torch_dataloader_utils.iteration.failed_rows import FailedRows
from torch_dataloader_utils.iteration.foreign import check_foreign, of_worker
from torch_dataloader_utils.iteration.one_pass import Pass
from torch_dataloader_utils.iteration.pass_progress import PassProgress
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.metrics.fill import FillLog
from torch_dataloader_utils.metrics.meter import Meter, PassClock, PassTotals
from torch_dataloader_utils.metrics.verdict import Reading, VerdictLog
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.planner import Planner, digest, plan_options
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.progress import Progress
from torch_dataloader_utils.reading.combined import most_failed
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.agreement import joint_step
from torch_dataloader_utils.sources.skipped import skipped_counts
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage.locks import ForkLock, renew_in_children

_LOG = logging.getLogger("torch_dataloader_utils")

_LOOK = 0.1  # seconds between checks whether there is a pass to be stopped


class Passes:
    """The sequence of passes over one source, by one rank or one worker of a foreign loader; at most one is live.

    Threads take turns: one at a time takes a batch, begins a pass or sets the next one. `position`, `epoch` and `live`
    can be read at any time: the next position is known before the pass it follows has ended.

    A pass begins at the first `next` of an iterator, because frameworks call `iter`, `set_epoch` and `load_state_dict`
    in any order. It begins at the loaded position or at the epoch of the last `set_epoch`, whichever was called later
    since the previous pass began (`set_epoch` with the loaded epoch keeps the position, and a framework's
    `propose_epoch` any loaded one). Without either, it is the epoch after the last completed pass, or the same epoch
    again if that pass was abandoned.

    Args:
        source: what is read.
        options: of the loader.
        before_epoch: called before a pass that begins an epoch is planned; returns another source to read, or None.
        worker: (index, count) in a worker of a foreign loader: it reads the shard with this index, in-line.

    Attributes:
        source: what the live or next pass reads.
        options: of the loader.
        planner: its plans.
        codec: its states.
        hooks: are told of blocks, and of passes that have ended.
        meter: measures the passes.
        verdicts: what limited them.
        turn: held while a batch is taken, a pass begins, or the next one is set.
        inherited: whether this process was forked since a pass last began.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        before_epoch: Callable[[], Source | None] = lambda: None,
        worker: tuple[int, int] | None = None,
    ) -> None:
        check_foreign(options, worker)
        self.worker = worker
        self.options, self._pid = options, os.getpid()
        self._before_epoch = before_epoch
        self.planner = Planner(source, options)
        self.codec = StateCodec(source, options, self.planner, worker)
        self.hooks, self.meter, self.turn = Hooks(), Meter(), ForkLock()
        self.meter.listed, self.meter.skipped = source.listed, skipped_counts(source.skipped)
        self.verdicts = VerdictLog(self.meter, reading_of(source, options, worker))
        self.hooks.add(self.meter.add)
        self.hooks.add(self.verdicts.log)
        self.hooks.add(FillLog())
        self._next_source: Source | None = None  # what is read from the next epoch on
        self._next_epoch = 0
        self._explicit = False
        self._pending: EpochPosition | None = None
        self._loaded_by_counter = self._spent = False
        self._live: Pass | None = None
        self._warned = self.inherited = False
        self._enders: list[None] = []  # one for each thread that ends whatever pass is live or begins
        self._read(source)
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the live pass to the parent of this process, which was forked from it."""
        self.inherited = True
        self._enders.clear()  # their threads are not here
        if self._live is not None and not self._live.closed:
            self._live.leave_to_parent()

    def set_epoch(self, epoch: int) -> EpochPosition | None:
        """The position that is given up because the next pass is now that of this epoch; None if there was none."""
        with self.turn:
            given_up = self._pending
            self._next_epoch, self._explicit = epoch, True
            if given_up is None or given_up.epoch == epoch:
                return None
            self._pending, self._spent = None, False
            return given_up

    def propose_epoch(self, epoch: int, *, fixed: bool = False) -> EpochPosition | None:
        """As `set_epoch`, for an epoch that a framework counts: a position that was loaded or skipped to outranks it.

        Args:
            epoch: of the framework.
            fixed: whether it is the same in all passes: then no position at the beginning of another outranks it.
        """
        with self.turn:
            pending = self._pending
            if pending is not None and not (
                (self._loaded_by_counter and epoch > pending.epoch)
                or (fixed and pending == EpochPosition(pending.epoch))
            ):
                return None
        return self.set_epoch(epoch)

    def load(self, position: EpochPosition, *, by_counter: bool = False, spent: bool = False) -> None:
        """End the live pass; the next one begins at this position, and later ones count from there.

        Args:
            position: the position.
            by_counter: whether a framework loads it that counts epochs: a later epoch that it proposes then means that
                it has finished with this one.
            spent: whether the iterator that asks next gets no batch, and the one after it begins there.
        """
        with self.ended():
            self._next_epoch, self._explicit, self._pending = position.epoch, False, position
            self._live, self._loaded_by_counter, self._spent = None, by_counter, spent

    def is_spent(self) -> bool:
        """Whether the iterator that asks gets no batch, once after a position was loaded so; while holding the turn."""
        spent, self._spent = self._spent, False
        return spent

    def skip_steps(self, first: int, last: int) -> None:
        """Leave out the steps `[first, last)` of the live pass, or of the next one."""
        if first == last:
            return
        with self.turn:
            live = self._live
            if live is not None and live.complete and self._pending is None:
                live.over = True
                self.finish(live)
            position = self.position.skipping(first, last)
            if self._live is not None and self._pending is None:
                self._live.skip(position)
            else:
                self._pending, self._loaded_by_counter = position, False

    @contextmanager
    def ended(self, find: Callable[[], Pass | None] | None = None) -> Iterator[None]:
        """A pass ended, by default the live one, while holding the turn; a thread waiting for a batch gets an error."""
        ender = [None] if find is None else []
        find, lock, waiting = find or (lambda: self._live), self.turn.lock, True
        self._enders += ender
        try:
            while waiting:
                live = find()
                if live is not None:
                    live.stop()
                waiting = not lock.acquire(timeout=_LOOK)  # another thread may be beginning a pass
        finally:
            del self._enders[: len(ender)]
        try:
            live = find()
            if live is not None:
                live.close()
                self._report(live)
            yield
        finally:
            lock.release()

    @property
    def ending(self) -> bool:
        """Whether a thread waits to end any pass: one that waits to begin must give up."""
        return bool(self._enders)

    @property
    def position(self) -> EpochPosition:
        """Where the next pass begins if that was loaded; else the live pass's progress; else the next epoch."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending
        return EpochPosition(self._next_epoch) if live is None else live.now

    @property
    def loaded(self) -> EpochPosition | None:
        """The position that was loaded or skipped to, and at which no pass has begun yet."""
        return self._pending

    @property
    def start(self) -> EpochPosition:
        """Where the next pass begins: if a live one is left before its end, the beginning of its epoch."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending
        over = live is not None and live.complete and not self._explicit
        return EpochPosition(self._next_epoch + over)

    @property
    def asked(self) -> int | None:
        """The epoch that was set, loaded or skipped in since the last pass began; None without such a call."""
        if self._pending is not None:
            return self._pending.epoch
        return self._next_epoch if self._explicit else None

    @property
    def epoch(self) -> int:
        """The epoch of that position."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending.epoch
        return self._next_epoch if live is None else live.epoch

    def next_position(self) -> EpochPosition:
        """As `position`, but if no batch of the live pass is left, the beginning of the epoch after it.

        If the length is unknown, this fetches the next batch.
        """
        with self.turn:
            live = self._live
            if self._pending is not None or live is None or not live.exhausted():
                return self.position
            return EpochPosition(self._next_epoch if self._explicit else live.epoch + 1)

    @property
    def live(self) -> Pass | None:
        """The last pass begun, until it ends."""
        return self._live

    def begin(self) -> Pass:
        """End the live pass and start the next one; while holding the turn."""
        old = self._live
        if old is not None:
            old.clock.stop(old.complete)
        clock = PassClock(self.meter)
        if old is not None:
            if old.exhausted():
                self.finish(old)
            elif not self._explicit and self._pending is None:
                _LOG.info("the last pass was abandoned: epoch %d starts again from its beginning", self._next_epoch)
            old.close()
            self._report(old)
        position = self._pending or EpochPosition(self._next_epoch)
        before = self.meter.totals()
        # A failed start changes nothing: the next one is at the same position.
        self._live = self._started(position, clock)
        self.meter.begin(self._live, before)
        self._next_epoch, self._explicit, self._pending = position.epoch, False, None
        return self._live

    def finish(self, over: Pass) -> None:
        """Record that this pass has ended, and end its reading; while holding the turn."""
        if over.steps is None and over.over and not over.taken and not self._warned:
            self._warned = True
            why = _why_empty(self.source, self.options) if over.has_splits else "it got no split"
            _LOG.warning("epoch %d: the pass of this rank was empty: %s", over.epoch, why)
        if self._live is over:
            if not self._explicit and self._pending is None:
                self._next_epoch = over.epoch + 1
            self._live = None
        over.close()  # first: a callback may raise
        self._report(over)

    def _report(self, over: Pass) -> None:
        """Report a pass that has ended, once."""
        self.meter.end(over)
        if not over.reported:
            over.reported = True
            if over.complete:
                self._cached.complete()
                _warn_of_unknown(over.epoch, self.meter.completed)
            self.hooks(PassEvent(over.epoch, *over.delivered, over.complete))

    def steps(self) -> int | None:
        """The number of batches in this rank's live or next pass, including those of earlier phases of its epoch."""
        self.settle()
        if self.options.shard.even == "sync":
            return None
        position = self.position
        steps = self._steps_at(position, lambda: self._plan_at(position))
        return None if steps is None else position.kept(position.before + steps)

    def left(self, position: EpochPosition) -> int | None:
        """The number of batches from a position to the end of its epoch; None if known only after reading."""
        if self.options.shard.even == "sync":
            return None
        steps = self._steps_at(position, lambda: self._plan_at(position))
        return None if steps is None else max(0, steps - position.taken)

    def rows_of(self, epoch: int, step: int, rank: int) -> tuple[RowRange, ...]:
        """The rows of one batch of a rank, as files and row ranges.

        Raises:
            IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
        """
        position = self.position
        past = position.past if position.epoch == epoch else ()
        before = position.before if past else 0
        if 0 <= step < before:
            raise IndexError(
                f"step {step} of epoch {epoch} was taken under other options, before the epoch was resumed: expected a "
                f"step of at least {before}."
            )
        return self.planner.rows_of(epoch, step - before, rank, past)

    def _read(self, source: Source) -> None:
        """Read this source, which the planner knows."""
        worker = self.options.worker
        self.source = source
        # A worker of a foreign loader is a thread or process already: it reads in-line.
        self._workers = Workers(
            source.scan, source.by_key, worker if self.worker is None else replace(worker, num_workers=0)
        )
        self._cached = CachedPasses(source, self.options)

    def move_to(self, source: Source) -> None:
        """Read another source, starting with the next pass that begins an epoch."""
        if self.next_source.weights is not None and source.scan is not self.next_source.scan:
            _LOG.warning("row weights are not those of the rows of another snapshot: each row is read once again")
        self._next_source = source
        self.settle()

    def stay(self) -> None:
        """Forget the source given to `move_to` if no pass has read it yet."""
        self._next_source = None

    @property
    def next_source(self) -> Source:
        """The source that the next epoch reads."""
        return self._next_source or self.source

    def settle(self) -> None:
        """Switch to the source given to `move_to`, unless a pass is live or an epoch has begun."""
        if self._next_source is None:
            return
        with self.turn:
            if self._live is None and _fresh(self.position):
                self._take_next()

    def settle_now(self) -> None:
        """End the live pass, and switch to the source given to `move_to`, if there is one."""
        if self._next_source is not None:
            self.load(EpochPosition(self.epoch))
            self.settle()

    def _take_next(self) -> None:
        if self._next_source is None:
            return
        source, self._next_source = self._next_source, None
        same = source.scan is self.source.scan  # only the weights of its rows are others
        said = self.planner.warn if same else None
        self.planner = Planner(source, self.options, said)  # raises if the options do not work with it
        self.codec = StateCodec(source, self.options, self.planner, self.worker)
        if same:
            self.source = source
            return
        self._workers.close()
        self._cached.close()
        self._read(source)
        self.meter.listed += source.listed
        self.meter.skipped = skipped_counts(source.skipped)
        self.__dict__.pop("_maker", None)  # its keys may differ

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        with self.ended():
            self._workers.close()
            self._cached.close()

    def _started(self, position: EpochPosition, clock: PassClock) -> Pass:
        """A pass of this rank's share from a position on; with peers, only once all ranks have the same plan."""
        if os.getpid() != self._pid and self.worker is None and self.planner.is_elsewhere:
            raise StaleIteratorError(
                "this iterator was made before its process was forked, and this is another rank now: call iter(loader) "
                "here."
            )
        if _fresh(position):
            self._next_source = self._next_source or self._before_epoch()
            self._take_next()  # the pass before has been closed
        plan = self._agreed_plan(position)
        steps = self._steps_at(position, lambda: plan)
        if self.worker is None:
            self.verdicts.world = self.planner.world
            _announce(plan, position, self.planner, self.options, has_splits=bool(self.source.splits))
        if plan.rows is None and position.taken and position.cursor is None:
            _LOG.warning(
                "the state does not hold the position of rank %d in epoch %d: %d batches are read again, then dropped",
                plan.rank, position.epoch, position.taken,
            )  # fmt: skip
        self.inherited = False
        self._cached.begin(self.planner.world)
        known = None if self.options.shard.even == "sync" else steps
        cutter, workers = self._cutter(plan, steps), self._workers
        workers.files = self.planner.source(position.epoch).by_key
        report = FailedRows(self.hooks, position.epoch, most_failed(self.source.scan))
        begun = Pass(position, partial(self._lap, position, plan), known, cutter, workers, report, clock)
        begun.shown = self._show(begun)
        return begun

    def apart(self, form: BatchMaker) -> Pass:
        """The live or next epoch from its beginning, beside the passes: read in the calling thread, counted by nothing.

        With even="sync", it has all batches of this rank: asking the others would be a collective.

        Args:
            form: makes its batches of rows; they are neither collated nor sent to a device.
        """
        position, options = EpochPosition(self.epoch), self.options
        plan, sync = self._plan_at(position), options.shard.even == "sync"
        steps = None if sync else self._steps_at(position, lambda: plan)
        cutter = replace(self._cutter(plan, steps), maker=options.features.batches(form), sent=False, collate=None)
        if sync:
            cutter = replace(cutter, ended=lambda batches, taken: batches)
        files = self.planner.source(position.epoch).by_key
        workers = Workers(self.source.scan, files, replace(options.worker, num_workers=0))
        meter = Meter()
        begun = Pass(position, partial(self._lap, position, plan), steps, cutter, workers, Hooks(), PassClock(meter))
        shape, ranks = plan_options(options), self.planner.world.num_ranks
        begun.shown = PassProgress(begun, Progress(interval=inf), shape, ranks, meter, self.source.unit.plural)
        return begun

    def _show(self, begun: Pass) -> PassProgress:
        """Begin to show a pass; workers of a foreign loader show nothing."""
        shape, world, units = plan_options(self.options), self.planner.world, self.source.unit.plural
        progress = Progress(interval=inf) if self.worker is not None else progress_of(self.options, world)
        return PassProgress(begun, progress, shape, world.num_ranks, self.meter, units)

    def _cutter(self, plan: RankPlan, steps: int | None) -> Cutter:
        """How the blocks of a pass become batches: a plan that knows its steps has decided about the last one."""
        batch = self.options.batch
        last = batch.last_batch if plan.steps is None else "partial"
        return Cutter(
            size=BatchSize(self.planner.batch_rows, last, batch.valid_key),
            maker=self._maker,
            laps=self.options.shard.steps_per_epoch is not None,
            sent=self.target is not None,
            ended=partial(self._ended, steps),
            collate=batch.collate_fn,
        )

    def _lap(self, position: EpochPosition, plan: RankPlan, lap: int) -> RankPlan:
        """The plan of a lap of the pass that began with this plan."""
        return plan if lap == 0 else self._plan_at(position, lap)

    def _plan_at(self, position: EpochPosition, lap: int = 0) -> RankPlan:
        """This rank's plan of the phase of a position."""
        planner, shards = self.planner, None if self.worker is None else self.worker[1]
        plan = planner.rank_plan(position.epoch, planner.world.rank, lap, shards, position.past)
        return plan if self.worker is None else of_worker(plan, *self.worker)

    def _steps_at(self, position: EpochPosition, plan: Callable[[], RankPlan]) -> int | None:
        """The batches of a phase, or None if known only after reading; makes the plan only if counts do not suffice."""
        worker, per_epoch = self.worker, self.options.shard.steps_per_epoch
        if per_epoch is not None:
            steps = max(0, per_epoch - position.before)
            return steps if worker is None else max(0, -(-(steps - worker[0]) // worker[1]))
        shards = None if worker is None else worker[1]
        known = self.planner.steps(position.epoch, self.planner.world.rank, shards, position.past)
        if known is None or worker is None or worker[1] == 1:
            return known
        worker_plan = plan()
        return -(-total_rows(worker_plan.shards[0]) // worker_plan.batch_rows)

    def _agreed_plan(self, position: EpochPosition) -> RankPlan:
        planner = self.planner
        if not planner.has_peers:
            return self._plan_at(position)
        report = planner.report(position.epoch, position=position_digest(position))
        peers, step = joint_step(self.options, "begin this pass")
        try:
            plan = self._plan_at(position)
        except Exception:
            # The others wait for this rank: they must learn of the error before it is raised.
            check_reports(replace(report, failed=True), peers, step)
            raise
        check_reports(report, peers, step)
        if not position.past:
            planner.warn_of_uneven_steps(position.epoch)
        return plan

    def form(self) -> BatchMaker:
        """Makes batches of rows, in memory of its own."""
        options, source, pin = self.options, self.source, self.options.worker.pin_memory
        return make_form(options.batch.output_format, source.keys, pin, source.scan.jagged, self.target)

    @cached_property
    def _maker(self) -> BatchMaker:
        """Kept across passes, with the memory it recycles."""
        return self.options.features.batches(self.form())

    @cached_property
    def target(self) -> Target | None:
        """Where batches are sent; kept across sources, too, because memory that is recycled belongs to its stream."""
        worker = self.options.worker
        return None if worker.device is None else make_target(worker.device, worker.pin_memory)

    def _ended(self, steps: int | None, batches: Iterator[Any], taken: int) -> Iterator[Any]:
        """The batches after the first `taken`, cut where the options make all ranks end; a foreign loader's are not."""
        shard = self.options.shard
        if shard.steps_per_epoch is not None or self.options.features.streams:
            return exactly(batches, (steps or 0) - taken, self.source.unit.plural)
        if shard.even != "sync" or self.planner.world.num_ranks == 1 or self.worker is not None:
            return batches
        if not self.planner.has_peers:
            raise ShardingError(
                f"even='sync' with num_ranks={self.planner.world.num_ranks} needs a process group, but "
                "torch.distributed is not initialised: call init_process_group first, or have the steps counted.",
                remedies=[
                    use(without=["even"], steps_per_epoch=Example("n", 2)),
                    *([] if self.options.uncounted else [use(count_rows=True, even="drop")]),
                ],
            )
        return in_step(batches, shard.sync_every, smallest(*joint_step(self.options, "compare their batches")))


def _why_empty(source: Source, options: Options) -> str:
    """What it means that a pass has no batch, if their number was unknown."""
    packs = source.unit in (Unit.TOKEN, Unit.SEQUENCE)
    whole = isinstance(source.scan, ScanSpec) and not source.scan.selects_rows and not source.subset
    if packs and whole and options.read.transform is None:
        return "no document of its share holds a token"
    return f"a filter, a subset, a transform or the like left no {'token' if packs else 'row'} of its share"


_MOST_UNKNOWN = 0.1


def _warn_of_unknown(epoch: int, ended: PassTotals | None) -> None:
    """Warn of outputs of which many values were unknown: the data has drifted from that of the fit."""
    totals = None if ended is None else ended.totals
    shares = {} if totals is None else {name: totals.share_of_ids(name, "unknown") for name in totals.with_ids}
    many = [f"{output!r} {share:.0%}" for output, share in shares.items() if share > _MOST_UNKNOWN]
    if many:
        _LOG.warning(
            "epoch %d: many values were not among those that the Preprocess was fitted on: %s. Fit it on newer data.",
            epoch, ", ".join(many),
        )  # fmt: skip


def _announce(plan: RankPlan, position: EpochPosition, planner: Planner, options: Options, *, has_splits: bool) -> None:
    """Log what a pass reads, and warn of an empty rank or small windows."""
    world, worker = planner.world, options.worker
    unit = plan.unit.planned
    rows = f"an unknown number of {unit}s" if plan.rows is None else plural(plan.rows, unit)
    steps = "" if plan.steps is None else f" in {plural(plan.steps, 'step')}"
    mode = "in-line" if worker.num_workers == 0 else f"{plural(worker.num_shards, 'shard')}, {worker.worker_mode}"
    begun = position.before + position.taken
    _LOG.info(
        "epoch %d, rank %d of %d (from %s): %s, %s%s, %s%s",
        plan.epoch, world.rank, world.num_ranks, world.source, plural(plan.num_splits, "split"), rows, steps, mode,
        f"; {begun:,} steps were taken before" if begun else "",
    )  # fmt: skip
    if plan.steps == 0 and not begun and has_splits:
        planner.warn_of_empty_rank(plan)
    if not begun:  # otherwise the windows are mostly those that the pass began with, perhaps on other ranks
        planner.warn.of_small_windows(plan)


def _fresh(position: EpochPosition) -> bool:
    """Whether it is the beginning of an epoch."""
    return position == EpochPosition(position.epoch)


def position_digest(position: EpochPosition) -> int:
    """A number of what all ranks' positions must have in common."""
    past = [(phase.options, phase.batches) for phase in position.past]
    taken = position.ranks or position.taken
    return digest([str((past, taken, position.skip))])


def reading_of(source: Source, options: Options, worker: tuple[int, int] | None = None) -> Reading:
    """How this process reads the source; `worker` as for `Passes`."""
    workers = options.worker
    inline = workers.num_workers == 0 or worker is not None
    return Reading(
        inline,
        processes=not inline and workers.worker_mode == "processes",
        local=source.scan.local,
        collates=options.batch.collate_fn is not None,
        in_step=options.shard.even == "sync",
        units=source.unit.plural,
    )
