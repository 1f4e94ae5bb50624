"""What a feature changes of a loader: the one contract by which the core meets features, none of which it imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from torch_dataloader_utils.model import DataFile, Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.batching.batches import BatchMaker
    from torch_dataloader_utils.iceberg.planned import OlderRows, PlannedFile
    from torch_dataloader_utils.options import Options
    from torch_dataloader_utils.options.clash import Half
    from torch_dataloader_utils.planning.options import PlanOptions
    from torch_dataloader_utils.planning.parts import DatasetShare
    from torch_dataloader_utils.planning.rest import RemainingRows
    from torch_dataloader_utils.planning.shares import ScheduledShares
    from torch_dataloader_utils.reading.chosen import RowCopies, RowMask
    from torch_dataloader_utils.reading.row_count_scan import RowCounts
    from torch_dataloader_utils.reading.scan import ScanSpec
    from torch_dataloader_utils.sources.manifest import FileManifest
    from torch_dataloader_utils.sources.source import Source
    from torch_dataloader_utils.sources.tables import SnapshotCursor, TableSource

T = TypeVar("T")


class Feature:
    """Changes nothing; a feature overrides what it changes.

    It is made for one loader, from its checked options, and pickles with them.
    """

    @property
    def unit(self) -> Unit:
        """What a row of its plans is."""
        return Unit.ROW

    @property
    def unit_rows(self) -> int:
        """How many rows of a plan stay together in batches, such as the tokens of a sequence (L)."""
        return 1

    def older_rows(
        self, files: Sequence[PlannedFile], older: Callable[[], Sequence[PlannedFile]], cursor: SnapshotCursor
    ) -> OlderRows | None:
        """The older rows that it reads beside those appended to a table; None if it reads none.

        Args:
            files: the files that are read of the table.
            older: lists those from before; none if `files` are not only appended ones.
            cursor: which rows of the table's history are read.
        """
        return None

    def appended(
        self,
        read: SnapshotCursor | None,
        added: Callable[[SnapshotCursor, bool], SnapshotCursor],
        source_at: Callable[[SnapshotCursor], Source],
        ending: Callable[[], bool],
        num_ranks: int,
        options: Options,
    ) -> Source | None:
        """What the next epoch reads of a table; None: the same as before.

        Args:
            read: the position up to which the rows of the table's history were read; None if some were not.
            added: looks up what was appended since a position; also told whether the wait is over.
            source_at: opens the rows at a position.
            ending: whether a wait is to be ended.
            num_ranks: how many ranks begin the epoch.
            options: of the loader.
        """
        return None

    def growing(self, path: Any, options: Options) -> TableSource | None:
        """What finds the files at a path for each epoch, if they are not the same in all; None: they are.

        Args:
            path: a folder or glob, or a list of these.
            options: of the loader.
        """
        return None

    def manifest(self, manifest: FileManifest, options: Options) -> FileManifest:
        """The manifest with only the files, segments or rows that it chooses before they are read."""
        return manifest

    def chosen(self, manifest: FileManifest, options: Options) -> RowMask | None:
        """What chooses rows by their values, as they are read; None if nothing does."""
        return None

    def copies(self, manifest: FileManifest, options: Options) -> RowCopies | None:
        """How many copies rows get; None: one of each."""
        return None

    def columns(self, schema: pa.Schema, *, whole: bool = False) -> pa.Schema:
        """The columns that it leaves of these; `whole`: structs stay whole of which it needs a field."""
        return schema

    def needed(self, schema: pa.Schema, options: Options) -> Sequence[str]:
        """The top-level columns that it reads to know which rows there are, although they may not be delivered."""
        return ()

    def anchors(self, options: Options) -> RowMask | None:
        """What chooses the windows of `sequences` by the rows that are their anchors; None if nothing does."""
        return None

    def known_counts(
        self, scan: ScanSpec, files: Sequence[DataFile], options: Options, name: str, *, limited: bool, counted: bool
    ) -> RowCounts | None:
        """What its plans count instead of rows, if that is known before reading; None if not, or if they count rows.

        Args:
            scan: reads the files.
            files: the files.
            options: of the loader, or of the combination that the files are a part of.
            name: of the data, for messages.
            limited: whether only the first rows are read, which no scan of tokens counts.
            counted: whether a scan may count.

        Raises:
            CountsRequiredError: it is not known, and will not be counted.
        """
        return None

    def counted_key(self, scan: ScanSpec) -> str | None:
        """The key of the lists whose values a scan has to count; None if it counts rows."""
        return None

    def planned(self, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """These files, with counts of what its plans count, as they are planned."""
        return files

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The source whose rows it makes of those of this one.

        Args:
            source: what is read.
            keys: the keys of its batches, without a mask.
            options: of the loader.
        """
        return source

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """The options of its plans, where those without it would be `shape`."""
        return shape

    @property
    def mixes_rows(self) -> bool:
        """Whether batches have rows of several datasets, by a schedule; `shares` then returns it."""
        return False

    @property
    def streams(self) -> bool:
        """Whether that schedule counts what is made of rows, of datasets without end, so that steps are known."""
        return False

    @property
    def unit_tokens(self) -> int | None:
        """The tokens of a sequence (L), or of a batch with a budget; None: batches are made of rows."""
        return None

    def epoch_rows(self, shape: PlanOptions, num_ranks: int) -> int | None:
        """The rows that an epoch takes of all datasets, if it decides that; None: it does not."""
        return None

    def check_parts(self, parts: Sequence[tuple[str, bool, Half | None]], options: Options) -> None:
        """Check that it can mix datasets: of each its label, whether its rows are known, and why none can count them.

        Raises:
            CountsRequiredError: those of one are known only after reading.
        """

    def resolved(self, source: Source, options: Options) -> Feature:
        """It, with what it decides once the rows of all datasets are known."""
        return self

    def shares(
        self,
        datasets: Sequence[DatasetShare],
        shape: PlanOptions,
        num_ranks: int,
        epoch: int,
        rest: RemainingRows | None,
    ) -> ScheduledShares:
        """What ranks get in an epoch of which batches have rows of several datasets, or in the rest of one."""
        raise NotImplementedError

    def saved(self) -> Mapping[str, Any]:
        """What states hold of it and ranks compare, as plain values by name."""
        return {}

    def as_saved(self, saved: Mapping[str, Any]) -> Feature:
        """It, as it was when a state was taken that holds these values."""
        return self

    def check_phase(self, saved: tuple[PlanOptions, int], current: tuple[PlanOptions, int]) -> None:
        """Check that it means the same under the options and ranks of a state as under the current ones.

        Raises:
            CheckpointMismatchError: it does not.
        """

    def words(self, source: Source, epoch: int, shape: PlanOptions, num_ranks: int) -> str:
        """What an epoch takes of each dataset, and how batches mix them; "" if it mixes none."""
        return ""

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """What makes its batches, where `maker` makes those of rows."""
        return maker


@dataclass(frozen=True)
class Features(Feature):
    """Several features as one: each changes what the one before it leaves.

    Attributes:
        each: in their order.
        makers: the functions that made them of the options, each one or none; a copy has none.
    """

    each: tuple[Feature, ...] = ()
    makers: tuple[Callable[[Options], Feature | None], ...] = field(default=(), repr=False, compare=False)

    def of(self, options: Options) -> Features:
        """Those that other options ask for."""
        made = (make(options) for make in self.makers)
        return replace(self, each=tuple(feature for feature in made if feature is not None))

    def __getstate__(self) -> dict[str, Any]:
        return {"each": self.each, "makers": ()}

    @property
    def unit(self) -> Unit:
        """See `Feature`."""
        return next((feature.unit for feature in reversed(self.each) if feature.unit is not Unit.ROW), Unit.ROW)

    @property
    def unit_rows(self) -> int:
        """See `Feature`."""
        return max((feature.unit_rows for feature in self.each), default=1)

    def older_rows(self, *args: Any) -> OlderRows | None:
        """See `Feature`."""
        return _first(feature.older_rows(*args) for feature in self.each)

    def appended(self, *args: Any) -> Source | None:
        """See `Feature`."""
        return _first(feature.appended(*args) for feature in self.each)

    def growing(self, *args: Any) -> TableSource | None:
        """See `Feature`."""
        return _first(feature.growing(*args) for feature in self.each)

    def manifest(self, manifest: FileManifest, options: Options) -> FileManifest:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.manifest(made, options), self.each, manifest)

    def chosen(self, manifest: FileManifest, options: Options) -> RowMask | None:
        """See `Feature`."""
        return _first(feature.chosen(manifest, options) for feature in self.each)

    def copies(self, manifest: FileManifest, options: Options) -> RowCopies | None:
        """See `Feature`."""
        return _first(feature.copies(manifest, options) for feature in self.each)

    def columns(self, schema: pa.Schema, *, whole: bool = False) -> pa.Schema:
        """See `Feature`."""
        return reduce(lambda left, feature: feature.columns(left, whole=whole), self.each, schema)

    def needed(self, schema: pa.Schema, options: Options) -> Sequence[str]:
        """See `Feature`."""
        return [name for feature in self.each for name in feature.needed(schema, options)]

    def anchors(self, options: Options) -> RowMask | None:
        """See `Feature`."""
        return _first(feature.anchors(options) for feature in self.each)

    def known_counts(self, *args: Any, **keywords: Any) -> RowCounts | None:
        """See `Feature`; each has its checks."""
        return _first([feature.known_counts(*args, **keywords) for feature in self.each])

    def counted_key(self, scan: ScanSpec) -> str | None:
        """See `Feature`."""
        return _first(feature.counted_key(scan) for feature in self.each)

    def planned(self, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.planned(made), self.each, files)

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.source(made, keys, options), self.each, source)

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.plan(made), self.each, shape)

    @property
    def _mixing(self) -> Feature:
        """The one that mixes rows, if one does."""
        return next((feature for feature in self.each if feature.mixes_rows), Feature())

    @property
    def mixes_rows(self) -> bool:
        """See `Feature`."""
        return self._mixing.mixes_rows

    @property
    def streams(self) -> bool:
        """See `Feature`."""
        return self._mixing.streams

    @property
    def unit_tokens(self) -> int | None:
        """See `Feature`."""
        return _first(feature.unit_tokens for feature in self.each)

    def epoch_rows(self, *args: Any) -> int | None:
        """See `Feature`."""
        return self._mixing.epoch_rows(*args)

    def check_parts(self, parts: Sequence[tuple[str, bool, Half | None]], options: Options) -> None:
        """See `Feature`."""
        for feature in self.each:
            feature.check_parts(parts, options)

    def resolved(self, source: Source, options: Options) -> Features:
        """See `Feature`."""
        return replace(self, each=tuple(feature.resolved(source, options) for feature in self.each))

    def shares(self, *args: Any) -> ScheduledShares:
        """See `Feature`."""
        return self._mixing.shares(*args)

    def saved(self) -> Mapping[str, Any]:
        """See `Feature`."""
        return {name: value for feature in self.each for name, value in feature.saved().items()}

    def as_saved(self, saved: Mapping[str, Any]) -> Features:
        """See `Feature`."""
        return replace(self, each=tuple(feature.as_saved(saved) for feature in self.each))

    def check_phase(self, saved: tuple[PlanOptions, int], current: tuple[PlanOptions, int]) -> None:
        """See `Feature`."""
        self._mixing.check_phase(saved, current)

    def words(self, source: Source, epoch: int, shape: PlanOptions, num_ranks: int) -> str:
        """See `Feature`."""
        return self._mixing.words(source, epoch, shape, num_ranks)

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.batches(made), self.each, maker)


def _first(found: Iterable[T | None]) -> T | None:
    """The first that is not None."""
    return next((each for each in found if each is not None), None)
