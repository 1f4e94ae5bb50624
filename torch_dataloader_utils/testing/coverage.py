"""Checks that loaders deliver every row exactly once and resume exactly, for your own strategies, formats and options.

Plain functions that raise AssertionError: they need no test framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch_dataloader_utils.printing import listed

IdsOf = str | Callable[[Any], Iterable[Hashable]]
LoaderOf = Callable[[int, int], Any]

_SHOWN = 8  # ids in a message


def assert_rows_once(
    loader_of: LoaderOf,
    num_ranks: int,
    *,
    id_column: IdsOf = "id",
    expected: Iterable[Hashable] | None = None,
    epochs: Iterable[int] = (0,),
    valid_key: str = "valid",
) -> None:
    """Assert that all ranks together deliver every row exactly once over these epochs.

    Rows that a mask marks as repeats (`even="pad"`, `last_batch="pad"`) do not count.

    Args:
        loader_of: called with `(rank, num_ranks)`, returns the loader of that rank, or `(loader, dataset)`.
        num_ranks: the number of ranks.
        id_column: the key of a batch that identifies its rows, or a function from a batch to the ids of its rows
            (which must then leave out repeats itself).
        expected: the ids of all rows; by default those that one rank alone delivers in these epochs.
        epochs: the epochs that deliver each row once *together*: several for a rotation such as `total_shards`.
        valid_key: the key of the mask of real rows, if batches have one.

    Raises:
        AssertionError: rows are missing, repeated or unexpected. The message lists them, and their ranks.
    """
    epochs = list(epochs)
    ranks_of: dict[Hashable, list[int]] = {}
    for rank in range(num_ranks):
        for ids in _batch_ids(partial(loader_of, rank, num_ranks), id_column, epochs, valid_key):
            for row in ids:
                ranks_of.setdefault(row, []).append(rank)
    if expected is None:
        alone = _batch_ids(partial(loader_of, 0, 1), id_column, epochs, valid_key)
        expected = {row for ids in alone for row in ids}
    wanted = dict.fromkeys(expected)
    missing = [repr(row) for row in wanted if row not in ranks_of]
    repeated = [f"{row!r} (ranks {listed(at)})" for row, at in ranks_of.items() if len(at) > 1]
    unexpected = [f"{row!r} (rank {at[0]})" for row, at in ranks_of.items() if row not in wanted]
    kinds = (("missing", missing), ("repeated", repeated), ("unexpected", unexpected))
    faults = [f"{len(rows)} {name}: {listed(rows, _SHOWN)}" for name, rows in kinds if rows]
    if faults:
        raise AssertionError(
            f"{num_ranks} rank(s) do not deliver each of {len(wanted)} rows exactly once in epoch(s) "
            f"{listed(epochs)}: {'; '.join(faults)}"
        )


def assert_resumes_everywhere(loader: Any, *, every: int = 1, id_column: IdsOf = "id", epoch: int = 0) -> None:
    """Assert that a state taken after any batch continues with exactly the remaining batches.

    States are taken before the first batch, after every `every`-th one and after the last. They are converted to JSON
    and back, as in a checkpoint file. Each batch must hold the same rows in the same order.

    Args:
        loader: a function that returns a new loader (or `(loader, dataset)`) each time, like a restarted job; or a
            loader, into which its own states are loaded.
        every: the number of batches from one state to the next.
        id_column: the key of a batch that identifies its rows, or a function from a batch to the ids of its rows.
        epoch: the epoch.

    Raises:
        AssertionError: a state is not plain data, or does not resume exactly. The message names the batch.
    """
    if every < 1:
        raise ValueError(f"every={every!r}: expected a whole number of at least 1.")
    make = loader if callable(loader) else lambda: loader
    with _opened(make) as (first, dataset):
        _set_epoch(first, dataset, epoch)
        whole: list[list[Hashable]] = []
        states, last = {0: first.state_dict()}, {}
        for batch in first:
            whole.append(_ids(batch, id_column))
            last = {len(whole): first.state_dict()}  # one taken behind the loop would be of the next epoch
            if len(whole) % every == 0:
                states |= last
    for taken, state in {**states, **last}.items():
        with _opened(make) as (again, _):
            again.load_state_dict(_through_json(state, taken))
            _check_tail([_ids(batch, id_column) for batch in again], whole, taken)


def _check_tail(rest: Sequence[list[Hashable]], whole: Sequence[list[Hashable]], taken: int) -> None:
    """Compare what followed a state with the batches after the first `taken`."""
    left = whole[taken:]
    at = next((number for number, (one, other) in enumerate(zip(rest, left, strict=False)) if one != other), None)
    where = f"the state after batch {taken} of {len(whole)} does not resume exactly:"
    if at is not None:
        raise AssertionError(
            f"{where} batch {taken + at + 1} has the rows {listed(rest[at], _SHOWN)}, "
            f"expected {listed(left[at], _SHOWN)}"
        )
    if len(rest) != len(left):
        raise AssertionError(f"{where} {len(rest)} batches follow, expected {len(left)}")


def _batch_ids(make: Callable[[], Any], id_column: IdsOf, epochs: Sequence[int], valid_key: str) -> Iterator[list[Any]]:
    """The ids of the real rows of each batch, epoch after epoch."""
    with _opened(make) as (loader, dataset):
        for epoch in epochs:
            _set_epoch(loader, dataset, epoch)
            for batch in loader:
                yield _ids(batch, id_column, valid_key)


@contextmanager
def _opened(make: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """A loader and its dataset, closed at the end."""
    made = make()
    loader, dataset = made if isinstance(made, tuple) else (made, getattr(made, "dataset", None))
    try:
        yield loader, dataset
    finally:
        if hasattr(dataset, "close"):
            dataset.close()


def _set_epoch(loader: Any, dataset: Any, epoch: int) -> None:
    target = next((each for each in (dataset, loader) if hasattr(each, "set_epoch")), None)
    if target is not None:
        target.set_epoch(epoch)
    elif epoch:
        raise TypeError(f"epoch {epoch} was requested, but neither the loader nor its dataset has set_epoch.")


def _ids(batch: Any, id_column: IdsOf, valid_key: str | None = None) -> list[Any]:
    """The ids of the rows of a batch, without those that its mask marks as repeats."""
    if callable(id_column):
        return list(id_column(batch))
    names = batch.keys() if isinstance(batch, Mapping) else batch.schema.names
    if id_column not in names:
        raise KeyError(
            f"id_column={id_column!r}: the batch has {listed(names)}; pass the column that identifies each row."
        )
    ids = _values(batch[id_column])
    if valid_key is None or valid_key not in names:
        return ids
    return [row for row, real in zip(ids, _values(batch[valid_key]), strict=True) if real]


def _values(column: Any) -> list[Any]:
    """A column of any output format as Python values."""
    for method in ("tolist", "to_pylist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _through_json(state: Any, taken: int) -> Any:
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"the state after batch {taken} is not plain data ({error}): JSON cannot hold it"
        ) from error
