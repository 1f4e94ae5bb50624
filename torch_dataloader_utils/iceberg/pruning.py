"""Which manifests and files can contain matching rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    In,
    LessThanOrEqual,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import (
    InclusiveProjection,
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TimeTransform
from pyiceberg.typedef import Record

from torch_dataloader_utils.filters.sql import TableFilter


class Pruning:
    """Finds manifests and files that can match, by partition values and column bounds."""

    def __init__(self, filters: Sequence[TableFilter], schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        expression: BooleanExpression = reduce(And, (item.files for item in filters), AlwaysTrue())
        self._everything = isinstance(expression, AlwaysTrue)
        self._expression = expression
        self._tests = [item.can_hold for item in filters if item.can_hold is not None]
        self._schema = schema
        self._specs = specs
        self._metrics = _InclusiveMetricsEvaluator(schema, expression)
        self._manifest_test = lru_cache(maxsize=None)(self._test_of_manifests)
        self._partition_test = lru_cache(maxsize=None)(self._test_of_partitions)

    def manifest(self, listed: ManifestFile) -> bool:
        """Whether a manifest can list files that contain or delete matching rows."""
        return self._everything or self._manifest_test(listed.partition_spec_id)(listed)

    def file(self, listed: DataFile, spec_id: int) -> bool:
        """Whether a data file can contain matching rows."""
        if not all(can_hold(listed, self._specs[spec_id]) for can_hold in self._tests):
            return False
        if self._everything:
            return True
        if not self._partition_test(spec_id)(listed.partition):
            return False
        if not listed.record_count:  # pyiceberg would believe that there is nothing to match
            return True
        try:
            return bool(self._metrics.eval(listed))
        except struct.error:  # bounds have the width of the type that the column was promoted from
            return True

    def _projected(self, spec_id: int) -> BooleanExpression:
        return _Projection(self._schema, self._specs[spec_id], True).project(self._expression)

    def _test_of_manifests(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        test: Callable[[ManifestFile], bool] = manifest_evaluator(
            self._specs[spec_id], self._schema, self._projected(spec_id)
        )
        return test

    def _test_of_partitions(self, spec_id: int) -> Callable[[Record], bool]:
        partition = Schema(*self._specs[spec_id].partition_type(self._schema).fields)
        test: Callable[[Record], bool] = expression_evaluator(partition, self._projected(spec_id), True)
        return test


class _Projection(InclusiveProjection):  # type: ignore[misc]
    """pyiceberg's projection from rows to partitions; also allows for old writers' rounding of times before 1970."""

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        """An expression that is true for partitions that can contain rows for which the predicate is true."""
        result: BooleanExpression = AlwaysTrue()
        for part in self.spec.fields_by_source_id(predicate.term.ref().field.field_id):
            projected = part.transform.project(part.name, predicate)
            if projected is not None and isinstance(part.transform, TimeTransform):
                projected = _rounded_up(projected)
            result = result if projected is None else And(result, projected)
        return result


def _rounded_up(projected: UnboundPredicate) -> UnboundPredicate:
    """The same predicate, allowing years, months, days or hours before 1970 to be correct or too large by one.

    Iceberg's Java library, which wrote such values up to version 0.10, does the same
    (`ProjectionUtil.fixInclusiveTimeProjection`).
    """
    match projected:
        case LessThanOrEqual() if projected.literal.value < 0:
            return LessThanOrEqual(projected.term, projected.literal.value + 1)
        case EqualTo():
            values = {projected.literal.value}
        case In():
            values = {literal.value for literal in projected.literals}
        case _:
            return projected
    return In(projected.term, values | {value + 1 for value in values if value < 0})
