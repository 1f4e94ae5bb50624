"""A dataset's passes in the current process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from typing import Any

from torch.utils.data import get_worker_info

from torch_dataloader_utils.checkpoint.form import check_form, plain
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.checkpoint.state_dict import merge_state_dicts, shared_part
from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.loader.accelerated import loaded_by_lightning, spent_in_lightning
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage.locks import renew_in_children


class LocalEpochs:
    """The epochs of this process; in a worker of a foreign loader, those of its shard.

    Attributes:
        state: where they begin, loaded once the ranks must be known; None: the beginning of an epoch.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        before_reading: Callable[[], None],
        before_epoch: Callable[[], Source | None],
    ) -> None:
        self._before_reading = before_reading
        self._shard_of = partial(Epochs, options=options, before_reading=self._begun, before_epoch=before_epoch)
        self._latest = self._shard_of(source)
        self.state: Mapping[str, Any] | None = None
        self._parent: Epochs | None = None
        self._forked = False
        renew_in_children(self)

    def renew(self) -> None:
        """Look in this process, which was forked, which rank it is: until its first pass, its parent's no longer count.

        Launchers of notebooks fork the ranks, each of which learns its own only then.
        """
        self._forked = True

    def _begun(self) -> None:
        self._forked = False
        self._before_reading()

    @property
    def latest(self) -> Epochs:
        """The most recently requested epochs, with the rank of this process."""
        if self._forked and get_worker_info() is None and self._latest.planner.is_elsewhere:
            self._leave(None)
        return self._latest

    def current(self) -> Epochs:
        """The epochs of this process, at their position."""
        info = get_worker_info()
        worker = None if info is None else (info.id, info.num_workers)
        if worker != self.latest.worker:
            self._leave(worker)
        if self.state is not None:
            state, self.state = self.state, None
            self._latest.passes.load(self._latest.codec.place(state))
        self._latest.settle()
        return self._latest

    def _leave(self, worker: tuple[int, int] | None) -> None:
        """Leave the passes to the parent of this process, where they go on; those of this process begin as a copy's."""
        parent = self._parent = self._latest  # held, so that the garbage collector does not end its pass here
        place = parent.passes.start
        if self.state is None and place != EpochPosition(place.epoch):
            self.state = parent.codec.state(place)
        self._latest = self._shard_of(parent.source, worker=worker)
        self._latest.passes.set_epoch(place.epoch)


def rows_of_step(here: Epochs, epoch: int, step: int, rank: int) -> tuple[RowRange, ...]:
    """The rows of one batch of a rank, as files and row ranges.

    Raises:
        OptionError: `step` is not a whole number.
        IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
    """
    if not isinstance(step, Integral):
        raise OptionError(f"step={shown(step)}: expected a whole number, the index of a batch in the epoch.")
    place = here.passes.place
    past = place.past if place.epoch == epoch else ()
    before = place.before if past else 0
    if 0 <= step < before:
        raise IndexError(
            f"step {step} of epoch {epoch} was taken under other options, before the epoch was resumed: expected a "
            f"step of at least {before}."
        )
    return here.planner.rows_of(epoch, step - before, rank, past)


def load_state(state: Any, here: Epochs, restore_source: Callable[[Mapping[str, Any]], None], *, strict: bool) -> None:
    """Begin the next pass where the state was taken. If the state is refused, the source is not changed.

    Args:
        state: the state of a loader.
        here: the epochs of this process.
        restore_source: moves the epochs to a position in the history of their source.
        strict: whether a state of other data raises an error.

    Raises:
        CheckpointMismatchError: `state` is not a state, belongs to other data, or cannot be resumed here.
    """
    given, state = state, plain(state)
    check_form(state)
    before, loaded = here.next_source, here.passes.loaded
    if state.get("source") is not None:
        restore_source(state["source"])
    try:
        place = here.codec.place(state, strict=strict)
    except CheckpointMismatchError:
        if here.next_source is not before:
            here.move_to(before)
        if loaded is not None:
            here.passes.load(loaded)
        raise
    here.passes.load(place, by_counter=loaded_by_lightning(), spent=spent_in_lightning(given))


def state_of_all_ranks(state: dict[str, Any], here: Epochs, options: Options) -> dict[str, Any]:
    """The states of all ranks, combined into one; every rank calls this with its own.

    Raises:
        OptionError: the ranks cannot reach each other.
    """
    world = here.planner.world
    if world.num_ranks == 1:
        return shared_part(state)
    exchange = sharers_of(options).exchange("share their states (all_ranks=True)")
    if exchange is None or here.worker is not None:
        raise OptionError(
            f"state_dict(all_ranks=True) with num_ranks={world.num_ranks} needs a process group, but "
            "torch.distributed is not initialised: save the state of each rank, and join them with "
            "merge_state_dicts([...])."
        )
    states = dict(exchange((world.rank, state)))
    return merge_state_dicts([states[rank] for rank in sorted(states)])
