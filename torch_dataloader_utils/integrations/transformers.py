"""Transformers: a mixin that makes a Trainer train and evaluate on our loaders.

A Trainer wraps a dataset in a loader of its own, which Accelerate shards over the processes again, and resumes by
dropping batches in the order of epoch 0. With the mixin it uses a loader as it is, and resumes at the checkpoint's
position in the epoch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    CountsRequiredError,
    Example,
    MissingExtraError,
    OptionError,
    Remedy,
    ShardingError,
    use,
)
from torch_dataloader_utils.loader.dataset import LoaderDataset, passes_of
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options import Options, mask_in_batches

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback

    from torch_dataloader_utils.integrations.evaluation import (
        NO_REAL_ROWS,
        EvalLoader,
        PreparedLoader,
        unmarked,
        without_repeats,
    )
    from torch_dataloader_utils.integrations.model_keys import added_keys, inputs_of
except ModuleNotFoundError as error:
    raise MissingExtraError("TrainerMixin needs transformers: pip install transformers accelerate") from error

_LOG = logging.getLogger("torch_dataloader_utils")

_LOOKED_AT = 8  # epochs whose steps are compared before training; the others are compared when they begin


class TrainerMixin:
    """Makes a `transformers.Trainer` use loaders as `train_dataset` and `eval_dataset`; put it first.

    The model gets the keys that its `forward` takes; with `remove_unused_columns=False`, all of them. A `compute_loss`
    of your own gets all keys of a batch; what it hands to that of the Trainer loses those that the model does not take.

    Example:
        ```python
        class MyTrainer(TrainerMixin, Trainer):
            pass


        loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=1024, shuffle=True, even="drop")
        trainer = MyTrainer(model, args, train_dataset=loader, eval_dataset={"val": val_loader})
        trainer.train(resume_from_checkpoint=True)
        ```
    """

    _added: frozenset[str] = frozenset()  # the keys that the loaders add to batches
    _left_out: frozenset[str] = frozenset()  # those that were said to be left out

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader passed as `train_dataset`.

        Raises:
            OptionError: it is the dataset of a loader.
            CountsRequiredError: its length is unknown.
            ShardingError: its ranks or its epochs may have different numbers of steps.
        """
        trainer: Any = self
        loader = loader_of(trainer.train_dataset)
        if loader is None:
            given: DataLoader[Any] = super().get_train_dataloader()  # type: ignore[misc]  # of the Trainer
            return given
        if not any(isinstance(callback, DataPosition) for callback in trainer.callback_handler.callbacks):
            trainer.add_callback(DataPosition())
        self._added |= added_keys(_options_of(loader))
        train = TrainLoader(trainer.accelerator.prepare(loader), trainer.label_names)
        for epoch in range(min(_LOOKED_AT, math.ceil(trainer.args.num_train_epochs))):
            train.check_steps(epoch)
        return train

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The loader passed as `eval_dataset`, or under this name in it.

        Raises:
            OptionError: it is the dataset of a loader.
            ShardingError: its ranks may have different numbers of steps.
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset  # type: ignore[attr-defined]
        if isinstance(given, str):
            given = self.eval_dataset[given]  # type: ignore[attr-defined]
        loader = self._evaluated(given)
        return super().get_eval_dataloader(eval_dataset) if loader is None else loader  # type: ignore[misc]

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """The loader passed to `predict`; raises as `get_eval_dataloader`."""
        loader = self._evaluated(test_dataset)
        return super().get_test_dataloader(test_dataset) if loader is None else loader  # type: ignore[misc]

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The rows of all ranks in an epoch."""
        loader = dataloader.loader if isinstance(dataloader, PreparedLoader) else dataloader
        if isinstance(loader, StructuredLoader):
            dataset = _dataset_of(loader)
            rows = [dataset.shard_size(rank) for rank in range(dataset.world.num_ranks)]
            if None not in rows:
                return sum(filter(None, rows))
        examples: int = super().num_examples(dataloader)  # type: ignore[misc]
        return examples

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch after its backward pass; 0 with gradients of 0 for one without real rows.

        All processes must run model and backward pass, because they exchange gradients.
        """
        step: Any = super().training_step  # type: ignore[misc]  # of the Trainer
        if NO_REAL_ROWS not in inputs:
            return step(model, inputs, *args, **kwargs)
        trainer: Any = self
        compute_loss, own = trainer.compute_loss, "compute_loss" in vars(self)
        trainer.compute_loss = lambda *args, **kwargs: _without_weight(compute_loss(*args, **kwargs))
        try:
            counts = {name: _at_least_one(value) for name, value in kwargs.items()}
            return step(model, unmarked(inputs), *map(_at_least_one, args), **counts)
        finally:
            if own:
                trainer.compute_loss = compute_loss
            else:
                del trainer.compute_loss

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the Trainer, for what the model takes of a batch."""
        return super().compute_loss(model, self._inputs(inputs), *args, **kwargs)  # type: ignore[misc]  # of the Trainer

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own step; without labels, it calls the model itself instead of `compute_loss`."""
        names = self.label_names  # type: ignore[attr-defined]  # of the Trainer
        labelled = bool(names) and all(inputs.get(name) is not None for name in names)
        given = inputs if labelled else self._inputs(inputs)
        return super().prediction_step(model, given, *args, **kwargs)  # type: ignore[misc]

    def _inputs(self, batch: Any) -> Any:
        trainer: Any = self
        if not trainer.args.remove_unused_columns or not isinstance(batch, Mapping):
            return batch
        apart = trainer.label_smoother is not None or trainer.compute_loss_func is not None  # they take the labels
        labels = [*trainer.label_names, *["labels"] * apart]
        inputs = inputs_of(batch, trainer.model, labels, self._added)
        left_out = frozenset(batch) - inputs.keys() - self._left_out
        if left_out:
            self._left_out |= left_out
            _LOG.info("keys of batches that the model's forward does not take are left out: %s", sorted(left_out))
        return inputs

    def _get_num_items_in_batch(self, batch_samples: list[Any], *args: Any) -> Any:
        """How many labels the batches have, as the Trainer counts them; those of repeated rows do not count."""
        real = [_without_labels(batch) if NO_REAL_ROWS in batch else batch for batch in batch_samples]
        return super()._get_num_items_in_batch(real, *args)  # type: ignore[misc]  # of the Trainer

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the Trainer's own loop, with each row counted once, as a single process would.

        A batch's loss is then weighted by its rows, so it is not divided by the labels of other processes' batches.
        """
        evaluate: Any = super().evaluation_loop  # type: ignore[misc]  # of the Trainer
        if not isinstance(dataloader, StructuredLoader):
            return evaluate(dataloader, *args, **kwargs)
        trainer: Any = self
        loader, gather = self._eval_loader(dataloader), trainer.gather_function
        average, trainer.args.average_tokens_across_devices = trainer.args.average_tokens_across_devices, False
        trainer.gather_function = loader.gather
        try:
            return evaluate(loader, *args, **kwargs)
        finally:
            trainer.gather_function = gather
            trainer.args.average_tokens_across_devices = average

    def _eval_loader(self, loader: StructuredLoader) -> EvalLoader:
        trainer: Any = self
        settings = trainer.args
        return EvalLoader(
            loader,
            _mask_of(loader),
            trainer.label_names,
            trainer.accelerator,
            settings.eval_batch_size,
            as_objects=settings.eval_use_gather_object,
        )

    def _evaluated(self, given: Any) -> DataLoader[Any] | None:
        loader = loader_of(given)
        if loader is not None:
            self._added |= added_keys(_options_of(loader))
            _check_even(loader)
            self.accelerator.prepare(loader)  # type: ignore[attr-defined]
        return loader


class TrainLoader(PreparedLoader):
    """A loader for a Trainer's training: batches of real rows, without their mask.

    A batch without a real row is delivered with the key `NO_REAL_ROWS`, because all processes must call the model. On
    resuming, the Trainer creates a loader of its own around `dataset`, and drops batches of it: those are empty.

    Args:
        loader: what is read.
        labels: the keys of labels.

    Raises:
        CountsRequiredError: its length is unknown.
        ShardingError: its ranks may have different numbers of steps.
    """

    def __init__(self, loader: StructuredLoader, labels: Sequence[str]) -> None:
        self._batches = _Rest(loader, labels)
        super().__init__(loader, self._batches)
        _check_even(loader)
        self._steps = self._steps_of(0)

    def __len__(self) -> int:
        """The batches of this rank in an epoch."""
        return self._steps

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One pass."""
        return self._batches.real()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        self.check_steps(epoch)
        self.loader.set_epoch(epoch)

    def check_steps(self, epoch: int) -> None:
        """Check that an epoch has the number of steps that the Trainer expects, which reads only that of the first one.

        Raises:
            ShardingError: it has another number.
        """
        steps = self._steps_of(epoch)
        if steps != self._steps:
            raise ShardingError(
                f"epoch {epoch} has {steps} steps, but epoch 0 has {self._steps}: a Trainer expects the same number in "
                "each.",
                remedies=[use(even="drop"), use(even="pad")],
            )

    def resume(self, epoch: int, steps: int) -> None:
        """Let the Trainer drop the first `steps` batches of an epoch: they are not read."""
        self._batches.place = epoch, steps

    def _steps_of(self, epoch: int) -> int:
        dataset = _dataset_of(self.loader)
        shard = passes_of(dataset).options.shard
        steps = shard.steps_per_epoch
        if steps is None and shard.even != "sync":
            steps = dataset.plan(epoch).steps
        if steps is None:
            raise CountsRequiredError(
                "a Trainer counts its position in batches of epochs of known length, but here the length is known only "
                "after reading. Change what is passed to create_dataloader:",
                remedies=_ways_to_count(dataset),
            )
        return steps


class DataPosition(TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped where there is no transformers
    """Saves with each checkpoint what its steps are based on, and makes the next run resume at the same position."""

    def __init__(self) -> None:
        self._loader: TrainLoader | None = None
        self._accumulated = 1  # batches per step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that a checkpoint belongs to the same data, and record where it resumes.

        Raises:
            CheckpointMismatchError: it belongs to other data or batches.
        """
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, TrainLoader):
            return
        self._loader, self._accumulated = loader, args.gradient_accumulation_steps
        if state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__)
            if saved:
                _check_same(saved["attributes"]["saved"], self._position())
                # Raises an error if it cannot be resumed here.
                passes_of(_dataset_of(loader.loader)).codec.position(saved["attributes"]["saved"]["loader"])
            updates = -(-len(loader) // self._accumulated)
            loader.resume(state.global_step // updates, state.global_step % updates * self._accumulated)
        state.stateful_callbacks[type(self).__name__] = self.state()

    def state(self) -> dict[str, Any]:
        """The part of it that a checkpoint stores."""
        return {"args": {}, "attributes": {"saved": self._position()}} if self._loader else {}

    def _position(self) -> dict[str, Any]:
        assert self._loader is not None
        return {"gradient_accumulation_steps": self._accumulated, "loader": self._loader.loader.state_dict()}


class _Rest(IterableDataset[Any]):
    """The dataset from which a Trainer drops batches: empty ones for those it has trained on, then the rest."""

    def __init__(self, loader: StructuredLoader, labels: Sequence[str]) -> None:
        self._loader = loader
        self._labels = labels
        self.place = (0, 0)  # epoch, steps to be dropped

    def __iter__(self) -> Iterator[Any]:
        epoch, steps = self.place
        self._loader.set_epoch(epoch)
        self._loader.skip_steps(0, steps)
        yield from repeat(None, steps)
        yield from self.real()

    def real(self) -> Iterator[Any]:
        """The batches of the next pass, of real rows."""
        key = _mask_of(self._loader)
        return iter(self._loader) if key is None else (without_repeats(b, key, self._labels) for b in self._loader)


def loader_of(given: Any) -> StructuredLoader | None:
    """The loader passed to a Trainer; None if it is something else."""
    if isinstance(given, LoaderDataset):
        raise OptionError(
            "the Trainer was given the dataset, which it would wrap in a loader of its own: pass the loader that "
            "create_dataloader returns, as train_dataset=loader or eval_dataset=loader."
        )
    return given if isinstance(given, StructuredLoader) else None


def _dataset_of(loader: StructuredLoader) -> LoaderDataset:
    assert isinstance(loader.dataset, LoaderDataset)
    return loader.dataset


def _options_of(loader: StructuredLoader) -> Options:
    return passes_of(_dataset_of(loader)).options


def _ways_to_count(dataset: LoaderDataset) -> list[Remedy]:
    """What makes the number of steps of an epoch known; counting rows does not always do."""
    options = passes_of(dataset).options
    without = ["even"] if options.shard.levels else []
    steps = use(without=without, steps_per_epoch=Example("n", 2))
    if options.uncounted:
        return [steps]
    counted = use(count_rows=True) if options.shard.even != "sync" else use(count_rows=True, even="drop")
    return [counted, steps]


def _mask_of(loader: StructuredLoader) -> str | None:
    """The key of the mask of real rows; None if no row is repeated."""
    return mask_in_batches(_options_of(loader))


def _without_labels(batch: Any) -> Any:
    """A batch to be counted, whose labels a loss leaves out: where processes add their counts, each takes part."""
    labels = batch.get("labels")
    return {**batch, "labels": torch.full_like(labels, -100)} if isinstance(labels, torch.Tensor) else batch


def _without_weight(loss: Any) -> Any:
    """The loss of `compute_loss`, which may be the first of a tuple, times 0."""
    return (loss[0] * 0, *loss[1:]) if isinstance(loss, tuple) else loss * 0


def _at_least_one(items: Any) -> Any:
    """The number of labels by which a loss is divided: 0 / 0 is no loss of 0."""
    return items.clamp(min=1) if isinstance(items, torch.Tensor) else 1 if items == 0 else items


def _check_even(loader: StructuredLoader) -> None:
    dataset = _dataset_of(loader)
    shard, ranks = passes_of(dataset).options.shard, dataset.world.num_ranks
    if ranks > 1 and not shard.levels and shard.steps_per_epoch is None:
        raise ShardingError(
            f"the loader of a Trainer with {ranks} processes must have the same number of steps on each of them.",
            remedies=[
                use("leaves out less than one global batch", even="drop"),
                use("repeats rows without weight", even="pad"),
            ],
        )


def _check_same(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that steps refer to the same batches."""
    word = "gradient_accumulation_steps"
    before, now = ({**place["loader"]["links"][-1]["options"], word: place[word]} for place in (saved, current))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        listed = "; ".join(f"{name}: {before.get(name)!r} in the checkpoint, {now.get(name)!r} here" for name in names)
        raise CheckpointMismatchError(
            f"the checkpoint was taken under other options ({listed}). A Trainer counts its position in steps, which "
            "would cover other rows: resume with the same options, or train from the model alone."
        )
