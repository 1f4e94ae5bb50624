"""Real rows alone: batches without the repeats that make ranks even, and the model's outputs for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object, recursively_apply
from torch.utils.data import DataLoader, Dataset

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.packing import IGNORED

_RAGGED = {"values", "offsets"}
NO_REAL_ROWS = "tdu_no_real_rows"  # key of a batch that only makes ranks even


class PreparedLoader(DataLoader[Any]):
    """A loader that Accelerate does not change; `dataset` is for the loaders that a Trainer creates itself."""

    _is_accelerate_prepared = True

    def __init__(self, loader: StructuredLoader, dataset: Dataset[Any]) -> None:
        super().__init__(dataset, batch_size=None, collate_fn=lambda batch: batch)
        self.loader = loader

    def __len__(self) -> int:
        """The batches of this rank in an epoch; a TypeError if known only after reading."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One pass."""
        return iter(self.loader)


class EvalLoader(PreparedLoader):
    """A loader for a Trainer's evaluation: batches of real rows, and the model's outputs for them, gathered.

    A batch without a real row is delivered as it is, because all processes must call the model; its outputs do not
    count.

    Args:
        loader: what is read.
        key: of the mask of real rows; None if no row is repeated.
        labels: the keys of labels.
        accelerator: of the Trainer.
        repeats: how often the Trainer repeats the loss of a batch, to weight it.
        as_objects: whether it gathers objects instead of tensors (`eval_use_gather_object`).
    """

    def __init__(
        self,
        loader: StructuredLoader,
        key: str | None,
        labels: Sequence[str],
        accelerator: Any,
        repeats: int,
        as_objects: bool = False,
    ) -> None:
        super().__init__(loader, loader.dataset)
        self._key = key
        self._labels = labels
        self._accelerator = accelerator
        self._repeats = repeats
        self._as_objects = as_objects
        self._rows = 0  # of the newest batch, as the model receives it
        self._real = 0  # of these rows
        self._counts = torch.zeros(0, dtype=torch.int64)  # its real rows on each process

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One pass."""
        for batch in self.loader:
            kept = batch if self._key is None else without_repeats(batch, self._key, self._labels)
            self._rows = rows_in(kept)
            real = self._real = self._real_of(batch, kept)
            self._counts = self._accelerator.gather(torch.tensor([real], device=self._accelerator.device)).cpu()
            yield unmarked(kept)

    def gather(self, data: Any) -> Any:
        """All processes' data for the real rows of the newest batch: tensors, or lists or dicts of them."""
        data = recursively_apply(self._by_row, data)
        if self._as_objects:
            return gather_object(data if self._real else data[:0])
        return recursively_apply(lambda rows: gather_rows(rows, self._counts, self._accelerator), data)

    def _by_row(self, rows: torch.Tensor) -> torch.Tensor:
        """The same rows; what is one number of the whole batch, such as its loss, once for each row."""
        if rows.ndim == 0:  # of the whole batch, such as another loss that the model returns
            return rows.reshape(1).repeat(self._rows)
        if rows.ndim == 1 and len(rows) == self._repeats != self._rows:
            return rows[:1].repeat(self._rows)
        return rows

    def _real_of(self, batch: Any, kept: Any) -> int:
        """How many of the rows that the model receives are real: the first ones."""
        if self._key is None:
            return self._rows
        if NO_REAL_ROWS in kept:
            return 0
        mask = batch[self._key]
        return self._rows if mask.ndim == 1 else int(mask.any(1).sum())


def without_repeats(batch: Any, key: str, labels: Sequence[str]) -> Any:
    """A batch of real rows, without its mask; if none is real, all its rows, and the key `NO_REAL_ROWS`.

    A mask of single tokens leaves all rows, whose lengths belong together; labels of repeated tokens become -100.

    Args:
        batch: of the loader.
        key: of the mask of real rows or tokens.
        labels: the keys of labels.

    Raises:
        OptionError: the mask is missing, or there are no labels of tokens.
    """
    if not isinstance(batch, Mapping) or key not in batch:
        raise OptionError(
            f"some batches repeat rows to be even, but their mask {key!r} is missing from the result of "
            "collate_fn, so the Trainer would count those rows twice: keep the mask in the batch."
        )
    mask: torch.Tensor = batch[key]
    rest = type(batch)({name: value for name, value in batch.items() if name != key})  # type: ignore[call-arg]
    if bool(mask.all()):
        return rest
    if not bool(mask.any()):
        return type(batch)({**rest, NO_REAL_ROWS: mask})  # type: ignore[call-arg]
    return real_rows(rest, mask) if mask.ndim == 1 else _labelled(rest, mask, labels)


def unmarked(batch: Any) -> Any:
    """A batch without the key `NO_REAL_ROWS`."""
    if not isinstance(batch, Mapping) or NO_REAL_ROWS not in batch:
        return batch
    return type(batch)({name: value for name, value in batch.items() if name != NO_REAL_ROWS})  # type: ignore[call-arg]


def _labelled(batch: Any, mask: torch.Tensor, labels: Sequence[str]) -> Any:
    """The batch, with labels that a loss leaves out where the mask is False."""
    found = {name: batch[name] for name in labels if getattr(batch.get(name), "shape", None) == mask.shape}
    if not found:
        raise OptionError(
            f"some tokens are repeated to make steps even, and the batch has no labels of tokens (keys: {list(batch)}; "
            f"label_names: {list(labels)}), so the loss would count them: add labels in collate_fn, or pass "
            "even='drop'."
        )
    return type(batch)({**batch, **{name: value.masked_fill(~mask, IGNORED) for name, value in found.items()}})


def rows_in(value: Any) -> int:
    """How many rows a batch has, or one of its values."""
    if isinstance(value, Mapping):
        return len(value["offsets"]) - 1 if value.keys() == _RAGGED else rows_in(next(iter(value.values())))
    return int(value.shape[0]) if isinstance(value, torch.Tensor) else len(value)


def real_rows(value: Any, valid: torch.Tensor) -> Any:
    """The part of a batch, or of one of its values, that belongs to rows whose mask is True.

    Values with another number of rows are unchanged: a collate_fn may add such values.
    """
    if isinstance(value, Mapping):
        if value.keys() == _RAGGED:
            return _real_lists(value["values"], value["offsets"], valid)
        return type(value)({key: real_rows(item, valid) for key, item in value.items()})  # type: ignore[call-arg]
    if not isinstance(value, (torch.Tensor, list)) or getattr(value, "ndim", 1) == 0 or rows_in(value) != len(valid):
        return value
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return value[valid]
    kept = [item for item, real in zip(value, valid.tolist(), strict=True) if real]
    return torch.nested.nested_tensor(kept, layout=torch.jagged) if isinstance(value, torch.Tensor) else kept


def _real_lists(values: torch.Tensor, offsets: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    lengths = offsets.diff()
    ends = lengths[valid].cumsum(0)
    return {"values": values[valid.repeat_interleave(lengths)], "offsets": torch.cat([ends.new_zeros(1), ends])}


def gather_rows(rows: torch.Tensor, counts: torch.Tensor, accelerator: Any) -> torch.Tensor:
    """The first rows of each process, `counts` of them, in the order of processes."""
    real = rows[: int(counts[accelerator.process_index])]
    if accelerator.num_processes == 1:
        return real
    size = int(counts.max())
    padded = rows.new_zeros((size, *rows.shape[1:]))
    padded[: len(real)] = real
    gathered: torch.Tensor = accelerator.gather(padded)
    kept = torch.arange(size) < counts[:, None]
    return gathered[kept.flatten().to(gathered.device)]
