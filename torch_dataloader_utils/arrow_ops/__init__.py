"""What is done with Arrow's schemas, columns and filters, whatever the format."""

from torch_dataloader_utils.arrow_ops.columns import column_path, conform, constant, project, select_columns, top_level
from torch_dataloader_utils.arrow_ops.filters import as_expression, evaluate, filter_columns, predicate_groups
from torch_dataloader_utils.arrow_ops.schemas import (
    check_schema,
    guessed_schema,
    holds,
    kept_schema,
    merge_text_types,
    merge_types,
    plain_type,
    resolve_schema,
    without_views,
)

__all__ = [
    "as_expression",
    "check_schema",
    "column_path",
    "conform",
    "constant",
    "evaluate",
    "filter_columns",
    "guessed_schema",
    "holds",
    "kept_schema",
    "merge_text_types",
    "merge_types",
    "plain_type",
    "predicate_groups",
    "project",
    "resolve_schema",
    "select_columns",
    "top_level",
    "without_views",
]
