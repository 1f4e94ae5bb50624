"""What reads Delta tables. Needs the delta extra."""

from torch_dataloader_utils.errors import MissingExtraError

try:
    import deltalake  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"Delta tables need {error.name}: pip install 'torch-dataloader-utils[delta]'") from error

from torch_dataloader_utils.delta.snapshot import DeltaSnapshot
from torch_dataloader_utils.delta.source import DeltaSource

__all__ = ["DeltaSnapshot", "DeltaSource"]
