"""The dataset: a source, its plan for any epoch and rank, and how a pass over it is run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.assembly import Source
from torch_dataloader_utils.delivery.agreement import check_positions, smallest
from torch_dataloader_utils.delivery.batching import Cut, Form, exactly, in_step, rank_batches, shard_batches
from torch_dataloader_utils.delivery.execution import Execution
from torch_dataloader_utils.delivery.forms import make_form
from torch_dataloader_utils.delivery.passes import BatchIterator, Passes, Run
from torch_dataloader_utils.distributed import World
from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.reading.blocks import Driver, Scan

_LOG = logging.getLogger("torch_dataloader_utils")


class LoaderDataset(IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it gives what its loader gives. It pickles: it holds plain data, and no file, lock or thread.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._planner = Planner(source, options)
        self._execution = Execution(source.scan, source.by_key, options.worker)
        self._passes = Passes(self._start)

    @property
    def source(self) -> Source:
        """What it reads."""
        return self._source

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows after `transform`, before conversion."""
        return self._source.scan.output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for: code i is that of `vocabulary(column)[i]`.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        return self._source.scan.vocabulary(column)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank."""
        self._passes.set_epoch(epoch)

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """What a rank reads in an epoch, without reading data (by default this rank, in the live or next epoch)."""
        epoch = self._passes.epoch if epoch is None else epoch
        return self._planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The rows of a rank in an epoch (repeats not among them), or None where only reading tells."""
        return self.plan(epoch, rank).rows

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank: found at first use, then kept."""
        return self._planner.world

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next pass; within a worker of torch's own DataLoader, those of that worker's shard."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return BatchIterator(self._passes)
        return self._foreign_worker(worker.id, worker.num_workers)

    def steps(self) -> int | None:
        """How many batches this rank's live or next pass has, or None where only reading tells."""
        return None if self._options.shard.even == "sync" else self.plan().steps

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        live = self._passes.live
        if live is not None:
            live.close()
        self._execution.close()

    def __getstate__(self) -> dict[str, Any]:
        """Plain data: a copy in another process finds its own rank and starts its own passes there."""
        return {"source": self._source, "options": self._options, "epoch": self._passes.epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        self._passes.resume_at(state["epoch"])

    def _start(self, epoch: int) -> Run:
        """Begin to read this rank's share of an epoch; with peers, only once all ranks have the same plan."""
        plan = self._agreed_plan(epoch)
        self._announce(plan)
        driver = self._driver(plan)
        batches = rank_batches(driver, len(plan.shards), self._cut(plan), self._form)
        batches = self._of_equal_steps(batches)
        if self._options.batch.collate_fn is not None:
            batches = map(self._options.batch.collate_fn, batches)
        execution = self._execution

        def close() -> None:
            driver.close()
            execution.end_pass()

        return Run(batches, None if self._options.shard.even == "sync" else plan.steps, close)

    def _read_by(self, scan: Scan) -> None:
        """Let the next pass read the same rows by another scan; worker processes, which have the old one, end."""
        self._execution.close()
        self._source = replace(self._source, scan=scan)
        self._execution = Execution(scan, self._source.by_key, self._options.worker)

    def _agreed_plan(self, epoch: int) -> RankPlan:
        planner, shard = self._planner, self._options.shard
        if not planner.has_peers:
            return planner.rank_plan(epoch, planner.world.rank)
        try:
            plan = planner.rank_plan(epoch, planner.world.rank)
        except Exception:
            # The others wait for this rank: tell them before it goes.
            check_positions(planner.position(epoch, failed=True), shard.process_group, self._options.worker.timeout)
            raise
        check_positions(planner.position(epoch), shard.process_group, self._options.worker.timeout)
        planner.warn_of_uneven_steps(epoch)
        return plan

    def _driver(self, plan: RankPlan) -> Driver:
        def tasks_of(lap: int) -> list[Any]:
            of_lap = plan if lap == 0 else self._planner.rank_plan(plan.epoch, plan.rank, lap)
            return [of_lap.tasks(shard) for shard in range(len(plan.shards))]

        if self._options.shard.steps_per_epoch is not None:
            return self._execution.laps(tasks_of)
        return self._execution.open(tasks_of(0))

    def _of_equal_steps(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, ended where the options say that all ranks end."""
        shard = self._options.shard
        if shard.steps_per_epoch is not None:
            return exactly(batches, shard.steps_per_epoch)
        if shard.even != "sync" or self.world.num_ranks == 1:
            return batches
        if not self._planner.has_peers:
            raise ShardingError(
                f"even='sync' with num_ranks={self.world.num_ranks}: the ranks must be able to ask each other, and "
                "torch.distributed is not initialised. Initialise it, or use steps_per_epoch=n or count_rows=True."
            )
        return in_step(batches, shard.sync_every, smallest(shard.process_group))

    def _cut(self, plan: RankPlan) -> Cut:
        """How shards are cut into batches: a plan that knows its steps has dealt with the last one."""
        batch = self._options.batch
        last = batch.last_batch if plan.steps is None else "partial"
        return Cut(self._planner.batch_rows, last, batch.valid_key)

    @cached_property
    def _form(self) -> Form:
        """Kept over the passes, with the memory that it recycles."""
        pin = self._options.worker.pin_memory and _can_pin()
        return make_form(self._options.batch.output_format, self._source.keys, pin)

    def _foreign_worker(self, shard: int, num_shards: int) -> Iterator[Any]:
        """The batches of one of `num_shards` shards, read in this process."""
        epoch = self._passes.epoch
        plan = self._planner.rank_plan(epoch, self.world.rank, num_shards=num_shards)
        driver = self._execution.inline([plan.tasks(shard)])
        try:
            batches = shard_batches(driver, 0, self._cut(plan), self._form)
            collate = self._options.batch.collate_fn
            yield from batches if collate is None else map(collate, batches)
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


def _can_pin() -> bool:
    """Whether there is an accelerator to pin memory for; says so where not, as torch does."""
    if torch.cuda.is_available() or (hasattr(torch, "accelerator") and torch.accelerator.is_available()):
        return True
    _LOG.warning("pin_memory=True without an accelerator: memory is not pinned")
    return False
