"""The dataset: a source, its passes, and their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset

from torch_dataloader_utils.batching.output_formats import first_imports
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.late_imports import import_now
from torch_dataloader_utils.loader.accelerated import AcceleratedIterator, check_caller, check_fetcher
from torch_dataloader_utils.loader.iterators import StatefulIterator
from torch_dataloader_utils.loader.local import LocalEpochs, load_state, state_of_all_ranks
from torch_dataloader_utils.loader.planned import PlannedDataset, epoch_number, whole_number
from torch_dataloader_utils.loader.short_texts import steps_unknown, summary
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable, revealing_nothing
from torch_dataloader_utils.sources.source import Source

_LOG = logging.getLogger("torch_dataloader_utils")


@revealing_nothing
class LoaderDataset(PlannedDataset, IterableDataset[Any]):
    """Batches of one source, for one rank.

    Iterating it delivers the same batches as its loader. It pickles as plain data. A copy begins where the next pass
    here would: at the position that was loaded, or at the beginning of an epoch. To continue a pass that has begun,
    load its `state_dict()` into the copy.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._options = options
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
        return {"source": replace(self.source, listed=0.0), "options": self._options, **start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LoaderDataset.__init__(self, state["source"], state["options"])
        if "state" in state:
            self._local.state = state["state"]
        else:
            self._passes.set_epoch(state["epoch"])

    def _followed(self) -> Source | None:
        """Called before a pass that begins an epoch is planned: what it reads from now on, if that changes."""
        return None

    def _renew(self) -> None:
        """Called before a pass is read, once the ranks agree."""


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
