"""The loader that users iterate: a torch DataLoader whose reading is ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from torch_dataloader_utils.dataset import LoaderDataset
from torch_dataloader_utils.options import Options


class EpochSampler:
    """What a framework finds as `loader.sampler`: forwards `set_epoch` to the dataset."""

    def __init__(self, dataset: LoaderDataset) -> None:
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        self._dataset.set_epoch(epoch)


class StructuredLoader(DataLoader[Any]):
    """Batches of a dataset; `isinstance(loader, torch.utils.data.DataLoader)`.

    `batch_size`, `num_workers`, `pin_memory`, `persistent_workers` and `timeout` read as they were given. torch's own
    worker processes are never started.
    """

    def __init__(self, dataset: LoaderDataset, options: Options) -> None:
        super().__init__(dataset, batch_size=None)
        # DataLoader refuses to set these after its own __init__, and that one would start its machinery for them.
        self.__dict__.update(
            batch_size=options.batch.batch_size,
            num_workers=options.worker.num_workers,
            pin_memory=options.worker.pin_memory,
            persistent_workers=options.worker.persistent_workers,
            timeout=options.worker.timeout,
            sampler=EpochSampler(dataset),
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One pass over the batches; it begins at the first `next`."""
        return iter(self.dataset)

    def __len__(self) -> int:
        """The number of batches of this rank in the live or next pass.

        Raises:
            TypeError: only reading tells (a filter on rows, for example).
        """
        assert isinstance(self.dataset, LoaderDataset)
        steps = self.dataset.steps()
        if steps is None:
            raise TypeError(
                "the number of batches is not known before reading: a filter, nulls='drop', transform_rows='any' or a "
                "format without row counts decides while it reads which rows there are."
            )
        return steps
