"""The public entrance: start here."""

from torch_dataloader_utils.api.combined import CombinedDataset as CombinedDataset
from torch_dataloader_utils.api.combined import combine as combine
from torch_dataloader_utils.api.files import StructuredDataset as StructuredDataset
from torch_dataloader_utils.api.iceberg import IcebergDataset as IcebergDataset
from torch_dataloader_utils.api.tables import TableDataset as TableDataset
