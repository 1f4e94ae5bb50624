"""Lightning: a data module whose loaders resume exactly in a Trainer even if their length is unknown.

A Trainer reads the length of a loader once, and fetches one batch ahead if there is none. The state of a plain loader
is then one batch ahead of the training. The module's loaders report how far the training is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch_dataloader_utils.api.files import StructuredDataset
from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.loader.dataset import steps_of
from torch_dataloader_utils.loader.loader import StructuredLoader

try:
    from lightning.pytorch import LightningDataModule
except ModuleNotFoundError as error:
    raise MissingExtraError("StructuredDataModule needs Lightning: pip install lightning") from error

Given = Mapping[str, Any] | StructuredLoader


class StructuredDataModule(LightningDataModule):  # type: ignore[misc]  # untyped where Lightning is not installed
    """A data module of loaders, each given as options of `StructuredDataset.create_dataloader` or as a loader.

    Example:
        ```python
        data = StructuredDataModule(
            train={"path": "data/train/", "batch_size": 1024, "shuffle": True, "even": "pad"},
            val={"path": "data/val/", "batch_size": 4096},
        )
        trainer.fit(model, data)
        ```

    Args:
        train: for `trainer.fit`.
        val: for `trainer.fit` and `trainer.validate`; without it there is no validation.
        test: for `trainer.test`.
        predict: for `trainer.predict`.
    """

    def __init__(
        self,
        train: Given | None = None,
        val: Given | None = None,
        test: Given | None = None,
        predict: Given | None = None,
    ) -> None:
        super().__init__()
        self._given = {"train": train, "val": val, "test": test, "predict": predict}
        for name, given in self._given.items():
            if given is not None and not isinstance(given, (Mapping, StructuredLoader)):
                raise OptionError(
                    f"{name}= is a {type(given).__name__}: expected a dict of options, such as {{'path': 'data/', "
                    "'batch_size': 1024}, or the loader (the first value) that create_dataloader returns."
                )
        self._made: dict[str, StructuredLoader] = {}

    def loader(self, name: str) -> StructuredLoader:
        """The loader of "train", "val", "test" or "predict", created at first use.

        Raises:
            OptionError: the module was created without it.
        """
        given = self._given[name]
        if given is None:
            raise OptionError(f"the StructuredDataModule has no {name}=: pass it a loader or a dict of options.")
        if name not in self._made:
            made = given if isinstance(given, StructuredLoader) else StructuredDataset.create_dataloader(**given)[0]
            self._made[name] = made
        return self._made[name]

    def train_dataloader(self) -> TrainerLoader:
        """Batches to train on."""
        return self._of("train")

    def val_dataloader(self) -> Any:
        """Batches to validate on, if there are any."""
        return [] if self._given["val"] is None else self._of("val")

    def test_dataloader(self) -> TrainerLoader:
        """Batches to test on."""
        return self._of("test")

    def predict_dataloader(self) -> TrainerLoader:
        """Batches to predict for."""
        return self._of("predict")

    def _of(self, name: str) -> TrainerLoader:
        loader, trainer = self.loader(name), self.trainer
        if trainer is None:
            return TrainerLoader(loader)
        limited, epoch = isinstance(trainer.limit_train_batches, int), trainer.fit_loop.epoch_progress.current.processed
        return TrainerLoader(loader, epoch, looks_ahead=not limited, fixed=trainer.overfit_batches > 0)


class TrainerLoader:
    """A loader whose state records how far a Trainer has trained, regardless of what it fetched ahead.

    Args:
        loader: what is read.
        epoch: of the first pass, which may begin before the Trainer sets it.
        looks_ahead: whether the Trainer fetches one batch ahead if the loader has no length.
        fixed: whether every epoch is epoch 0, with the same batches.
    """

    batch_sampler = None  # a Trainer looks at both samplers

    def __init__(
        self, loader: StructuredLoader, epoch: int = 0, *, looks_ahead: bool = True, fixed: bool = False
    ) -> None:
        self.loader = loader
        self.sampler = self  # where a Trainer looks for `set_epoch`
        self._fixed = fixed
        self._epoch: int | None = 0 if fixed else epoch
        self._looks_ahead = looks_ahead
        self._before: dict[str, Any] | None = None  # the state before a batch that was fetched ahead

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`; a pass that has begun continues."""
        self._epoch = 0 if self._fixed else epoch

    def __len__(self) -> int:
        """The batches of this rank in an epoch; a TypeError if known only after reading."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """One pass; it begins at the first `next`."""
        dataset: Any = self.loader.dataset
        if self._epoch is not None:
            dataset.propose_epoch(self._epoch, fixed=self._fixed)
        ahead = self._looks_ahead and steps_of(dataset) is None
        batches = iter(self.loader)
        while True:
            self._before = dataset.state_dict() if ahead else None
            try:
                batch = next(batches)
            except StopIteration:
                self._before = None
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The progress of the training."""
        return self._before or self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass where the state was taken."""
        self._epoch, self._before = None, None
        self.loader.load_state_dict(state)
