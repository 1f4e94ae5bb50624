"""Which row groups of a Parquet file can contain a matching row, judged by the footer alone; reads nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import compress, product
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan, may_see_signs
from torch_dataloader_utils.filters.facts import is_nan, is_value
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.late_imports import ds, pc
from torch_dataloader_utils.schemas.merge import holds, plain_type

# (footer, the file's schema, constants) -> numbers of the row groups to read
Keep = Callable[[Footer, pa.Schema, Mapping[str, Any]], frozenset[int]]

_Leaf: TypeAlias = tuple[tuple[str, ...], pa.DataType]  # the path and the type of a column

# For n columns whose NaNs can match the filter, the statistics are evaluated 2 ** n times.
_MOST_NAN_COLUMNS = 4
# The same for columns of zeros with either sign.
_MOST_ZERO_COLUMNS = 2
_ZEROS = (0.0, -0.0)
_HALF_ZEROS = (b"\x00\x00", b"\x00\x80")  # of float16, whose statistics are bytes


def row_group_pruner(expression: pc.Expression, schema: pa.Schema) -> Keep:
    """A function that finds the row groups that can contain a matching row (it may return too many, never too few).

    Columns that a file lacks are null in it. Statistics do not cover NaNs, which match `!=` and "not" of a comparison.
    So a row group is kept if the statistics allow a match, or if a NaN in any column where one can match would.
    For a column of zeros, statistics do not say which signs they have, and pyarrow takes them all for -0.0: where the
    sign can matter, a row group is also kept if a zero of either sign would match.

    Args:
        expression: a filter that fits `schema`.
        schema: the schema merged from all files.
    """
    needed = filter_columns(expression, schema)
    ordered = not may_name_nan(expression) and not any(_has_extension(schema.field(name).type) for name in needed)
    nan_facts = _matching_nans(expression, schema, needed) if ordered else []
    nan_cases = _choices(nan_facts)
    floats = tuple(leaf for name in needed for leaf in _float_leaves((name,), schema.field(name).type))
    signed = floats if ordered and may_see_signs(expression) else ()

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
        facts = [is_value(pc.field(name), value, plain_type(schema.field(name).type)) for name, value in known.items()]

        def matched(cases: Iterable[list[pc.Expression]]) -> frozenset[int]:
            return frozenset().union(*(_subset(buffer, expression, schema, [*facts, *case]) for case in cases))

        kept = matched(nan_cases)
        for zeros, groups in _groups_of_zeros(footer.metadata, signed).items():
            signs = product(*(_zero_facts(*leaf) for leaf in zeros))
            cases = ([*case, *sign] for case, sign in product(nan_cases, signs))
            kept |= groups & matched(cases) if len(zeros) <= _MOST_ZERO_COLUMNS else groups
        return kept

    return keep


def _has_extension(kind: pa.DataType) -> bool:
    """Whether the type contains an extension type, whose statistics make pyarrow fail for any expression."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(i).type) for i in range(kind.num_fields))


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
    leaves = (leaf for name in needed for leaf in _float_leaves((name,), schema.field(name).type))
    facts = (is_nan(path, kind) for path, kind in leaves)
    return [fact for fact in facts if _subset(sink.getvalue(), expression, schema, [fact])]


def _choices(facts: list[pc.Expression]) -> list[list[pc.Expression]]:
    """All combinations of columns that are NaN at the same time."""
    if len(facts) > _MOST_NAN_COLUMNS:
        return []
    return [list(compress(facts, taken)) for taken in product((False, True), repeat=len(facts))]


def _groups_of_zeros(metadata: pq.FileMetaData, leaves: Sequence[_Leaf]) -> dict[tuple[_Leaf, ...], set[int]]:
    """Columns of which all values are zeros, by the statistics -> the numbers of the row groups where these are."""
    found: dict[tuple[_Leaf, ...], set[int]] = {}
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns if leaves else 0)]
    # By name, too: a column may be called "x.y".
    numbers = {(column.path, column.name): number for number, column in enumerate(columns)}
    places = ((leaf, numbers.get((".".join(leaf[0]), leaf[0][-1]))) for leaf in leaves)
    stored = [(leaf, number) for leaf, number in places if number is not None]
    for group in range(metadata.num_row_groups if stored else 0):
        chunks = metadata.row_group(group)
        zeros = tuple(leaf for leaf, number in stored if _is_zero(chunks.column(number).statistics))
        if zeros:
            found.setdefault(zeros, set()).add(group)
    return found


def _is_zero(statistics: pq.Statistics | None) -> bool:
    """Whether the minimum and the maximum are zeros."""
    if statistics is None or not statistics.has_min_max:
        return False
    return all(end in _ZEROS or end in _HALF_ZEROS for end in (statistics.min, statistics.max))


def _zero_facts(path: tuple[str, ...], kind: pa.DataType) -> tuple[pc.Expression, pc.Expression]:
    """The facts "is 0.0" and "is -0.0"."""
    positive, negative = (pc.field(*path) == pa.scalar(zero, kind) for zero in _ZEROS)
    return positive, negative


def _float_leaves(path: tuple[str, ...], kind: pa.DataType) -> Iterator[_Leaf]:
    """The path and type of each float field in a column or its structs."""
    if pt.is_floating(kind):
        yield path, kind
    elif pt.is_struct(kind):
        for field in kind:
            yield from _float_leaves((*path, field.name), field.type)
