"""The public entrance: start here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any, Unpack

from torch_dataloader_utils.assembly import open_files
from torch_dataloader_utils.combination import check_keywords, combined_source
from torch_dataloader_utils.dataset import LoaderDataset
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.loader import StructuredLoader
from torch_dataloader_utils.options import LoaderOptions, option_defaults, parse_options, plain_value

PathLike = str | os.PathLike[str]


class StructuredDataset(LoaderDataset):
    """Files of structured data as batches of tensors."""

    @staticmethod
    def create_dataloader(
        path: PathLike | Sequence[PathLike], **options: Unpack[LoaderOptions]
    ) -> tuple[StructuredLoader, StructuredDataset]:
        """A loader over the files at `path`, and its dataset.

        Example:
            ```python
            loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=1024, shuffle=True)
            for epoch in range(3):
                dataset.set_epoch(epoch)
                for batch in loader:
                    ...  # a dict of column -> tensor of shape [batch_size]
            ```

        Args:
            path: a directory (searched recursively), a glob, a file, or a list of these; any URL that fsspec opens.
            **options: see the options page, or `help(StructuredDataset.create_dataloader)` for names and defaults.

        Raises:
            UnknownOptionError: a keyword that does not exist.
            OptionError: a value that cannot work.
            DataNotFoundError: no data files at `path`.
            FileReadError: a file that cannot be read.
            ColumnNotFoundError: a column that no file has.
            SchemaMismatchError: files disagree about a column's type.
            EmptyDatasetError: the files hold no rows.
        """
        parsed = parse_options(options)
        dataset = StructuredDataset(open_files(plain_value(path), parsed), parsed)
        return StructuredLoader(dataset, parsed), dataset


class CombinedDataset(LoaderDataset):
    """Several datasets as one, whose rows are mixed."""


def combine(
    datasets: Sequence[Any], *, weights: Sequence[float] | None = None, **options: Unpack[LoaderOptions]
) -> tuple[StructuredLoader, CombinedDataset]:
    """A loader over the rows of several datasets in one epoch, and its dataset.

    Each dataset is dealt to the ranks by itself; then their rows are mixed on each rank, split by split, so that every
    beginning of the epoch holds rows of each in proportion; then `even` acts on what the ranks have.

    Example:
        ```python
        _, speech = StructuredDataset.create_dataloader("data/")
        _, more = StructuredDataset.create_dataloader("data/part-0.parquet")
        loader, dataset = combine([speech, more], batch_size=256, shuffle=True, even="drop")
        ```

    Args:
        datasets: datasets from `create_dataloader` (the loaders made with them are not used, nor are their options for
            ranks, order, batches and workers), and map-style datasets: any object with `__getitem__` and `__len__`
            whose samples are dicts. One that keeps ESPnet3's contract for sharded datasets (`shard(i)`,
            `total_shards`, `dist_world_size`) gives its own shards to `sharding="rotate", total_shards=...`.
        weights: how many rows of each dataset come in the same time, until one ends; by default as many as it has.
            Every row comes once, whatever the weights.
        **options: as `create_dataloader` takes them, but for those that say what a dataset reads.

    Raises:
        OptionError: datasets whose keys or dtypes differ, options of the datasets, or a value that cannot work.
        ShardingError: numbers of shards and ranks that do not fit together.
        EmptyDatasetError: a map-style dataset without samples.
    """
    if not isinstance(datasets, (list, tuple)) or not datasets:
        raise OptionError(f"datasets={datasets!r}: expected a list of at least one dataset.")
    check_keywords(options)
    parsed = parse_options(options)
    sources = [item.source if isinstance(item, LoaderDataset) else item for item in datasets]
    dataset = CombinedDataset(combined_source(sources, weights, parsed), parsed)
    return StructuredLoader(dataset, parsed), dataset


def _signature(*first: inspect.Parameter) -> inspect.Signature:
    """The signature `(*first, *, every option=default)`, for `help()` and IDEs."""
    hints = LoaderOptions.__annotations__
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in option_defaults().items()
    ]
    return inspect.Signature([*first, *options])


_PATH = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=PathLike | Sequence[PathLike])
# One declaration of the options serves help(), IDEs and the docs.
StructuredDataset.create_dataloader.__signature__ = _signature(_PATH)  # type: ignore[attr-defined]
_DATASETS = inspect.Parameter("datasets", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Sequence[Any])
_WEIGHTS = inspect.Parameter("weights", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Sequence[float] | None)
combine.__signature__ = _signature(_DATASETS, _WEIGHTS)  # type: ignore[attr-defined]
