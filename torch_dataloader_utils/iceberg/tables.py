"""Iceberg tables: catalogs, snapshots, manifests, and the plans made from them. Needs the iceberg extra."""

from torch_dataloader_utils.errors import MissingExtraError

try:
    import fastavro  # noqa: F401
    import pyiceberg  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f"Iceberg tables need {error.name}: pip install 'torch-dataloader-utils[iceberg]'"
    ) from error

from torch_dataloader_utils.iceberg.configuration import check_configuration

check_configuration()  # before the imports below, which make pyiceberg read it

from torch_dataloader_utils.iceberg.plan import IcebergRead, plan_table, refreshed_storage  # noqa: E402
from torch_dataloader_utils.iceberg.planned import IcebergPlan, PlannedFile, PrunedFiles  # noqa: E402
from torch_dataloader_utils.iceberg.snapshot_info import SnapshotInfo  # noqa: E402
from torch_dataloader_utils.iceberg.snapshots import SnapshotChoice  # noqa: E402
from torch_dataloader_utils.iceberg.source import IcebergSource  # noqa: E402

__all__ = [
    "IcebergPlan",
    "IcebergRead",
    "IcebergSource",
    "PlannedFile",
    "PrunedFiles",
    "SnapshotChoice",
    "SnapshotInfo",
    "plan_table",
    "refreshed_storage",
]
