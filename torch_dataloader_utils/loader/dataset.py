"""The dataset: a source, its plan for any epoch and rank, its passes, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import index
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.loader.accelerated import AcceleratedIterator, check_caller, check_fetcher
from torch_dataloader_utils.loader.describing import described, summary
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.loader.iterators import StatefulIterator
from torch_dataloader_utils.loader.local import LocalEpochs, load_state, rows_of_step, state_of_all_ranks
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.sources.source import Source


class LoaderDataset(IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it gives what its loader gives. It pickles, with its place in the epoch, as plain data.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._options = options
        self._local = LocalEpochs(source, options, self._renew)
        self._accelerated: tuple[torch.device | None] | None = None  # Accelerate drives the loop, on this device

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self._epochs, self._options)}>"

    @property
    def source(self) -> Source:
        """What it reads."""
        return self._here.source

    @property
    def options(self) -> Options:
        """How it reads it."""
        return self._options

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows after `transform`, before conversion."""
        return self.source.scan.output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for: code i is that of `vocabulary(column)[i]`.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        return self.source.scan.vocabulary(column)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank.

        The epoch of a state that was loaded keeps its place.

        Raises:
            OptionError: it is not a number of an epoch.
            ShardingError: a wrapper of Accelerate calls it, and would shard the rows a second time.
        """
        check_caller(lambda: self.world.num_ranks)
        self._here.passes.set_epoch(epoch_number(epoch))

    @property
    def asked_epoch(self) -> int | None:
        """The epoch that was set or loaded since the last pass began; None without such a call."""
        return self._passes.asked

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """What a rank reads in an epoch, without reading data (by default this rank, in the live or next epoch)."""
        epoch = self._passes.epoch if epoch is None else epoch_number(epoch)
        return self._here.planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What it holds, and what each rank gets in an epoch (by default the live or next), without reading data."""
        epoch = self._passes.epoch if epoch is None else epoch_number(epoch)
        return described(type(self).__name__, self._here, self._options, epoch)

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The rows of a rank in an epoch (repeats not among them), or None if not known before reading."""
        return self.plan(epoch, rank).rows

    def rows_of(self, epoch: int, step: int, rank: int | None = None) -> tuple[RowRange, ...]:
        """The rows of one batch, by default of this rank: file and row ranges, without reading data.

        Args:
            epoch: the epoch.
            step: number of the batch in it.
            rank: whose batch.

        Raises:
            CountsRequiredError: row counts are not known before reading.
            IndexError: there is no such step, or it was taken under other options, before the epoch was resumed.
        """
        return rows_of_step(self._here, epoch_number(epoch), step, self.world.rank if rank is None else rank)

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank: detected at first use, then kept."""
        return self._epochs.planner.world

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next pass; within a worker of torch's own DataLoader, those of that worker's shard.

        Raises:
            OptionError: torch's DataLoader would make batches of batches.
        """
        check_fetcher()
        here = self._here
        if self._accelerated is None or here.worker is not None:
            return StatefulIterator(here)
        valid_key = self._options.batch.valid_key if repeats_rows(self._options) else None
        return AcceleratedIterator(here, valid_key, *self._accelerated)

    def accelerate(self, device: torch.device | None) -> None:
        """Deliver for Accelerate's training loop: batches on the device (None: as they are), the last one announced."""
        self._accelerated = (device,)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call a function with each `BlockEvent` and `PassEvent` of this process from now on.

        The thread that takes batches calls it, before it gets the next one: it should be quick, and must not use the
        loader. What it raises is raised there. Copies, and workers of a foreign loader, do not call it.
        """
        self._epochs.hooks.add(callback)

    def steps(self) -> int | None:
        """How many batches this rank's live or next pass has, or None if not known before reading."""
        return self._epochs.steps()

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The place of the live or next pass, as plain data: what was delivered, whatever was read ahead.

        Args:
            all_ranks: also how far the other ranks are; every rank must call it. Needed only where ranks are at
                different steps, or row counts are unknown and another number of ranks will load the state.
        """
        here = self._here
        # Accelerate's loaders are one batch ahead, so for its loops an epoch is over once the last batch is delivered.
        place = here.passes.place if self._accelerated is None else here.passes.next_place()
        state, cursor = here.codec.state(place), self.source_cursor()
        if cursor is not None:
            state["source"] = cursor
        return state_of_all_ranks(state, here, self._options) if all_ranks else state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Begin the next pass where the state was taken. A live pass ends.

        Args:
            state: from `state_dict()`. It may be of another number of ranks or workers, another batch size or sharding:
                what is left of the epoch is then sharded again.
            strict: whether other data than the state's are an error; else its counts are applied to what is here.

        Raises:
            CheckpointMismatchError: it is a state of other data, or cannot be continued here.
        """
        load_state(state, self._here, self.restore_source, strict=strict)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a state can be continued here; nothing is loaded.

        Raises:
            CheckpointMismatchError: it is a state of other data, or cannot be continued here.
        """
        self._here.codec.place(state)

    def skip_steps(self, first: int, last: int) -> None:
        """Leave out the steps `[first, last)` of the live or next epoch, as far as they are yet to come.

        They count as taken. Call it with the same numbers on every rank.
        """
        if self._here.worker is not None:
            raise OptionError("skip_steps in a worker of a foreign loader: only this package's loader leaves out steps")
        self._passes.skip_steps(*_steps(first, last))

    def source_cursor(self) -> dict[str, Any] | None:
        """Where in the history of its source the live or next pass reads, as plain data; None without a history."""
        return None

    def restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Read at this place of the source's history. A live pass ends."""

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        self._epochs.close()

    def __getstate__(self) -> dict[str, Any]:
        """Plain data: a copy in another process finds its own rank and starts its own passes there."""
        place = self._passes.place
        # Without a place in the epoch the ranks need not be known yet.
        start = {"epoch": place.epoch} if place == EpochPosition(place.epoch) else {"state": self.state_dict()}
        return {"source": self.source, "options": self._options, **start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        if "state" in state:
            self._local.state = state["state"]
        else:
            self._passes.load(EpochPosition(state["epoch"]))

    def _renew(self) -> None:
        """Called before a pass is read, once the ranks have agreed."""

    @property
    def _epochs(self) -> Epochs:
        return self._local.latest

    @property
    def _passes(self) -> Passes:
        return self._here.passes

    @property
    def _here(self) -> Epochs:
        return self._local.here()


def _steps(first: Any, last: Any) -> tuple[int, int]:
    begin, end = _whole(first), _whole(last)
    if not 0 <= begin <= end:
        raise OptionError(f"skip_steps({first!r}, {last!r}): expected the steps [a, b) with 0 <= a <= b.")
    return begin, end


def epoch_number(epoch: Any) -> int:
    """The epoch as an int, whatever kind of whole number it is.

    Raises:
        OptionError: it is none, or negative.
    """
    number = _whole(epoch)
    if number < 0:
        raise OptionError(f"epoch={epoch!r}: expected a whole number of at least 0.")
    return number


def _whole(value: Any) -> int:
    """A whole number of any kind as an int; -1 for what is none."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except TypeError:
        return -1
