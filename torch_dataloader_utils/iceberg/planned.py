"""The plan of a table: the files of a snapshot, and a manifest like that of any other source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch_dataloader_utils.errors import DamagedFileError
from torch_dataloader_utils.formats.sizes import size_estimate
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.pruning import (
    iceberg_pruner,
    identity_values,
    named_pruner,
    null_evidence,
    table_name_test,
)
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.iceberg.snapshot_info import SnapshotInfo
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, FileLayout, IcebergDataFileInfo
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.options.sources import FILE
from torch_dataloader_utils.progress import Progress
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.damage import FileCheck, SharedCheck
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.sources.manifest import FileManifest, pruned_counts
from torch_dataloader_utils.sources.partition_filters import matching_files
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_file
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage import Storage


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file, with the information for strategies and the one for readers."""

    info: IcebergDataFileInfo
    file: IcebergFile


class OlderRows(Protocol):
    """Older rows that are read beside appended ones; picklable."""

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """The files that hold them."""
        ...

    @property
    def in_words(self) -> str:
        """Which they are, for people."""
        ...

    def manifest(self, manifest: FileManifest) -> FileManifest:
        """The manifest of the appended files and these, with only the rows that are read of these."""
        ...


@dataclass(frozen=True)
class PrunedFiles:
    """The numbers of manifests and data files before and after pruning."""

    manifests_before: int = 0
    manifests_after: int = 0
    files_before: int = 0
    files_after: int = 0


@dataclass(frozen=True)
class IcebergPlan:
    """The plan of a table; picklable.

    Attributes:
        name: the table's name, for messages.
        location: the table's location, as spelled in its metadata.
        files: ordered by commit, then by path, regardless of the order of manifests; then those of `replay`.
        table: the information about the table that readers need.
        storage: where the files are.
        snapshot: the snapshot, or None if the table has none.
        cursor: selects the same snapshot again.
        row_filter: selects the matching rows, over the columns of `table.schema`; None for all.
        scan_filter: the filter that only prunes, in the same form.
        pruned: counts before and after pruning.
        row_key: the column whose values choose a subset of the rows, unless columns are given for that.
        hidden: columns of `table.schema` that are read, but not delivered.
        replay: older rows that are read beside appended ones.
        layouts: path -> a file that was opened, its options and its layout, for other plans of the snapshot.
    """

    name: str
    location: str
    files: tuple[PlannedFile, ...]
    table: IcebergTable
    storage: Storage
    snapshot: SnapshotInfo | None
    cursor: SnapshotCursor
    row_filter: pc.Expression | None = None
    scan_filter: pc.Expression | None = None
    pruned: PrunedFiles = PrunedFiles()
    row_key: str | None = None
    hidden: tuple[str, ...] = ()
    replay: OlderRows | None = None
    layouts: dict[str, tuple[IcebergFile, Mapping[str, Any], FileLayout]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "layouts": {}}

    @property
    def prunes_files(self) -> bool:
        """Whether filters rule out some of the table's files before these are opened."""
        return self.pruned.files_before > self.pruned.files_after

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """One dict per partition: "partition" (column -> value), "spec_id", "files" and "records" (physical rows)."""
        files: Counter[Any] = Counter()
        records: Counter[Any] = Counter()
        values = {}
        for planned in self.files:
            info = planned.info
            key = info.spec_id, tuple(info.partition.values())
            values[key] = info.partition
            files[key] += 1
            records[key] += info.record_count or 0
        return [
            {"partition": dict(values[key]), "spec_id": key[0], "files": files[key], "records": records[key]}
            for key in values
        ]

    @property
    def in_words(self) -> str:
        """Which snapshot it is."""
        return "none: the table has none yet" if self.snapshot is None else self.snapshot.in_words

    @property
    def replay_in_words(self) -> str:
        """Which older rows are read beside appended ones; "" if none are."""
        return "" if self.replay is None else self.replay.in_words

    def manifest(self, options: Options) -> FileManifest:
        """The manifest of the files, like that of any other source.

        A file's footer is read, once, if rows of it are deleted by position, if the manifests do not record its rows
        or say that it has none, or if it may be cut into splits. A file of at most an eighth of `split_bytes` is one
        split and needs only the table's manifests, unless `split_rows` or a custom strategy determines how files are
        cut.
        """
        split, given = options.split, dict(options.read.format_options or {})
        by_bytes = split.split_rows is None and split.split_strategy is None
        small = int(split.split_bytes or 0) // 8 if by_bytes else -1
        chosen = _only_named(self)
        before, skipped = _data_files(chosen, given, small, options)
        after = _pruned(self, before)
        columns = self.table.schema.remove_metadata()
        # Without a file, nothing shows by what the files that will be appended are partitioned.
        waits = options.follow.follows and not after
        values_of = partial(identity_values, table=self.table)
        whole = None if waits else matching_files(after, self.row_filter, columns, values_of)
        after = after if whole is None else whole
        evidence: dict[str, str] = {}
        for file in after:
            for name in sorted(null_evidence(file.layout, self.table)):
                evidence.setdefault(name, file.info.path)
        manifest = FileManifest(
            files=tuple(file for file in after if file.layout.segments),
            schema=columns,
            partition_names=(),
            storage=self.storage,
            opener=IcebergOpener(self.table),
            pruned=replace(pruned_counts(before, after), files_before=self.pruned.files_before),
            file_count=len(before),
            has_rows=chosen.prunes_files or any(file.layout.segments for file in before),
            null_evidence=evidence,
            format_options=given,
            predicate=self.row_filter,
            decided=whole is not None,
            origin="no snapshot" if self.snapshot is None else f"snapshot {self.snapshot}",
            skipped=skipped,
            row_key=self.row_key,
            hidden=self.hidden,
            names=tuple(one.file.table_path for one in self.files) if FILE in columns.names else (),
        )
        return manifest if self.replay is None else self.replay.manifest(manifest)


def _data_files(
    plan: IcebergPlan, given: Mapping[str, Any], small: int, options: Options
) -> tuple[list[DataFile], tuple[SkippedFile, ...]]:
    """The table's files with their layouts, and the damaged ones that are left out, the same on all ranks.

    Args:
        plan: the plan of the table.
        given: the `format_options`.
        small: files of at most this estimated size are not opened for their layouts.
        options: the options of the loader.
    """
    progress = progress_of(options)
    if options.read.on_error == "raise":
        return _layouts(plan, given, small, progress), ()
    check = SharedCheck(sharers_of(options))
    with check.failing_together():
        found = _layouts_or_damage(plan, given, small, progress)
        how = FileCheck(IcebergOpener(plan.table), plan.storage, given, plan.table.schema.remove_metadata(), progress)
        own = check.own(found, (), how)
    skipped = check.joined(found, own)
    left = [file for place, file in enumerate(found) if isinstance(file, DataFile) and place not in skipped]
    return left, tuple(skipped[place] for place in sorted(skipped))


def _layouts(plan: IcebergPlan, given: Mapping[str, Any], small: int, progress: Progress) -> list[DataFile]:
    """The table's files with their layouts; those whose footers are needed are read concurrently."""
    return read_footers(plan.storage, _layout_reader(plan, given, small), plan.files, progress)


def _layouts_or_damage(
    plan: IcebergPlan, given: Mapping[str, Any], small: int, progress: Progress
) -> list[DataFile | SkippedFile]:
    """As `_layouts`, with damaged files as such; a damaged file of deletes is an error."""
    layout = _layout_reader(plan, given, small)

    def tried(numbered: tuple[int, PlannedFile]) -> DataFile | SkippedFile:
        place, planned = numbered
        try:
            return layout(planned)
        except DamagedFileError as error:
            if error.path != planned.info.path:
                raise
            return skipped_file(planned.info, place, str(error), planned.info.record_count)

    return read_footers(plan.storage, tried, list(enumerate(plan.files)), progress)


def _layout_reader(plan: IcebergPlan, given: Mapping[str, Any], small: int) -> Callable[[PlannedFile], DataFile]:
    """A function that returns a file with its layout, for which it reads the footer where needed."""
    estimate = size_estimate(plan.table.schema)

    def layout(planned: PlannedFile) -> FileLayout:
        file, info = planned.file, planned.info
        size = estimate(max(file.record_count, 0), info.file_size)
        # A file that is said to be empty is opened, like any other whose rows a wrong number would lose.
        if size <= small and file.record_count > 0 and all(delete.kind == "equality" for delete in file.deletes):
            return whole_file(file, size)
        known = plan.layouts.get(info.path)
        if known is None or known[:2] != (file, given):
            known = plan.layouts[info.path] = (file, given, iceberg_layout(info, file, plan.storage, given))
        return known[2]

    def data_file(planned: PlannedFile) -> DataFile:
        file_layout = layout(planned)
        return DataFile(replace(planned.info, record_count=file_layout.row_count), file_layout)

    return data_file


def _only_named(plan: IcebergPlan) -> IcebergPlan:
    """The plan of the files whose names the filters allow: the footers of others are not read."""
    files = plan.files
    for expression in (plan.row_filter, plan.scan_filter):
        can_hold = table_name_test(expression, plan.table)
        if can_hold is not None:
            files = tuple(one for one in files if can_hold({FILE: one.file.table_path}, None))
    left = plan.pruned.files_after - len(plan.files) + len(files)
    return replace(plan, files=files, pruned=replace(plan.pruned, files_after=left))


def _pruned(plan: IcebergPlan, files: Sequence[DataFile]) -> list[DataFile]:
    """The files with only the segments in which a row can match."""
    left = list(files)
    for expression in (plan.row_filter, plan.scan_filter):
        if expression is not None:
            prune = named_pruner(expression, plan.table) or iceberg_pruner(expression, plan.table)
            left = [replace(file, layout=prune(file.layout)) for file in left]
    return left
