"""What a dataset tells of its data and its plans, without reading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.loader.describing import described
from torch_dataloader_utils.loader.description import Description
from torch_dataloader_utils.loader.local import rows_of_step
from torch_dataloader_utils.loader.measured import MeasuredDataset
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.plan_page.data import page_data
from torch_dataloader_utils.plan_page.page import page_of, write_page
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.row_ranges import RowRange
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import revealing_nothing
from torch_dataloader_utils.sources.source import Source


@revealing_nothing
class PlannedDataset(MeasuredDataset):
    """A dataset whose plan is known for any epoch and rank."""

    _options: Options
    _of_table: Mapping[str, Any] = MappingProxyType({})  # the options of its table, as plan pages show them

    @property
    def source(self) -> Source:
        """The source that it reads."""
        return self._here.source

    @property
    def options(self) -> Options:
        """The options of its loader."""
        return self._options

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, after `transform` and before conversion."""
        return self.source.scan.output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that a column's codes stand for: code i stands for `vocabulary(column)[i]`.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        return self.source.scan.vocabulary(column)

    def plan(self, epoch: int | None = None, rank: int | None = None) -> RankPlan:
        """The plan of a rank for an epoch, by default of this rank for the live or next epoch. Reads no data.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._planned(epoch)
        return self._here.planner.rank_plan(epoch, self.world.rank if rank is None else rank)

    def describe(self, epoch: int | None = None) -> Description:
        """What the dataset holds and what each rank gets in an epoch (the live or next by default). Reads no data.

        With `follow=True`, it is by default the last epoch until the next one has begun.

        Raises:
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch = self._shown(epoch)
        return described(type(self).__name__, self._here, self._options, epoch, waits=self._waits())

    def plan_page(self, path: str | os.PathLike[str], epoch: int | None = None) -> Path:
        """Write the plan as a web page: who reads which rows, and what other options would change. Returns the path.

        Args:
            path: the HTML file to write; an existing one is replaced.
            epoch: the epoch that the page shows first (the live or next by default).

        Raises:
            OptionError: the path is a folder, or lies in a folder that does not exist.
            CountsRequiredError: with `follow=True`, the rows of the epoch are not known yet, or no longer.
        """
        epoch, name, planner = self._shown(epoch), type(self).__name__, self._here.planner
        data = page_data(name, self.source, self._options, planner, epoch, self._of_table)
        return write_page(path, page_of(data))

    def shard_size(self, rank: int | None = None, epoch: int | None = None) -> int | None:
        """The number of rows of a rank in an epoch (without repeats), or None if known only after reading."""
        return self.plan(epoch, rank).rows

    def rows_of(self, epoch: int, step: int, rank: int | None = None) -> tuple[RowRange, ...]:
        """The rows of one batch (of this rank by default), as files and row ranges. Reads no data.

        Args:
            epoch: the epoch.
            step: the index of the batch in the epoch.
            rank: the rank of the batch.

        Raises:
            CountsRequiredError: row counts are not known before reading, or with `follow=True`, the rows of the epoch
                are not known yet, or no longer.
            IndexError: there is no such step, or it was taken with other options, before the epoch was resumed.
        """
        number = self._planned(epoch_number(epoch))
        return rows_of_step(self._here, number, step, self.world.rank if rank is None else rank)

    @property
    def world(self) -> World:
        """The number of ranks and this process's rank; detected at first use, then kept."""
        return self._epochs.planner.world

    def _planned(self, epoch: int | None) -> int:
        """The number of an epoch that can be planned; by default, the live or next one."""
        return self._passes.epoch if epoch is None else epoch_number(epoch)

    def _shown(self, epoch: int | None) -> int:
        """The number of an epoch that is shown to people; by default, the live or next one if it can be planned."""
        return self._planned(epoch)

    def _waits(self) -> bool:
        """Whether all known rows have been read, and the next pass waits for those that are appended."""
        return False

    @property
    def _epochs(self) -> Epochs:
        return self._local.latest

    @property
    def _passes(self) -> Passes:
        return self._here.passes

    @property
    def _here(self) -> Epochs:
        return self._local.here()


def epoch_number(epoch: Any) -> int:
    """The epoch as an int, from a whole number of any type.

    Raises:
        OptionError: `epoch` is not a whole number, or is negative.
    """
    number = whole_number(epoch)
    if number < 0:
        raise OptionError(f"epoch={shown(epoch)}: expected a whole number of at least 0.")
    return number


def whole_number(value: Any) -> int:
    """A whole number of any type as an int; -1 for anything else."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except Exception:  # noqa: BLE001 (whatever a foreign __index__ raises)
        return -1
