"""What a framework finds as `loader.sampler`."""

from __future__ import annotations

import logging
import sys

from torch_dataloader_utils.loader.accelerated import counted_by_fabric
from torch_dataloader_utils.loader.dataset import LoaderDataset, epoch_number

_LOG = logging.getLogger("torch_dataloader_utils")

_LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}


class EpochSampler:
    """What a framework finds as `loader.sampler`: forwards `set_epoch` to the dataset.

    Lightning Fabric says here how many passes its wrapper has begun, which is no epoch: an epoch that was set or
    loaded outranks it, and it counts on from there.

    Args:
        dataset: whose epochs these are.
        fixed: whether all are epoch 0: the same batches in each.
    """

    def __init__(self, dataset: LoaderDataset, *, fixed: bool = False) -> None:
        self._dataset = dataset
        self._fixed = fixed
        self._used = False
        self._shift = 0  # from Fabric's count to our epochs

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        self._used = True
        if self._fixed:
            epoch = 0
        elif counted_by_fabric():
            epoch = self._of_count(epoch_number(epoch))
        self._dataset.set_epoch(epoch)

    def _of_count(self, count: int) -> int:
        epoch, shift = epoch_of_count(count, self._dataset.asked_epoch, self._shift)
        if shift != self._shift:
            _LOG.info(
                "Fabric's pass %d is epoch %d, which was set or loaded; its next passes count from there", count, epoch
            )
        self._shift = shift
        return epoch

    def warn_of_a_trainer_ahead(self) -> None:
        """Say, once, that a state which Lightning saves is ahead of its training."""
        if self._used and not _LIGHTNING.isdisjoint(sys.modules) and self._dataset.steps() is None:
            self._used = False
            _LOG.warning(
                "the number of batches is not known before reading, so Lightning's Trainer fetches one ahead (unless "
                "limit_train_batches=n says where it ends), and a checkpoint within an epoch leaves that batch out. "
                "Give it a torch_dataloader_utils.integrations.lightning.StructuredDataModule, or pass "
                "count_rows=True or steps_per_epoch=n."
            )


def epoch_of_count(count: int, asked: int | None, shift: int) -> tuple[int, int]:
    """The epoch of the next pass where a framework only counts passes, and how far its count is from our epochs.

    Args:
        count: the framework's, which begins at 0 whatever epoch the training is in.
        asked: the epoch that was set or loaded since the last pass began; it outranks the count.
        shift: the distance so far, which the count keeps; a count that begins again may fall below 0, and drops it.
    """
    if asked is not None:
        return asked, asked - count
    return (count + shift, shift) if count + shift >= 0 else (count, 0)
