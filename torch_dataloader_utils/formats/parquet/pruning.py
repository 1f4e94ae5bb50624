"""Which row groups of a Parquet file can contain a matching row, judged by the footer alone; reads nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import compress, product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan
from torch_dataloader_utils.formats.parquet.plan import Footer
from torch_dataloader_utils.late_imports import ds, pc
from torch_dataloader_utils.schemas.merge import holds, plain_type

# (footer, the file's schema, constants) -> numbers of the row groups to read
Keep = Callable[[Footer, pa.Schema, Mapping[str, Any]], frozenset[int]]

# For n columns whose NaNs can match the filter, the statistics are evaluated 2 ** n times.
_MOST_NAN_COLUMNS = 4


def row_group_pruner(expression: pc.Expression, schema: pa.Schema) -> Keep:
    """A function that finds the row groups that can contain a matching row (it may return too many, never too few).

    Columns that a file lacks are null in it. Statistics do not cover NaNs, which match `!=` and "not" of a comparison.
    So a row group is kept if the statistics allow a match, or if a NaN in any column where one can match would.

    Args:
        expression: a filter that fits `schema`.
        schema: the schema merged from all files.
    """
    needed = filter_columns(expression, schema)
    ordered = not may_name_nan(expression) and not any(_has_extension(schema.field(name).type) for name in needed)
    nan_facts = _matching_nans(expression, schema, needed) if ordered else []
    nan_cases = _choices(nan_facts)

    def keep(footer: Footer, file_schema: pa.Schema, constants: Mapping[str, Any]) -> frozenset[int]:
        stored = frozenset(file_schema.names)
        absent = {name: None for name in needed if name not in stored}
        known = {name: value for name, value in {**absent, **constants}.items() if name in needed}
        types = ((schema.field(name).type, file_schema.field(name).type) for name in needed if name not in known)
        # Whether the file's statistics keep their meaning in the merged types.
        comparable = ordered and all(holds(plain_type(kind), plain_type(file_kind)) for kind, file_kind in types)
        if not comparable or len(nan_facts) > _MOST_NAN_COLUMNS:
            return frozenset(range(footer.metadata.num_row_groups))
        buffer = pa.py_buffer(footer.file)
        facts = [_equals(pc.field(name), value, schema.field(name).type) for name, value in known.items()]
        kept = (_subset(buffer, expression, schema, [*facts, *case]) for case in nan_cases)
        return frozenset().union(*kept)

    return keep


def _has_extension(kind: pa.DataType) -> bool:
    """Whether the type contains an extension type, whose statistics make pyarrow fail for any expression."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(i).type) for i in range(kind.num_fields))


def _equals(field: pc.Expression, value: Any, kind: pa.DataType) -> pc.Expression:
    return field.is_null() if value is None else field == pa.scalar(value, plain_type(kind))


def _subset(buffer: pa.Buffer, expression: pc.Expression, schema: pa.Schema, facts: list[pc.Expression]) -> set[int]:
    """The numbers of the row groups that `facts` and the footer's statistics do not rule out."""
    certain = reduce(operator.and_, facts, pc.scalar(True))
    fragment = ds.ParquetFileFormat().make_fragment(buffer, partition_expression=certain)
    try:
        return {group.id for group in fragment.subset(expression, schema=schema).row_groups}
    except pa.ArrowNotImplementedError:  # such as text in `isin` over dates, which Arrow casts only when it reads
        return set(range(fragment.num_row_groups))


def _matching_nans(expression: pc.Expression, schema: pa.Schema, needed: tuple[str, ...]) -> list[pc.Expression]:
    """One fact "is NaN" for each float column in which a NaN can match."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"": [0]}), sink, write_statistics=False)  # a file without statistics
    facts = (fact for name in needed for fact in _nan_facts((name,), schema.field(name).type))
    return [fact for fact in facts if _subset(sink.getvalue(), expression, schema, [fact])]


def _choices(facts: list[pc.Expression]) -> list[list[pc.Expression]]:
    """All combinations of columns that are NaN at the same time."""
    if len(facts) > _MOST_NAN_COLUMNS:
        return []
    return [list(compress(facts, taken)) for taken in product((False, True), repeat=len(facts))]


def _nan_facts(path: tuple[str, ...], kind: pa.DataType) -> Iterator[pc.Expression]:
    """One fact "is NaN" for each float field in a column or its structs."""
    if pt.is_floating(kind):
        yield pc.field(*path) == pa.scalar(math.nan, kind)
    elif pt.is_struct(kind):
        for field in kind:
            yield from _nan_facts((*path, field.name), field.type)
