"""A shard of a Hugging Face `datasets.IterableDataset`: one too, by its public `map`, so that a chain can continue.

A batched `map` that keeps this shard's rows is an ordinary part of the chain: `set_epoch`, `shuffle`, `state_dict` and
the workers of a DataLoader reach the source through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import ShardingError, UnsupportedTypeError
from torch_dataloader_utils.iterables.rounds import Rounds

ROWS_AT_ONCE = 64  # rows processed together if rounds are smaller; more is hardly faster


def shard_dataset(dataset: Any, rounds: Rounds) -> Any:
    """The shard's rows of a `datasets.IterableDataset`, as one with the same features and format.

    Raises:
        ShardingError: the dataset is already split over ranks, so rows would be lost.
    """
    if getattr(dataset, "_distributed", None) is not None:
        raise ShardingError(
            f"The dataset was split by split_dataset_by_node already; shard {rounds.index} of {rounds.num_shards} of "
            "it would lose rows: use only one of the two."
        )
    at_once = 1 if rounds.complete or rounds.drop_last else max(1, ROWS_AT_ONCE // rounds.round_size)
    stored = _undecoded(dataset)
    shard = stored.map(
        OwnRows(rounds),
        batched=True,
        batch_size=at_once * rounds.round_size,
        with_indices=True,
        drop_last_batch=rounds.drop_last,
        # With features given, datasets would treat the rows as decoded.
        features=dataset.features if stored is dataset else None,
    )
    return shard if stored is dataset else shard.cast(dataset.features)


class OwnRows:
    """Keeps the shard's rows of a batch of whole rounds (only the stream's last one may be incomplete).

    The first round is kept to complete the last one. A pass that was resumed after it uses the first round that it sees
    instead: the numbers of rows stay equal on all ranks.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self._first: Any = None

    def __call__(self, batch: Any, indices: Sequence[int]) -> Any:
        """The shard's rows of `batch` (columns by name, or an Arrow table), in the same form."""
        num_rows, rounds = len(indices), self.rounds
        kept = [i for i in range(num_rows) if (i // rounds.block) % rounds.num_shards == rounds.index]
        if not rounds.complete:
            return _take(batch, kept)
        if self._first is None or indices[0] == 0:
            self._first = batch
        first_rows = _num_rows(self._first)
        missing = [(i - num_rows) % first_rows for i in rounds.places(num_rows)]
        return _join(_take(batch, kept), _take(self._first, missing)) if missing else _take(batch, kept)

    def __getstate__(self) -> dict[str, Any]:
        # Rows of an earlier pass are useless in another process.
        return {"rounds": self.rounds, "_first": None}


def _undecoded(dataset: Any) -> Any:
    """The dataset without decoding images and the like: the rows of other shards are not decoded.

    The dataset itself if there is nothing to decode.
    """
    if not dataset.features or not hasattr(dataset, "decode"):
        return dataset
    plain = dataset.decode(False)
    return dataset if plain.features == dataset.features else plain


def _is_table(batch: Any) -> bool:
    """Whether `batch` is an Arrow table, not columns by name.

    Raises:
        UnsupportedTypeError: it is neither.
    """
    if isinstance(batch, Mapping):
        return False
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        return True
    raise UnsupportedTypeError(
        f"The dataset's format gives batches of type {type(batch).__name__}: call streaming_shard before with_format."
    )


def _num_rows(batch: Any) -> int:
    return int(batch.num_rows) if _is_table(batch) else len(next(iter(batch.values())))


def _take(batch: Any, rows: list[int]) -> Any:
    if _is_table(batch):
        return batch.take(np.array(rows, dtype=np.int64))
    return {name: [column[i] for i in rows] for name, column in batch.items()}


def _join(batch: Any, more: Any) -> Any:
    if _is_table(batch):
        import pyarrow as pa

        return pa.concat_tables([batch, more])
    names = dict.fromkeys([*batch, *more])  # a column that only some samples have is None in the others
    return {name: [value for part in (batch, more) for value in _column(part, name)] for name in names}


def _column(batch: Any, name: str) -> Any:
    return batch[name] if name in batch else [None] * _num_rows(batch)
