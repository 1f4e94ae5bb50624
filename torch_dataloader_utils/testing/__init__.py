"""Checks for your own strategies, formats and transforms: the ones that this package's own tests use."""

from torch_dataloader_utils.testing.coverage import assert_resumes_everywhere, assert_rows_once
from torch_dataloader_utils.testing.formats import check_format, check_table
from torch_dataloader_utils.testing.samples import sample_tables
from torch_dataloader_utils.testing.transforms import check_transform

__all__ = [
    "assert_resumes_everywhere",
    "assert_rows_once",
    "check_format",
    "check_table",
    "check_transform",
    "sample_tables",
]
