"""The dataset: a source, its passes, and their state."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.batching.output_formats import first_imports
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.late_imports import import_now
from torch_dataloader_utils.loader.accelerated import AcceleratedIterator, check_caller, check_fetcher
from torch_dataloader_utils.loader.describing import described
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.loader.head import FirstRows
from torch_dataloader_utils.loader.iterators import StatefulIterator
from torch_dataloader_utils.loader.local import LocalEpochs, load_state, rows_of_step, state_of_all_ranks
from torch_dataloader_utils.metrics.meter import Meter
from torch_dataloader_utils.metrics.prometheus import prometheus_text
from torch_dataloader_utils.metrics.totals import metrics
from torch_dataloader_utils.metrics.verdict import Verdict
from torch_dataloader_utils.options import SELECTS, Options, SourceValue, parse_replaced, parse_rows, repeats_rows
from torch_dataloader_utils.plan_page.call import source_values
from torch_dataloader_utils.plan_page.data import page_data
from torch_dataloader_utils.plan_page.page import page_of, write_page
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.advice import unknown_steps_advice
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import plural, shown
from torch_dataloader_utils.redaction import printable, redacts_errors
from torch_dataloader_utils.sources.source import Source


def epoch_number(epoch: Any) -> int:
    """The epoch as an int, from a whole number of any type.

    Raises:
        OptionError: `epoch` is not a whole number, or is negative.
    """
    number = whole_number(epoch)
    if number < 0:
        raise OptionError(f"epoch={shown(epoch)}: expected a whole number of at least 0.")
    return number


def whole_number(value: Any) -> int:
    """A whole number of any type as an int; -1 for anything else."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except Exception:  # noqa: BLE001 (whatever a foreign __index__ raises)
        return -1


_LOG = logging.getLogger("torch_dataloader_utils")


@redacts_errors
class LoaderDataset(IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it delivers the same batches as its loader. It pickles as plain data. A copy begins where the next pass
    here would: at the position that was loaded, or at the beginning of an epoch. To continue a pass that has begun,
    load its `state_dict()` into the copy.
    """

    def __init__(self, source: Source, options: Options, chosen: SourceValue | None = None) -> None:
        self._options, self._chosen = options, chosen
        self._of_source = {} if chosen is None else source_values(chosen)  # as plan pages show it: no secrets
        self._local = LocalEpochs(source, options, self._renew, self._followed)
        self._accelerated: tuple[torch.device | None] | None = None  # set if Accelerate runs the loop, on this device
        # Not within `next`: that would block the training thread for up to a second, and lose a Ctrl-C.
        import_now(first_imports(options.batch.output_format, source.scan.report(), source.scan.output_schema))

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__}: {summary(self._epochs, self._options, waits=self._waits())}>")

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Call it before each epoch, with the same number on every rank.

        If it is the epoch of a loaded state, the position is kept; another epoch gives it up, with a warning.

        Raises:
            OptionError: `epoch` is not a valid epoch number.
            ShardingError: the caller is an Accelerate wrapper that would shard the rows a second time.
        """
        check_caller(lambda: self.world.num_ranks)
        here, epoch = self._here, epoch_number(epoch)
        given_up = here.passes.set_epoch(epoch)
        if given_up is not None and here.left(given_up) != 0:
            _LOG.warning(
                "set_epoch(%d) gives up the position that was loaded (or skipped to), after %d step(s) of epoch %d: "
                "the next pass begins epoch %d. To continue there, let the loop begin at that epoch, which "
                'loader.state_dict()["epoch"] tells before it, or call set_epoch before load_state_dict.',
                epoch, given_up.before + given_up.taken, given_up.epoch, epoch,
            )  # fmt: skip

    def propose_epoch(self, epoch: int, *, fixed: bool = False) -> None:
        """Set the epoch of the next pass, unless a state was loaded since the last one began.

        Frameworks call it by `loader.sampler.set_epoch`, with epochs that they count themselves.

        Args:
            epoch: the epoch.
            fixed: whether it is the same in all passes; only a state that was taken within an epoch outranks it then.

        Raises:
            OptionError: `epoch` is not a valid epoch number.
            ShardingError: the caller is an Accelerate wrapper that would shard the rows a second time.
        """
        check_caller(lambda: self.world.num_ranks)
        here, epoch = self._here, epoch_number(epoch)
        given_up = here.passes.propose_epoch(epoch, fixed=fixed)
        if given_up is not None and here.left(given_up):
            _LOG.warning(
                "the trainer goes on with epoch %d, so what is left of epoch %d after the loaded %d step(s) is not "
                "read, as if the run had gone on (with limit_train_batches, for example). To read it, call "
                "loader.set_epoch(%d) and load the state again, in a loop of your own.",
                epoch, given_up.epoch, given_up.before + given_up.taken, given_up.epoch,
            )  # fmt: skip

    @property
    def asked_epoch(self) -> int | None:
        """The epoch that was set or loaded since the last pass began; None without such a call."""
        return self._passes.asked

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

    def replaced(self, changes: Mapping[str, Any]) -> LoaderDataset:
        """Another dataset of the same files and footers, with these keywords of `stream` instead of those given.

        Raises:
            UnknownOptionError: a keyword does not exist.
            OptionError: a value cannot work, or is about what is read; or this is a combination or a copy.
        """
        self._check_of_one("replace()")
        options = parse_replaced(self._chosen, self._options, changes)
        return self._reopened(options, same_rows=not changes.keys() & SELECTS)

    def head(self, n: int = 5) -> FirstRows:
        """The first rows in file order, after filters, subsets and `transform`; they move no position.

        Args:
            n: how many.

        Raises:
            OptionError: it is not a whole number above 0; or this is a combination or a copy.
        """
        if whole_number(n) < 1:
            raise OptionError(f"head({shown(n)}): expected a whole number of rows, at least 1.")
        self._check_of_one("head()")
        return FirstRows.of(self._reopened(parse_rows(self._chosen, self._options), same_rows=True), whole_number(n))

    def _reopened(self, options: Options, *, same_rows: bool) -> LoaderDataset:
        """Another dataset of what was listed.

        Args:
            options: its options.
            same_rows: whether they select the same columns and rows of the files.
        """
        raise NotImplementedError

    def _check_of_one(self, asked: str) -> None:
        if self.source.group is not None:
            raise OptionError(
                f"{asked}: this loader is of a combination: call it on the loaders of its datasets, and combine these."
            )

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

    def why_no_steps(self) -> str:
        """Why `steps()` is None, and what to do, in sentences."""
        return steps_unknown(self._options, waits=self._waits())

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The position of the live or next pass, as plain data. Only delivered batches count; rows read ahead do not.

        Args:
            all_ranks: whether to include the positions of the other ranks; every rank must then call it. Needed only if
                ranks are at different steps, or if row counts are unknown and the number of ranks will change.
        """
        here = self._here
        # Accelerate's loaders are one batch ahead: for its loops, an epoch is over once the last batch is delivered.
        place = here.passes.place if self._accelerated is None else here.passes.next_place()
        state, cursor = here.codec.state(place), self._saved_cursor()
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

    def _saved_cursor(self) -> dict[str, Any] | None:
        """The cursor as states have it, always with the same keys."""
        return self.source_cursor()

    def restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Move to this position in the source's history. Ends a live pass."""

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        self._epochs.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state as plain data: a copy in another process detects its own rank and starts its own passes."""
        place = self._passes.start
        # At the beginning of an epoch, the ranks need not be known yet.
        start = {"epoch": place.epoch} if place == EpochPosition(place.epoch) else {"state": self.state_dict()}
        source = replace(self.source, listed=0.0, listing=None)
        return {"source": source, "options": self._options, "of_source": self._of_source, **start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        self._of_source = state["of_source"]
        if "state" in state:
            self._local.state = state["state"]
        else:
            self._passes.set_epoch(state["epoch"])

    def _followed(self) -> Source | None:
        """Called before a pass that begins an epoch is planned: what it reads from now on, if that changes."""
        return None

    def _renew(self) -> None:
        """Called before a pass is read, once the ranks agree."""

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

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of all columns of codes, by column, as `Codes` of another loader takes them."""
        return self.source.scan.vocabularies()

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """The plan of a rank for an epoch, by default of this rank for the live or next epoch. Reads no data.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._planned(epoch)
        return self._here.planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What the dataset holds and what each rank gets in an epoch (the live or next by default). Reads no data.

        With `follow=True`, it is by default the last epoch until the next one has begun.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._shown(epoch)
        return described(type(self).__name__, self._here, self._options, epoch, waits=self._waits())

    def plan_page(self, path: str | os.PathLike[str], epoch: int | None = None) -> Path:
        """Write the plan as a web page: who reads which rows, and what other options would change. Returns the path.

        Args:
            path: the HTML file to write; an existing one is replaced.
            epoch: the epoch that the page shows first (the live or next by default).

        Raises:
            OptionError: the path is a folder, or lies in a folder that does not exist.
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch, name, planner = self._shown(epoch), type(self).__name__, self._here.planner
        data = page_data(name, self.source, self._options, planner, epoch, self._of_source)
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
            CountsRequiredError: row counts are not known before reading, or with `follow=True`, the rows of the epoch
                are not known yet, or no longer.
            IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
        """
        number = self._planned(epoch_number(epoch))
        return rows_of_step(self._here, number, step, self.world.rank if rank is None else rank)

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank; detected at first use, then kept."""
        return self._epochs.planner.world

    def _planned(self, epoch: int | None) -> int:
        """The number of an epoch that can be planned; by default, the live or next one."""
        return self._passes.epoch if epoch is None else epoch_number(epoch)

    def _shown(self, epoch: int | None) -> int:
        """The number of an epoch that is shown to people; by default, the live or next one if it can be planned."""
        return self._planned(epoch)

    def _waits(self) -> bool:
        """Whether all known rows have been read, and the next pass waits for those that are appended."""
        return False

    @property
    def _epochs(self) -> Epochs:
        return self._local.latest

    @property
    def _passes(self) -> Passes:
        return self._here.passes

    @property
    def _here(self) -> Epochs:
        return self._local.current()

    @property
    def meter(self) -> Meter:
        """How far the live or last pass is, for any thread to read at any time."""
        return self._local.latest.meter

    def metrics(self, detail: bool = False, total: bool = False) -> dict[str, float]:
        """What happened since the last call, by name (see `docs/metrics.md`). For any thread.

        Args:
            detail: whether to include seconds by stage, for all I/O workers together and for each.
            total: whether to return what happened since the dataset was created; other calls are not affected.
        """
        totals, epochs = self.meter.read() if total else self.meter.take(), self._local.latest
        ranks = epochs.planner.world.num_ranks if totals.sources else 1
        return metrics(totals, {name: rows / ranks for name, rows in epochs.source.lap_rows.items()}, detail=detail)

    def metrics_text(self, detail: bool = False) -> str:
        """The metrics since the dataset was created, in Prometheus' text format, with this process's rank as a label.

        Args:
            detail: whether to include seconds by stage and I/O worker.
        """
        return prometheus_text(self.metrics(detail, total=True), self._local.latest.planner.world.rank)

    def verdict(self) -> Verdict | None:
        """What limited the speed of the last complete pass, and what to change; None before it."""
        return self._local.latest.verdicts.last


def _steps(first: Any, last: Any, foreign: bool) -> tuple[int, int]:
    if foreign:
        raise OptionError(
            "skip_steps in a worker of a foreign loader: only this package's loader can leave out steps. Iterate the "
            "loader that create_dataloader returns."
        )
    begin, end = whole_number(first), whole_number(last)
    if not 0 <= begin <= end:
        raise OptionError(f"skip_steps({shown(first)}, {shown(last)}): expected the steps [a, b) with 0 <= a <= b.")
    return begin, end


# Short texts about a dataset: its `repr`, and why the number of its batches is not known.


def steps_unknown(options: Options, *, waits: bool) -> str:
    """Why the number of batches of a pass is not known before it is read, and what to do, in sentences.

    Args:
        options: of the loader.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    if waits:
        return (
            "the number of batches is known once the next pass has begun: with follow=True, it reads what is appended "
            "until then. Call len() after its first batch."
        )
    if options.shard.even == "sync" and not options.uncounted:
        return (
            "the number of batches is known only after reading, because even='sync' ends all ranks with the first one. "
            "Set even='drop' or even='pad', or steps_per_epoch=n to fix the number."
        )
    # A pass that follows a table reads each row once, so no option can fix its steps.
    return str(unknown_steps_advice(options.uncounted, fixable=not options.follow.follows))


def summary(here: Epochs, options: Options, *, waits: bool) -> str:
    """What is read, and how, in one line. It detects nothing for this and never raises.

    Args:
        here: the epochs of this process.
        options: of the loader.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    parts = [here.source.size, f"batch_size {options.batch.batch_size:,}"]
    try:
        if here.planner.is_settled:
            parts.append(_place_and_steps(here.planner, here.passes.place, waits))
    except Exception:  # noqa: BLE001 - the user's next call raises the same error
        parts.append("rank unknown")
    return "; ".join(parts)


def _place_and_steps(planner: Planner, place: EpochPosition, waits: bool) -> str:
    ranks = f"rank {planner.world.rank} of {planner.world.num_ranks}"
    # The plan of a resumed epoch takes time, and a custom strategy must not be called for this.
    known = not place.past and not waits and planner.plan_of_all_ranks() is not None
    steps = planner.steps(place.epoch, planner.world.rank) if known else None
    if steps is not None:
        return f"{ranks}, {plural(steps, 'step')} in epoch {place.epoch}"
    return f"{ranks}, the next pass follows the table" if waits else ranks
