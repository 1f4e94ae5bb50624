"""The dataset: a source, its plan for any epoch and rank, and how a pass over it is run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.assembly import Source
from torch_dataloader_utils.delivery.batching import Form, rank_batches, shard_batches
from torch_dataloader_utils.delivery.forms import make_form
from torch_dataloader_utils.delivery.passes import BatchIterator, Passes, Run
from torch_dataloader_utils.distributed import World, resolve_world
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.generate import call_generate, generated_plan
from torch_dataloader_utils.planning.plan import Plan, PlanOptions, RankPlan
from torch_dataloader_utils.planning.strategies import assignment_of
from torch_dataloader_utils.reading.blocks import Driver
from torch_dataloader_utils.reading.inline import InlineDriver
from torch_dataloader_utils.reading.processes import Crew, start_context
from torch_dataloader_utils.reading.threads import ThreadDriver

_LOG = logging.getLogger("torch_dataloader_utils")
_REMOTE_THREADS = 8  # reads in flight hide a remote store's latency, on any number of cores


class LoaderDataset(IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it gives what its loader gives. It pickles: it holds plain data, and no file, lock or thread.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._world: World | None = None
        self._plan: Plan | None = None
        self._crew: Crew | None = None
        self._warned = False
        self._passes = Passes(self._start)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows after `transform`, before conversion."""
        return self._source.scan.output_schema

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank."""
        self._passes.set_epoch(epoch)

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """What a rank reads in an epoch, without reading data (by default this rank, in the live or next epoch)."""
        world = self.world
        return self._planned().rank(
            self._passes.epoch if epoch is None else epoch, world.rank if rank is None else rank
        )

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The rows of a rank in an epoch, or None where only reading tells."""
        return self.plan(epoch, rank).rows

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank: found at first use, then kept."""
        if self._world is None:
            shard = self._options.shard
            self._world = resolve_world(shard.num_ranks, shard.rank)
        return self._world

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next pass; within a worker of torch's own DataLoader, those of that worker's shard."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return BatchIterator(self._passes)
        return self._foreign_worker(worker.id, worker.num_workers)

    def steps(self) -> int | None:
        """How many batches this rank's live or next pass has, or None where only reading tells."""
        return self.plan().steps

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        live = self._passes.live
        if live is not None:
            live.close()
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def __getstate__(self) -> dict[str, Any]:
        """Plain data: a copy in another process finds its own rank and starts its own passes there."""
        return {"source": self._source, "options": self._options, "epoch": self._passes.epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        self._passes.resume_at(state["epoch"])

    def _rank_plan(self, epoch: int, rank: int, num_shards: int | None = None) -> RankPlan:
        """A rank's plan, of the options' number of shards or another one."""
        strategy = self._options.split.split_strategy
        if not hasattr(strategy, "generate"):
            return self._planned(num_shards).rank(epoch, rank)
        source, options, num_ranks = self._source, plan_options(self._options, num_shards), self.world.num_ranks
        shards, all_on_each = call_generate(strategy, source.files, options.num_shards, epoch, num_ranks, rank)
        if all_on_each and not self._warned:
            self._warned = True
            _LOG.warning(
                "%s.generate takes no num_ranks and rank: each of the %d ranks reads all rows",
                type(strategy).__name__,
                num_ranks,
            )
        return generated_plan(shards, source.files, options, epoch, rank, source.exact)

    def _planned(self, num_shards: int | None = None) -> Plan:
        options = plan_options(self._options, num_shards)
        if self._plan is None or self._plan.options != options:
            self._plan = Plan(
                self._source.files, self._source.splits, options, self.world.num_ranks, self._source.exact
            )
        return self._plan

    def _start(self, epoch: int) -> Run:
        """Begin to read this rank's share of an epoch."""
        worker, batch = self._options.worker, self._options.batch
        plan = self._rank_plan(epoch, self.world.rank)
        self._announce(plan)
        tasks = [plan.tasks(shard) for shard in range(worker.num_shards)]
        driver = self._driver(tasks)
        batches = rank_batches(driver, worker.num_shards, batch.batch_size, self._form())
        if batch.collate_fn is not None:
            batches = map(batch.collate_fn, batches)
        return Run(batches, plan.steps, self._closer(driver))

    def _closer(self, driver: Driver) -> Any:
        keep = self._options.worker.persistent_workers
        crew = None if keep else self._crew

        def close() -> None:
            driver.close()
            if crew is not None:
                crew.close()

        return close

    def _driver(self, tasks: Sequence[Sequence[Task]]) -> Driver:
        worker, scan, files = self._options.worker, self._source.scan, self._source.by_path
        if worker.num_workers == 0:
            return InlineDriver(scan.open(files), tasks)
        if worker.worker_mode == "process":
            return self._workers().begin(tasks, files, worker.timeout)
        return ThreadDriver(
            lambda: scan.open(files), tasks, int(worker.prefetch_bytes), self._threads(), worker.timeout
        )

    def _workers(self) -> Crew:
        worker = self._options.worker
        if self._crew is None or self._crew.closed:
            context = start_context(worker.multiprocessing_context)
            self._crew = Crew(self._source.scan.open, worker.num_shards, int(worker.prefetch_bytes), context)
        return self._crew

    def _threads(self) -> int:
        """How many threads decode; this never changes the order."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        wanted = self._options.worker.num_workers
        if self._source.scan.storage.local:
            return cores if wanted is None else min(wanted, cores)
        return max(cores, _REMOTE_THREADS) if wanted is None else max(wanted, 1)

    def _form(self) -> Form:
        pin = self._options.worker.pin_memory and _can_pin()
        return make_form(self._options.batch.output_format, self._source.keys, pin)

    def _foreign_worker(self, shard: int, num_shards: int) -> Iterator[Any]:
        """The batches of one of `num_shards` shards, read in this process."""
        epoch = self._passes.epoch
        tasks = self._rank_plan(epoch, self.world.rank, num_shards).tasks(shard)
        driver = InlineDriver(self._source.scan.open(self._source.by_path), [tasks])
        try:
            batches = shard_batches(driver, 0, self._options.batch.batch_size, self._form())
            yield from (
                batches if self._options.batch.collate_fn is None else map(self._options.batch.collate_fn, batches)
            )
        finally:
            driver.close()
        self._passes.resume_at(epoch + 1)

    def _announce(self, plan: RankPlan) -> None:
        world, worker = self.world, self._options.worker
        rows = "an unknown number of" if plan.rows is None else f"{plan.rows:,}"
        steps = "" if plan.steps is None else f" in {plan.steps:,} steps"
        mode = "in-line" if worker.num_workers == 0 else f"{worker.num_shards} shard(s), {worker.worker_mode} mode"
        _LOG.info(
            "epoch %d, rank %d of %d (from %s): %d splits, %s rows%s, %s",
            plan.epoch, world.rank, world.num_ranks, world.source, plan.num_splits, rows, steps, mode,
        )  # fmt: skip


def plan_options(options: Options, num_shards: int | None = None) -> PlanOptions:
    """What a plan depends on, with another number of shards where given."""
    return PlanOptions(
        batch_size=options.batch.batch_size,
        shuffle=options.shuffle.shuffle,
        seed=options.shuffle.shuffle_seed,
        num_shards=options.worker.num_shards if num_shards is None else num_shards,
        assignment=assignment_of(options.split.split_strategy),
    )


def _can_pin() -> bool:
    """Whether there is an accelerator to pin memory for; says so where not, as torch does."""
    if torch.cuda.is_available() or (hasattr(torch, "accelerator") and torch.accelerator.is_available()):
        return True
    _LOG.warning("pin_memory=True without an accelerator: memory is not pinned")
    return False
