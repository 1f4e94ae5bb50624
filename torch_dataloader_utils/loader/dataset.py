"""The dataset: a source, its plan for any epoch and rank, its passes, and their state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.checkpoint.form import sealed
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
from torch_dataloader_utils.loader.measured import MeasuredDataset
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.plan_page.data import page_data
from torch_dataloader_utils.plan_page.page import page_of, write_page
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import revealing_nothing
from torch_dataloader_utils.sources.source import Source


@revealing_nothing
class LoaderDataset(MeasuredDataset, IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it delivers the same batches as its loader. It pickles, with its position in the epoch, as plain data.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._options = options
        self._local = LocalEpochs(source, options, self._renew, self._followed)
        self._accelerated: tuple[torch.device | None] | None = None  # set if Accelerate runs the loop, on this device

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self._epochs, self._options)}>"

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()

    @property
    def source(self) -> Source:
        """The source that it reads."""
        return self._here.source

    @property
    def options(self) -> Options:
        """The options of its loader."""
        return self._options

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, after `transform` and before conversion."""
        return self.source.scan.output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that a column's codes stand for: code i stands for `vocabulary(column)[i]`.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        return self.source.scan.vocabulary(column)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Call it before each epoch, with the same number on every rank.

        If it is the epoch of a loaded state, the position is kept.

        Raises:
            OptionError: `epoch` is not a valid epoch number.
            ShardingError: the caller is an Accelerate wrapper that would shard the rows a second time.
        """
        check_caller(lambda: self.world.num_ranks)
        self._here.passes.set_epoch(epoch_number(epoch))

    @property
    def asked_epoch(self) -> int | None:
        """The epoch that was set or loaded since the last pass began; None without such a call."""
        return self._passes.asked

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """The plan of a rank for an epoch, by default of this rank for the live or next epoch. Reads no data."""
        epoch = self._passes.epoch if epoch is None else epoch_number(epoch)
        return self._here.planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What the dataset holds and what each rank gets in an epoch (the live or next by default). Reads no data."""
        epoch = self._passes.epoch if epoch is None else epoch_number(epoch)
        return described(type(self).__name__, self._here, self._options, epoch)

    def plan_page(self, path: str | os.PathLike[str], epoch: int | None = None) -> Path:
        """Write the plan as a web page: who reads which rows, and what other options would change. Returns the path.

        Args:
            path: the HTML file to write; an existing one is replaced.
            epoch: the epoch that the page shows first (the live or next by default).

        Raises:
            OptionError: the path is a folder, or lies in a folder that does not exist.
        """
        epoch = self._passes.epoch if epoch is None else epoch_number(epoch)
        data = page_data(type(self).__name__, self.source, self._options, self._here.planner, epoch)
        return write_page(path, page_of(data))

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The number of rows of a rank in an epoch (without repeats), or None if known only after reading."""
        return self.plan(epoch, rank).rows

    def rows_of(self, epoch: int, step: int, rank: int | None = None) -> tuple[RowRange, ...]:
        """The rows of one batch (of this rank by default), as files and row ranges. Reads no data.

        Args:
            epoch: the epoch.
            step: the index of the batch in the epoch.
            rank: the rank of the batch.

        Raises:
            CountsRequiredError: row counts are not known before reading.
            IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
        """
        return rows_of_step(self._here, epoch_number(epoch), step, self.world.rank if rank is None else rank)

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank; detected at first use, then kept."""
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

    def __getitem__(self, index: object) -> NoReturn:
        """Raises `TypeError`, because rows are streamed."""
        raise TypeError(f"{type(self).__name__} streams its rows, so they have no index: iterate over the loader.")

    def accelerate(self, device: torch.device | None) -> None:
        """Deliver batches as Accelerate's loop needs them: on the device (None: not moved), with the last announced."""
        self._accelerated = (device,)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call a function with each `BlockEvent` and `PassEvent` of this process from now on.

        The thread that takes batches calls it before it gets the next one, so it should be quick and must not use the
        loader. Its exceptions are raised in that thread. Copies and workers of a foreign loader do not call it.
        """
        self._epochs.hooks.add(callback)

    def steps(self) -> int | None:
        """The number of batches in this rank's live or next pass, or None if known only after reading."""
        return self._epochs.steps()

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The position of the live or next pass, as plain data. Only delivered batches count; rows read ahead do not.

        Args:
            all_ranks: whether to include the positions of the other ranks; every rank must then call it. Needed only if
                ranks are at different steps, or if row counts are unknown and the number of ranks will change.
        """
        here = self._here
        # Accelerate's loaders are one batch ahead: for its loops, an epoch is over once the last batch is delivered.
        place = here.passes.place if self._accelerated is None else here.passes.next_place()
        state, cursor = here.codec.state(place), self.source_cursor()
        if cursor is not None:
            state = sealed({**state, "source": cursor})
        return state_of_all_ranks(state, here, self._options) if all_ranks else state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Begin the next pass where the state was taken. Ends a live pass.

        Args:
            state: from `state_dict()`. If the number of ranks or workers, the batch size or the sharding has changed,
                the rest of the epoch is sharded again.
            strict: whether a state of other data raises an error; if False, its counts are applied to the current data.

        Raises:
            CheckpointMismatchError: the state belongs to other data, or cannot be resumed here.
        """
        load_state(state, self._here, self.restore_source, strict=strict)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that a state can be resumed here, without loading it.

        Raises:
            CheckpointMismatchError: the state belongs to other data, or cannot be resumed here.
        """
        self._here.codec.place(state)

    def skip_steps(self, first: int, last: int) -> None:
        """Skip the steps `[first, last)` of the live or next epoch, except those already taken.

        Skipped steps count as taken. Call it with the same numbers on every rank.
        """
        here = self._here
        here.passes.skip_steps(*_steps(first, last, here.worker is not None))

    def source_cursor(self) -> dict[str, Any] | None:
        """The live or next pass's position in the source's history, as plain data; None if it has no history."""
        return None

    def restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Move to this position in the source's history. Ends a live pass."""

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        self._epochs.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state as plain data: a copy in another process detects its own rank and starts its own passes."""
        place = self._passes.place
        # At the beginning of an epoch, the ranks need not be known yet.
        start = {"epoch": place.epoch} if place == EpochPosition(place.epoch) else {"state": self.state_dict()}
        return {"source": replace(self.source, listed=0.0), "options": self._options, **start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        if "state" in state:
            self._local.state = state["state"]
        else:
            self._passes.load(EpochPosition(state["epoch"]))

    def _followed(self) -> Source | None:
        """Called before a pass that begins an epoch is planned: what it reads from now on, if that changes."""
        return None

    def _renew(self) -> None:
        """Called before a pass is read, once the ranks agree."""

    @property
    def _epochs(self) -> Epochs:
        return self._local.latest

    @property
    def _passes(self) -> Passes:
        return self._here.passes

    @property
    def _here(self) -> Epochs:
        return self._local.here()


def _steps(first: Any, last: Any, foreign: bool) -> tuple[int, int]:
    if foreign:
        raise OptionError(
            "skip_steps in a worker of a foreign loader: only this package's loader can leave out steps. Iterate the "
            "loader that create_dataloader returns."
        )
    begin, end = _whole(first), _whole(last)
    if not 0 <= begin <= end:
        raise OptionError(f"skip_steps({shown(first)}, {shown(last)}): expected the steps [a, b) with 0 <= a <= b.")
    return begin, end


def epoch_number(epoch: Any) -> int:
    """The epoch as an int, from a whole number of any type.

    Raises:
        OptionError: `epoch` is not a whole number, or is negative.
    """
    number = _whole(epoch)
    if number < 0:
        raise OptionError(f"epoch={shown(epoch)}: expected a whole number of at least 0.")
    return number


def _whole(value: Any) -> int:
    """A whole number of any type as an int; -1 for anything else."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except Exception:  # noqa: BLE001 (whatever a foreign __index__ raises)
        return -1
