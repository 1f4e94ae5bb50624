"""The loader that users iterate: a torch DataLoader that reads through this package."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, overload

import pyarrow as pa
from torch.utils.data import DataLoader

from torch_dataloader_utils.checkpoint.form import check_form, check_seal, plain
from torch_dataloader_utils.checkpoint.state_dict import of_any_rank, steps_taken
from torch_dataloader_utils.distributed.peers import job_peers
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.loader.accelerated import (
    check_accelerator,
    counted_by_fabric,
    loaded_by_accelerate,
    preparing_accelerator,
)
from torch_dataloader_utils.loader.batch_types import Batch, Collated, Collated_co, Format, NumpyBatch, OutputFormat_co
from torch_dataloader_utils.loader.dataset import LoaderDataset, epoch_number, passes_of, steps_of, why_no_steps
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.loader.preview import FirstRows
from torch_dataloader_utils.loader.tables import SnapshotDataset
from torch_dataloader_utils.metrics.verdict import Verdict
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.redaction import redacts_errors
from torch_dataloader_utils.storage import usable_cores

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import ArrayLike, NDArray

    from torch_dataloader_utils.preprocess.column_statistics import Statistics

_LOG = logging.getLogger("torch_dataloader_utils")

_OURS: Any = object()  # not None: a Trainer that overfits some batches creates the loader again, with sampler=None


@redacts_errors
class StructuredLoader(DataLoader[Any], Generic[OutputFormat_co, Collated_co]):
    """Batches of a dataset; `isinstance(loader, torch.utils.data.DataLoader)`.

    `batch_size`, `num_workers`, `pin_memory`, `persistent_workers` and `timeout` hold the given values. If
    `num_workers` was not given, it is the number of cores, all of which decode. torch's own worker processes never
    start. Accelerate's `prepare` does not wrap the loader. Afterwards, the loader puts batches on the Accelerator's
    device, and these attributes look like those of a loader of finished batches (`batch_size=None`).
    """

    dataset: LoaderDataset
    _is_prepared = False
    use_stateful_dataloader = False  # whether Accelerate's save_state() saves the state, and load_state() loads it
    _loads_epochs = False  # whether load_state() leaves the position in the epoch to skip_first_batches()

    def __init__(
        self, dataset: LoaderDataset, options: Options, sampler: Any = _OURS, batch_sampler: None = None
    ) -> None:
        super().__init__(dataset, batch_size=None)
        workers = options.worker.num_workers
        # DataLoader refuses to set these after its own __init__, which would set up its own batching if it got them.
        self.__dict__.update(
            batch_size=options.batch.batch_size,
            num_workers=usable_cores() if workers is None else workers,  # a number: frameworks compare it
            pin_memory=options.worker.pin_memory,
            persistent_workers=options.worker.persistent_workers,
            timeout=options.worker.timeout,
            sampler=EpochSampler(dataset, fixed=sampler is None),
            collate_fn=_as_it_is,
            options=options,  # Lightning expects an attribute for each argument
        )
        accelerator = options.shard.ranks
        if hasattr(accelerator, "prepare_data_loader"):
            accelerator.prepare_data_loader(self)  # only registers it
            self._prepare(accelerator)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {repr(self.dataset)[1:-1]}>"

    def _repr_html_(self) -> str:
        return self.dataset._repr_html_()

    @overload  # type: ignore[override]
    def __iter__(self: StructuredLoader[Literal["torch"], None]) -> Iterator[Batch]: ...
    @overload
    def __iter__(self: StructuredLoader[Literal["numpy"], None]) -> Iterator[NumpyBatch]: ...
    @overload
    def __iter__(self: StructuredLoader[Format, None]) -> Iterator[Any]: ...
    @overload
    def __iter__(self: StructuredLoader[Any, Collated]) -> Iterator[Collated]: ...
    def __iter__(self) -> Iterator[Any]:
        """An iterator over one pass, which begins at the first `next`."""
        return iter(self.dataset)

    def __len__(self) -> int:
        """The number of batches of this rank in the live or next pass.

        Raises:
            TypeError: the number is known only after reading (with a filter on rows, for example).
        """
        steps = steps_of(self.dataset)
        if steps is None:
            raise TypeError(why_no_steps(self.dataset))
        return steps

    def __getitem__(self, index: object) -> NoReturn:
        """Batches are streamed, not indexed.

        Raises:
            TypeError: always; torch's DataLoader around a loader gets here, too.
        """
        raise TypeError(
            "a loader delivers its batches in order: iterate over it. It is a torch DataLoader already, so do not pass "
            "it to another one."
        )

    if not TYPE_CHECKING:  # a type checker would believe that there is any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raises `AttributeError`, which says what the dataset has."""
            where = ""
            if not name.startswith("_") and hasattr(type(self.__dict__.get("dataset")), name):
                where = f". Its dataset has it: loader.dataset.{name}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}")

    def replace(self, **changes: Any) -> StructuredLoader[Any, Any]:
        """Another loader of the same files and footers, or of the same snapshot, with these keywords replaced.

        Nothing is listed again, and no footer is read twice. It begins at epoch 0, whatever this one has read.

        Example:
            ```python
            validation = loader.replace(subset=sides["val"], shuffle=False)
            ```

        Args:
            **changes: keywords as of `stream`; the others are as they were given to this loader.

        Raises:
            UnknownOptionError: a keyword does not exist.
            OptionError: a value cannot work, or is about what is read; or this is the loader of a combination.
        """
        made = self.dataset.replaced(changes)
        return StructuredLoader(made, passes_of(made).options)

    @overload
    def head(self: StructuredLoader[Literal["torch"], None], n: int = 5) -> Batch: ...
    @overload
    def head(self: StructuredLoader[Literal["numpy"], None], n: int = 5) -> NumpyBatch: ...
    @overload
    def head(self: StructuredLoader[Format, None], n: int = 5) -> Any: ...
    @overload
    def head(self: StructuredLoader[Any, Collated], n: int = 5) -> Collated: ...
    def head(self, n: int = 5) -> Any:
        """The first rows of this rank in the epoch, as one batch, without a pass (see `LoaderDataset.head`)."""
        return self.dataset.head(n)

    def preview(self, n: int = 5) -> FirstRows:
        """The first rows in file order, as a table to read (see `LoaderDataset.preview`)."""
        return self.dataset.preview(n)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass (see `LoaderDataset.set_epoch`)."""
        self.dataset.set_epoch(epoch)

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The position of the live or next pass, as plain data (see `LoaderDataset.state_dict`).

        After Accelerate's `prepare`, the state is the same on all ranks, because they write it to one file.
        """
        if isinstance(self.sampler, EpochSampler):
            self.sampler.warn_of_a_trainer_ahead()
        state = self.dataset.state_dict(all_ranks)
        return state if all_ranks or not self._is_prepared else of_any_rank(state)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Begin the next pass where the state was taken (see `LoaderDataset.load_state_dict`).

        Raises:
            CheckpointMismatchError: the state belongs to other data, or cannot be resumed here.
        """
        if self._loads_epochs and loaded_by_accelerate():
            self._load_epoch(state)
        else:
            self.dataset.load_state_dict(state, strict)

    def _load_epoch(self, state: Mapping[str, Any]) -> None:
        """Restore the epoch, and so the order, as Accelerate does for its own samplers."""
        state = plain(state)
        check_form(state)
        check_seal(state)
        taken = steps_taken(state)
        if taken:
            _LOG.warning(
                "load_state restored epoch %d but not its position, %d step(s): call skip_first_batches(loader, %d), "
                "or set DataLoaderConfiguration(use_stateful_dataloader=True) to restore the position automatically.",
                state["epoch"], taken, taken,
            )  # fmt: skip
        self.dataset.set_epoch(state["epoch"])

    def vocabulary(self, column: str) -> list[Any]:
        """The values that a column's codes stand for (see `LoaderDataset.vocabulary`)."""
        return self.dataset.vocabulary(column)

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of all columns of codes (see `LoaderDataset.vocabularies`)."""
        return self.dataset.vocabularies()

    def metrics(self, detail: bool = False, total: bool = False) -> dict[str, float]:
        """What happened since the last call, by name, for any logger (see `LoaderDataset.metrics`)."""
        return self.dataset.metrics(detail, total)

    def metrics_text(self, detail: bool = False) -> str:
        """The metrics since the loader was created, in Prometheus' text format (see `LoaderDataset.metrics_text`)."""
        return self.dataset.metrics_text(detail)

    def skip_steps(self, first: int, last: int) -> None:
        """Skip the steps `[first, last)` of the live or next epoch, except those already taken."""
        self.dataset.skip_steps(first, last)

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """The plan of a rank for an epoch; reads no data (see `LoaderDataset.plan`)."""
        return self.dataset.plan(epoch, rank)

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The number of rows of a rank in an epoch, or None (see `LoaderDataset.shard_size`)."""
        return self.dataset.shard_size(rank, epoch)

    def rows_of(self, epoch: int, step: int, rank: int | None = None) -> tuple[RowRange, ...]:
        """The rows of one batch, as files and row ranges; reads no data (see `LoaderDataset.rows_of`)."""
        return self.dataset.rows_of(epoch, step, rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What the dataset holds, and what each rank gets in an epoch (see `LoaderDataset.describe`)."""
        return self.dataset.describe(epoch)

    def plan_page(self, path: str | os.PathLike[str], epoch: int | None = None) -> Path:
        """Write the plan as a web page (see `LoaderDataset.plan_page`). Returns the path."""
        return self.dataset.plan_page(path, epoch)

    def statistics(self, columns: Sequence[str] | None = None, *, footers: bool = False) -> Statistics:
        """What the columns hold; reads all rows, of all ranks (see `LoaderDataset.statistics`)."""
        return self.dataset.statistics(columns, footers=footers)

    def set_row_weights(
        self,
        values: ArrayLike | torch.Tensor | None,
        rows: tuple[ArrayLike | torch.Tensor, ArrayLike | torch.Tensor] | None = None,
        *,
        rows_per_epoch: int | None = None,
    ) -> None:
        """Draw rows in proportion to weights, from the next epoch on (see `LoaderDataset.set_row_weights`)."""
        self.dataset.set_row_weights(values, rows, rows_per_epoch=rows_per_epoch)

    def row_weights(self) -> NDArray[np.float64] | None:
        """The weights by which rows are drawn, float64 [rows]; None if they are not (see `LoaderDataset`)."""
        return self.dataset.row_weights()

    def verdict(self) -> Verdict | None:
        """What limited the speed of the last complete pass, and what to change; None before it."""
        return self.dataset.verdict()

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Call a function with each event of this process from now on (see `LoaderDataset.on_event`)."""
        self.dataset.on_event(callback)

    def advance(self, appended_only: bool = False, non_appends: Literal["error", "ignore"] | None = None) -> bool:
        """Move to the newest snapshot of the table (see `SnapshotDataset.advance`).

        Raises:
            OptionError: files have no snapshots.
        """
        if not isinstance(self.dataset, SnapshotDataset):
            raise OptionError("advance(): only tables have snapshots; make a new loader to read other files.")
        return self.dataset.advance(appended_only, non_appends)

    def close(self) -> None:
        """End the live pass and the worker processes; the next pass starts new ones."""
        self.dataset.close()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, after `transform` and before conversion."""
        return self.dataset.schema

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank; detected at first use, then kept."""
        return self.dataset.world

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that Accelerate does not wrap the loader: a wrapper would shard the rows a second time."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        # prepare() sets this; a second time if the loader was made with ranks=accelerator or is prepared twice.
        accelerator = preparing_accelerator()
        if accelerator is not None and not self._is_prepared:
            self._prepare(accelerator)

    def _prepare(self, accelerator: Any) -> None:
        """Do what Accelerate's wrappers do."""
        options, job = passes_of(self.dataset).options, job_peers()
        shard = options.shard
        warning = check_accelerator(accelerator, shard.unit, options.worker.device)
        if warning:
            _LOG.warning("%s", warning)
        if job is not None and len(job.members) > 1 and shard.num_ranks == 1:
            _LOG.warning(
                "num_ranks=1 was given, but there are %d processes, so each reads all rows: omit num_ranks and rank. "
                "Without GPUs an Accelerator counts one process unless it is created with cpu=True.",
                len(job.members),
            )
        self._is_prepared = True
        self.use_stateful_dataloader = True
        self._loads_epochs = not getattr(accelerator, "use_stateful_dataloader", False)
        self.dataset.accelerate(accelerator.device if accelerator.device_placement else None)
        # skip_first_batches() passes these to torch's own loader around the dataset, which must not batch again.
        self.__dict__.update(batch_size=None, num_workers=0, pin_memory=False, persistent_workers=False, timeout=0)


def _as_it_is(batch: Any) -> Any:
    return batch


# The object that frameworks expect as `loader.sampler`.


_LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}


class EpochSampler:
    """The object that frameworks expect as `loader.sampler`: proposes epochs to the dataset.

    Frameworks count epochs of their own and call it at any time, also after they loaded a state: a loaded position is
    kept. (An epoch that a user sets outranks it: `loader.set_epoch`.)

    Lightning Fabric passes the number of passes that its wrapper has begun, which is not the epoch. An epoch that was
    set or loaded overrides that number, and later passes count from there.

    Args:
        dataset: the dataset that gets the epochs.
        fixed: whether every epoch is epoch 0, with the same batches.
    """

    def __init__(self, dataset: LoaderDataset, *, fixed: bool = False) -> None:
        self._dataset = dataset
        self._fixed = fixed
        self._used = False
        self._shift = 0  # our epoch minus Fabric's count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, unless a state was loaded since the last one began."""
        self._used = True
        if self._fixed:
            epoch = 0
        elif counted_by_fabric():
            epoch = self._of_count(epoch_number(epoch))
        self._dataset.propose_epoch(epoch, fixed=self._fixed)

    def _of_count(self, count: int) -> int:
        epoch, shift = epoch_of_count(count, passes_of(self._dataset).asked, self._shift)
        if shift != self._shift:
            _LOG.info(
                "Fabric's pass %d is epoch %d, which was set or loaded; its next passes count from there", count, epoch
            )
        self._shift = shift
        return epoch

    def warn_of_a_trainer_ahead(self) -> None:
        """Warn once that a state saved by Lightning is ahead of its training."""
        if self._used and not _LIGHTNING.isdisjoint(sys.modules) and steps_of(self._dataset) is None:
            self._used = False
            _LOG.warning(
                "the number of batches is known only after reading, so Lightning's Trainer fetches one ahead (unless "
                "limit_train_batches=n sets the end), and a checkpoint within an epoch skips that batch. Pass a "
                "torch_dataloader_utils.integrations.lightning.StructuredDataModule to the Trainer, or set "
                "count_rows=True or steps_per_epoch=n."
            )


def epoch_of_count(count: int, asked: int | None, shift: int) -> tuple[int, int]:
    """The epoch of the next pass for a framework that only counts passes, and the offset from its count to our epochs.

    Args:
        count: the framework's count, which begins at 0 whatever the epoch of the training.
        asked: the epoch that was set or loaded since the last pass began; overrides the count.
        shift: the offset so far. It is dropped if a count that starts again would give an epoch below 0.
    """
    if asked is not None:
        return asked, asked - count
    return (count + shift, shift) if count + shift >= 0 else (count, 0)
