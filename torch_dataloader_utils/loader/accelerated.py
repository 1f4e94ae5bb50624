"""Replaces Accelerate's wrappers for our loader, and detects which framework is calling.

An Accelerate wrapper shards a loader's rows over the processes. Our rows are already sharded and would be sharded
twice, so our loader counts as prepared and does the rest itself: it moves batches to the device and reports the last
batch to GradientState. Nothing here imports Accelerate.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import torch

from torch_dataloader_utils.checkpoint.state_dict import is_begun
from torch_dataloader_utils.errors import OptionError, ShardingError, leave_out
from torch_dataloader_utils.iteration.iterator import BatchIterator
from torch_dataloader_utils.iteration.one_pass import END
from torch_dataloader_utils.iteration.passes import Passes

_LOG = logging.getLogger("torch_dataloader_utils")

_COMBINED = ("lightning.pytorch.utilities.combined_loader", "pytorch_lightning.utilities.combined_loader")
_FABRIC = ("lightning.fabric.", "lightning_fabric.")
_RESHARDING = ("DataLoaderDispatcher", "IterableDatasetShard")  # rank 0's rows only; every second of each rank's rows


@dataclass(eq=False)
class Turn:
    """The current pass as Accelerate's GradientState sees it.

    Attributes:
        end_of_dataloader: whether the newest batch is the last one; accumulated gradients are then applied.
        mask: the mask of that batch, if it may hold repeats.
    """

    end_of_dataloader: bool = False
    mask: torch.Tensor | None = None

    @property
    def remainder(self) -> int:
        """-1, so that `gather_for_metrics`, which reads it at the last batch, drops no rows. Warns if rows repeat."""
        if self.mask is not None and not self.mask.all():
            _warn_of_repeats()
        return -1

    def begin(self) -> None:
        """Make this the current pass, until it ends."""
        _state().GradientState()._add_dataloader(self)

    def end(self) -> None:
        """Make the enclosing pass current again, if there is one; idempotent."""
        _state().GradientState()._remove_dataloader(self)


@cache
def _warn_of_repeats() -> None:
    _LOG.warning(
        "accelerator.gather_for_metrics keeps the repeats of padded batches. Drop them by the mask, or use "
        "torch_dataloader_utils.integrations.accelerate.gather_for_metrics(accelerator, data, batch['valid'])."
    )


def _state() -> Any:
    # Only a process that has imported Accelerate can have prepared a loader.
    return sys.modules["accelerate.state"]


def placed(value: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device: tensors in dicts and tuples, and lists that hold only tensors.

    Other lists, arrays and objects are not moved: Accelerate's own function would visit every string of a list.
    """
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: placed(item, device) for key, item in value.items()}
    if isinstance(value, tuple):
        moved = [placed(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [placed(item, device) for item in value]
    if isinstance(value, Mapping) and hasattr(value, "to"):
        return value.to(device)  # such as the BatchEncoding that a tokenizer's collate_fn returns
    return value


def check_accelerator(accelerator: Any, unit: str, device: str | None = None) -> str | None:
    """A warning about an Accelerator's configuration, which only its wrappers apply; None if all is well.

    Args:
        accelerator: the Accelerator.
        unit: what ranks take in turn, of the loader's sharding.
        device: the loader's option.

    Raises:
        OptionError: its batch size or its device contradicts the options.
    """
    if device is not None and accelerator.device_placement and not _same(torch.device(device), accelerator.device):
        raise OptionError(
            f"device={device!r}, but the accelerator puts batches on its own device, {str(accelerator.device)!r}: "
            "pass device=accelerator.device.",
            remedies=[leave_out("device")],
        )
    if getattr(accelerator, "split_batches", False) and unit != "split_batch":
        raise OptionError(
            "the accelerator has split_batches=True, so batch_size would be that of all ranks together, but here it is "
            "per rank: remove split_batches from DataLoaderConfiguration and pass batch_size / num_processes, or also "
            "pass sharding=Strided('split_batch') to create_dataloader."
        )
    if getattr(accelerator, "dispatch_batches", None):
        return "dispatch_batches=True of the accelerator is ignored: each rank reads its own rows"
    return None


def _same(given: torch.device, other: torch.device) -> bool:
    """Whether they are one device, as far as they are numbered: "cuda" is the current one."""
    return given.type == other.type and (None in (given.index, other.index) or given.index == other.index)


def check_caller(num_ranks: Callable[[], int]) -> None:
    """Check that an Accelerate wrapper that sets the dataset's epoch does not change rows or batches.

    Every wrapper sets the epoch on every process before a pass, so the dataset can detect it here.

    Raises:
        ShardingError: the wrapper shards rows that are already sharded, or makes batches of batches.
    """
    wrapper = _receiver("accelerate.data_loader")
    if wrapper is None:
        return
    kind, batch_size = type(wrapper).__name__, getattr(wrapper, "batch_size", None)
    if kind in _RESHARDING and num_ranks() > 1:
        wrong = f"would shard the rows of this rank, one of {num_ranks()}, again, so that most would never be read"
    elif batch_size is not None:
        wrong = f"would make batches of {batch_size} batches"
    else:
        return
    raise ShardingError(
        f"the dataset was passed to Accelerate's {kind}, which {wrong}. Pass the loader that create_dataloader returns "
        "to accelerator.prepare(), not the dataset. For a Trainer of transformers, use class MyTrainer(TrainerMixin, "
        "Trainer), with the mixin of torch_dataloader_utils.integrations.transformers, and train_dataset=loader."
    )


def check_fetcher() -> None:
    """Check that torch's own DataLoader, when it starts to iterate over a dataset, does not batch the batches again.

    Raises:
        OptionError: it would make batches of batches.
    """
    fetcher = _receiver("torch.utils.data._utils.fetch")
    if getattr(fetcher, "auto_collation", False):
        raise OptionError(
            "the dataset was passed to torch's DataLoader with a batch_size, which would make batches of batches: pass "
            "batch_size=None there (the dataset has its own batch_size), or use the loader that create_dataloader "
            "returns."
        )


def preparing_accelerator() -> Any:
    """The Accelerator whose `prepare()` is setting a loader's flag (all that it does to a loader); None otherwise."""
    return _receiver("accelerate.", "torch.")


def loaded_by_accelerate() -> bool:
    """Whether the call comes from Accelerate, such as `load_state()`."""
    return _caller("accelerate.") is not None


def counted_by_fabric() -> bool:
    """Whether the call comes from Lightning Fabric's loader wrapper, which counts its passes from 0."""
    return _caller(_FABRIC, *(f"{package}utilities." for package in _FABRIC)) is not None


def loaded_by_lightning(state: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether Lightning's CombinedLoader is loading a state, and whether its loader has no more batches in this round.

    A Trainer puts all its loaders in one.
    """
    frame = _caller(_COMBINED)
    if frame is None:
        return False, False
    states, mode = frame.get("states") or (), getattr(frame.get("self"), "_mode", "")
    index = next((number for number, each in enumerate(states) if each is state), None)
    return True, index is not None and spent([is_begun(each) for each in states], index, mode)


def spent(begun: Sequence[bool], index: int, mode: str) -> bool:
    """Whether a loader of a combination has given all its batches of the round in which the states were taken.

    A loader that ended is at the beginning of its next epoch, so only the others tell that their round is not over.

    Args:
        begun: whether each loader is within an epoch.
        index: of the loader.
        mode: of the combination. In the modes not named here, a loader that ends starts again or ends the round.
    """
    others = {"max_size": begun, "sequential": begun[index + 1 :]}.get(mode, ())
    return not begun[index] and any(others)


def _receiver(package: str, *without: str) -> Any:
    """The object whose method makes the call, if its class belongs to this package; else None."""
    return (_caller(package, *without) or {}).get("self")


def _caller(package: str | tuple[str, ...], *without: str) -> Mapping[str, Any] | None:
    """The local variables of the nearest caller outside this package and `without`, if it belongs to `package`.

    No public interface of Accelerate 1.15 provides this: `prepare` only sets a flag on a loader, neither GradientState
    nor AcceleratorState knows the Accelerator, and `load_state` calls a loader as a user would.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch_dataloader_utils.", *without)):
            return frame.f_locals if name.startswith(package) else None
        frame = frame.f_back
    return None


class AcceleratedIterator(BatchIterator):
    """One pass as Accelerate's training loop needs it: batches on the device, and the last one announced."""

    def __init__(self, passes: Passes, valid_key: str | None, device: torch.device | None) -> None:
        super().__init__(passes)
        self._valid_key = valid_key
        self._device = device
        self._turn: Turn | None = None

    def _next(self) -> Any:
        turn = self._turn
        if turn is None:
            turn = self._turn = Turn()
            turn.begin()
            weakref.finalize(self, turn.end).atexit = False
        try:
            batch = super()._next()
        except BaseException:
            turn.end()
            raise
        if batch is END:
            turn.end()
            return END
        turn.end_of_dataloader = self.at_end()
        if turn.end_of_dataloader and isinstance(batch, Mapping):
            turn.mask = batch.get(self._valid_key)
        return batch if self._device is None else placed(batch, self._device)

    def close(self) -> None:
        """End the pass and release its threads, files and buffers; idempotent."""
        if self._turn is not None:
            self._turn.end()
        super().close()
