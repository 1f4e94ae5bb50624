"""Checks for your own strategies and formats: the ones that this package's own tests use."""

from torch_dataloader_utils.testing.formats import check_format, check_table
from torch_dataloader_utils.testing.samples import sample_tables

__all__ = ["check_format", "check_table", "sample_tables"]
