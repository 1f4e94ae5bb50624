"""What a feature changes of a loader: the one contract by which the core meets features, none of which it imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from torch_dataloader_utils.model import DataFile, Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.batching.batches import BatchMaker
    from torch_dataloader_utils.options import Options
    from torch_dataloader_utils.planning.options import PlanOptions
    from torch_dataloader_utils.reading.chosen import RowCopies, RowMask
    from torch_dataloader_utils.reading.row_count_scan import RowCounts
    from torch_dataloader_utils.reading.scan import ScanSpec
    from torch_dataloader_utils.sources.manifest import FileManifest
    from torch_dataloader_utils.sources.source import Source

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

    def known_counts(
        self, scan: ScanSpec, files: Sequence[DataFile], options: Options, name: str, *, of_part: bool, counted: bool
    ) -> RowCounts | None:
        """What its plans count instead of rows, if that is known before reading; None if not, or if they count rows.

        Args:
            scan: reads the files.
            files: the files.
            options: of the loader, or of the combination that the files are a part of.
            name: of the data, for messages.
            of_part: whether they are a part of a combination.
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

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """See `Feature`."""
        return reduce(lambda made, feature: feature.batches(made), self.each, maker)


def _first(found: Iterable[T | None]) -> T | None:
    """The first that is not None."""
    return next((each for each in found if each is not None), None)
