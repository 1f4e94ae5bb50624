"""The object that frameworks expect as `loader.sampler`."""

from __future__ import annotations

import logging
import sys

from torch_dataloader_utils.loader.accelerated import counted_by_fabric
from torch_dataloader_utils.loader.dataset import LoaderDataset, epoch_number, passes_of, steps_of

_LOG = logging.getLogger("torch_dataloader_utils")

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
