"""From a loader's options to the read of a table, and from a table's plan to a source."""

from __future__ import annotations

from dataclasses import replace

from torch_dataloader_utils.iceberg.tables import IcebergPlan, IcebergRead, SnapshotChoice, table_manifest
from torch_dataloader_utils.options import Options, TableOptions
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.sources.source import Source, source_of


def table_read(options: Options, of_table: TableOptions) -> IcebergRead:
    """What the options ask of a table."""
    read = options.read
    return IcebergRead(
        catalog_config=of_table.catalog_config,
        snapshot=SnapshotChoice(
            of_table.snapshot_id,
            of_table.ref,
            of_table.as_of,
            of_table.start_snapshot_id,
            of_table.end_snapshot_id,
        ),
        filters=read.filters,
        scan_filter=of_table.scan_filter,
        columns=read.columns,
        metadata_columns=tuple(of_table.metadata_columns),
        storage_options=read.storage_options,
        filesystem=read.filesystem,
    )


def table_source(plan: IcebergPlan, options: Options) -> Source:
    """The source of the rows that a plan names."""

    def manifest() -> FileManifest:
        return table_manifest(plan, options.read.format_options or {}, options.split)

    return replace(source_of(manifest, options, plan.name), table=plan)
