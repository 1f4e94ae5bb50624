"""From the plan of a table to the manifest that any other source gives: layouts, and what statistics rule out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.formats.sizes import size_estimate
from torch_dataloader_utils.iceberg.data_files.files import IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.pruning import iceberg_pruner, null_evidence
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.iceberg.plan import IcebergPlan, PlannedFile
from torch_dataloader_utils.model import DataFile, FileLayout
from torch_dataloader_utils.options import SplitOptions
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.sources.manifest import FileManifest, pruned_counts


def table_manifest(plan: IcebergPlan, format_options: Mapping[str, Any], split: SplitOptions) -> FileManifest:
    """The manifest of a planned table.

    A file's footer is read, once, where rows of it are deleted by position, or where it may be cut into splits: a file
    of at most an eighth of `split_bytes` is one, and what the table's manifests say of it is enough (unless rows, or a
    strategy of the user's, decide how files are cut).

    Args:
        plan: of the table.
        format_options: those given.
        split: how files are cut.
    """
    by_bytes = split.split_rows is None and split.split_strategy is None
    before = _data_files(plan, format_options, int(split.split_bytes) // 8 if by_bytes else -1)
    after = _pruned(plan, before)
    evidence: dict[str, str] = {}
    for file in after:
        for name in sorted(null_evidence(file.layout, plan.table)):
            evidence.setdefault(name, file.info.path)
    counts = pruned_counts(before, after)
    return FileManifest(
        files=tuple(file for file in after if file.layout.segments),
        schema=plan.table.schema.remove_metadata(),
        partition_names=(),
        storage=plan.storage,
        opener=IcebergOpener(plan.table),
        pruned=replace(counts, files_before=plan.pruned.files_before),
        file_count=len(before),
        has_rows=plan.pruned.files_before > plan.pruned.files_after or any(file.layout.segments for file in before),
        null_evidence=evidence,
        format_options=format_options,
        predicate=plan.row_filter,
        origin="no snapshot" if plan.snapshot is None else f"snapshot {plan.snapshot}",
    )


def _data_files(plan: IcebergPlan, options: Mapping[str, Any], small: int) -> list[DataFile]:
    """The table's files with their layouts; those whose footers are needed are read concurrently."""
    estimate = size_estimate(plan.table.schema)

    def layout(planned: PlannedFile) -> FileLayout:
        file, info = planned.file, planned.info
        size = estimate(max(file.record_count, 0), info.file_size)
        if size <= small and all(delete.kind == "equality" for delete in file.deletes):
            return whole_file(file, size)
        return iceberg_layout(info, file, plan.storage, options)

    def data_file(planned: PlannedFile) -> DataFile:
        found = layout(planned)
        return DataFile(replace(planned.info, record_count=found.row_count), found)

    return read_footers(plan.storage, data_file, plan.files)


def _pruned(plan: IcebergPlan, files: Sequence[DataFile]) -> list[DataFile]:
    """The files with the segments in which a row can match."""
    found = list(files)
    for expression in (plan.row_filter, plan.scan_filter):
        if expression is not None:
            found = _pruned_by(expression, plan.table, found)
    return found


def _pruned_by(expression: Any, table: IcebergTable, files: Sequence[DataFile]) -> list[DataFile]:
    prune = iceberg_pruner(expression, table)
    return [replace(file, layout=prune(file.layout)) for file in files]
