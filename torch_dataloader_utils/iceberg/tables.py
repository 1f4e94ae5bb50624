"""Iceberg tables: catalogs, snapshots, manifests, and the plan that comes from them. Needs the iceberg extra."""

from torch_dataloader_utils.errors import MissingExtraError

try:
    import fastavro  # noqa: F401
    import pyiceberg  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f"Iceberg tables need {error.name}: pip install 'torch-dataloader-utils[iceberg]'"
    ) from error

from torch_dataloader_utils.iceberg.file_manifest import table_manifest
from torch_dataloader_utils.iceberg.history import TableHistory
from torch_dataloader_utils.iceberg.plan import (
    IcebergPlan,
    IcebergRead,
    PlannedFile,
    PrunedFiles,
    plan_table,
    refreshed_storage,
)
from torch_dataloader_utils.iceberg.snapshots import PinnedSnapshot, SnapshotChoice, SnapshotInfo

__all__ = [
    "IcebergPlan",
    "IcebergRead",
    "PinnedSnapshot",
    "PlannedFile",
    "PrunedFiles",
    "SnapshotChoice",
    "SnapshotInfo",
    "TableHistory",
    "plan_table",
    "refreshed_storage",
    "table_manifest",
]
