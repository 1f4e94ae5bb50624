"""Reads columns of codes, and those of which a transform takes dictionaries, as Parquet stores them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.transforms import declared
from torch_dataloader_utils.schemas.dictionaries import as_dictionaries


def read_encoded(spec: ScanSpec, most: int | None) -> ScanSpec:
    """The scan that reads columns of codes as dictionaries, where that is faster and nothing else uses them.

    If rows are transformed, it reads those that the transform takes as dictionaries so.

    Args:
        spec: the scan.
        most: the largest vocabulary for which to do so; None for no limit.
    """
    first = declared(spec.transform)
    if spec.transform is not None:
        sizes = dict.fromkeys([] if first is None else first.encoded, 0)
    elif spec.arrow:
        return spec
    else:
        sizes = {leaf.key: len(leaf.vocabulary or ()) for leaf in spec.converter.codes.values()}
    types = {
        item.name: made
        for item in spec.schema
        # Fields of structs have other names; a filter would not know the dictionary type.
        if item.name in sizes
        and (most is None or sizes[item.name] <= most)
        and (made := as_dictionaries(item.type)) is not None
        and item.name not in spec.predicate_columns
        and item.name not in spec.partition_names
    }

    if not types:
        return spec

    def typed(schema: pa.Schema) -> pa.Schema:
        return pa.schema([item.with_type(types.get(item.name, item.type)) for item in schema])

    return replace(
        spec,
        schema=typed(spec.schema),
        given=typed(spec.given),
        converter=spec.converter if spec.transform is not None else spec.converter.encoded(types),
        encoded=frozenset(types),
    )
