"""Which row groups of a Parquet file can hold a row that a filter keeps: from the footer alone, never by a read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import compress, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan
from torch_dataloader_utils.formats.parquet.plan import Footer
from torch_dataloader_utils.schemas.merge import holds, plain_type

# (footer, schema of the file, constants) -> numbers of the row groups to read
Keep = Callable[[Footer, pa.Schema, Mapping[str, Any]], frozenset[int]]

# 2 ** n looks at the statistics for n columns whose NaNs the filter keeps.
_MOST_NAN_COLUMNS = 4


def row_group_pruner(expression: pc.Expression, schema: pa.Schema) -> Keep:
    """A function that finds which row groups can hold a matching row (it may name too many, never too few).

    Columns that a file lacks are null in it. Statistics say nothing about NaNs, which match `!=` and "not" of a
    comparison: the row groups are those kept by the statistics, or by NaN in any of the columns where that can match.

    Args:
        expression: a filter that fits `schema`.
        schema: the schema resolved over all files.
    """
    needed = filter_columns(expression, schema)
    ordered = not may_name_nan(expression) and not any(_has_extension(schema.field(name).type) for name in needed)
    nan_facts = _matching_nans(expression, schema, needed) if ordered else []
    nan_cases = _choices(nan_facts)

    def keep(footer: Footer, file_schema: pa.Schema, constants: Mapping[str, Any]) -> frozenset[int]:
        absent = {name: None for name in needed if name not in file_schema.names}
        known = {name: value for name, value in {**absent, **constants}.items() if name in needed}
        types = ((schema.field(name).type, file_schema.field(name).type) for name in needed if name not in known)
        # Whether the file's statistics mean the same in the resolved types.
        comparable = ordered and all(holds(plain_type(kind), plain_type(file_kind)) for kind, file_kind in types)
        if not comparable or len(nan_facts) > _MOST_NAN_COLUMNS:
            return frozenset(range(footer.metadata.num_row_groups))
        buffer = pa.py_buffer(footer.file)
        facts = [_equals(pc.field(name), value, schema.field(name).type) for name, value in known.items()]
        kept = (_subset(buffer, expression, schema, [*facts, *case]) for case in nan_cases)
        return frozenset().union(*kept)

    return keep


def _has_extension(kind: pa.DataType) -> bool:
    """Whether there is an extension type in it: pyarrow fails over the statistics of one, whatever is asked."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(i).type) for i in range(kind.num_fields))


def _equals(field: pc.Expression, value: Any, kind: pa.DataType) -> pc.Expression:
    return field.is_null() if value is None else field == pa.scalar(value, plain_type(kind))


def _subset(buffer: pa.Buffer, expression: pc.Expression, schema: pa.Schema, facts: list[pc.Expression]) -> set[int]:
    """Numbers of the row groups that `facts` and the statistics in the footer leave in question."""
    certain = reduce(operator.and_, facts, pc.scalar(True))
    fragment = ds.ParquetFileFormat().make_fragment(buffer, partition_expression=certain)
    try:
        return {group.id for group in fragment.subset(expression, schema=schema).row_groups}
    except pa.ArrowNotImplementedError:  # such as text in `isin` of dates, which Arrow casts only where it reads
        return set(range(fragment.num_row_groups))


def _matching_nans(expression: pc.Expression, schema: pa.Schema, needed: tuple[str, ...]) -> list[pc.Expression]:
    """One fact "is NaN" per float column for which a row that has a NaN there can match."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"": [0]}), sink, write_statistics=False)  # a file without statistics
    facts = (fact for name in needed for fact in _nan_facts((name,), schema.field(name).type))
    return [fact for fact in facts if _subset(sink.getvalue(), expression, schema, [fact])]


def _choices(facts: list[pc.Expression]) -> list[list[pc.Expression]]:
    """All sublists: which of the columns are NaN at once."""
    if len(facts) > _MOST_NAN_COLUMNS:
        return []
    return [list(compress(facts, taken)) for taken in product((False, True), repeat=len(facts))]


def _nan_facts(path: tuple[str, ...], kind: pa.DataType) -> Iterator[pc.Expression]:
    """One fact "is NaN" per float in a column or its structs."""
    if pt.is_floating(kind):
        yield pc.field(*path) == pa.scalar(math.nan, kind)
    elif pt.is_struct(kind):
        for field in kind:
            yield from _nan_facts((*path, field.name), field.type)
