"""Map-style datasets as files of samples: one file per shard of the dataset, or one for the whole dataset.

A *sharded* dataset follows ESPnet3's contract: `__getitem__`, `__len__`, `shard(i)` and the attributes `total_shards`
and `dist_world_size`. It needs no base class. A dataset without `shard` is *plain*.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import EmptyDatasetError, OptionError, ShardingError
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.seeding import derive_key, random_below

_LOG = logging.getLogger("torch_dataloader_utils")
_TASK_BYTES = 4 * 2**20  # approximate decoded bytes of one task: fetching more samples at once gains nothing
_TASK_ROWS = 1024
_SEGMENT_ROWS = 16  # the smallest read of a task; counted in rows only, so that all ranks have the same splits
_MOST_SEGMENTS = 65_536  # per shard
_SAMPLE_BYTES = 64 * 2**10  # assumed for splits and shuffle windows, whose sizes must be the same on all ranks
_PROBES = 7  # samples, besides the first, that are inspected to learn the keys' types


def is_map_style(dataset: object) -> bool:
    """Whether samples can be requested by index; a dict has keys instead."""
    return not isinstance(dataset, Mapping) and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def is_sharded(dataset: object) -> bool:
    """Whether the dataset has `total_shards` or `shard(i)`."""
    return getattr(dataset, "total_shards", None) is not None or _makes_shards(dataset)


def own_shards(datasets: Sequence[object]) -> int | None:
    """The `total_shards` of map-style datasets that all define as many shards themselves, several for as many ranks."""
    found = {
        (getattr(dataset, "total_shards", None), getattr(dataset, "dist_world_size", None))
        if is_map_style(dataset) and _makes_shards(dataset)
        else None
        for dataset in datasets
    }
    values = found.pop() if len(found) == 1 else None
    if values is None or not all(type(value) is int and value > 0 for value in values):
        return None
    shards: int = values[0] or 1
    return shards if shards > 1 else None


def sharded_alike(datasets: Mapping[str, Any], total_shards: int | None) -> None:
    """Check that map-style datasets declare valid shards, and all the same.

    Args:
        datasets: all map-style datasets of a combination, by their names in messages.
        total_shards: the loader's option, if given.

    Raises:
        ShardingError: they do not; the message lists the values.
    """
    sharded = {name: dataset for name, dataset in datasets.items() if is_sharded(dataset)}
    if sharded and len(sharded) < len(datasets):
        kinds = ", ".join(f"{name}: {'sharded' if name in sharded else 'plain'}" for name in datasets)
        raise ShardingError(
            f"sharded and plain map-style datasets are mixed ({kinds}): if one has shard(i), total_shards and "
            "dist_world_size, all must, and the same numbers. Give the plain ones a shard(i) that returns every "
            "total_shards-th sample from i on, or combine only the plain ones, without shard() on any."
        )
    for name, dataset in datasets.items():
        _check_contract(name, dataset, total_shards)
    values = {(dataset.total_shards, dataset.dist_world_size) for dataset in sharded.values()}
    if len(values) > 1:
        listed = ", ".join(f"{name}: {x.total_shards} and {x.dist_world_size}" for name, x in sharded.items())
        raise ShardingError(f"all sharded datasets must share one total_shards and dist_world_size: {listed}.")


def first_samples(dataset: Any, name: str) -> list[Any]:
    """A few samples from across the dataset, including the first, to learn what its keys contain.

    Raises:
        EmptyDatasetError: the dataset has no samples.
        OptionError: its samples are not numbered.
    """
    total = len(dataset)
    if not total:
        raise EmptyDatasetError(f"{name} has no samples, so its keys are unknown and it cannot be combined.")
    # Chosen at random, because a dataset may repeat at regular intervals.
    drawn = {random_below(total, derive_key("probe", probe)) for probe in range(_PROBES)}
    try:
        return [dataset[place] for place in sorted({0, *drawn})]
    except KeyError as error:
        raise OptionError(
            f"{name} has no sample {error.args[0] if error.args else 0!r}: expected samples numbered from 0 to "
            f"{total - 1:,}, as len() says. If they have names instead, wrap the dataset in one whose __getitem__ "
            "looks the name up in a list of them."
        ) from error


def sample_files(
    dataset: Any, number: int, name: str, sample_bytes: int, split_rows: int | None
) -> tuple[DataFile, ...]:
    """One file per shard of the dataset, or one for the whole dataset; the layout's metadata is the shard's number.

    Calls `shard(i)` for each shard to learn its length.

    Args:
        dataset: the map-style dataset.
        number: the part's number.
        name: for messages.
        sample_bytes: estimated decoded bytes of a sample.
        split_rows: the option: splits may be this small.

    Raises:
        ShardingError: shards overlap, or there is no way to make them.
    """
    size = _Size(min(split_rows or _SEGMENT_ROWS, _SEGMENT_ROWS), sample_bytes)
    # As in ESPnet3, a single shard is the dataset itself.
    if not is_sharded(dataset) or dataset.total_shards == 1:
        return (size.file(name, number, len(dataset)),)
    try:
        lengths = [len(dataset.shard(shard)) for shard in range(dataset.total_shards)]
    except NotImplementedError as error:  # of ESPnet3's base class
        raise _no_shard(name, dataset.total_shards) from error
    _check_coverage(name, lengths, len(dataset))
    return tuple(size.file(f"{name}, shard {shard}", number, rows, shard) for shard, rows in enumerate(lengths))


def _makes_shards(dataset: object) -> bool:
    """Whether it has `shard(i)`; Hugging Face's `shard(num_shards, index)` does not count."""
    try:
        inspect.signature(dataset.shard).bind(0)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return False
    return True


def _check_contract(name: str, dataset: Any, total_shards: int | None) -> None:
    given = getattr(dataset, "total_shards", None)
    if not _makes_shards(dataset):
        if given not in (None, 1) or total_shards is not None:
            raise _no_shard(name, given if total_shards is None else total_shards)
        return
    for attribute in ("total_shards", "dist_world_size"):
        value = getattr(dataset, attribute, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShardingError(
                f"{name} has shard(), but {attribute}={value!r}: expected a whole number of at least 1 as an attribute."
            )
    if total_shards not in (None, given):
        raise ShardingError(
            f"total_shards={total_shards}, but {name} has total_shards={given}: use the same number for both."
        )


def _no_shard(name: str, total_shards: Any) -> ShardingError:
    return ShardingError(
        f"total_shards={total_shards} is set but shard() is not implemented: {name} needs shard(i), which returns the "
        "samples of shard i."
    )


def _check_coverage(name: str, lengths: Sequence[int], total: int) -> None:
    """Compare the shards' total length with the dataset's, which ESPnet3 asks its users to verify."""
    covered = sum(lengths)
    if covered > total:
        raise ShardingError(
            f"{name}: its {len(lengths)} shards have {covered} samples, but the dataset has {total}: shards overlap, "
            "so some samples would be delivered twice. Make shard(i) return each sample in one shard only."
        )
    if covered < total:
        _LOG.warning(
            "%s: its %d shards have %d of %d samples; the other %d are in no shard and are never delivered",
            name, len(lengths), covered, total, total - covered,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Size:
    """How samples are grouped: rows per segment, and estimated bytes per sample.

    The estimate may differ between ranks, because samples may be random, so it determines only the size of tasks.
    Splits and shuffle windows count a fixed number of bytes for each sample.
    """

    segment_rows: int
    sample_bytes: int

    def file(self, name: str, part: int, rows: int, shard: int | None = None) -> DataFile:
        """A shard as a file."""
        step = max(self.segment_rows, -(-rows // _MOST_SEGMENTS))
        counts = [min(step, rows - start) for start in range(0, rows, step)]
        segments = tuple(
            Segment(place, place * step, count, count * _SAMPLE_BYTES) for place, count in enumerate(counts)
        )
        task_rows = max(1, min(_TASK_BYTES // self.sample_bytes, _TASK_ROWS))
        return DataFile(
            DataFileInfo(name, 0, rows, part=part), FileLayout(segments, task_rows=task_rows, metadata=shard)
        )
