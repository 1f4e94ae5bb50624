"""The dataset: a source, its passes, and their state."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import signature
from numbers import Integral
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torch_dataloader_utils.batching.output_formats import first_imports
from torch_dataloader_utils.checkpoint.checkpoint import StateCodec
from torch_dataloader_utils.checkpoint.form import check_form, plain, sealed
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.checkpoint.state_dict import merge_state_dicts, shared_part, weights_in
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError, UnknownOptionError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.iteration.iterator import BatchIterator
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.iteration.peek import first_rows
from torch_dataloader_utils.late_imports import import_now
from torch_dataloader_utils.loader.accelerated import (
    AcceleratedIterator,
    check_caller,
    check_fetcher,
    loaded_by_lightning,
    placed,
)
from torch_dataloader_utils.loader.describing import described
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.loader.preview import FirstRows
from torch_dataloader_utils.metrics.prometheus import prometheus_text
from torch_dataloader_utils.metrics.totals import metrics
from torch_dataloader_utils.metrics.verdict import Verdict
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import (
    SELECTS,
    Files,
    Options,
    SourceValue,
    mask_in_batches,
    parse_replaced,
    parse_rows,
)
from torch_dataloader_utils.options.transform import RowsRead
from torch_dataloader_utils.plan_page.call import source_values
from torch_dataloader_utils.plan_page.data import page_data
from torch_dataloader_utils.plan_page.page import page_of, write_page
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.advice import unknown_steps_advice
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import plural, shown
from torch_dataloader_utils.redaction import printable, redacts_errors
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.source import Source, open_files, rows_read
from torch_dataloader_utils.storage.waiting import limited

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from torch_dataloader_utils.preprocess.column_statistics import Statistics


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

    def __init__(
        self,
        source: Source | None = None,
        options: Options | None = None,
        chosen: SourceValue | None = None,
        of_source: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        if source is None or options is None or unknown:
            raise UnknownOptionError(f"{type(self).__name__}(...): use {_call_of(type(self))}.")
        self._options, self._chosen = options, chosen
        # What plan pages show of it: no secrets.
        self._of_source = dict(of_source or {}) if chosen is None else source_values(chosen)
        self._known_passes = self._passes_of(source, None)
        self._parent: Passes | None = None
        self._loaded: Mapping[str, Any] | None = None  # a state that is loaded once the ranks must be known
        self._accelerated: tuple[torch.device | None] | None = None  # set if Accelerate runs the loop, on this device
        # Not within `next`: that would block the training thread for up to a second, and lose a Ctrl-C.
        import_now(first_imports(options.batch.output_format, source.scan.report, source.scan.output_schema))

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__}: {summary(self._latest, self._options, waits=self._waits())}>")

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
        here, epoch = self._passes, epoch_number(epoch)
        given_up = here.set_epoch(epoch)
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
        here, epoch = self._passes, epoch_number(epoch)
        given_up = here.propose_epoch(epoch, fixed=fixed)
        if given_up is not None and here.left(given_up):
            _LOG.warning(
                "the trainer goes on with epoch %d, so what is left of epoch %d after the loaded %d step(s) is not "
                "read, as if the run had gone on (with limit_train_batches, for example). To read it, call "
                "loader.set_epoch(%d) and load the state again, in a loop of your own.",
                epoch, given_up.epoch, given_up.before + given_up.taken, given_up.epoch,
            )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next pass; within a worker of torch's own DataLoader, those of that worker's shard.

        Raises:
            OptionError: torch's DataLoader would make batches of batches.
        """
        check_fetcher()
        here = self._passes
        if self._accelerated is None or here.worker is not None:
            return BatchIterator(here)
        return AcceleratedIterator(here, mask_in_batches(self._options), *self._accelerated)

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

    def head(self, n: int = 5) -> Any:
        """The first rows of this rank in the live or next epoch, as one batch: what training gets, without a pass.

        Keys, dtypes, layout and device are those of a batch, and a `collate_fn` gets the rows as one batch. Only the
        blocks that hold these rows are read, in the calling thread. Position, state, metrics and a live pass stay as
        they are, and no other rank is asked. The rows are those at the beginning of the epoch, wherever the loader is.

        Args:
            n: how many rows; sequences with `pack`. Fewer where the epoch has fewer.

        Raises:
            OptionError: it is not a whole number above 0.
            EmptyDatasetError: this rank has no rows.
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet.
        """
        rows = _at_least_one("head", n)
        self._planned(None)
        batch = first_rows(self._passes, rows)
        device = None if self._accelerated is None else self._accelerated[0]
        return batch if device is None else placed(batch, device)

    def preview(self, n: int = 5) -> FirstRows:
        """The first rows in file order, as a table to read: after filters, subsets and `transform`, before conversion.

        They are those of all ranks, and move no position.

        Args:
            n: how many.

        Raises:
            OptionError: it is not a whole number above 0; or this is a combination or a copy.
        """
        return FirstRows.of(self._as_stored({}, "preview()"), _at_least_one("preview", n))

    def _as_stored(self, changes: Mapping[str, Any], asked: str) -> LoaderDataset:
        self._check_of_one(asked)
        options = parse_rows(self._chosen, self._options, changes)
        return self._reopened(options, same_rows=not changes.keys() & SELECTS)

    def _part(self, part: int, parts: int) -> LoaderDataset:
        source = self._source
        # Of the base: it reads this snapshot of a table, and follows none.
        return LoaderDataset(replace(source, splits=source.splits.every(parts, part)), self._options)

    def _reopened(self, options: Options, *, same_rows: bool) -> LoaderDataset:
        """Another dataset of what was listed.

        Args:
            options: its options.
            same_rows: whether they select the same columns and rows of the files.
        """
        files, listing = self._chosen, self._source.listing
        if not isinstance(files, Files) or listing is None:
            raise OptionError("this dataset is a copy without its listing: call it where the loader was created.")
        with limited(options.worker.timeout):
            return type(self)(open_files(files.path, options, listing), options, files)

    def _check_of_one(self, asked: str) -> None:
        if self._source.group is not None:
            raise OptionError(f"{asked}: this loader is of a combination: call it on the loaders of its datasets.")

    def accelerate(self, device: torch.device | None) -> None:
        """Deliver batches as Accelerate's loop needs them: on the device (None: not moved), with the last announced."""
        self._accelerated = (device,)

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call a function with each event of this process from now on: of blocks, passes, failed rows, unread files.

        The thread that takes batches calls it before it gets the next one, so it should be quick and must not use the
        loader. Its exceptions are raised in that thread. Copies and workers of a foreign loader do not call it.
        """
        self._latest.hooks.add(callback)

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The position of the live or next pass, as plain data. Only delivered batches count; rows read ahead do not.

        Args:
            all_ranks: whether to include the positions of the other ranks; every rank must then call it. Needed only if
                ranks are at different steps, or if row counts are unknown and the number of ranks will change.
        """
        here = self._passes
        # Accelerate's loaders are one batch ahead: for its loops, an epoch is over once the last batch is delivered.
        position = here.position if self._accelerated is None else here.next_position()
        state, cursor = self._codec.state(position), self._saved_cursor()
        if cursor is not None:
            state = sealed({**state, "source": cursor})
        return self._of_all_ranks(state) if all_ranks else state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Begin the next pass where the state was taken. Ends a live pass.

        Args:
            state: from `state_dict()`. If the number of ranks or workers, the batch size or the sharding has changed,
                the rest of the epoch is sharded again.
            strict: whether a state of other data raises an error; if False, its counts are applied to the current data.

        Raises:
            CheckpointMismatchError: the state belongs to other data, or cannot be resumed here.
        """
        here, given, state = self._passes, state, plain(state)
        check_form(state)
        if here.next_source.weights is not None and weights_in(state) == here.next_source.weights.text:
            here.settle_now()
        before, loaded = here.next_source, here.loaded
        if state.get("source") is not None:
            self._restore_source(state["source"])
        try:
            position = here.codec.position(state, strict=strict)
        except CheckpointMismatchError:  # the state is refused: the source stays as it was
            if here.next_source is not before:
                here.move_to(before)
            if loaded is not None:
                here.load(loaded)
            raise
        by_counter, spent = loaded_by_lightning(given)
        here.load(position, by_counter=by_counter, spent=spent)

    def skip_steps(self, first: int, last: int) -> None:
        """Skip the steps `[first, last)` of the live or next epoch, except those already taken.

        Skipped steps count as taken. Call it with the same numbers on every rank.
        """
        here = self._passes
        here.skip_steps(*_steps(first, last, here.worker is not None))

    @property
    def _codec(self) -> StateCodec:
        """What writes states."""
        return self._passes.codec

    def _saved_cursor(self) -> dict[str, Any] | None:
        """The live or next pass's position in the source's history, as states have it; None if it has no history."""
        return None

    def _restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Move to this position in the source's history. Ends a live pass."""

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        self._latest.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state as plain data: a copy in another process detects its own rank and starts its own passes."""
        position = self._passes.start
        # At the beginning of an epoch, the ranks need not be known yet.
        start = {"epoch": position.epoch} if position == EpochPosition(position.epoch) else {"state": self.state_dict()}
        source = replace(self._source, listed=0.0, listing=None)
        return {"source": source, "options": self._options, "of_source": self._of_source, **start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        self._of_source = state["of_source"]
        if "state" in state:
            self._loaded = state["state"]
        else:
            self._passes.set_epoch(state["epoch"])

    def _followed(self) -> Source | None:
        """Called before a pass that begins an epoch is planned: what it reads from now on, if that changes."""
        return None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, after `transform` and before conversion."""
        return self._source.scan.output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that a column's codes stand for: code i stands for `vocabulary(column)[i]`.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        return self._source.scan.vocabulary(column)

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of all columns of codes, by column, as `Codes` of another loader takes them."""
        return self._source.scan.vocabularies()

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """The plan of a rank for an epoch, by default of this rank for the live or next epoch. Reads no data.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._planned(epoch)
        return self._passes.planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What the dataset holds and what each rank gets in an epoch (the live or next by default). Reads no data.

        With `follow=True`, it is by default the last epoch until the next one has begun.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._shown(epoch)
        return described(type(self).__name__, self._passes, self._options, epoch, waits=self._waits())

    def plan_page(self, path: str | os.PathLike[str], epoch: int | None = None) -> Path:
        """Write the plan as a web page: who reads which rows, and what other options would change. Returns the path.

        Args:
            path: the HTML file to write; an existing one is replaced.
            epoch: the epoch that the page shows first (the live or next by default).

        Raises:
            OptionError: the path is a folder, or lies in a folder that does not exist.
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch, name, planner = self._shown(epoch), type(self).__name__, self._passes.planner
        data = page_data(name, self._source, self._options, planner, epoch, self._of_source)
        return write_page(path, page_of(data))

    def set_row_weights(
        self,
        values: ArrayLike | torch.Tensor | None,
        rows: tuple[ArrayLike | torch.Tensor, ArrayLike | torch.Tensor] | None = None,
        *,
        rows_per_epoch: int | None = None,
    ) -> None:
        """Draw rows in proportion to weights, from the next epoch on. Call it between epochs, on every rank.

        An epoch has `rows_per_epoch` rows (n). A row of weight w, where all weights add up to W, is drawn n w / W
        times, rounded down or up, and on average over epochs exactly so often. Weights are kept as whole numbers of 24
        bits, 4 bytes a row. During a pass, the call takes effect with the next epoch.

        Example:
            ```python
            loader.set_row_weights(losses)  # of all rows, in file order
            loader.set_row_weights(batch_losses, rows=(batch["_file"], batch["_pos"]))  # of some rows
            ```

        Args:
            values: finite numbers of at least 0, one above 0, shape [rows]: one for each row in file order, after
                deletes, filters, subset and limit, the same on all ranks; or one for each of `rows`. None: each row is
                read once again.
            rows: (file codes, positions), whole numbers of shape [rows] each, as batches have them under `_file` and
                `_pos`: the numbers of files in file order, and of rows in them before deletes and filters. The other
                rows keep their weights, at first 1. In a process group, the ranks' updates are joined (16 bytes a
                row): each gives those of the rows that it has read. Of a row that is given twice, the larger counts.
            rows_per_epoch: how many rows an epoch has, over all ranks; None: as many as there are, or with `rows` as
                before.

        Raises:
            OptionError: values, rows or their number are wrong, or another option decides how often rows are read,
                such as `class_weights` or `follow`.
            CountsRequiredError: the number of rows is known only after reading.
        """
        here = self._passes
        if here.worker is not None:
            raise OptionError("set_row_weights in a worker of a foreign loader: call it where the loader was created.")
        setting = import_module("torch_dataloader_utils.row_weights.setting")  # late, as `statistics`
        setting.set_weights(here, values, rows, rows_per_epoch)

    def row_weights(self) -> NDArray[np.float64] | None:
        """The weights by which the live or next pass draws rows, float64 [rows]; None: it reads each row once.

        States have a digest of them alone: save them beside, and set them again before the state is loaded.
        """
        setting = import_module("torch_dataloader_utils.row_weights.setting")
        weights: NDArray[np.float64] | None = setting.weights_of(self._passes.source)
        return weights

    def statistics(self, columns: Sequence[str] | None = None, *, footers: bool = False) -> Statistics:
        """What the columns hold: nulls, distinct values, range, mean, quantiles. Reads all rows, of all ranks.

        Rows are those that the filters, subset, fraction and limit choose, before `transform`.

        Args:
            columns: those to count; None for all.
            footers: whether to take what the footers of Parquet files say, without reading rows.

        Raises:
            ColumnNotFoundError: there are no such columns; it names all of them.
            EmptyDatasetError: there are no rows.
            OptionError: footers do not describe these rows; or this is a combination or a copy.
        """
        # Late, and by name, as the package's root finds what it exports: the core imports no feature. No hook could do:
        # a feature is asked only of a loader whose options name it, and any loader may be asked for its statistics.
        counting = import_module("torch_dataloader_utils.preprocess.statistics")
        found: Statistics = counting.statistics(self, columns=columns, footers=footers)
        return found

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
            OptionError: rows are drawn by weights, or a batch has windows of `sequences`.
            IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
        """
        number = self._planned(epoch_number(epoch))
        if self._source.unit is Unit.WINDOW:
            raise OptionError(
                "rows_of() with sequences: a batch has windows, which share rows. The '_file' and '_pos' of "
                "metadata_columns= say which rows it has."
            )
        if self._source.weights is not None:
            raise OptionError(
                "rows_of() with row weights: rows are drawn, so a batch is not a range of rows. Its '_file' and '_pos' "
                "say which rows it has."
            )
        if not isinstance(step, Integral):
            raise OptionError(f"step={shown(step)}: expected a whole number, the index of a batch in the epoch.")
        return self._passes.rows_of(number, step, self.world.rank if rank is None else rank)

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank; detected at first use, then kept."""
        return self._latest.planner.world

    def _planned(self, epoch: int | None) -> int:
        """The number of an epoch that can be planned; by default, the live or next one."""
        return self._passes.epoch if epoch is None else epoch_number(epoch)

    def _shown(self, epoch: int | None) -> int:
        """The number of an epoch that is shown to people; by default, the live or next one if it can be planned."""
        return self._planned(epoch)

    def _steps(self) -> int | None:
        return self._latest.steps()

    def _waits(self) -> bool:
        """Whether all known rows have been read, and the next pass waits for those that are appended."""
        return False

    @property
    def _source(self) -> Source:
        """The source that the live or next pass reads."""
        return self._passes.source

    @property
    def _passes(self) -> Passes:
        """The passes of this process, at their position; in a worker of a foreign loader, those of its shard."""
        info = get_worker_info()
        worker = None if info is None else (info.id, info.num_workers)
        if worker != self._latest.worker:
            self._leave(worker)
        if self._loaded is not None:
            state, self._loaded = self._loaded, None
            self._known_passes.load(self._known_passes.codec.position(state))
        self._known_passes.settle()
        return self._known_passes

    @property
    def _latest(self) -> Passes:
        """The passes that were asked for last, with the rank of this process.

        Launchers of notebooks fork the ranks, each of which learns its own only then: until the first pass of a forked
        process, its parent's rank does not count.
        """
        passes = self._known_passes
        if passes.inherited and get_worker_info() is None and passes.planner.is_elsewhere:
            self._leave(None)
        return self._known_passes

    def _passes_of(self, source: Source, worker: tuple[int, int] | None) -> Passes:
        return Passes(source, self._options, self._followed, worker)

    def _leave(self, worker: tuple[int, int] | None) -> None:
        """Leave the passes to the parent of this process, where they go on; those of this process begin as a copy's."""
        parent = self._parent = self._known_passes  # held, so that the garbage collector does not end its pass here
        position = parent.start
        if self._loaded is None and position != EpochPosition(position.epoch):
            self._loaded = parent.codec.state(position)
        self._known_passes = self._passes_of(parent.source, worker)
        self._known_passes.inherited = parent.inherited
        self._known_passes.set_epoch(position.epoch)

    def _of_all_ranks(self, state: dict[str, Any]) -> dict[str, Any]:
        """The states of all ranks, combined into one; every rank calls this with its own.

        Raises:
            OptionError: the ranks cannot reach each other.
        """
        world = self.world
        if world.num_ranks == 1:
            return shared_part(state)
        exchange = sharers_of(self._options).exchange("share their states (all_ranks=True)")
        if exchange is None or self._latest.worker is not None:
            raise OptionError(
                f"state_dict(all_ranks=True) with num_ranks={world.num_ranks} needs a process group, but "
                "torch.distributed is not initialised: save the state of each rank, and join them with "
                "merge_state_dicts([...])."
            )
        states = dict(exchange((world.rank, state)))
        return merge_state_dicts([states[rank] for rank in sorted(states)])

    def metrics(self, detail: bool = False, total: bool = False) -> dict[str, float]:
        """What happened since the last call, by name (see `docs/metrics.md`). For any thread.

        Args:
            detail: whether to include seconds by stage, for all I/O workers together and for each.
            total: whether to return what happened since the dataset was created; other calls are not affected.
        """
        passes = self._latest
        totals = passes.meter.read() if total else passes.meter.take()
        ranks = passes.planner.world.num_ranks if totals.sources else 1
        return metrics(totals, {name: rows / ranks for name, rows in passes.source.lap_rows.items()}, detail=detail)

    def metrics_text(self, detail: bool = False) -> str:
        """The metrics since the dataset was created, in Prometheus' text format, with this process's rank as a label.

        Args:
            detail: whether to include seconds by stage and I/O worker.
        """
        return prometheus_text(self.metrics(detail, total=True), self._latest.planner.world.rank)

    def verdict(self) -> Verdict | None:
        """What limited the speed of the last complete pass, and what to change; None before it."""
        return self._latest.verdicts.last


def _call_of(kind: type) -> str:
    """The call that makes datasets of this kind."""
    make = getattr(kind, "create_dataloader", None)
    if make is None:
        return "combine(datasets, ...)"
    return f"{kind.__name__}.create_dataloader({next(iter(signature(make).parameters))}, ...)"


def _at_least_one(call: str, n: Any) -> int:
    rows = whole_number(n)
    if rows < 1:
        raise OptionError(f"{call}({shown(n)}): expected a whole number of rows, at least 1.")
    return rows


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


# What this package knows of a dataset, and its users need not.


def passes_of(dataset: LoaderDataset) -> Passes:
    """Its passes in this process, at their position: their source, options, plans, states and measurements."""
    return dataset._passes


def as_stored(dataset: LoaderDataset, changes: Mapping[str, Any], asked: str) -> LoaderDataset:
    """A dataset of the same rows in file order, of all ranks, as Arrow batches.

    Args:
        dataset: the dataset.
        changes: keywords of `stream` that differ.
        asked: the call that needs it, for errors.

    Raises:
        OptionError: this is a combination or a copy.
    """
    return dataset._as_stored(changes, asked)


def rows_of_dataset(dataset: LoaderDataset) -> RowsRead:
    """Which rows a dataset reads."""
    return rows_read(dataset._source.files, dataset._options)


def part_of(dataset: LoaderDataset, part: int, parts: int) -> LoaderDataset:
    """A dataset of a part of the rows: every so many splits, from split `part` on. No split is in two parts."""
    return dataset._part(part, parts)


def data_digest(dataset: LoaderDataset) -> str:
    """A digest of its files and rows, of how they are split, and of the filter; paths may differ between machines."""
    return f"{dataset._passes.planner.data_digest:016x}"


def steps_of(dataset: LoaderDataset) -> int | None:
    """The number of batches in this rank's live or next pass, or None if known only after reading."""
    return dataset._steps()


def why_no_steps(dataset: LoaderDataset) -> str:
    """Why their number is known only after reading, and what to do, in sentences."""
    return steps_unknown(dataset._options, waits=dataset._waits())


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


def summary(here: Passes, options: Options, *, waits: bool) -> str:
    """What is read, and how, in one line. It detects nothing for this and never raises.

    Args:
        here: the passes of this process.
        options: of the loader.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    parts = [here.source.size, f"batch_size {options.batch.batch_size:,}"]
    try:
        if here.planner.is_settled:
            parts.append(_position_and_steps(here.planner, here.position, waits))
    except Exception:  # noqa: BLE001 - the user's next call raises the same error
        parts.append("rank unknown")
    return "; ".join(parts)


def _position_and_steps(planner: Planner, position: EpochPosition, waits: bool) -> str:
    ranks = f"rank {planner.world.rank} of {planner.world.num_ranks}"
    # The plan of a resumed epoch takes time, and a custom strategy must not be called for this.
    known = not position.past and not waits and planner.plan_of_all_ranks(position.epoch) is not None
    steps = planner.steps(position.epoch, planner.world.rank) if known else None
    if steps is not None:
        return f"{ranks}, {plural(steps, 'step')} in epoch {position.epoch}"
    return f"{ranks}, the next pass follows the table" if waits else ranks
